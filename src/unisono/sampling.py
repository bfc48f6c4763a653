"""From a pooled distribution to one choice."""

from __future__ import annotations

from unisono.arrays import Probs


def greedy(pooled: Probs) -> int:
    """The likeliest choice, ties to the lowest id.

    >>> import numpy as np
    >>> greedy(np.array([0.25, 0.375, 0.375]))
    1
    """
    return int(pooled.argmax())
