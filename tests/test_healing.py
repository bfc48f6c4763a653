"""The prompt's last token is taken as bytes that one token has to start with."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import reference_bytes
from fakes import constant
from reference_bytes import Twin, settle
from strategies import vocabularies
from unisono.chat import raw_prompt
from unisono.ensemble import Ensemble
from unisono.errors import BadLogits
from unisono.members.fake import TableMember
from unisono.text import END_OF_TEXT
from unisono.vocabulary import Kind, Vocabulary
from unisono.voting.base import MemberPrompt
from unisono.voting.bytes import ByteVoter, ByteVoting

NO_LIMIT = 1 << 30

V = Vocabulary.build(
    [b"a", b"b", b" ", b"\xc3", b"\xa9", "é".encode(), b"ab", b" a", b"a\xc3", b"</s>", b"<s>"],
    {9: Kind.END, 10: Kind.CONTROL},
)


def voter_of(member: TableMember, prompt: MemberPrompt) -> ByteVoter:
    """An exact one that has read its prompt."""
    voter = ByteVoting([member], epsilon=0, max_branches=NO_LIMIT, utf8=False).voter(0, prompt)
    settle(voter)
    return voter


@st.composite
def cases(draw: st.DrawFn) -> tuple[TableMember, MemberPrompt]:
    """A member, and a prompt to heal that the member's tokens can go on from; some end inside a character."""
    vocabulary = draw(vocabularies(max_ids=12))
    member = TableMember.random("m", vocabulary, draw(st.integers(0, 1 << 20)), draw(st.sampled_from([0.5, 2.0, 6.0])))
    ids = draw(st.lists(st.integers(0, vocabulary.n_ids - 1), min_size=1, max_size=3))
    prompt = MemberPrompt(ids, draw(st.sampled_from([b"", b"", b"\xc3", b"\xff"])), heal=True)
    assume(Twin(member, prompt).mass(b"") > 0)
    return member, prompt


def compare(member: TableMember, prompt: MemberPrompt, data: st.DataObject) -> None:
    voter, twin = voter_of(member, prompt), Twin(member, prompt)
    text = b""
    for _ in range(5):
        vote = voter.vote()
        np.testing.assert_allclose(vote, reference_bytes.as_array(twin.vote(text)), atol=1e-9)
        can_follow = np.flatnonzero(vote[:END_OF_TEXT]).tolist()
        if not can_follow or len(voter.branches) > 64:
            break
        byte = data.draw(st.sampled_from(can_follow))
        voter.hear(byte)
        settle(voter)
        text += bytes([byte])
    voter.close()
    assert not member._contexts


@given(cases(), st.data())
def test_a_healed_vote_sums_over_all_that_starts_with_the_last_piece(
    case: tuple[TableMember, MemberPrompt], data: st.DataObject
) -> None:
    member, prompt = case
    last = member.vocabulary.pieces[prompt.ids[-1]]
    assume(not last or list(member.vocabulary.pieces).count(last) == 1)
    compare(member, prompt, data)


@given(cases(), st.data())
def test_ids_that_share_the_last_piece_are_ways_to_have_written_it_too(
    case: tuple[TableMember, MemberPrompt], data: st.DataObject
) -> None:
    member, prompt = case
    v = member.vocabulary
    twice = Vocabulary.build([*v.pieces, v.pieces[prompt.ids[-1]]], [*v.kinds.tolist(), Kind.TEXT])
    compare(TableMember.random("m", twice, data.draw(st.integers(0, 1 << 20))), prompt, data)


def test_an_id_that_shares_the_last_piece_counts_with_what_follows_it() -> None:
    """Both ids of "a" are as likely; after the one comes a, after the other b."""
    v = Vocabulary.build([b"a", b"a", b"b"])
    never = -np.inf
    table = {(2,): [0.0, 0.0, never], (2, 0): [0.0, never, never], (2, 1): [never, never, 0.0]}
    voter = voter_of(TableMember("m", v, table), MemberPrompt([2, 0], heal=True))
    assert voter.vote()[list(b"ab")] == pytest.approx([0.5, 0.5])


