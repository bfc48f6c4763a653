from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference
import reference_bytes
from fakes import ByteMember, FailingMember, byte_vocabulary, constant
from reference_bytes import Twin
from strategies import ALPHABET, texts, vocabularies
from unisono.arrays import FloatArray, Probs, Votes
from unisono.chat import raw_prompt
from unisono.ensemble import Ensemble
from unisono.errors import BackendError, BadLogits, CacheFull, ConfigError, PromptError, UnreadableByte
from unisono.members.fake import TableMember
from unisono.score import Score, bits, score_bytes, windows
from unisono.vocabulary import Kind, Vocabulary
from unisono.voting.base import MemberPrompt
from unisono.voting.bytes import ByteVoter, ByteVoting

EPSILONS = [0.0, 0.01, 0.1, 0.2, 0.5]

V = Vocabulary.build(
    [b"a", b"b", b" ", b"\xc3", b"\xa9", "é".encode(), b"ab", b" a", b"bab", b"</s>", b"<s>"],
    {9: Kind.END, 10: Kind.CONTROL},
)


def linear(votes: Votes) -> Probs:
    mean: Probs = votes.mean(axis=0)
    return mean


@st.composite
def tables(draw: st.DrawFn, whole: bool = True) -> TableMember:
    """A member that can write every byte of the alphabet, or any member."""
    vocabulary = draw(vocabularies(max_ids=10))
    if whole:
        kinds = [*vocabulary.kinds.tolist(), *[Kind.TEXT] * len(ALPHABET)]
        vocabulary = Vocabulary.build([*vocabulary.pieces, *ALPHABET], kinds)
    spread = draw(st.sampled_from([0.5, 2.0, 6.0]))
    return TableMember.random("m", vocabulary, draw(st.integers(0, 1 << 20)), spread)


def prompts(member: TableMember) -> st.SearchStrategy[MemberPrompt]:
    ids = st.lists(st.integers(0, member.vocabulary.n_ids - 1), min_size=1, max_size=3)
    return st.builds(MemberPrompt, ids, st.sampled_from([b"", b"", b"\xc3"]), st.booleans())


def opened(unit: ByteVoting, drawn: Sequence[MemberPrompt]) -> list[ByteVoter]:
    return [unit.voter(n, prompt) for n, prompt in enumerate(drawn)]


def score(unit: ByteVoting, drawn: Sequence[MemberPrompt], text: bytes) -> Score:
    """With reading ahead; the contexts are let go of."""
    voters = opened(unit, drawn)
    try:
        return score_bytes(unit, voters, linear, text)
    finally:
        for voter in voters:
            voter.close()


def plain_score(unit: ByteVoting, drawn: Sequence[MemberPrompt], text: bytes) -> tuple[FloatArray, list[int]]:
    """Without it."""
    voters = opened(unit, drawn)
    try:
        return reference_bytes.score(unit, voters, text)
    finally:
        for voter in voters:
            voter.close()


# Reading ahead


@given(st.lists(tables(), min_size=1, max_size=2), st.sampled_from(EPSILONS), texts(10), st.data())
def test_a_score_is_what_the_plain_loop_finds(
    drawn: list[TableMember], epsilon: float, text: bytes, data: st.DataObject
) -> None:
    given_prompts = [data.draw(prompts(member)) for member in drawn]
    unit = ByteVoting(drawn, epsilon=epsilon, max_branches=6, utf8=False)
    expected, n_forwards = plain_score(unit, given_prompts, text)
    found = score(unit, given_prompts, text)
    np.testing.assert_allclose(found.logprobs, expected, atol=1e-9)
    np.testing.assert_allclose(found.pooled, np.logaddexp.reduce(expected) - math.log(len(drawn)), atol=1e-9)
    assert all(few <= many for few, many in zip(found.n_forwards, n_forwards, strict=True))
    assert not any(member._contexts for member in drawn)


