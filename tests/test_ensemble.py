from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference
from fakes import ByteMember, FailingMember, byte_vocabulary, constant, scripted
from strategies import PROMPT, members, weights
from unisono import registry
from unisono.chat import raw_prompt
from unisono.config import Config, MemberConfig
from unisono.ensemble import Ensemble
from unisono.errors import BackendError, BadLogits, CacheFull, ConfigError, PromptError, PromptTooLong, UnknownName
from unisono.members.base import ChatTemplate
from unisono.members.fake import TableMember
from unisono.vocabulary import Kind, Vocabulary
from unisono.voting.pieces import PieceVoting, Speller

V = Vocabulary.build([b"a", b"b", b" ", b"</s>", b"<|end|>", b"<s>"], {3: Kind.END, 4: Kind.END, 5: Kind.CONTROL})
A, B, SPACE, END_1, END_2, BOS = range(6)

VOTES = ["pieces", "bytes"]


def n_open(*opened: TableMember) -> int:
    return sum(len(member._contexts) for member in opened)


def writer(text: str, name: str = "writer", n_ctx: int = 64) -> TableMember:
    """Writes a text in bytes and then ends it; reads prompts of one byte."""
    v = byte_vocabulary({"</s>": Kind.END})
    return scripted(v, [*text.encode(), 256], name, n_ctx=n_ctx)


# Whole texts


@given(members(), st.data())
def test_a_text_on_pieces_is_what_gac_as_published_writes(drawn: list[TableMember], data: st.DataObject) -> None:
    raw = data.draw(weights(len(drawn)))
    rule = data.draw(st.sampled_from(sorted(reference.RULES)))
    prompts = [raw_prompt(m, PROMPT).ids for m in drawn]
    shares = raw if rule == "contrastive" else [w / math.fsum(raw) for w in raw]
    top = data.draw(st.integers(1, 5)) if rule == "unite" else None
    expected = reference.gac(drawn, prompts, shares, rule, max_tokens=8, top_union=top or 10)
    generation = Ensemble(drawn, raw, vote="pieces", rule=rule, top_union=top).generate(PROMPT, max_tokens=8)
    steps = list(generation)
    assert [step.piece for step in steps] == expected
    assert generation.text == b"".join(expected).decode(errors="replace")
    assert generation.finish == ("end" if expected[-1] == b"" else "length")
    assert generation.stats.n_read == [
        m.n_read - _n_read_anew(p, expected, m) for m, p in zip(drawn, prompts, strict=True)
    ]
    assert n_open(*drawn) == 0


def _n_read_anew(prompt: Sequence[int], written: Sequence[bytes], member: TableMember) -> int:
    """How many ids the twin has read, which reads everything at each step."""
    spell = Speller(member).spell
    lengths = [len(prompt) + sum(len(spell(p)) for p in written[:n]) for n in range(len(written))]
    return sum(lengths)


@given(members(max_members=2), st.integers(1, 6))
def test_the_steps_tell_what_each_member_thought(drawn: list[TableMember], n: int) -> None:
    ensemble = Ensemble(drawn, vote="pieces")
    prompts = [list(raw_prompt(m, PROMPT).ids) for m in drawn]
    union = reference.union_pieces([m.vocabulary for m in drawn])
    for step in ensemble.generate(PROMPT, max_tokens=n):
        votes = [
            reference.vote(m.vocabulary, union, reference.read_anew(m, ids))
            for m, ids in zip(drawn, prompts, strict=True)
        ]
        pooled = reference.linear(votes, [1 / len(votes)] * len(votes))
        assert step.logprob == pytest.approx(math.log(pooled[step.piece]))
        for thought, vote in zip(step.votes, votes, strict=True):
            assert thought.favourite == max(union, key=vote.__getitem__)
            assert math.exp(thought.favourite_logprob) == pytest.approx(max(vote.values()))
            assert math.exp(thought.chosen_logprob) == pytest.approx(vote[step.piece], abs=1e-12)
        if step.piece:
            for m, ids in zip(drawn, prompts, strict=True):
                ids += Speller(m).spell(step.piece)


@pytest.mark.parametrize("vote", VOTES)
def test_an_ensemble_of_one_writes_what_the_member_wants(vote: str) -> None:
    generation = Ensemble([writer("naïve 語 😀")], vote=vote).generate("x", heal=False)
    assert (generation.run(), generation.finish) == ("naïve 語 😀", "end")


