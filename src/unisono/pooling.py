"""Rules that pool the members' votes into one distribution: arrays in, an array out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from unisono.arrays import Probs, Votes, Weights
from unisono.errors import NoCommonChoice

Rule: TypeAlias = Callable[[Votes, Weights], Probs]
"""Distributions [n_members, n_choices] and weights [n_members] to one distribution [n_choices]."""


def linear(votes: Votes, weights: Weights) -> Probs:
    """Weighted mean of the probabilities: one member in favour keeps a choice alive.

    GaC, arXiv 2406.12585, section 3.2: q = Σ w_i · p_i · M_i.

    >>> linear(np.array([[0.5, 0.5], [0.9, 0.1]]), np.array([0.5, 0.5])).round(3).tolist()
    [0.7, 0.3]
    """
    return _weighted_sum(votes, weights)


def log_linear(votes: Votes, weights: Weights) -> Probs:
    """Weighted geometric mean, made to sum to 1 again: one member at 0 is a veto.

    Raises:
        NoCommonChoice: every choice is vetoed by some member.

    >>> log_linear(np.array([[0.5, 0.5], [0.9, 0.1]]), np.array([0.5, 0.5])).round(3).tolist()
    [0.75, 0.25]
    """
    with np.errstate(divide="ignore"):
        pooled = _weighted_sum(np.log(votes), weights)
    top = pooled.max()
    if top == -np.inf:
        raise NoCommonChoice("No choice has a probability with every member; the linear rule has no such veto.")
    out: Probs = np.exp(pooled - top)
    out /= out.sum()
    return out


def _weighted_sum(rows: Votes, weights: Weights) -> Probs:
    """Σ w_i · row_i, on one core: numpy's matrix product would wake the threads of BLAS beside those of the models."""
    first, *others = weights.astype(rows.dtype)
    out: Probs = rows[0] * first
    part = np.empty(PORTION, dtype=rows.dtype)
    for row, weight in zip(rows[1:], others, strict=True):
        for k in range(0, len(out), PORTION):
            of = out[k : k + PORTION]
            of += np.multiply(row[k : k + PORTION], weight, out=part[: len(of)])
    return out


PORTION = 1 << 15
"""How much is added at once: what stays in the processor's cache."""

RULES: dict[str, Rule] = {"linear": linear, "log-linear": log_linear}
