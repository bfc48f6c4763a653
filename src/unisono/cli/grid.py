"""What mixtures of members would have scored, from the probabilities that each gave to every byte of a text.

Under the linear rule the ensemble's probability of a byte is q = Σ w_i p_i; so one pass of every member over the text
is enough for every subset of them and all weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from unisono.arrays import FloatArray
from unisono.errors import ConfigError

MOST_POINTS = 20_000
"""On a grid; a megabyte of text takes about 15 s for every thousand."""
CHUNK = 1 << 16
"""How many numbers are held at a time; what stays in the processor's cache is twice as fast."""


@dataclass(frozen=True)
class Mixture:
    """Some of the members together."""

    members: tuple[int, ...]
    """Which."""
    equal: float
    """Bits per byte with equal weights; inf where a byte has no probability."""
    best: float
    """Bits per byte with the best weights on the grid, all of them above 0."""
    weights: tuple[float, ...]
    """Those weights, one a member."""


class Grid:
    """All weights that are multiples of a step and sum to 1, and equal weights for every subset of the members."""

    def __init__(self, n_members: int, step: float) -> None:
        """Raises ConfigError for a step that does not divide 1, is too large for so many members, or too small."""
        self.n_parts = _n_parts(step)
        if self.n_parts < n_members:
            raise ConfigError(
                f"With --grid-step {step:g}, {n_members} members cannot all have weight:"
                f" give {1 / max(n_members, 10):.2g} or less."
            )
        n_points = math.comb(self.n_parts + n_members - 1, n_members - 1)
        if n_points > MOST_POINTS:
            raise ConfigError(
                f"--grid-step {step:g} makes {n_points:,} mixtures of {n_members} members, and {MOST_POINTS:,} is the"
                " most: give a larger step."
            )
        self.subsets = [s for n in range(1, n_members + 1) for s in combinations(range(n_members), n)]
        equal = np.zeros((len(self.subsets), n_members))
        for row, subset in zip(equal, self.subsets, strict=True):
            row[list(subset)] = 1 / len(subset)
        self._points = np.concatenate([equal, simplex(n_members, self.n_parts)])

    def sums(self, logprobs: Iterable[FloatArray]) -> FloatArray:
        """float64[n_points]: Σ ln q over the bytes under each mixture, from parts float64[n_members, n] of them. Those
        of two texts may be added."""
        total = np.zeros(len(self._points))
        width = max(1, CHUNK // len(self._points))
        with np.errstate(divide="ignore"):
            for part in logprobs:
                probabilities = np.exp(part)
                for at in range(0, part.shape[1], width):
                    pooled = self._points @ probabilities[:, at : at + width]
                    total += np.log(pooled, out=pooled).sum(axis=1)
        return total

    def mixtures(self, sums: FloatArray, n_bytes: int) -> list[Mixture]:
        """One a subset: single members, pairs, and so on."""
        bits = -sums / (n_bytes * math.log(2)) if n_bytes else np.full(len(sums), math.nan)
        n_equal = len(self.subsets)
        on_grid, grid_bits = self._points[n_equal:], bits[n_equal:]
        out = []
        for number, subset in enumerate(self.subsets):
            inside = np.zeros(on_grid.shape[1], dtype=bool)
            inside[list(subset)] = True
            own = np.flatnonzero(((on_grid > 0) == inside).all(axis=1))
            best = own[grid_bits[own].argmin()]
            weights = tuple(round(float(on_grid[best, member]), 9) for member in subset)
            out.append(Mixture(subset, float(bits[number]), float(grid_bits[best]), weights))
        return out


def simplex(n_members: int, n_parts: int) -> FloatArray:
    """float64[n_points, n_members]: every way to share out so many equal parts of 1.

    >>> simplex(2, 2).tolist()
    [[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]]
    """
    places = list(combinations(range(n_parts + n_members - 1), n_members - 1))
    bars = np.array(places, dtype=np.int64).reshape(len(places), n_members - 1)
    last = np.full((len(bars), 1), n_parts + n_members - 1)
    edges = np.concatenate([np.full_like(last, -1), bars, last], axis=1)
    out: FloatArray = (np.diff(edges, axis=1) - 1) / n_parts
    return out


def best_of(mixtures: Sequence[Mixture]) -> Mixture:
    """The one with the fewest bits, the smaller of two alike."""
    return min(mixtures, key=lambda mixture: mixture.best)


def _n_parts(step: float) -> int:
    n = round(1 / step) if 0 < step <= 1 else 0
    if n < 1 or not math.isclose(n * step, 1, rel_tol=1e-6):
        raise ConfigError(f"--grid-step {step:g} does not divide 1: give 0.1, 0.05 or 0.25, say.")
    return n
