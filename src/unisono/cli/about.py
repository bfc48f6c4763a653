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

PACKAGES = ("numpy", "llama-cpp-python", "torch", "transformers")
"""What a result depends on besides ourselves and Python."""

WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth")
"""Names of the files in a folder that hold a model's weights."""


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
    """Each member's name, spec, weight, the size and checksum of its files and, from a model hub, its commit; null
    where it has none."""
    from unisono.cache import checksum

    out = []
    for member, wanted, weight in zip(ensemble.members, config.members, ensemble.weights.tolist(), strict=True):
        files = model_files(member)
        out.append(
            {
                "name": member.name,
                "model": wanted.model,
                "weight": weight,
                "file_bytes": sum(path.stat().st_size for path in files) if files else None,
                "sha256": checksum(*files) if files else None,
                "commit": getattr(member, "commit", None),
            }
        )
    return out


def model_files(member: Member) -> list[Path]:
    """The files with weights that a member was opened from, by name."""
    path = getattr(member, "path", None)
    if not isinstance(path, Path):
        return []
    if path.is_dir():
        return sorted(file for kind in WEIGHTS for file in path.glob(kind))
    return [path] if path.is_file() else []
