"""Telling whether two reads of one text gave the same distribution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import reference
from reference import log_softmax
from unisono.arrays import FloatArray
from unisono.members.base import Feed, Member

STRICT = 1e-3
"""How far apart two distributions for one text may lie, as half the sum of the differences (total variation), where the
machine's arithmetic does not depend on how many tokens share a batch. On x86 that is so for SmolLM2 and batches of less
than 64, to the last bit."""

LOOSE = 0.15
"""And where it does. Rounding decides which way a quantised activation falls, and that is enough to move a distribution
by a few hundredths: up to 0.09 was measured, with llama.cpp's own programs too. A wrong word moves it by up to 0.9."""

N_BATCH = 48
"""Tokens at once, here: from 64 on, llama.cpp computes attention in another way."""

TEXT = """The lighthouse stood on the northern cape, where the ships from Bergen turned towards the open sea.
Every evening the keeper climbed the two hundred and twelve steps, lit the lamp, and wrote the weather into a large
green book. In the winter of 1894 the storm took the jetty, the boat house and half of the garden wall; the lamp went
on burning. """


def line(member: Member, n: int, start: int = 0) -> list[int]:
    """A text of n ids, its beginning included; another `start` gives another text."""
    text = member.encode(TEXT[start:] + TEXT * (n // 64))
    assert len(text) >= n
    return [*member.vocabulary.begin, *text][:n]


def read(member: Member, context: int, at: int, ids: Sequence[int], rows: int = 1) -> FloatArray:
    """float64[rows, n_ids]: the log-probabilities of one feed."""
    [out] = member.forward([Feed(context, at, ids, rows)])
    assert out.shape == (rows, member.vocabulary.n_ids)
    return log_softmax(out)


def read_anew(member: Member, ids: Sequence[int]) -> FloatArray:
    """float64[1, n_ids]: the log-probabilities after these ids, in a context of their own."""
    return reference.read_anew(member, ids)[None]


def distance(a: FloatArray, b: FloatArray) -> float:
    """The largest total variation between two rows."""
    return float(np.abs(np.exp(a) - np.exp(b)).sum(axis=-1).max(initial=0)) / 2


def tolerance(member: Member) -> float:
    """STRICT if this member computes the same whatever shares its batch, on this machine; else LOOSE. Uses no more than
    going on in a fresh context."""
    ids = line(member, 40)
    reads = []
    for size in (40, 4, 1):
        context = member.new()
        parts = [read(member, context, at, ids[at : at + size], rows=size) for at in range(0, 40, size)]
        reads.append(np.concatenate(parts))
        member.drop(context)
    noise = max(distance(reads[0], other) for other in reads[1:])
    assert noise < LOOSE
    return STRICT if noise < STRICT / 10 else LOOSE


def assert_same(a: FloatArray, b: FloatArray, tolerance: float) -> None:
    """Close in every row, and the same favourite, unless two are so close that the tolerance covers both."""
    assert a.shape == b.shape
    assert distance(a, b) <= tolerance
    for one, other in zip(a, b, strict=True):
        second, first = np.exp(np.sort(one)[-2:])
        if first - second > 2 * tolerance:
            assert one.argmax() == other.argmax()