@pytest.mark.parametrize("vote", VOTES)
def test_the_heavier_member_has_its_way(vote: str) -> None:
    cases = [([0.9, 0.1], "yes"), ([0.1, 0.9], "no"), ([9.0, 1.0], "yes"), ([1e-3, 2e-3], "no")]
    for given_weights, expected in cases:
        ensemble = Ensemble([writer("yes", "one"), writer("no", "other")], given_weights, vote=vote)
        assert ensemble.generate("x", heal=False).run() == expected


@pytest.mark.parametrize("vote", VOTES)
def test_a_log_linear_veto_is_one_members_alone(vote: str) -> None:
    for_a = constant(V, {A: 0.9, B: 0.1}, "for a")
    against = constant(V, {B: 1.0}, "against")
    linear = Ensemble([for_a, against], [0.8, 0.2], vote=vote)
    log_linear = Ensemble([for_a, against], [0.8, 0.2], vote=vote, rule="log-linear")
    assert linear.generate("a", max_tokens=2, heal=False).run() == "aa"
    assert log_linear.generate("a", max_tokens=2, heal=False).run() == "bb"


@pytest.mark.parametrize("vote", VOTES)
def test_an_amateur_pushes_away_from_what_it_likes(vote: str) -> None:
    expert, amateur = constant(V, {A: 0.6, B: 0.4}, "expert"), constant(V, {A: 0.9, B: 0.1}, "amateur")
    alone = Ensemble([expert, amateur], [1, -0.1], vote=vote, rule="contrastive")
    contrast = Ensemble([expert, amateur], [1, -1], vote=vote, rule="contrastive")
    cut = Ensemble([expert, amateur], [1, -1], vote=vote, rule="contrastive", plausibility=0.7)
    assert contrast.weights.tolist() == [1, -1]
    written = [e.generate("a", max_tokens=2, heal=False).run() for e in (alone, contrast, cut)]
    assert written == ["aa", "bb", "aa"]


@pytest.mark.parametrize("vote", VOTES)
def test_the_surer_member_has_its_way_under_adaptive(vote: str) -> None:
    unsure, sure = constant(V, {A: 0.8, SPACE: 0.2}, "unsure"), constant(V, {B: 0.99, A: 0.01}, "sure")
    for rule, expected in (("linear", "aa"), ("adaptive", "bb")):
        ensemble = Ensemble([unsure, sure], [0.6, 0.4], vote=vote, rule=rule)
        assert ensemble.generate("a", max_tokens=2, heal=False).run() == expected


def test_a_piece_that_a_member_lacks_gets_its_first_tokens_probability_under_unite() -> None:
    whole = constant(Vocabulary.build([b"a", b"b", b"ab"]), {2: 0.6, 1: 0.4}, "whole")
    parts = constant(Vocabulary.build([b"a", b"b"]), {0: 0.8, 1: 0.2}, "parts")
    assert Ensemble([whole, parts], vote="pieces").generate("a", max_tokens=1).run() == "a"
    [step] = list(Ensemble([whole, parts], vote="pieces", rule="unite", top_union=1).generate("a", max_tokens=1))
    # Pooled are b"ab", which whole likes best, and b"a"; parts gives 0.8 to both, whole nothing to b"a".
    assert step.piece == b"ab"
    assert math.exp(step.logprob) == pytest.approx(0.5 * 1 + 0.5 * 0.5)


@given(members(max_members=3), st.integers(1, 4))
def test_under_unite_the_pooled_vote_is_its_twins(drawn: list[TableMember], top: int) -> None:
    ensemble = Ensemble(drawn, vote="pieces", rule="unite", top_union=top)
    vocabularies = [m.vocabulary for m in drawn]
    prompts = [raw_prompt(m, PROMPT) for m in drawn]
    union = reference.union_pieces(vocabularies)
    votes = [
        reference.vote(v, union, reference.read_anew(m, list(p.ids)))
        for v, m, p in zip(vocabularies, drawn, prompts, strict=True)
    ]
    expected = reference.unite(reference.top_votes(vocabularies, votes, top), [1 / len(drawn)] * len(drawn))
    voters = [ensemble.unit.voter(n, prompt) for n, prompt in enumerate(prompts)]
    for voter in voters:
        voter.read(voter.member.forward(voter.pending()))
    pooled = ensemble._pool_voters(voters)
    np.testing.assert_allclose(pooled.probs, [expected.get(p, 0.0) for p in union], atol=1e-12)
    best, prob = pooled.best()
    assert (best, prob) == (int(pooled.probs.argmax()), float(pooled.probs.max()))
    for voter in voters:
        voter.close()


