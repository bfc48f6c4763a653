"""Names for the arrays that go between the parts, each with its shape and unit.

Log-probabilities and logits are natural logs. Arrays that a function receives are left as they were.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = npt.NDArray[np.int64]
"""int64[n]: ids, positions, counts."""

IdArray: TypeAlias = npt.NDArray[np.int32]
"""int32[n]: token ids or union ids; -1 is "none"."""

BoolArray: TypeAlias = npt.NDArray[np.bool_]
"""bool[n]."""

FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]
"""float32 or float64, of any shape."""

Logits: TypeAlias = FloatArray
"""[rows, n_ids]: what a member's forward returns, one row a position; not normalised."""

LogProbs: TypeAlias = FloatArray
"""[n_choices]: natural logs of a distribution; exp sums to 1; -inf is impossible."""

Votes: TypeAlias = FloatArray
"""[n_members, n_choices]: one row of log-probabilities a member."""

Weights: TypeAlias = npt.NDArray[np.float64]
"""float64[n_members]: positive, sums to 1."""


def log_sum_exp(values: FloatArray) -> float:
    """The log of the sum of exps of float[n]; -inf where all are.

    >>> round(log_sum_exp(np.log([0.25, 0.5])), 6) == round(float(np.log(0.75)), 6)
    True
    """
    top = values.max(initial=-np.inf)
    if not np.isfinite(top):
        return float(top)
    return float(top) + float(np.log(np.exp(values - top).sum(dtype=np.float64)))
