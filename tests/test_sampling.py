from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unisono.sampling import greedy


@given(st.lists(st.sampled_from([-1.0, -2.0, -np.inf]), min_size=1))
def test_greedy_takes_the_likeliest_and_of_equals_the_lowest_id(pooled: list[float]) -> None:
    assert greedy(np.array(pooled)) == pooled.index(max(pooled))