# The spelling


@given(members(max_members=1), st.data())
def test_a_piece_is_spelled_by_its_own_token_or_else_by_the_tokenizer(
    drawn: list[TableMember], data: st.DataObject
) -> None:
    [member] = drawn
    known = sorted(reference.text_pieces(member.vocabulary))
    piece = b"".join(data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=3)))
    speller = Speller(member)
    ids = speller.spell(piece)
    assert list(ids) == reference.longest_match(member.vocabulary, piece)
    assert member.vocabulary.join(ids) == piece
    assert speller.spell(piece) is ids


def test_a_members_own_token_comes_before_what_its_tokenizer_would_write_and_that_before_the_longest_match() -> None:
    v = Vocabulary.build([b"a", b"b", b"ab", b"aba"])

    class Splitting(TableMember):
        def encode(self, text: str, *, special: bool = False) -> list[int]:
            return [b"ab".index(byte) for byte in text.encode()]

    speller = Speller(Splitting("splitting", v, {}))
    assert speller.spell(b"ab") == (2,)
    assert speller.spell(b"abab") == (0, 1, 0, 1)


def test_a_tokenizer_that_would_write_something_else_is_not_believed() -> None:
    class Wrong(TableMember):
        def encode(self, text: str, *, special: bool = False) -> list[int]:
            return [A]

    assert Speller(Wrong("wrong", V, {})).spell(b"ba") == (B, A)


# The end


@pytest.mark.parametrize("vote", VOTES)
def test_the_end_is_the_sum_of_all_ways_to_stop(vote: str) -> None:
    """No single end token is the likeliest choice with any member, nor in the pool; together they are."""
    one = constant(V, {A: 0.4, END_1: 0.3, END_2: 0.3}, "one")
    other = constant(V, {B: 0.4, A: 0.1, END_1: 0.25, END_2: 0.25}, "other")
    assert max(0.5 * (0.3 + 0.25), 0.5 * (0.4 + 0.1)) < 0.5 * (0.6 + 0.5)
    generation = Ensemble([one, other], vote=vote).generate("a", heal=False)
    [step] = list(generation)
    assert (step.piece, step.text, step.finish) == (b"", "", "end")
    assert math.exp(step.logprob) == pytest.approx(0.55)
    assert [math.exp(v.chosen_logprob) for v in step.votes] == pytest.approx([0.6, 0.5])


@pytest.mark.parametrize("vote", VOTES)
def test_an_end_that_no_member_shares_a_token_of_still_pools(vote: str) -> None:
    other_ends = Vocabulary.build([b"a", b"b", b"<eos>", b"<eot>"], {2: Kind.END, 3: Kind.END})
    one = constant(V, {A: 0.55, END_2: 0.45}, "one")
    other = constant(other_ends, {1: 0.4, 2: 0.3, 3: 0.3}, "other")
    assert Ensemble([one, other], vote=vote).generate("a", heal=False).run() == ""


@pytest.mark.parametrize("vote", VOTES)
def test_control_tokens_are_never_chosen_and_take_no_mass(vote: str) -> None:
    generation = Ensemble([constant(V, {BOS: 0.9, A: 0.06, B: 0.04})], vote=vote).generate(
        "a", max_tokens=1, heal=False
    )
    [step] = list(generation)
    assert step.piece == b"a"
    assert math.exp(step.logprob) == pytest.approx(0.6)


@pytest.mark.parametrize("vote", VOTES)
@pytest.mark.parametrize("n", [1, 3])
def test_a_text_has_at_most_max_tokens(vote: str, n: int) -> None:
    generation = Ensemble([writer("abcdef")], vote=vote).generate("x", max_tokens=n, heal=False)
    assert (generation.run(), generation.finish, generation.stats.n_tokens) == ("abcdef"[:n], "length", n)


@pytest.mark.parametrize("n", [0, -1])
def test_no_tokens_at_all_is_refused(n: int) -> None:
    with pytest.raises(ConfigError, match="max_tokens"):
        Ensemble([writer("abcdef")]).generate("x", max_tokens=n)


