"""How long it takes to make the vocabularies and their union, measured where nothing is in memory yet."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from time import perf_counter
from typing import TYPE_CHECKING

from unisono.cli import about

if TYPE_CHECKING:
    from unisono.members.base import Member

Source = tuple[str, list[int]]
"""A GGUF file, and the ids that are its ends."""


def vocabulary_times(members: Sequence[Member]) -> dict[str, float | None]:
    """Seconds with an empty cache folder and with one that has everything, each in a process of its own; None where
    some member has no GGUF file."""
    paths = [[p for p in about.model_files(member) if p.suffix == ".gguf"] for member in members]
    sources = [(str(p[0]), m.vocabulary.ends.tolist()) for p, m in zip(paths, members, strict=True) if p]
    if len(sources) < len(members):
        return {"scratch_s": None, "cached_s": None}
    with tempfile.TemporaryDirectory() as folder:
        return {"scratch_s": _apart(sources, folder), "cached_s": _apart(sources, folder)}


def _apart(sources: Sequence[Source], folder: str) -> float:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_begin, initargs=(folder,)) as pool:
        return pool.submit(_make, sources).result()


def _begin(folder: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asked winds up, and waits for this one
    os.environ["UNISONO_CACHE"] = folder


def _make(sources: Sequence[Source]) -> float:
    """Seconds to do what opening the members does before the first vote, the files' tables apart from the models."""
    from pathlib import Path

    from unisono.gguf import remembered_vocabulary
    from unisono.union import UnionVocabulary

    begun = perf_counter()
    vocabularies = []
    for path, ends in sources:
        vocabulary = remembered_vocabulary(Path(path))
        vocabularies.append(vocabulary if vocabulary.ends.tolist() == ends else vocabulary.with_ends(ends))
    UnionVocabulary.remembered(vocabularies)
    return perf_counter() - begun
