from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from fakes import byte_vocabulary, constant
from unisono.ensemble import Ensemble
from unisono.errors import EnsembleError, NoCommonChoice
from unisono.members.fake import TableMember
from unisono.sampling import Tilt
from unisono.vocabulary import Kind, Vocabulary
from unisono.voting.rows import SortedRow

VOTES = ("bytes", "pieces")
V = Vocabulary.build([b"a", b"b", b"c", b"</s>"], {3: Kind.END})
TABLES = (np.array([[6.0, 3, 1], [1, 1, 8], [2, 5, 3]]) / 10, np.array([[1.0, 2, 7], [4, 4, 2], [3, 3, 4]]) / 10)
"""Of each member: row "what was last" to the probabilities of what comes next."""
N_CHARACTERS = 100_000


def markov(name: str, table: np.ndarray[Any, np.dtype[np.float64]]) -> TableMember:
    rows = np.column_stack([np.log(table), np.full(3, -30.0)])
    return TableMember(name, V, lambda ids: rows[ids[-1]].copy())


def both(weights: Sequence[float], **options: Any) -> Ensemble:
    return Ensemble([markov("one", TABLES[0]), markov("two", TABLES[1])], weights, **options)


def texts(n: int, length: int, vote: str, drafter: str | None = None, **settings: Any) -> list[str]:
    """Drawn side by side, each with a seed of its own."""
    ensemble = both([2, 1], vote=vote, drafter=drafter)
    drawing = {"temperature": 1.0, "ignore_end": True, "max_tokens": length, **settings}
    generations = [ensemble.generate("a", seed=seed, **drawing) for seed in range(n)]
    for generation in generations:
        next(generation)
    return ["a" + generation.run() for generation in generations]