@pytest.mark.parametrize("vote", VOTES)
def test_a_stop_string_ends_the_text_and_is_not_part_of_it(vote: str) -> None:
    member = writer("one\n\ntwo")
    generation = Ensemble([member], vote=vote).generate("x", stop=["\n\n", "never"], heal=False)
    shown = [step.text for step in generation]
    assert ("".join(shown), generation.text, generation.finish) == ("one", "one", "stop")
    assert n_open(member) == 0


@pytest.mark.parametrize("vote", VOTES)
def test_what_only_began_like_a_stop_string_is_in_the_text(vote: str) -> None:
    generation = Ensemble([writer("one\n")], vote=vote).generate("x", stop=["\n\n"], heal=False)
    assert (generation.run(), generation.finish) == ("one\n", "end")


@pytest.mark.parametrize("vote", VOTES)
@pytest.mark.parametrize("n_ctx", [2, 5])
def test_a_full_context_ends_the_text(vote: str, n_ctx: int) -> None:
    """A prompt of one token, n_ctx - 1 more that are read, and one that needs not be."""
    member = writer("abcdefghij", n_ctx=n_ctx)
    generation = Ensemble([member], vote=vote).generate("x", max_tokens=None, heal=False)
    assert (generation.run(), generation.finish) == ("abcdefghij"[:n_ctx], "length")
    assert n_open(member) == 0


@pytest.mark.parametrize("vote", VOTES)
def test_the_smallest_context_of_all_members_counts(vote: str) -> None:
    ensemble = Ensemble([writer("abcdef", "large"), writer("abcdef", "small", n_ctx=3)], vote=vote)
    generation = ensemble.generate("x", max_tokens=None, heal=False)
    assert (generation.run(), generation.finish) == ("abc", "length")
    with pytest.raises(PromptTooLong, match="small"):
        ensemble.generate("xyz")


# Contexts are let go of


@pytest.mark.parametrize("vote", VOTES)
def test_contexts_are_let_go_of_at_the_end(vote: str) -> None:
    member = writer("abc")
    generation = Ensemble([member], vote=vote).generate("x", heal=False)
    next(generation)
    assert n_open(member) == 1
    generation.run()
    assert n_open(member) == 0
    with pytest.raises(StopIteration):
        next(generation)


@pytest.mark.parametrize("vote", VOTES)
def test_closing_lets_go_of_contexts_ends_the_iteration_and_keeps_the_text(vote: str) -> None:
    member = writer("abc")
    generation = Ensemble([member], vote=vote).generate("x", heal=False)
    next(generation)
    generation.close()
    generation.close()
    assert n_open(member) == 0
    assert list(generation) == []
    assert generation.text == "a"


@pytest.mark.parametrize("vote", VOTES)
def test_a_generation_that_nobody_holds_lets_go_of_its_contexts(vote: str) -> None:
    member = writer("abc")
    ensemble = Ensemble([member], vote=vote)
    for _ in ensemble.generate("x", heal=False):
        break
    assert n_open(member) == 0


@pytest.mark.parametrize("vote", VOTES)
@pytest.mark.parametrize("fail_at", [0, 1, 3])
def test_a_member_that_fails_ends_the_text_and_all_contexts_are_let_go_of(vote: str, fail_at: int) -> None:
    failing = FailingMember("failing", V, lambda ids: np.eye(V.n_ids)[A] * 9)
    failing.fail_at = fail_at
    other = constant(V, {A: 1.0}, "other")
    generation = Ensemble([other, failing], vote=vote).generate("a", heal=False)
    with pytest.raises(BackendError, match="failing was told to fail"):
        generation.run()
    assert generation.text == "a" * fail_at
    assert n_open(failing, other) == 0


@pytest.mark.parametrize("vote", VOTES)
def test_a_member_without_a_free_context_leaves_none_open_with_the_others(vote: str) -> None:
    one = constant(V, {A: 1.0}, "one")
    full = TableMember("full", V, lambda ids: np.zeros(V.n_ids), n_contexts=1)
    held = full.new()
    with pytest.raises(CacheFull, match="full"):
        Ensemble([one, full], vote=vote).generate("a").run()
    assert n_open(one) == 0
    assert list(full._contexts) == [held]


