"""Files that a command reads and files that it writes: no file may be both."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
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


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other) and one.is_file()  # a terminal or /dev/null may well be both
    except OSError:  # one is not there yet
        return os.path.realpath(one) == os.path.realpath(other)
    except ValueError:  # one cannot be a path
        return False