@pytest.mark.parametrize(
    ("pieces", "text", "epsilon", "seed"),
    [
        ([b"a", b"b", b"ab", b"ba"], b"abbb", 0.1, 1),
        ([b"a", b"b", b"ab"], b"abaaa", 0.1, 3),
        ([b"a", b"b", b"ab"], b"abaaaa", 0.1, 3),
        ([b"a", b"a"], b"aaaaaa", 0.01, 7),
    ],
)
def test_what_was_read_ahead_into_a_dropped_context_is_not_taken_for_that_of_a_new_one_with_its_number(
    pieces: list[bytes], text: bytes, epsilon: float, seed: int
) -> None:
    member = TableMember.random("m", Vocabulary.build(pieces), seed)
    unit = ByteVoting([member], epsilon=epsilon, utf8=False)
    expected, _ = plain_score(unit, [MemberPrompt([0])], text)
    np.testing.assert_allclose(score(unit, [MemberPrompt([0])], text).logprobs, expected, atol=1e-9)


@given(tables(), st.sampled_from(EPSILONS), texts(10), st.integers(2, 8), st.data())
def test_reading_ahead_never_fills_a_context_that_would_have_sufficed(
    member: TableMember, epsilon: float, text: bytes, n_ctx: int, data: st.DataObject
) -> None:
    member.n_ctx = n_ctx
    prompt = MemberPrompt([0])
    unit = ByteVoting([member], epsilon=epsilon, max_branches=6, utf8=False)
    fits = True
    try:
        plain_score(unit, [prompt], text)
    except CacheFull:
        fits = False
    with contextlib.nullcontext() if fits else pytest.raises(CacheFull):
        score(unit, [prompt], text)
    assert not member._contexts


