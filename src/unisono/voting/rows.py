"""A member's logits as masses in the order of its sorted pieces, where everything that starts with a prefix stands
side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from unisono.arrays import FloatArray, IntArray
from unisono.sampling import MOST_LOG, Tilt, scaled_by
from unisono.vocabulary import Vocabulary

PORTION = 1 << 15
"""About how many probabilities are worked on at once: what stays in the processor's cache."""


class Row(NamedTuple):
    """A member's next token, up to a common factor."""

    masses: FloatArray
    """float[n_text]: in the order of the sorted pieces, in the dtype of the logits."""
    end: float
    """The mass of all ends."""
    total: float
    """The sum of both; a mass divided by it is a probability."""
    groups: FloatArray
    """float[n_groups]: the sums over pieces that begin with the same two bytes, or that are the same one byte."""


class SortedRow:
    """Turns a row of logits into probabilities in the order of the sorted pieces."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._order = vocabulary.order.astype(np.int64)  # numpy takes by int64 fastest
        self._ends = vocabulary.ends
        others = np.ones(vocabulary.n_ids, dtype=bool)
        others[self._order] = others[self._ends] = False
        self._others = np.flatnonzero(others)
        starts, self._firsts, self._seconds = _groups(vocabulary)
        self._portions = _portions(starts, len(self._order))

    def read(self, logits: FloatArray) -> Row:
        """Logits float[n_ids] as masses, control tokens left out.

        Raises:
            FloatingPointError: a logit is nan or +inf, or nothing is left.
        """
        ends = logits[self._ends]
        # Few models have logits far from 0, so that finding the top and taking it off can be spared as a rule.
        row = self._exp(logits, ends, 0.0)
        if not 1e-10 < row.total < 1e30:  # nan is not, either
            top = max(logits.take(self._order).max(initial=-np.inf), ends.max(initial=-np.inf))
            if not -np.inf < top < np.inf:
                raise FloatingPointError("no finite logits")
            row = self._exp(logits, ends, top)
        if not row.total > 0 or not logits.take(self._others).max(initial=-np.inf) < np.inf:
            raise FloatingPointError("no finite logits")
        return row

    def by_next_byte(self, row: Row, prefix: bytes) -> tuple[IntArray, FloatArray]:
        """The bytes that can follow the prefix inside a piece, int[k], and the probability of the tokens behind each of
        them, float64[k]."""
        children = self.vocabulary.children(prefix)
        if not len(children.next_bytes):
            return children.next_bytes, np.empty(0)
        if not prefix:
            sums = np.add.reduceat(row.groups, self._firsts)
        elif len(prefix) == 1:
            sums = row.groups[self._seconds[prefix]]
        else:
            sums = np.add.reduceat(row.masses[children.longer], children.starts)
        # In double precision, since weights may be beyond what single precision holds.
        return children.next_bytes, np.divide(sums, row.total, dtype=np.float64)

    @cached_property
    def _place(self) -> IntArray:
        """int64[n_ids]: where in the order an id stands; -1 for those that are no text."""
        out = np.full(self.vocabulary.n_ids, -1, dtype=np.int64)
        out[self._order] = np.arange(len(self._order))
        return out

    def places(self, biases: Mapping[bytes, float]) -> dict[int, float]:
        """The biases by where in the order the tokens stand that have these pieces."""
        known = self.vocabulary.canonical
        return {int(self._place[known[piece]]): bias for piece, bias in biases.items() if piece in known}

    def tilted(self, row: Row, tilt: Tilt, written: Mapping[int, int], biased: Mapping[int, float]) -> Row:
        """The row after penalties for the ids written so often, and biases."""
        counts = {int(self._place[i]): n for i, n in written.items() if self._place[i] >= 0}
        changed = sorted({*counts, *biased})
        if not changed:
            return row
        masses = row.masses.copy()
        new = tilt.logs(masses[changed].astype(np.float64) / row.total, changed, counts, biased)
        masses[changed] = 0
        by = scaled_by(new, max(float(masses.max()), row.end) / row.total)
        factor = math.exp(min(-by, MOST_LOG))
        if by:  # the factor alone may be beyond single precision
            masses = (masses.astype(np.float64) * factor).astype(masses.dtype)
        masses[changed] = row.total * np.exp(new - by)
        groups = np.add.reduceat(masses, np.concatenate([at + starts for at, _, _, starts in self._portions]))
        end = row.end * factor
        # Anew, and not by what has changed: of a sum that was nearly all in one mass, rounding would be what is left.
        return Row(masses, end, float(groups.sum(dtype=np.float64)) + end, groups)

    def _exp(self, logits: FloatArray, ends: FloatArray, top: float | np.floating[Any]) -> Row:
        masses: FloatArray = np.empty(len(self._order), dtype=logits.dtype)
        logits.take(self._order, out=masses, mode="clip")  # in this mode straight into `out`
        groups: FloatArray = np.empty(self._portions[-1].groups.stop if self._portions else 0, dtype=logits.dtype)
        with np.errstate(over="ignore"):
            for at, end, where, starts in self._portions:
                part = masses[at:end]
                if top:
                    np.subtract(part, top, out=part)
                np.add.reduceat(np.exp(part, out=part), starts, out=groups[where])
            of_end = float(np.exp(ends - top).sum())
            return Row(masses, of_end, float(groups.sum(dtype=np.float64)) + of_end, groups)


class Portion(NamedTuple):
    """Neighbours in the order of the sorted pieces."""

    at: int
    end: int
    groups: slice
    """Which groups they are; no group is in two portions."""
    starts: IntArray
    """int64[n]: where in the portion each of these begins."""


def _groups(vocabulary: Vocabulary) -> tuple[IntArray, IntArray, dict[bytes, slice]]:
    """Where in the order of the sorted pieces each group begins, int64[n_groups]; which group is the first with each
    first byte, int64[k]; and by first byte, the groups of two bytes."""
    pieces = vocabulary.sorted_pieces
    keys = np.fromiter((257 * p[0] + (p[1] + 1 if len(p) > 1 else 0) for p in pieces), np.int64, len(pieces))
    starts = _changes(keys)
    first, second = np.divmod(keys[starts], 257)
    firsts = _changes(first)
    seconds = {}
    for begun, ended in zip(firsts.tolist(), [*firsts[1:].tolist(), len(starts)], strict=True):
        seconds[bytes([first[begun]])] = slice(begun + int(second[begun] == 0), ended)
    return starts, firsts, seconds


def _changes(values: IntArray) -> IntArray:
    """int64[n]: where another value begins, the first included."""
    return np.flatnonzero(np.diff(values, prepend=-2))


def _portions(starts: IntArray, n: int) -> list[Portion]:
    """All of the order in portions of whole groups."""
    out = []
    begun = 0
    while begun < len(starts):
        at = int(starts[begun])
        ended = max(int(np.searchsorted(starts, at + PORTION, side="right")) - 1, begun + 1)
        if at + PORTION >= n:
            ended = len(starts)
        end = int(starts[ended]) if ended < len(starts) else n
        out.append(Portion(at, end, slice(begun, ended), starts[begun:ended] - at))
        begun = ended
    return out