def chi_square(found: Sequence[str], expected: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """Of the transitions; 3 rows with 2 degrees of freedom each."""
    pairs = Counter(pair for text in found for pair in pairwise(text))
    total = 0.0
    for last in range(3):
        counts = np.array([pairs["abc"[last], "abc"[k]] for k in range(3)])
        wanted = expected[last] / expected[last].sum() * counts.sum()
        total += float(((counts - wanted) ** 2 / wanted).sum())
    return total


@pytest.mark.parametrize(
    "options",
    [
        {"vote": "pieces"},
        {"vote": "bytes"},
        {"vote": "pieces", "drafter": "two"},
        {"vote": "bytes", "drafter": "one"},
        {"vote": "pieces", "single_voice": True},
    ],
    ids=str,
)
def test_what_is_drawn_is_distributed_as_the_mixture(options: dict[str, Any]) -> None:
    length = 400
    found = texts(N_CHARACTERS // length, length, **options)
    mixture = (2 * TABLES[0] + TABLES[1]) / 3
    assert sum(map(len, found)) >= N_CHARACTERS
    assert chi_square(found, mixture) < 27.9  # 6 degrees of freedom, p = 1e-4
    assert chi_square(found, TABLES[0]) > 1000  # it can fail


@pytest.mark.parametrize("vote", VOTES)
def test_the_same_seed_draws_the_same_text_whatever_runs_beside_it(vote: str) -> None:
    [alone], beside = texts(1, 30, vote), texts(5, 30, vote)
    assert beside[0] == alone
    assert len(set(beside)) == 5


@pytest.mark.parametrize("vote", VOTES)
def test_looking_ahead_draws_the_same_text(vote: str) -> None:
    assert texts(4, 60, vote, drafter="two") == texts(4, 60, vote)


def test_one_voice_asks_one_member_a_token() -> None:
    generation = both([1, 1], vote="pieces").generate(
        "a", temperature=1, single_voice=True, ignore_end=True, max_tokens=200, seed=1
    )
    generation.run()
    assert sum(generation.stats.n_forwards) <= 202


@pytest.mark.parametrize("vote", VOTES)
@pytest.mark.parametrize(
    "settings", [{"temperature": 1e-3}, {"temperature": 2, "top_k": 1}, {"temperature": 1, "top_p": 0}]
)
def test_a_low_temperature_and_one_choice_are_greedy(vote: str, settings: dict[str, Any]) -> None:
    ensemble = both([1, 1], vote=vote)
    assert ensemble.generate("b", max_tokens=20, **settings).run() == ensemble.generate("b", max_tokens=20).run()


@pytest.mark.parametrize("vote", VOTES)
def test_penalties_keep_from_repeating_and_biases_ban(vote: str) -> None:
    ensemble = Ensemble([constant(V, {0: 0.6, 1: 0.3, 2: 0.1})], vote=vote)
    assert ensemble.generate("a", max_tokens=4).run() == "aaaa"
    assert ensemble.generate("a", max_tokens=4, frequency_penalty=1.0).run() == "abab"
    assert ensemble.generate("a", max_tokens=3, presence_penalty=50).run() == "abc"
    assert ensemble.generate("a", max_tokens=3, logit_bias={"a": -50.0}).run() == "bbb"


@pytest.mark.parametrize("vote", VOTES)
def test_a_text_may_be_kept_from_ending(vote: str) -> None:
    ensemble = Ensemble([constant(V, {0: 0.4, 3: 0.6})], vote=vote)
    assert ensemble.generate("a").run() == ""
    assert ensemble.generate("a", min_tokens=3).run() == "aaa"
    assert ensemble.generate("a", ignore_end=True, max_tokens=7).run() == "aaaaaaa"
    only_end = Ensemble([constant(V, {3: 1.0})], vote=vote)
    with pytest.raises(NoCommonChoice, match="min_tokens"):
        only_end.generate("a", ignore_end=True, heal=False).run()


@pytest.mark.parametrize("vote", VOTES)
def test_a_stop_string_may_be_part_of_the_text(vote: str) -> None:
    member = TableMember("m", byte_vocabulary({}), lambda ids: np.eye(256)[ord("xyz"[len(ids) % 3])])
    ensemble = Ensemble([member], vote=vote)
    assert ensemble.generate("ab", stop=["xy"], heal=False, max_tokens=9).run() == "z"
    assert ensemble.generate("ab", stop=["xy"], include_stop=True, heal=False, max_tokens=9).run() == "zxy"


@pytest.mark.parametrize("vote", VOTES)
def test_a_step_tells_the_likeliest_alternatives(vote: str) -> None:
    ensemble = Ensemble([constant(V, {0: 0.5, 1: 0.3, 2: 0.15, 3: 0.05})], vote=vote)
    step = next(ensemble.generate("a", top_logprobs=3, heal=False))
    assert [piece for piece, _ in step.top] == [b"a", b"b", b"c"]
    np.testing.assert_allclose(np.exp([logprob for _, logprob in step.top]), [0.5, 0.3, 0.15], rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"top_k": 5}, "top_k is for drawing"),
        ({"top_p": 0.5}, "top_p is for drawing"),
        ({"temperature": -1}, "temperature"),
        ({"tmperature": 1}, "'temperature'"),
        ({"seed": -1}, "seed"),
        ({"temperature": 1, "single_voice": True}, "single_voice draws"),
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens is 9"),
        ({"logit_bias": {"zz": 1.0}}, "no member has a token that is exactly 'zz'"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(EnsembleError, match=said):
        Ensemble([constant(V, {0: 1.0})]).generate("a", **settings)


@pytest.mark.parametrize("vote", ["bytes", "pieces"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "given", [{"logit_bias": {"a": 100}}, {"presence_penalty": -100}, {"frequency_penalty": -100}], ids=str
)
def test_the_largest_biases_and_penalties_are_numbers(vote: str, dtype: type, given: dict[str, Any]) -> None:
    v = Vocabulary.build([b"a", b"b", b"</s>"], {2: Kind.END})
    member = TableMember("one", v, lambda ids: np.array([3.0, 1.0, 0.0], dtype=dtype))
    text = Ensemble([member], vote=vote).generate("b", max_tokens=20, ignore_end=True, **given)
    assert text.run() == "a" * 20


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("other", [-800.0, -75.0, 0.0, 2.0, 3.0, 19.0])
def test_what_is_left_where_nearly_all_is_banned_is_not_rounded_away(dtype: type, other: float) -> None:
    v = Vocabulary.build([b"aaa", b"aab", b"b"])
    row = SortedRow(v)
    tilted = row.tilted(
        row.read(np.array([20.0, other, -1.0], dtype=dtype)),
        Tilt(1.0, 0.0, 0.0, {b"aaa": -100.0}),
        {},
        row.places({b"aaa": -100.0}),
    )
    found = tilted.masses.astype(np.float64) / tilted.total
    expected = np.exp([other, -1.0]) / np.exp([other, -1.0]).sum()
    assert found[1:] == pytest.approx(expected, rel=1e-5)
    assert found.sum() == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("vote", ["bytes", "pieces"])
@pytest.mark.parametrize(
    ("logits", "given", "starts"),
    [
        ([0.0, -95.0, -96.0, -200.0], {"logit_bias": {"a": -100}}, "bb"),
        ([60.0, -35.0, -36.0, -37.0], {"presence_penalty": 100}, "abc"),
        ([0.0, -np.inf, -np.inf, -np.inf], {"logit_bias": {"a": -100}}, "aa"),
        ([3.0, 1.0, -np.inf, -np.inf], {"frequency_penalty": 100}, "abab"),
    ],
)
def test_where_all_that_is_left_is_next_to_nothing_it_is_still_written(
    vote: str, logits: list[float], given: dict[str, Any], starts: str
) -> None:
    member = TableMember("one", V, lambda ids: np.array(logits, dtype=np.float32))
    text = Ensemble([member], vote=vote).generate("b", max_tokens=40, ignore_end=True, **given)
    assert text.run().startswith(starts)
    assert text.stats.n_tokens == 40
