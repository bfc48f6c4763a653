from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.drafting import MOST, TRIES, Costs, best_length

SHARES = st.floats(0.01, 3)


@given(st.floats(0, 1), SHARES, st.lists(SHARES, min_size=MOST, max_size=MOST))
def test_the_best_length_writes_the_most_in_a_time(accepted: float, draft: float, more: list[float]) -> None:
    read = [1.0, *more]
    rates = [sum(accepted**n for n in range(k + 1)) / ((k + 1) * draft + read[k]) for k in range(MOST + 1)]
    found = best_length(accepted, draft, read)
    assert rates[found] >= max(rates) / 1.02**MOST  # a longer one has to be clearly better
    assert found == 0 or rates[found] > 1.02 * rates[0]


def learnt(costs: Costs, member: int, seconds: dict[int, float], times: int = TRIES) -> None:
    for _ in range(times):
        for n_tokens, each in seconds.items():
            costs.learn(member, n_tokens, each)


def reads(costs: Costs) -> list[float]:
    known = costs.of_drafts(0, [1])
    assert known is not None
    return known[1]


def test_nothing_is_said_of_drafts_until_all_have_read_one_token() -> None:
    costs = Costs(2)
    learnt(costs, 0, {1: 0.01})
    learnt(costs, 1, {4: 0.02})
    assert costs.of_drafts(0, [1]) is None
    learnt(costs, 1, {1: 0.02})
    assert costs.of_drafts(0, [1]) is not None


def test_a_length_counts_by_its_shortest_time_once_it_has_been_tried_often_enough() -> None:
    costs = Costs(2)
    learnt(costs, 0, {1: 0.01})
    learnt(costs, 1, {1: 0.02})
    guessed = reads(costs)
    costs.learn(1, 4, 1.0)  # something else held it up
    assert reads(costs) == guessed
    costs.learn(1, 4, 0.06)
    assert reads(costs) == guessed
    costs.learn(1, 4, 0.07)
    assert reads(costs)[3] == pytest.approx(3.0, rel=0.03)


def test_where_all_takes_longer_by_now_the_old_times_fade() -> None:
    costs = Costs(2)
    learnt(costs, 0, {1: 0.01})
    learnt(costs, 1, {1: 0.02})
    learnt(costs, 0, {1: 0.02}, times=60)
    learnt(costs, 1, {1: 0.04}, times=60)
    assert (costs.one(0), costs.one(1)) == (0.02, 0.04)


def test_the_others_are_taken_together() -> None:
    costs = Costs(3)
    for member, (one, four) in enumerate([(0.01, 0.0), (0.02, 0.05), (0.06, 0.07)]):
        learnt(costs, member, {1: one, 4: four})
    known = costs.of_drafts(0, [1, 2])
    assert known is not None
    assert known[0] == pytest.approx(0.01 / 0.08)
    assert known[1][3] == pytest.approx(0.12 / 0.08)
