from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference
from unisono.sampling import Tilt, drawn, greedy, shaped

probabilities = st.lists(st.integers(1, 1000), min_size=1, max_size=12).map(lambda n: [k / sum(n) for k in n])


@given(st.lists(st.sampled_from([-1.0, -2.0, -np.inf]), min_size=1))
def test_greedy_takes_the_likeliest_and_of_equals_the_lowest_id(pooled: list[float]) -> None:
    assert greedy(np.array(pooled)) == pooled.index(max(pooled))


@given(
    probabilities,
    st.sampled_from([0.3, 0.7, 1.0, 2.5]),
    st.sampled_from([None, 1, 2, 5, 50]),
    st.sampled_from([0.0, 0.31, 0.77, 0.953, 1.0]),
    st.sampled_from([0.0, 0.123, 0.51]),
)
def test_what_is_drawn_from_is_what_the_slow_way_finds(
    probs: list[float], temperature: float, top_k: int | None, top_p: float, min_p: float
) -> None:
    found = shaped(np.array(probs), temperature, top_k, top_p, min_p)
    assert found.sum() == pytest.approx(1)
    if not any(math.isclose(a, b) for n, a in enumerate(probs) for b in probs[:n]):  # ties are up to rounding
        expected = reference.shaped(probs, temperature, top_k, top_p, min_p)
        np.testing.assert_allclose(found, expected, atol=1e-9)


@given(probabilities, st.floats(0, 1, exclude_max=True))
def test_a_draw_is_where_the_cumulative_sum_passes(probs: list[float], u: float) -> None:
    k = drawn(np.array(probs), u)
    below = math.fsum(probs[:k])
    assert below <= u * math.fsum(probs) + 1e-12
    assert u * math.fsum(probs) <= below + probs[k] + 1e-12


def test_a_draw_never_takes_what_is_impossible() -> None:
    assert [drawn(np.array([0.0, 0.5, 0.5, 0.0]), u) for u in (0.0, 0.499, 0.5, 0.9999999999999999)] == [1, 1, 2, 2]


def test_penalties_and_biases_add_to_logs() -> None:
    tilt = Tilt(repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.25, biases={})
    probs = np.array([0.5, 0.3, 0.2])
    found = tilt.tilted(probs, {0: 2}, {2: -1.0})
    assert found[0] == pytest.approx(math.exp(1.5 * math.log(0.5) - 0.5 - 2 * 0.25))
    assert found[1] == 0.3
    assert found[2] == pytest.approx(0.2 * math.exp(-1))
    assert probs.tolist() == [0.5, 0.3, 0.2]