def reader_of(text: str, sure: float = 8.0, n_ctx: int = 1 << 20) -> TableMember:
    """Knows words, and wants to write the text in them; surprised, it wants nothing in particular."""
    words = sorted({word for word in text.replace(" ", "\0 ").split("\0") if len(word) > 1})
    v = Vocabulary.build([bytes([b]) for b in range(256)] + [word.encode() for word in words])
    known = [ord("\n"), *(v.longest_match(text.encode()) or [])]

    def answer(ids: tuple[int, ...]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        logits = np.zeros(v.n_ids)
        if len(ids) < len(known) and list(ids) == known[: len(ids)]:
            logits[known[len(ids)]] = sure
        return logits

    return TableMember("reader", v, answer, n_ctx)


LONG = " ".join(["one two three four five", "six seven eight nine ten", "eleven twelve thirteen"] * 20)


def test_a_text_in_the_members_usual_tokens_takes_few_forwards() -> None:
    member = reader_of(LONG, sure=12.0)
    n_tokens = len(member.encode(LONG))
    assert n_tokens == 260
    unit = ByteVoting([member])
    found = score(unit, [MemberPrompt([10])], LONG.encode())
    expected, [n_plain] = plain_score(unit, [MemberPrompt([10])], LONG.encode())
    assert n_plain >= n_tokens
    assert found.n_forwards[0] <= 8
    assert found.n_read[0] <= n_tokens + 1
    np.testing.assert_allclose(found.logprobs, expected, atol=1e-9)


def test_a_surprise_costs_a_forward_or_two_and_no_more_than_it_reads_in_vain() -> None:
    """The member wants one text and hears another that differs in one word."""
    member = reader_of(LONG, sure=12.0)
    heard = LONG.replace("seven", "seventy", 1).encode()
    found = score(ByteVoting([member]), [MemberPrompt([10])], heard)
    expected, _ = plain_score(ByteVoting([member]), [MemberPrompt([10])], heard)
    np.testing.assert_allclose(found.logprobs, expected, atol=1e-9)


# What a score is


@given(st.integers(0, 1 << 20), st.lists(st.sampled_from("ab é"), max_size=4).map("".join))
def test_the_score_of_one_member_is_the_sum_of_its_log_votes(seed: int, text: str) -> None:
    member = TableMember.random("m", V, seed)
    twin = Twin(member, raw_prompt(member, "b a"))
    ensemble = Ensemble([member], epsilon=0, utf8=False)
    assert isinstance(ensemble.unit, ByteVoting)
    ensemble.unit.max_branches = 1 << 30
    found = ensemble.score("b a", text)
    data = text.encode()
    assert found.n_bytes == len(data)
    assert found.logprob == pytest.approx(math.log(twin.mass(data) / twin.mass(b"")), abs=1e-9)
    each = [math.log(twin.vote(data[:at])[byte]) for at, byte in enumerate(data)]
    np.testing.assert_allclose(found.logprobs, [each], atol=1e-9)
    np.testing.assert_allclose(found.logprobs[0], found.pooled, atol=1e-12)
    assert not member._contexts


def test_the_score_of_several_is_that_of_their_pooled_votes() -> None:
    """All in bytes, so that a vote is the table's own row."""
    v = byte_vocabulary({})
    one = constant(v, {ord("a"): 0.5, ord("b"): 0.5}, "one")
    other = constant(v, {ord("a"): 0.9, ord("b"): 0.1}, "other")
    linear_score = Ensemble([one, other], [3, 1]).score("x", "ab")
    assert linear_score.names == ("one", "other")
    np.testing.assert_allclose(np.exp(linear_score.logprobs), [[0.5, 0.5], [0.9, 0.1]])
    np.testing.assert_allclose(np.exp(linear_score.pooled), [0.6, 0.4])
    assert linear_score.logprob == pytest.approx(math.log(0.6 * 0.4))
    assert linear_score.bits_per_byte == pytest.approx(-math.log2(0.6 * 0.4) / 2)
    assert linear_score.member_bits_per_byte == pytest.approx([1, -math.log2(0.9 * 0.1) / 2])
    geometric = Ensemble([one, other], rule="log-linear").score("x", "a")
    assert math.exp(geometric.logprob) == pytest.approx(math.sqrt(0.45) / (math.sqrt(0.45) + math.sqrt(0.05)))
    contrast = Ensemble([one, other], [2, -1], rule="contrastive").score("x", "ab")
    assert math.exp(contrast.logprob) == pytest.approx(0.1 * 0.9)  # 0.5² / 0.9 and 0.5² / 0.1, made to sum to 1
    masked = Ensemble([other, one], [1, -1], rule="contrastive", plausibility=0.5).score("x", "ab")
    assert np.exp(masked.pooled).tolist() == [1, 0]
    surer = Ensemble([one, other], rule="adaptive").score("x", "a")
    assert 0.7 < math.exp(surer.logprob) < 0.9


def test_the_weight_that_a_prompt_gives_is_not_part_of_the_score() -> None:
    member = constant(V, {0: 0.2, 1: 0.3, 6: 0.5})
    found = Ensemble([member], epsilon=0).score("ba", "b")
    assert math.exp(found.logprob) == pytest.approx((0.2 * 0.3 + 0.5) / (0.2 + 0.5))


def test_bytes_and_text_score_alike_also_where_they_are_cut_inside_a_character() -> None:
    ensemble = Ensemble([TableMember.random("m", V, seed=1)], epsilon=0)
    whole = ensemble.score("ab", "aéb")
    np.testing.assert_array_equal(ensemble.score(b"ab", "aéb".encode()).pooled, whole.pooled)
    cut = ensemble.score(b"ab\xc3", b"\xa9b")
    assert cut.n_bytes == 2
    assert np.isfinite(cut.pooled).all()


def test_a_text_of_no_bytes_has_a_score_of_nothing() -> None:
    found = Ensemble([TableMember.random("m", V)]).score("a", "")
    assert (found.n_bytes, found.logprob, found.n_forwards) == (0, 0.0, (0,))
    assert math.isnan(found.bits_per_byte)
    assert math.isnan(bits(found.pooled))


def test_progress_is_told_and_ends_with_all_bytes() -> None:
    told: list[int] = []
    Ensemble([reader_of(LONG)]).score("\n", LONG, told.append)
    assert told == sorted(told)
    assert len(told) > 3
    assert told[-1] == len(LONG)


# Whatever the vocabulary can spell has a probability


@given(tables(), st.sampled_from(EPSILONS), st.lists(st.sampled_from("ab é"), max_size=10).map("".join))
def test_no_byte_of_a_text_is_impossible_because_branches_were_dropped(
    member: TableMember, epsilon: float, text: str
) -> None:
    found = Ensemble([member], epsilon=epsilon).score("aa", text)
    assert np.isfinite(found.logprobs).all()


@given(tables(whole=False), st.sampled_from(EPSILONS), st.data())
def test_no_byte_is_impossible_either_where_the_vocabulary_has_it_only_inside_pieces(
    member: TableMember, epsilon: float, data: st.DataObject
) -> None:
    known = sorted(reference.text_pieces(member.vocabulary))
    text = b"".join(data.draw(st.lists(st.sampled_from(known), max_size=6)))
    unit = ByteVoting([member], epsilon=epsilon, utf8=False)
    found = score(unit, [MemberPrompt([0])], text)
    assert np.isfinite(found.logprobs).all()
    assert not member._contexts


def test_a_piece_that_was_dropped_is_found_again_when_only_it_can_spell_the_text() -> None:
    """ "bcd" is one token, and there is no other way to write c or d; after b, nearly all mass is with the token b."""
    v = Vocabulary.build([b"a", b"b", b"bcd"])
    member = constant(v, {0: 0.5, 1: 0.47, 2: 0.03})
    found = Ensemble([member], epsilon=0.2).score("a", "abcda")
    true = Ensemble([member], epsilon=0).score("a", "abcda")
    assert np.isfinite(found.logprobs).all()
    assert found.logprob == pytest.approx(true.logprob, rel=0.5)


@pytest.mark.parametrize("rest", ["cd", "cda"])
def test_what_a_member_gives_no_chance_is_impossible_and_no_error(rest: str) -> None:
    v = Vocabulary.build([b"a", b"b", b"bcd"])
    found = Ensemble([constant(v, {0: 0.9, 1: 0.1})]).score("a", "ab" + rest)
    np.testing.assert_allclose(np.exp(found.logprobs[0, :3]), [0.9, 0.1, 0], atol=1e-9)


def test_a_text_that_only_a_branch_dropped_long_ago_can_write_is_scored() -> None:
    """What was kept has become unlikelier than any float by then; each byte was voted on by what was kept."""
    whole = b"x" + b"y" * 40 + b"z"
    vocabulary = Vocabulary.build([b"x", b"y", whole, b"</s>"], {3: Kind.END})

    def logits(ids: tuple[int, ...]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array([0.0, 0, -7, -90] if len(ids) < 2 else [0.0, -50, -90, -90])

    member = TableMember("m", vocabulary, logits)
    with Ensemble([member]) as ensemble:
        scored = ensemble.score("x", whole)
    assert scored.logprob == pytest.approx(math.log(1 / 2) - 40 * 50, abs=1e-2)
    assert scored.logprobs[0, -1] == pytest.approx(0)  # the branch outweighs all others by far


def test_a_dropped_branch_is_revived_and_scored_as_if_it_had_been_kept() -> None:
    """ "ab" is so much likelier than "a" that "a" is dropped; then comes no b."""
    v = Vocabulary.build([b"a", b"b", b"ab"])
    member = constant(v, {0: 0.04, 1: 0.06, 2: 0.9})
    found = Ensemble([member], epsilon=0.2).score("b", "aa")
    true = Ensemble([member], epsilon=0).score("b", "aa")
    np.testing.assert_allclose(found.logprobs, true.logprobs, atol=1e-9)
    assert not member._contexts


def test_the_prompts_last_token_is_not_forgotten_where_healing_finds_it_unlikely() -> None:
    """The prompt ends in "a", which nearly always goes on as "ab"; here it does not."""
    v = Vocabulary.build([b"a", b"b", b"ab"])
    member = constant(v, {0: 0.005, 1: 0.045, 2: 0.95})
    found = Ensemble([member], epsilon=0.01).score("ba", "a")
    true = Ensemble([member], epsilon=0).score("ba", "a")
    np.testing.assert_allclose(found.logprobs, true.logprobs, atol=1e-9)


# What cannot be scored


def test_a_byte_that_a_member_cannot_read_is_named_with_the_member() -> None:
    able = ByteMember("able", byte_vocabulary({}))
    lacks = ByteMember("lacks", byte_vocabulary({}, missing=b"x"))
    ensemble = Ensemble([able, lacks])
    with pytest.raises(UnreadableByte, match=r"0x78 \(at byte 4\), which lacks cannot read"):
        ensemble.score("a", "abcdxyz")
    with pytest.raises(UnreadableByte, match="lacks"):
        ensemble.score("ax", "abcd")
    assert not able._contexts and not lacks._contexts


@pytest.mark.parametrize("n", [1, 4, 8, 9, 20])
def test_a_byte_that_is_only_ever_part_of_a_piece_can_be_read(n: int) -> None:
    v = Vocabulary.build([b"a", "é".encode(), "日".encode()])
    for character in ("é", "日"):
        found = Ensemble([TableMember.random("m", v)], epsilon=0).score("a", character * n)
        assert np.isfinite(found.logprobs).all()


def test_an_ensemble_that_votes_on_pieces_has_no_scores() -> None:
    with pytest.raises(ConfigError, match="vote='bytes'"):
        Ensemble([TableMember.random("m", V)], vote="pieces").score("a", "b")


@pytest.mark.parametrize("continuation", ["\ud800", b"\xff", b"a\xc3b"])
def test_a_continuation_that_is_no_text_is_refused(continuation: str | bytes) -> None:
    member = ByteMember("m", byte_vocabulary({}))
    with pytest.raises(PromptError):
        Ensemble([member]).score("a", continuation)
    assert not member._contexts


def test_a_text_that_does_not_fit_leaves_no_contexts() -> None:
    small = TableMember.random("small", V, n_ctx=5)
    large = TableMember.random("large", V)
    with pytest.raises(CacheFull, match="small"):
        Ensemble([large, small]).score("a", "ab ab ab ab")
    with pytest.raises(PromptError, match="small"):
        Ensemble([large, small]).score("a a a a a a", "b")
    assert not large._contexts and not small._contexts


@pytest.mark.parametrize("fail_at", [0, 1, 2])
def test_a_member_that_fails_leaves_no_contexts(fail_at: int) -> None:
    failing = FailingMember("failing", V, lambda ids: np.zeros(V.n_ids))
    failing.fail_at = fail_at
    sound = TableMember.random("sound", V)
    with pytest.raises(BackendError, match="failing was told to fail"):
        Ensemble([sound, failing], epsilon=0).score("a", "ab éab")
    assert not sound._contexts and not failing._contexts


def test_bad_logits_in_the_middle_name_the_member_and_leave_no_contexts() -> None:
    broken = TableMember("broken", V, lambda ids: np.full(V.n_ids, np.nan) if len(ids) > 3 else np.zeros(V.n_ids))
    sound = TableMember.random("sound", V)
    with pytest.raises(BadLogits, match="broken"):
        Ensemble([sound, broken]).score("a", "a a a a a")
    assert not sound._contexts and not broken._contexts


# Windows

characters = st.text(st.sampled_from("ab é日😀\n"), max_size=40)


@given(characters, st.integers(0, 12), st.integers(1, 12))
def test_windows_cover_all_but_the_first_character_once_and_cut_between_characters(
    text: str, context: int, stride: int
) -> None:
    cut = list(windows(text.encode(), context, stride))
    assert b"".join(w.text for w in cut) == text[1:].encode()
    for w in cut:
        assert w.text.decode()
        w.prompt.decode()


@given(characters, st.integers(0, 12), st.integers(1, 12))
def test_a_windows_prompt_is_about_context_bytes_of_what_stands_before_it(text: str, context: int, stride: int) -> None:
    data, start = text.encode(), len(text[:1].encode())
    for w in windows(data, context, stride):
        assert data[:start].endswith(w.prompt)
        assert min(context, start) - 3 <= len(w.prompt) <= context
        if context >= 4:  # the longest character
            assert w.prompt
        start += len(w.text)


@given(characters, st.integers(1, 12))
def test_windows_are_about_stride_bytes_long(text: str, stride: int) -> None:
    lengths = [len(w.text) for w in windows(text.encode(), 5, stride)]
    assert all(stride <= n <= stride + 3 for n in lengths[:-1])
    assert all(0 < n <= stride + 3 for n in lengths[-1:])


def test_windows_scored_after_all_that_stands_before_them_add_up_to_the_whole() -> None:
    """In bytes, so that healing changes nothing."""
    member = TableMember.random("m", byte_vocabulary({}), seed=3)
    ensemble = Ensemble([member])
    text = "aé日b😀 ab"
    whole = ensemble.score("a", text[1:])
    parts = [ensemble.score(w.prompt, w.text) for w in windows(text.encode(), context=1 << 10, stride=4)]
    assert len(parts) > 2
    np.testing.assert_allclose(np.concatenate([p.pooled for p in parts]), whole.pooled, atol=1e-12)
