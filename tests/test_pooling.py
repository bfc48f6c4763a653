from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import reference
from strategies import weights
from unisono.arrays import FloatArray, Votes
from unisono.config import weights_of
from unisono.errors import NoCommonChoice
from unisono.pooling import FLOOR, RULES, Rule, adaptive, contrastive, unite

POSITIVE: dict[str, Rule] = {**RULES, "contrastive": partial(contrastive, plausibility=0.0)}
"""The rules as they take weights that are positive and sum to 1; contrastive without its cut, which has tests below."""


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


def as_dicts(votes: Votes) -> list[dict[bytes, float]]:
    return [{bytes([n]): float(x) for n, x in enumerate(vote)} for vote in votes]


@pytest.mark.parametrize("rule", RULES)
@given(pool=pools())
def test_a_rule_is_its_slow_twin(rule: str, pool: tuple[Votes, list[float]]) -> None:
    votes, raw = pool
    w = weights_of(raw, [str(n) for n in range(len(raw))])
    twin = partial(reference.contrastive, plausibility=0.0) if rule == "contrastive" else reference.RULES[rule]
    expected = twin(as_dicts(votes), w.tolist())
    np.testing.assert_allclose(POSITIVE[rule](votes, w), list(expected.values()), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("rule", RULES)
@given(pool=pools())
def test_what_a_rule_returns_sums_to_one_and_the_votes_stay_as_they_were(
    rule: str, pool: tuple[Votes, list[float]]
) -> None:
    votes, raw = pool
    before = votes.copy()
    w = weights_of(raw, [str(n) for n in range(len(raw))])
    assert POSITIVE[rule](votes, w).sum() == pytest.approx(1)
    np.testing.assert_array_equal(votes, before)


@pytest.mark.parametrize("rule", RULES)
@given(pool=pools())
def test_members_that_agree_pool_to_what_they_say(rule: str, pool: tuple[Votes, list[float]]) -> None:
    votes, raw = pool
    alike = np.repeat(votes[:1], len(raw), axis=0)
    w = weights_of(raw, [str(n) for n in range(len(raw))])
    np.testing.assert_allclose(POSITIVE[rule](alike, w), votes[0], atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_single_precision_stays_single(rule: str) -> None:
    votes = np.array([[0.25, 0.75], [0.5, 0.5]], dtype=np.float32)
    assert POSITIVE[rule](votes, np.array([0.5, 0.5])).dtype == np.float32


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
    assert not np.isnan(POSITIVE[rule](votes, w)).any()


# Contrastive


@st.composite
def contrasts(draw: st.DrawFn) -> tuple[Votes, list[float]]:
    """Votes, and weights of either sign, one of them positive."""
    votes, raw = draw(pools())
    signs = draw(st.lists(st.sampled_from([1, -1]), min_size=len(raw), max_size=len(raw)))
    assume(1 in signs)
    return votes, [sign * min(w, 5.0) for sign, w in zip(signs, raw, strict=True)]


@given(contrasts(), st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_contrastive_is_its_slow_twin(pool: tuple[Votes, list[float]], plausibility: float) -> None:
    votes, raw = pool
    dicts = as_dicts(votes)
    assume(not on_the_edge(dicts, raw, plausibility))
    before = votes.copy()
    pooled = contrastive(votes, np.array(raw), plausibility)
    expected = reference.contrastive(dicts, raw, plausibility)
    np.testing.assert_allclose(pooled, list(expected.values()), rtol=1e-7, atol=1e-15)
    np.testing.assert_array_equal(votes, before)


def on_the_edge(votes: list[dict[bytes, float]], raw: Sequence[float], plausibility: float) -> bool:
    """Whether rounding decides if some choice is plausible."""
    kept = [reference.plausible(votes, raw, plausibility * by) for by in (1 - 1e-9, 1 + 1e-9)]
    return kept[0] != kept[1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(pool=contrasts())
def test_contrastive_is_finite_whatever_an_amateur_finds_impossible(
    dtype: type, pool: tuple[Votes, list[float]]
) -> None:
    votes, raw = pool
    pooled = contrastive(votes.astype(dtype), np.array(raw))
    assert pooled.dtype == dtype
    assert np.isfinite(pooled).all()
    assert pooled.sum() == pytest.approx(1, rel=1e-5)


def test_an_expert_less_an_amateur_is_contrastive_decoding() -> None:
    expert, amateur = np.array([0.5, 0.4, 0.09, 0.01]), np.array([0.6, 0.2, 0.19, 0.01])
    ratios = np.array([0.5 / 0.6, 0.4 / 0.2, 0.09 / 0.19, 0.0])  # the last is below a tenth of 0.5
    found = contrastive(np.array([expert, amateur]), np.array([1.0, -1.0]))
    np.testing.assert_allclose(found, ratios / ratios.sum())


def test_a_base_with_a_tuned_and_an_untuned_small_model_is_proxy_tuning() -> None:
    base, tuned, untuned = (softmax(np.random.default_rng(seed).standard_normal(20)) for seed in range(3))
    found = contrastive(np.array([base, tuned, untuned]), np.array([1.0, 1.0, -1.0]), 0.0)
    np.testing.assert_allclose(found, softmax(np.log(base) + np.log(tuned) - np.log(untuned)))


def softmax(logits: FloatArray) -> FloatArray:
    out: FloatArray = np.exp(logits) / np.exp(logits).sum()
    return out


def test_experts_are_weighed_for_what_is_plausible_and_amateurs_have_no_say_in_it() -> None:
    votes = np.array([[0.9, 0.1, 0.0], [0.1, 0.1, 0.8], [0.0, 0.0, 1.0]])
    for raw, kept in (([3.0, 1.0, -1.0], [True, False, False]), ([1.0, 3.0, -1.0], [True, True, False])):
        found = contrastive(votes, np.array(raw), 0.3)  # the third choice is vetoed by the first expert
        assert (found > 0).tolist() == kept


def test_what_an_amateur_finds_impossible_is_lifted_no_higher_than_the_floor_allows() -> None:
    votes = np.array([[0.5, 0.5], [1.0, 0.0]])
    found = contrastive(votes, np.array([1.0, -1.0]))
    np.testing.assert_allclose(found, np.array([FLOOR, 1.0]) / (1 + FLOOR))


def test_an_amateur_that_has_no_say_changes_nothing() -> None:
    votes = np.array([[0.7, 0.3], [0.0, 0.0]])
    np.testing.assert_allclose(contrastive(votes, np.array([1.0, -1.0])), votes[0])


def test_contrastive_says_so_when_the_experts_veto_every_choice() -> None:
    with pytest.raises(NoCommonChoice, match="every expert"):
        contrastive(np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]), np.array([1.0, 1.0, -1.0]))


# Adaptive


@given(st.floats(0.01, 1.0), st.floats(0.01, 1.0))
def test_two_uncertain_members_share_as_in_adaptive_contrastive_decoding(one: float, other: float) -> None:
    votes = np.array([softmax(np.array([0.0, x, 0.0, 0.0])) for x in (one, other)])
    h_one, h_other = (reference.entropy(vote) for vote in as_dicts(votes))
    alpha = h_one / (h_one + h_other)
    expected = (1 - alpha) * votes[0] + alpha * votes[1]
    np.testing.assert_allclose(adaptive(votes, np.array([0.5, 0.5])), expected, rtol=0.01)


def test_the_surer_member_counts_more_and_a_weight_still_counts() -> None:
    votes = np.array([[0.9, 0.1], [0.3, 0.7]])
    alike = adaptive(votes, np.array([0.5, 0.5]))
    assert 0.6 < alike[0] < adaptive(votes, np.array([0.8, 0.2]))[0] < 0.9


def test_a_member_that_has_no_say_in_a_step_is_not_taken_for_a_sure_one() -> None:
    votes = np.array([[0.0, 0.0], [0.3, 0.7]])
    np.testing.assert_allclose(adaptive(votes, np.array([0.5, 0.5])), votes[1])
    with pytest.raises(NoCommonChoice):
        adaptive(np.zeros((2, 2)), np.array([0.5, 0.5]))


# Unite


@given(pools(), st.lists(st.floats(0.01, 1.0), min_size=4, max_size=4))
def test_unite_pools_votes_that_do_not_sum_to_one_as_its_twin_does(
    pool: tuple[Votes, list[float]], scales: list[float]
) -> None:
    votes, raw = pool
    parts = votes * np.array(scales[: len(raw)])[:, None]
    w = weights_of(raw, [str(n) for n in range(len(raw))])
    expected = reference.unite(as_dicts(parts), w.tolist())
    np.testing.assert_allclose(unite(parts, w), list(expected.values()), rtol=1e-9, atol=1e-15)


def test_a_member_that_has_nothing_for_these_choices_has_no_say() -> None:
    votes = np.array([[0.0, 0.0], [0.1, 0.3]])
    np.testing.assert_allclose(unite(votes, np.array([0.5, 0.5])), [0.25, 0.75])
    with pytest.raises(NoCommonChoice):
        unite(np.zeros((2, 2)), np.array([0.5, 0.5]))
