"""What made a result: versions, machine, command, and the files of the models."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unisono.config import Config
    from unisono.ensemble import Ensemble
    from unisono.members.base import Member

PACKAGES = ("numpy", "llama-cpp-python")
"""What a result depends on besides ourselves and Python."""


def versions() -> dict[str, str | None]:
    """Version by name; None for a package that is not installed."""
    from importlib import metadata  # slow to import, and --help does without

    from unisono import __version__

    out: dict[str, str | None] = {"unisono": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            out[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            out[package] = None
    return out


def machine() -> dict[str, str | int]:
    """The processor and how much of it this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cpu": _cpu(), "cores": usable or 1, "system": f"{platform.system()} {platform.machine()}"}


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def command() -> str:
    """The command line, as a shell takes it."""
    return shlex.join([Path(sys.argv[0]).name.replace("__main__.py", "unisono"), *sys.argv[1:]])


def members(ensemble: Ensemble, config: Config) -> list[dict[str, Any]]:
    """Each member's name, spec, weight, and the size and checksum of its file; null where it has none."""
    out = []
    for member, wanted, weight in zip(ensemble.members, config.members, ensemble.weights.tolist(), strict=True):
        path = model_file(member)
        out.append(
            {
                "name": member.name,
                "model": wanted.model,
                "weight": weight,
                "file_bytes": path.stat().st_size if path else None,
                "sha256": sha256(path) if path else None,
            }
        )
    return out


def model_file(member: Member) -> Path | None:
    """The file that a member was opened from, if there is one."""
    path = getattr(member, "path", None)
    return path if isinstance(path, Path) and path.is_file() else None


def sha256(path: Path) -> str:
    """The checksum of a file, in hex."""
    import hashlib

    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
