from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference
from strategies import weights
from unisono.arrays import Votes
from unisono.config import weights_of
from unisono.errors import NoCommonChoice
from unisono.pooling import RULES


@st.composite
def pools(draw: st.DrawFn) -> tuple[Votes, list[float]]:
    """Distributions [n_members, n] in which some choices are impossible, but never the last one; and raw weights."""
    n_members, n = draw(st.integers(1, 4)), draw(st.integers(1, 8))
    chance = st.one_of(st.just(0.0), st.floats(1e-6, 1.0))
    rows = []
    for _ in range(n_members):
        raw = np.array([*draw(st.lists(chance, min_size=n - 1, max_size=n - 1)), draw(st.floats(1e-6, 1.0))])
        rows.append(raw / raw.sum())
    return np.array(rows), draw(weights(n_members))


@pytest.mark.parametrize("rule", RULES)
@given(pool=pools())
def test_a_rule_is_its_slow_twin(rule: str, pool: tuple[Votes, list[float]]) -> None:
    votes, raw = pool
    w = weights_of(raw, [str(n) for n in range(len(raw))])
    dicts = [{bytes([n]): float(x) for n, x in enumerate(vote)} for vote in votes]
    expected = reference.RULES[rule](dicts, w.tolist())
    np.testing.assert_allclose(RULES[rule](votes, w), list(expected.values()), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("rule", RULES)
@given(pool=pools())
def test_what_a_rule_returns_sums_to_one_and_the_votes_stay_as_they_were(
    rule: str, pool: tuple[Votes, list[float]]
) -> None:
    votes, raw = pool
    before = votes.copy()
    w = weights_of(raw, [str(n) for n in range(len(raw))])
    assert RULES[rule](votes, w).sum() == pytest.approx(1)
    np.testing.assert_array_equal(votes, before)


@pytest.mark.parametrize("rule", RULES)
@given(pool=pools())
def test_members_that_agree_pool_to_what_they_say(rule: str, pool: tuple[Votes, list[float]]) -> None:
    votes, raw = pool
    alike = np.repeat(votes[:1], len(raw), axis=0)
    w = weights_of(raw, [str(n) for n in range(len(raw))])
    np.testing.assert_allclose(RULES[rule](alike, w), votes[0], atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_single_precision_stays_single(rule: str) -> None:
    votes = np.array([[0.25, 0.75], [0.5, 0.5]], dtype=np.float32)
    assert RULES[rule](votes, np.array([0.5, 0.5])).dtype == np.float32


def test_one_member_in_favour_keeps_a_choice_alive_under_linear_and_one_against_is_a_veto_under_log_linear() -> None:
    votes = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]])
    w = np.array([0.5, 0.5])
    np.testing.assert_allclose(RULES["linear"](votes, w), [0.25, 0.5, 0.25])
    np.testing.assert_allclose(RULES["log-linear"](votes, w), [0.0, 1.0, 0.0])


def test_log_linear_says_so_when_every_choice_is_vetoed() -> None:
    votes = np.array([[1.0, 0.0], [0.0, 1.0]])
    with pytest.raises(NoCommonChoice, match="linear"):
        RULES["log-linear"](votes, np.array([0.5, 0.5]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("small", [1e-10, 1e-20, 1e-29])
def test_a_member_of_next_to_no_weight_does_not_make_the_pool_nan(rule: str, small: float, dtype: type) -> None:
    votes: Votes = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]], dtype=dtype)
    w = weights_of([1.0, small], ["a", "b"])
    assert not np.isnan(RULES[rule](votes, w)).any()