@pytest.mark.parametrize("vote", VOTES)
def test_closing_the_members_first_is_harmless(vote: str) -> None:
    member = writer("abc")
    with Ensemble([member], vote=vote) as ensemble:
        generation = ensemble.generate("x", heal=False)
        next(generation)
    generation.close()


@pytest.mark.parametrize("vote", VOTES)
def test_two_texts_at_once_do_not_disturb_each_other(vote: str) -> None:
    v = byte_vocabulary({"</s>": Kind.END})
    member = TableMember.random("random", v, seed=3)
    ensemble = Ensemble([member], vote=vote)
    alone = [ensemble.generate(p, max_tokens=6, heal=False).run() for p in ("one", "other")]
    both = [ensemble.generate(p, max_tokens=6, heal=False) for p in ("one", "other")]
    for _ in range(6):
        for generation in both:
            next(generation, None)
    assert [g.text for g in both] == alone


# Logits that are none

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("vote", VOTES)
@pytest.mark.parametrize(
    "logits",
    [
        [NAN] * 6,
        [0, NAN, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, NAN],
        [INF, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, INF],
        [-INF] * 6,
        [-INF, -INF, -INF, -INF, -INF, 0.0],
    ],
)
def test_logits_that_cannot_be_a_vote_are_an_error_that_names_the_member(vote: str, logits: list[float]) -> None:
    sound = constant(V, {A: 1.0}, "sound")
    broken = TableMember("broken", V, lambda ids: np.array(logits if len(ids) > 2 else [9.0, 0, 0, 0, 0, 0]))
    generation = Ensemble([sound, broken], vote=vote).generate("a", heal=False)
    with pytest.raises(BadLogits, match="broken"):
        generation.run()
    assert generation.text == "aa"
    assert n_open(sound, broken) == 0


# Prompts


def test_an_ensemble_asked_for_chat_takes_a_prompt_for_what_a_user_says() -> None:
    member = ByteMember("m", byte_vocabulary({}), "<|user|>{{ messages[0]['content'] }}")
    said = Ensemble([member]).generate(messages=[{"role": "user", "content": "é"}])
    for prompt in ("é", "é".encode()):
        assert Ensemble([member], chat=True).generate(prompt).stats.n_prompt == said.stats.n_prompt
    with pytest.raises(PromptError, match="no valid Unicode"):
        Ensemble([member], chat=True).generate(b"\xff")


