"""Names for the arrays that go between the parts, each with its shape and unit.

Votes are probabilities, so that pooling is the plain sum of the paper; logs appear where people and clients read them,
and are natural logs. Arrays that a function receives are left as they were.
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

Probs: TypeAlias = FloatArray
"""[n_choices]: a distribution; sums to 1."""

Votes: TypeAlias = FloatArray
"""[n_members, n_choices]: one distribution a member."""

Weights: TypeAlias = npt.NDArray[np.float64]
"""float64[n_members]: positive, sums to 1; for the rule contrastive of either sign, as the user gave them."""
