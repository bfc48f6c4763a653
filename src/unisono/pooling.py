"""Rules that pool the members' votes into one distribution: arrays in, an array out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from unisono.arrays import LogProbs, Votes, Weights
from unisono.errors import NoCommonChoice

Rule: TypeAlias = Callable[[Votes, Weights], LogProbs]
"""Log-probabilities [n_members, n_choices] and weights [n_members] to log-probabilities [n_choices]."""


def linear(votes: Votes, weights: Weights) -> LogProbs:
    """Weighted mean of the probabilities: one member in favour keeps a choice alive.

    GaC, arXiv 2406.12585, equation 3: q = Σ w_i · p_i.

    >>> np.exp(linear(np.log([[0.5, 0.5], [0.9, 0.1]]), np.array([0.5, 0.5]))).round(3).tolist()
    [0.7, 0.3]
    """
    pooled = np.zeros(votes.shape[1], dtype=votes.dtype)
    for vote, weight in zip(votes, weights.tolist(), strict=True):
        pooled += np.exp(vote + votes.dtype.type(np.log(weight)))
    with np.errstate(divide="ignore"):
        out: LogProbs = np.log(pooled)
    return out


def log_linear(votes: Votes, weights: Weights) -> LogProbs:
    """Weighted mean of the log-probabilities, made to sum to 1 again: one member at -inf is a veto.

    Raises:
        NoCommonChoice: every choice is vetoed by some member.

    >>> np.exp(log_linear(np.log([[0.5, 0.5], [0.9, 0.1]]), np.array([0.5, 0.5]))).round(3).tolist()
    [0.75, 0.25]
    """
    pooled: LogProbs = weights.astype(votes.dtype) @ votes
    if np.isneginf(pooled).all():
        raise NoCommonChoice("No choice has a probability with every member; the linear rule has no such veto.")
    top = pooled.max()
    out: LogProbs = pooled - (top + np.log(np.exp(pooled - top).sum()))
    return out


RULES: dict[str, Rule] = {"linear": linear, "log-linear": log_linear}