def test_a_prompt_or_messages_and_not_both() -> None:
    ensemble = Ensemble([writer("abc")])
    for wrong in ({}, {"prompt": "a", "messages": [{"role": "user", "content": "b"}]}):
        with pytest.raises(TypeError):
            ensemble.generate(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("vote", VOTES)
def test_in_a_conversation_every_member_gets_its_own_prompt_and_its_notes_are_told(vote: str) -> None:
    v = byte_vocabulary({"</s>": Kind.END, "<|user|>": Kind.CONTROL})
    plain = ByteMember("plain", v)
    templated = ByteMember("templated", v, "<|user|>{{ messages[0]['content'] }}")
    generation = Ensemble([plain, templated], vote=vote).generate(messages=[{"role": "user", "content": "hi"}])
    assert generation.stats.n_prompt == [len("User: hi\nAssistant:"), 3]
    assert [note.split()[0] for note in generation.notes] == ["plain"]


def test_a_plain_conversation_ends_where_the_next_question_begins() -> None:
    member = writer(" Hello.\nUser: more", n_ctx=256)
    generation = Ensemble(
        [scripted(member.vocabulary, [*b" Hello.\nUser: more", 256], n_prompt=18, n_ctx=256)]
    ).generate(messages=[{"role": "user", "content": "i"}])
    assert (generation.run(), generation.finish) == (" Hello.", "stop")


# What it is made of


@pytest.mark.parametrize(
    ("given_weights", "said"),
    [
        ([1.0], "1 weights for 2 members"),
        ([1, 0], "two's weight is 0"),
        ([-1, 1], "one's weight is -1"),
        ([1, NAN], "two's weight is nan"),
        ([INF, 1], "one's weight is inf"),
        ([1, 1e-40], "two's weight is next to nothing"),
    ],
)
def test_weights_that_do_not_fit_are_refused(given_weights: list[float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Ensemble([constant(V, {A: 1}, "one"), constant(V, {A: 1}, "two")], given_weights)


def test_an_ensemble_of_nobody_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one member"):
        Ensemble([])


def test_a_rule_or_a_unit_of_voting_that_does_not_exist_is_refused_with_the_nearest_that_does() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'log-linear'"):
        Ensemble([constant(V, {A: 1})], rule="loglinear")
    with pytest.raises(UnknownName, match="Did you mean 'pieces'"):
        Ensemble([constant(V, {A: 1})], vote="peices")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rule": "unite"}, "unite is for voting on pieces, and cannot pool bytes: choose vote pieces"),
        ({"plausibility": 0.1}, "plausibility is for the rule contrastive, and linear has no use for it"),
        ({"rule": "contrastive", "top_union": 5}, "top_union is for the rule unite, and contrastive has no use for it"),
        ({"rule": "contrastive", "plausibility": 1.5}, "plausibility is 1.5: give a number from 0 to 1"),
        ({"rule": "contrastive", "plausibility": NAN}, "plausibility is nan"),
        ({"rule": "unite", "vote": "pieces", "top_union": 0}, "top_union is 0: give at least 1"),
        ({"rule": "contrastive", "weights": [-1]}, "No member's weight is positive"),
        ({"weights": [-1]}, "Only the rule contrastive takes negative ones"),
    ],
)
def test_options_that_a_rule_does_not_have_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Ensemble([constant(V, {A: 1})], **options)


def test_an_amateur_cannot_be_the_gate() -> None:
    two = [constant(V, {A: 1}, "amateur"), constant(V, {A: 1}, "expert")]
    with pytest.raises(ConfigError, match=r"amateur has a negative weight, .*: choose another gate"):
        Ensemble(two, [-1, 1], rule="contrastive", threshold=0.5)
    Ensemble(two, [-1, 1], rule="contrastive", threshold=0.5, gate="expert")


@pytest.mark.parametrize("weights", [[1e29, 1.0], [1.0, 1e29]])
@pytest.mark.parametrize("top", [0.0, 40.0, 60.0])
def test_weights_as_far_apart_as_they_may_be_are_pooled_without_a_warning(weights: list[float], top: float) -> None:
    v = Vocabulary.build([b"a", b"b", b"c"])

    def wanting(name: str, row: list[float]) -> TableMember:
        logits: Any = np.array(row, dtype=np.float32)
        return TableMember(name, v, lambda ids: logits)

    members = [wanting("one", [top, top - 1, -top]), wanting("two", [-top, 0, top])]
    chosen = Ensemble(members, weights, vote="pieces").generate("a", max_tokens=1).run()
    if top:
        assert chosen == ("a" if weights[0] > weights[1] else "c")


# Opening and closing


class Opened(TableMember):
    """A member that a spec opens."""

    closed = False

    def close(self) -> None:
        super().close()
        self.closed = True


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Opened]:
    """`fake:NAME` opens a member, `fake:broken` fails; what was opened, and how."""
    out: list[Opened] = []

    def open_fake(where: str, name: str, config: MemberConfig) -> Opened:
        if where == "broken":
            raise BackendError("broken on purpose")
        member = Opened(name, V, lambda ids: np.zeros(V.n_ids), n_ctx=config.n_ctx)
        member.config = config  # type: ignore[attr-defined]
        out.append(member)
        return member

    monkeypatch.setitem(registry.BACKENDS, "fake", "fake")
    monkeypatch.setattr(registry, "_find", lambda backend: open_fake)
    return out


def test_specs_are_opened_in_order_with_distinct_names_and_the_options_given(opened: list[Opened]) -> None:
    with Ensemble.load(["fake:a", "fake:b", "fake:a"], [1, 2, 1], threads=3, n_ctx=99, rule="log-linear") as ensemble:
        assert ensemble.names == ("a", "b", "a-2")
        assert ensemble.weights.tolist() == [0.25, 0.5, 0.25]
        assert ensemble.rule == "log-linear"
        assert {(m.config.threads, m.n_ctx) for m in opened} == {(3, 99)}  # type: ignore[attr-defined]
    assert all(m.closed for m in opened)