def test_a_healed_vote_worked_out_by_hand() -> None:
    """After "ba": the token "a" was written, or the beginning of "ab" or of half a character's "a\\xc3"."""
    first = [0.4, 0.1, 0.05, 0.05, 0.1, 0, 0.2, 0, 0.1, 0, 0]
    then = [0.1, 0.2, 0.05, 0.1, 0.05, 0.1, 0.1, 0.1, 0.1, 0.1, 0]
    with np.errstate(divide="ignore"):
        table = {(1,): np.log(first).tolist(), (1, 0): np.log(then).tolist()}
    voter = voter_of(TableMember("m", V, table), MemberPrompt([1, 0], heal=True))
    vote = voter.vote()
    assert vote[ord("a")] == pytest.approx(0.4 * (0.1 + 0.1 + 0.1) / 0.7)
    assert vote[ord("b")] == pytest.approx((0.4 * 0.2 + 0.2) / 0.7)
    assert vote[0xC3] == pytest.approx((0.4 * (0.1 + 0.1) + 0.1) / 0.7)
    assert vote[END_OF_TEXT] == pytest.approx(0.4 * 0.1 / 0.7)


def test_a_prompt_that_ends_inside_a_character_goes_on_inside_it() -> None:
    """After "ba" and half of "é": only the healed prompt may have been "b" and "a\\xc3"."""
    for heal, ways in ((False, [[1, 0], [1, 0, 3]]), (True, [[1, 0], [1, 0, 3], [1, 8]])):
        member = TableMember.random("m", V, seed=5)
        prompt = raw_prompt(member, b"ba\xc3", heal)
        assert (list(prompt.ids), prompt.tail, prompt.heal) == ([1, 0], b"\xc3", heal)
        unit = ByteVoting([member], epsilon=0)
        voter = unit.voter(0, prompt)
        settle(voter)
        assert sorted(b.line.ids[: b.n] for b in voter._branches) == ways
        [vote] = unit.ballot([voter])
        assert vote[0xA9] == 1


@pytest.mark.parametrize("prompt", [[0], [1, 9], [1, 10], [9, 10]])
def test_a_prompt_of_one_token_or_one_that_ends_in_no_text_is_read_as_it_is(prompt: list[int]) -> None:
    member = TableMember.random("m", V, seed=6)
    healed, plain = (voter_of(member, MemberPrompt(prompt, heal=heal)) for heal in (True, False))
    np.testing.assert_array_equal(healed.vote(), plain.vote())
    assert len(healed.branches) == 1


def test_a_last_token_that_the_member_gave_no_chance_is_read_as_it_is() -> None:
    member = constant(V, {0: 0.5, 2: 0.5})
    voter = voter_of(member, MemberPrompt([0, 1], heal=True))
    assert voter.branches == [(b"", 1.0)]
    assert voter.vote()[list(b"a ")] == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("epsilon", [0.0, 0.01])
def test_reading_a_healed_prompt_takes_one_forward_and_one_context(epsilon: float) -> None:
    member = TableMember.random("m", V, seed=7)
    unit = ByteVoting([member], epsilon=epsilon)
    voter = unit.voter(0, MemberPrompt([10, 1, 0, 2], heal=True))
    assert settle(voter) == 1
    assert (member.n_read, len(member._contexts)) == (4, 1)
    assert len(voter.branches) == 2  # " " itself, and what begins with it


def test_a_prompt_that_ends_inside_a_word_does_no_harm_once_healed() -> None:
    """The member has only seen "hello" as one token; after "he" it does not know what to say."""
    v = Vocabulary.build([bytes([b]) for b in b"helo !"] + [b"he", b"hello", b"</s>"], {8: Kind.END})
    bang, he, hello, end = 5, 6, 7, 8

    def answer(ids: tuple[int, ...]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        logits = np.zeros(v.n_ids)
        logits[{hello: end, he: bang}.get(ids[-1], hello)] = 8.0
        return logits

    assert Ensemble([TableMember("m", v, answer)]).generate(" he", heal=False).run().startswith("!")
    assert Ensemble([TableMember("m", v, answer)]).generate(" he").run() == "llo"


def test_a_healed_token_does_not_count_as_written() -> None:
    v = Vocabulary.build([bytes([b]) for b in b"helo !"] + [b"he", b"hello"])
    member = constant(v, {7: 0.9, 6: 0.05, 4: 0.05})
    generation = Ensemble([member]).generate(" he", max_tokens=1)
    assert (generation.run(), generation.finish) == ("llohello", "length")


def test_a_bad_row_before_the_last_token_names_the_member() -> None:
    broken = TableMember("broken", V, lambda ids: np.full(V.n_ids, np.nan) if len(ids) == 1 else np.zeros(V.n_ids))
    with pytest.raises(BadLogits, match="broken"):
        voter_of(broken, MemberPrompt([1, 0], heal=True))
    voter_of(broken, MemberPrompt([1, 0]))
