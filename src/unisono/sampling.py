"""From a pooled distribution to one choice."""

from __future__ import annotations

from unisono.arrays import LogProbs


def greedy(pooled: LogProbs) -> int:
    """The likeliest choice, ties to the lowest id.

    >>> import numpy as np
    >>> greedy(np.log([0.25, 0.375, 0.375]))
    1
    """
    return int(pooled.argmax())