def test_a_rules_options_and_weights_come_from_the_configuration(opened: list[Opened]) -> None:
    amateur = MemberConfig(model="fake:b", weight=-0.5)
    config = Config(members=[MemberConfig(model="fake:a", weight=1), amateur], rule="contrastive", plausibility=0)
    assert Ensemble.from_config(config).weights.tolist() == [1, -0.5]
    united = Ensemble.load(["fake:a", "fake:b"], rule="unite", vote="pieces", top_union=3)
    assert isinstance(united.unit, PieceVoting) and united.unit.top_union == 3


def test_names_that_were_given_are_kept_and_must_differ(opened: list[Opened]) -> None:
    named = MemberConfig(model="fake:a", name="b")
    with Ensemble.load(["fake:b", named, "fake:b"]) as ensemble:
        assert ensemble.names == ("b-2", "b", "b-3")
    with pytest.raises(ConfigError, match="Two members are called 'b'"):
        Ensemble.load([named, named])


def test_each_member_tells_its_own_chat_template_what_it_was_given(
    opened: list[Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    template = ChatTemplate("{{ mood }}{{ messages[0]['content'] }}", {})
    monkeypatch.setattr(Opened, "chat_template", template)
    sad = MemberConfig(model="fake:sad", chat_template_kwargs={"mood": "aa"})
    with Ensemble.load([sad, "fake:plain"]) as ensemble:
        assert ensemble.generate(messages=[{"role": "user", "content": "a"}]).stats.n_prompt == [3, 1]
    with pytest.raises(UnknownName, match="chat_template_kwargs of sad named 'moood'"):
        Ensemble.load([MemberConfig(model="fake:sad", chat_template_kwargs={"moood": "aa"})])
    assert opened[-1].closed


def test_a_members_own_options_hold_against_the_ensembles(opened: list[Opened]) -> None:
    config = Config(
        members=[MemberConfig(model="fake:a", threads=1, weight=3), MemberConfig(model="fake:b", name="bee", weight=1)],
        threads=2,
    )
    ensemble = Ensemble.from_config(config)
    assert ensemble.names == ("a", "bee")
    assert ensemble.weights.tolist() == [0.75, 0.25]
    assert [m.config.threads for m in opened] == [1, 2]  # type: ignore[attr-defined]


def test_members_already_open_are_closed_when_a_later_one_fails(opened: list[Opened]) -> None:
    with pytest.raises(BackendError, match="on purpose"):
        Ensemble.load(["fake:a", "fake:b", "fake:broken"])
    assert [m.closed for m in opened] == [True, True]


@pytest.mark.parametrize(
    "options",
    [
        {"rule": "nonsense"},
        {"rule": "unite"},
        {"top_union": 3},
        {"weights": [1]},
        {"weights": [0, 1]},
        {"weights": [1, -1]},
        {"n_ctxx": 5},
        {"n_ctx": 0},
    ],
)
def test_what_is_wrong_with_the_options_is_said_before_any_model_is_opened(
    opened: list[Opened], options: dict[str, object]
) -> None:
    with pytest.raises((ConfigError, UnknownName)):
        Ensemble.load(["fake:a", "fake:b"], **options)  # type: ignore[arg-type]
    assert opened == []


def test_an_error_inside_the_with_block_closes_the_members(opened: list[Opened]) -> None:
    with pytest.raises(RuntimeError, match="inside"), Ensemble.load(["fake:a"]):
        raise RuntimeError("inside")
    assert opened[0].closed


# Counting


def test_the_stats_count_steps_tokens_bytes_forwards_and_reading() -> None:
    generation = Ensemble([writer("né", "one"), writer("né", "other")], vote="pieces").generate("x")
    generation.run()
    stats = generation.stats
    assert (stats.members, stats.n_prompt) == (("one", "other"), [1, 1])
    assert (stats.n_steps, stats.n_tokens, stats.n_bytes) == (4, 3, 3)
    assert (stats.n_forwards, stats.n_read) == ([4, 4], [4, 4])
    assert 0 < stats.first_forward_s <= stats.first_s <= stats.wall_s
    assert all(0 < s < stats.wall_s for s in stats.forward_s)
    assert stats.overhead > -1
    assert stats.tokens_per_s > 0


def test_what_cannot_be_said_of_a_text_of_one_step_is_nan() -> None:
    generation = Ensemble([writer("")], vote="pieces").generate("x")
    generation.run()
    assert math.isnan(generation.stats.tokens_per_s)
    assert math.isnan(generation.stats.overhead)
