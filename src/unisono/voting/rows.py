"""A member's logits as masses in the order of its sorted pieces, where everything that starts with a prefix stands
side by side."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from unisono.arrays import FloatArray, IntArray
from unisono.sampling import Tilt
from unisono.vocabulary import Vocabulary

PORTION = 1 << 15
"""How many probabilities are worked on at once."""


class Row(NamedTuple):
    """A member's next token, up to a common factor."""

    masses: FloatArray
    """float[n_text]: in the order of the sorted pieces, in the dtype of the logits."""
    end: float
    """The mass of all ends."""
    total: float
    """The sum of both; a mass divided by it is a probability."""


class SortedRow:
    """Turns a row of logits into probabilities in the order of the sorted pieces."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._order = vocabulary.order.astype(np.int64)  # numpy takes by int64 fastest
        self._ends = vocabulary.ends
        used = np.concatenate([self._order, self._ends])
        self._others = np.setdiff1d(np.arange(vocabulary.n_ids), used)

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
        """The row after penalties for the ids written so often, and biases.

        Raises:
            FloatingPointError: nothing is left.
        """
        counts = {int(self._place[i]): n for i, n in written.items() if self._place[i] >= 0}
        changed = sorted({*counts, *biased})
        masses = row.masses.copy()
        probs = masses[changed].astype(np.float64) / row.total
        at = {place: k for k, place in enumerate(changed)}
        new = row.total * tilt.tilted(
            probs, {at[place]: n for place, n in counts.items()}, {at[place]: b for place, b in biased.items()}
        )
        masses[changed] = new
        total = row.total + float((masses[changed].astype(np.float64) - row.masses[changed]).sum())
        if not 0 < total < np.inf:
            raise FloatingPointError("penalties have left nothing")
        return Row(masses, row.end, total)

    def _exp(self, logits: FloatArray, ends: FloatArray, top: float | np.floating[Any]) -> Row:
        masses: FloatArray = np.empty(len(self._order), dtype=logits.dtype)
        logits.take(self._order, out=masses, mode="clip")  # in this mode straight into `out`
        total = 0.0
        with np.errstate(over="ignore"):
            for at in range(0, len(masses), PORTION):  # portions stay in the processor's cache
                part = masses[at : at + PORTION]
                if top:
                    np.subtract(part, top, out=part)
                total += float(np.exp(part, out=part).sum())
            end = float(np.exp(ends - top).sum())
        total += end
        return Row(masses, end, total)
