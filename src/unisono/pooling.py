"""Rules that pool the members' votes into one distribution: arrays in, an array out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from unisono.arrays import Probs, Votes, Weights
from unisono.errors import NoCommonChoice

Rule: TypeAlias = Callable[[Votes, Weights], Probs]
"""Distributions [n_members, n_choices] and weights [n_members] to one distribution [n_choices]."""

PLAUSIBILITY = 0.1
"""In contrastive, the share of the experts' best choice below which they find a choice implausible, unless the user
says otherwise; as in arXiv 2210.15097."""

FLOOR = 1e-6
"""In contrastive, the least that an amateur is taken to give a choice. A 0 may only mean that it lacks the piece, or
that its branch was dropped, and must not outweigh all else."""

CERTAIN = 0.01
"""In adaptive, what is added to each entropy, in nats; a vote of 0.999 for one choice has about as much."""


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
    return _normalised(pooled, "No choice has a probability with every member; the linear rule has no such veto.")


def contrastive(votes: Votes, weights: Weights, plausibility: float = PLAUSIBILITY) -> Probs:
    """What the experts like and the amateurs do not: positive weights are experts', negative ones amateurs'.

    log q = Σ w_i · log p_i, made to sum to 1 again, with the weights as given; an amateur's p_i is FLOOR at least.
    What is not plausible is masked: where the experts' weighted mean is below `plausibility` times the largest that it
    is for a choice which no expert vetoes. 0 masks nothing.

    Contrastive decoding (V_head and CD-score in Li et al., arXiv 2210.15097): weights 1 and -1. Proxy tuning (Liu et
    al., arXiv 2401.08565): weights 1 for the base, 1 for the expert and -1 for the anti-expert, plausibility 0.
    DExperts (Liu et al., arXiv 2105.03023): weights 1, a and -a.

    Raises:
        NoCommonChoice: every choice is vetoed by some expert.

    >>> contrastive(np.array([[0.5, 0.4, 0.1], [0.5, 0.1, 0.4]]), np.array([1.0, -1.0]), 0.5).round(3).tolist()
    [0.2, 0.8, 0.0]
    """
    experts = weights > 0
    with np.errstate(divide="ignore"):
        pooled = _weighted_sum(np.log(np.where(experts[:, None], votes, np.maximum(votes, FLOOR))), weights)
    if plausibility > 0:
        liked = _weighted_sum(votes[experts], weights[experts] / weights[experts].sum())
        pooled[liked < plausibility * liked.max(where=pooled > -np.inf, initial=0)] = -np.inf
    return _normalised(pooled, "No choice has a probability with every expert; the linear rule has no such veto.")


def adaptive(votes: Votes, weights: Weights) -> Probs:
    """Weighted mean of the probabilities, in which at each step the members count the more the surer they are.

    q = Σ v_i · p_i with v_i ∝ w_i / (H_i + CERTAIN), where H_i is the entropy of p_i in nats. In the manner of adaptive
    contrastive decoding (Kim et al., arXiv 2408.01084), whose α = H_1 / (H_1 + H_2) is the share of the second of two
    votes, and so inverse to its entropy; there logits are mixed, here probabilities.

    >>> adaptive(np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([0.5, 0.5])).round(3).tolist()
    [0.993, 0.007]
    """
    logs = np.log(votes, where=votes > 0, out=np.zeros_like(votes))
    entropies = -(votes * logs).sum(axis=1, dtype=np.float64)
    shares = weights / (np.maximum(entropies, 0) + CERTAIN)
    shares[~votes.any(axis=1)] = 0  # who has no say in a step is not sure of anything
    if not shares.any():
        raise NoCommonChoice("No choice has a probability with any member.")
    return _weighted_sum(votes, shares / shares.sum())


def unite(votes: Votes, weights: Weights) -> Probs:
    """Weighted mean over a few choices, each member's vote made to sum to 1 over these first.

    UniTE (Yao et al., arXiv 2410.03777): the choices are the union of the members' top k, and for a piece that a member
    lacks it gives the probability of the first token of its own spelling. Which those are, the unit of voting knows
    (voting/pieces.py); so a vote need not sum to 1 here.

    >>> unite(np.array([[0.5, 0.25], [0.1, 0.3]]), np.array([0.5, 0.5])).round(3).tolist()
    [0.458, 0.542]
    """
    totals = votes.sum(axis=1, keepdims=True)
    if not totals.any():
        raise NoCommonChoice("No choice has a probability with any member.")
    totals[totals == 0] = 1
    out = _weighted_sum(votes / totals, weights)
    out /= out.sum()
    return out


def _normalised(logs: Probs, trouble: str) -> Probs:
    """Log-probabilities up to a constant, as probabilities. Raises NoCommonChoice where all are -inf."""
    top = logs.max()
    if top == -np.inf:
        raise NoCommonChoice(trouble)
    out: Probs = np.exp(logs - top)
    out /= out.sum()
    return out


def _weighted_sum(rows: Votes, weights: Weights) -> Probs:
    """Σ w_i · row_i, on one core: numpy's matrix product would wake the threads of BLAS beside those of the models."""
    first, *others = weights.astype(rows.dtype)
    out: Probs = rows[0] * first
    part = np.empty(min(PORTION, len(out)), dtype=rows.dtype)
    for row, weight in zip(rows[1:], others, strict=True):
        for k in range(0, len(out), PORTION):
            of = out[k : k + PORTION]
            of += np.multiply(row[k : k + PORTION], weight, out=part[: len(of)])
    return out


PORTION = 1 << 15
"""How much is added at once: what stays in the processor's cache."""

RULES: dict[str, Rule] = {
    "linear": linear,
    "log-linear": log_linear,
    "contrastive": contrastive,
    "adaptive": adaptive,
    "unite": unite,
}
"""Those of ours; a plugin's are found by `registry.find_rule`."""
