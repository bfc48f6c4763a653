"""What is derived from a model's tables, kept on disk under a hash of them: sorted vocabularies and unions.

A file that is missing, damaged or of another version is made again; a folder that cannot be written is done without.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

Tables = dict[str, npt.NDArray[Any]]

File = IO[bytes]

FORMAT = 2
"""Part of every name; raised when what is stored changes."""

COUNT = "n_tables"
"""Under this name a file says how many tables it holds."""

log = logging.getLogger(__name__)


def folder() -> Path:
    """Where the cache lies: $UNISONO_CACHE, or `unisono` in the user's own cache folder."""
    if chosen := os.environ.get("UNISONO_CACHE"):
        return Path(chosen)
    if local := os.environ.get("LOCALAPPDATA"):
        return Path(local) / "unisono" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unisono"


def remembered(kind: str, key: str, make: Callable[[], Tables]) -> Tables:
    """The tables under this name, from the disk or else made and put there."""
    path = folder() / f"{kind}-{FORMAT}-{key[:32]}.npz"
    try:
        # numpy leaves a file open that it opened itself and found damaged
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            kept = dict(stored)
        if int(kept.pop(COUNT)) != len(kept):  # a damaged directory of a zip file may leave some out
            raise ValueError("tables are missing")
        return kept
    except FileNotFoundError:
        pass
    except Exception as exc:  # a damaged zip file may fail in any way
        log.info("made again, as it cannot be read: %s (%s)", path, exc)
    tables = make()
    try:
        sweep(path.parent, f"{kind}-")
        write_whole(path, lambda file: np.savez(file, **tables, **{COUNT: np.array(len(tables))}))  # type: ignore[arg-type]
    except OSError as exc:
        log.info("not cached: %s (%s)", path, exc)
    return tables


def write_whole(path: Path, write: Callable[[File], None]) -> None:
    """Write a file so that others see all of it or nothing. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beginning = path.name[:40]  # whatever stands behind it must not make the name too long
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=beginning, suffix=".part", delete=False) as file:
        try:
            write(file)
            file.flush()
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


OLD_S = 24 * 3600.0
"""After so long nobody is writing a file any more."""


def sweep(folder: Path, beginning: str) -> None:
    """Remove what a process that was killed has left half-written there under names that begin so."""
    for left in folder.glob(f"{glob.escape(beginning)}*.part"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > OLD_S:
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink()


def checksum(*files: Path) -> str:
    """The SHA-256 of what the files hold, one after the other, in hex. Raises OSError."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
