"""Files that a command reads and files that it writes: no file may be both, and those can be written that will be."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from unisono.errors import ConfigError

if TYPE_CHECKING:
    from unisono.config import Config


def check_distinct(
    outputs: Mapping[str, Path | None], inputs: Iterable[tuple[str, Path | None]], config: Config
) -> None:
    """Raise ConfigError where something would be written over what is read, or over something else that is written.

    `outputs` has the option for each file that will be written, `inputs` a noun for each that is read; what the
    members are opened from is read as well.
    """
    models = [("model", Path(member.model.removeprefix("gguf:"))) for member in config.members]
    taken = [(f"the {noun} {path}", path) for noun, path in [*inputs, *models] if path is not None]
    for option, path in outputs.items():
        if path is None:
            continue
        for what, other in taken:
            if _same(path, other):
                raise ConfigError(f"{option} {path} would be written over {what}: give {option} another file.")
        taken.append((f"that of {option}, {path}", path))


def check_writable(path: Path, refusal: Callable[[Path, OSError], ConfigError]) -> bool:
    """Raise what `refusal` makes of it if a file cannot be written there; whatever it holds stays. False for a pipe or
    device, which is not tried, since opening it would already do something."""
    try:
        existed = path.exists()
        if existed and not path.is_file() and not path.is_dir():
            return False
        with path.open("ab"):
            pass
        if not existed:
            path.unlink()
    except OSError as exc:
        raise refusal(path, exc) from exc
    return True


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other) and one.is_file()  # a terminal or /dev/null may well be both
    except OSError:  # one is not there yet
        return os.path.realpath(one) == os.path.realpath(other)
    except ValueError:  # one cannot be a path
        return False
