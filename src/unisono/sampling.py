"""From a pooled distribution to one choice: the likeliest, or one that is drawn.

The order is that of most samplers: penalties and biases, temperature, top-k, top-p, min-p, draw. All of it works on the
pooled distribution, so on bytes top-p, say, cuts among the next bytes and not among tokens. Penalties and biases speak
of tokens: on pieces they change the pooled distribution, on bytes each member's own tokens before it votes (`Tilt`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from unisono.arrays import FloatArray, IntArray, Probs


def greedy(pooled: Probs) -> int:
    """The likeliest choice, ties to the lowest id.

    >>> import numpy as np
    >>> greedy(np.array([0.25, 0.375, 0.375]))
    1
    """
    return int(pooled.argmax())


def shaped(
    probs: Probs, temperature: float = 1.0, top_k: int | None = None, top_p: float = 1.0, min_p: float = 0.0
) -> Probs:
    """float64[n]: the distribution that is drawn from; sums to 1. The temperature is above 0.

    Temperature T is p^(1/T); top-k keeps the k likeliest; top-p the fewest that reach p together (Holtzman et al.,
    arXiv 1904.09751); min-p what has at least that share of the best's probability (Nguyen et al., arXiv 2407.01082).
    Of equals, the lower ids stay.

    >>> shaped(np.array([0.5, 0.3, 0.2]), top_k=2).round(3).tolist()
    [0.625, 0.375, 0.0]
    """
    out: Probs = probs.astype(np.float64)
    if temperature != 1:
        with np.errstate(divide="ignore"):
            logs = np.log(out)
        out = np.exp((logs - logs.max()) / temperature)
    out /= out.sum()
    if top_k is not None and top_k < len(out):
        out[_after(out, top_k)] = 0
        out /= out.sum()
    if top_p < 1:
        order = np.argsort(-out, kind="stable")
        reached = np.cumsum(out[order])
        n = int(np.searchsorted(reached, top_p * (1 - 1e-12))) + 1
        out[order[n:]] = 0
        out /= out.sum()
    if min_p > 0:
        out[out < min_p * out.max()] = 0
        out /= out.sum()
    return out


def _after(probs: Probs, n: int) -> IntArray:
    """All but the n likeliest, ties to the lower ids."""
    order: IntArray = np.argsort(-probs, kind="stable")[n:]
    return order


def drawn(probs: Probs, u: float) -> int:
    """The choice at u in [0, 1) of the cumulative distribution.

    >>> [drawn(np.array([0.25, 0.0, 0.75]), u) for u in (0.0, 0.24, 0.25, 0.99)]
    [0, 0, 2, 2]
    """
    reached = np.cumsum(probs)
    k = int(np.searchsorted(reached, u * reached[-1], side="right"))
    return min(k, int(np.flatnonzero(probs)[-1]))


@dataclass(frozen=True)
class Tilt:
    """What is to be likelier or less likely than the members think.

    An added log is a factor on the probability. A token that has been written n times gets
    -(presence_penalty + n · frequency_penalty), as OpenAI's interface has it, and its log-probability is multiplied by
    repetition_penalty (in the manner of CTRL, arXiv 1909.05858, which divides logits: log-probabilities are what a
    pooled distribution has). Only what has been written counts, not the prompt.
    """

    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    biases: Mapping[bytes, float]
    """Added to the log-probability of the token with this piece."""

    @property
    def penalises(self) -> bool:
        """Whether it depends on what has been written."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)

    def tilted(self, probs: FloatArray, counts: Mapping[int, int], biased: Mapping[int, float]) -> FloatArray:
        """float64[n]: probabilities after penalties for those written so often, and biases; not made to sum to 1."""
        out: FloatArray = probs.astype(np.float64)
        changed = sorted({*counts, *biased})
        if changed:
            new = self.logs(out[changed], changed, counts, biased)
            out[changed] = 0
            by = scaled_by(new, float(out.max()))
            out *= math.exp(min(-by, MOST_LOG))
            out[changed] = np.exp(new - by)
        return out

    def logs(
        self, probs: FloatArray, choices: Sequence[int], counts: Mapping[int, int], biased: Mapping[int, float]
    ) -> FloatArray:
        """float64[n]: of these choices, with these probabilities, the logs after penalties and biases."""
        with np.errstate(divide="ignore"):
            out: FloatArray = np.log(probs.astype(np.float64))
        for k, choice in enumerate(choices):
            if self.penalises and (n := counts.get(choice, 0)):
                out[k] = out[k] * self.repetition_penalty - self.presence_penalty - n * self.frequency_penalty
            out[k] += biased.get(choice, 0.0)
        return out


MOST_LOG = 700.0
"""Above, e to the power of it is no number."""


def scaled_by(changed: FloatArray, others: float) -> float:
    """What to take off all logs so that the largest of the changed ones and of the other probabilities is neither too
    large nor too small for a number; 0 where nothing is in danger.

    >>> scaled_by(np.array([-1.0, 90.0]), 0.5), scaled_by(np.array([-1.0]), 0.5), scaled_by(np.array([-90.0]), 0.0)
    (90.0, 0.0, -90.0)
    """
    top = max(float(changed.max()), math.log(others) if others > 0 else -math.inf)
    return top if math.isfinite(top) and not -20 < top <= 0 else 0.0
