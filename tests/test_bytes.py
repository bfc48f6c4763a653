from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import reference_bytes
from fakes import FailingMember, byte_vocabulary, constant, scripted
from reference_bytes import Twin, settle
from strategies import ALPHABET, PROMPT, members, texts, vocabularies, weights
from unisono.arrays import BoolArray, FloatArray
from unisono.chat import raw_prompt
from unisono.ensemble import Ensemble, Generation
from unisono.errors import BadLogits, CacheFull, NoCommonChoice
from unisono.members.fake import TableMember
from unisono.text import END_OF_TEXT
from unisono.vocabulary import Kind, Vocabulary
from unisono.voting import rows
from unisono.voting.base import MemberPrompt
from unisono.voting.bytes import N_CHOICES, ByteVoter, ByteVoting
from unisono.voting.rows import SortedRow

NO_LIMIT = 1 << 30
EPSILONS = [0.0, 0.01, 0.05, 0.2, 0.5]
C3, A9 = "é".encode()

V = Vocabulary.build(
    [b"a", b"b", b" ", b"\xc3", b"\xa9", "é".encode(), b"ab", b" a", b"bab", b"</s>", b"<s>"],
    {9: Kind.END, 10: Kind.CONTROL},
)
"""Reads and writes all of "ab é"."""


@st.composite
def tables(draw: st.DrawFn, max_ids: int = 12, whole: bool = False) -> TableMember:
    """A member with any vocabulary, or with one in which every byte of the alphabet is a token as well."""
    vocabulary = draw(vocabularies(max_ids))
    if whole:
        kinds = [*vocabulary.kinds.tolist(), *[Kind.TEXT] * len(ALPHABET)]
        vocabulary = Vocabulary.build([*vocabulary.pieces, *ALPHABET], kinds)
    spread = draw(st.sampled_from([0.5, 2.0, 6.0]))
    return TableMember.random("m", vocabulary, draw(st.integers(0, 1 << 20)), spread)


def prompts(member: TableMember, heal: bool = False) -> st.SearchStrategy[MemberPrompt]:
    """A few ids of any kind."""
    ids = st.lists(st.integers(0, member.vocabulary.n_ids - 1), min_size=1, max_size=3)
    return ids.map(lambda drawn: MemberPrompt(drawn, b"", heal))


def exact(drawn: Sequence[TableMember], utf8: bool = False) -> ByteVoting:
    return ByteVoting(drawn, epsilon=0, max_branches=NO_LIMIT, utf8=utf8)


def can_follow(vote: FloatArray | BoolArray) -> list[int]:
    """The bytes that have some probability, or that are allowed."""
    return [int(b) for b in np.flatnonzero(vote[:END_OF_TEXT])]


def logs(*probabilities: float) -> list[float]:
    return [math.log(p) for p in probabilities]


def hear(voter: ByteVoter, text: bytes) -> None:
    for byte in text:
        settle(voter)
        voter.hear(byte)
    settle(voter)


# The vote


@given(tables(), st.data())
def test_without_epsilon_a_vote_sums_over_every_tokenisation_of_the_text(
    member: TableMember, data: st.DataObject
) -> None:
    prompt = data.draw(prompts(member))
    voter, twin = exact([member]).voter(0, prompt), Twin(member, prompt)
    text = b""
    for _ in range(5):
        settle(voter)
        vote = voter.vote()
        np.testing.assert_allclose(vote, reference_bytes.as_array(twin.vote(text)), atol=1e-9)
        if not can_follow(vote) or len(voter.branches) > 64:
            break
        byte = data.draw(st.sampled_from(can_follow(vote)))
        voter.hear(byte)
        text += bytes([byte])
    voter.close()
    assert not member._contexts


@given(tables(), st.sampled_from([b"", b"\xc3"]), st.data())
def test_with_utf8_what_cannot_go_on_with_it_is_masked_and_the_rest_sums_to_1_again(
    member: TableMember, tail: bytes, data: st.DataObject
) -> None:
    prompt = MemberPrompt(data.draw(prompts(member)).ids, tail)
    twin = Twin(member, prompt)
    assume(twin.mass(b"") > 0)
    unit = exact([member], utf8=True)
    voter = unit.voter(0, prompt)
    text = b""
    for _ in range(4):
        settle(voter)
        [expected] = reference_bytes.ballot([twin], text, tail)
        if not expected:
            with pytest.raises(NoCommonChoice):
                unit.ballot([voter])
            break
        [vote] = unit.ballot([voter])
        np.testing.assert_allclose(vote, reference_bytes.as_array(expected), atol=1e-9)
        if not can_follow(vote) or len(voter.branches) > 64:
            break
        byte = data.draw(st.sampled_from(can_follow(vote)))
        voter.hear(byte)
        text += bytes([byte])


@given(tables(whole=True), st.data())
def test_a_text_is_at_least_as_likely_as_its_usual_tokenisation(member: TableMember, data: st.DataObject) -> None:
    prompt, text = data.draw(prompts(member)), data.draw(texts(4))
    voter, twin = exact([member]).voter(0, prompt), Twin(member, prompt)
    product = 1.0
    for byte in text:
        settle(voter)
        product *= voter.vote()[byte]
        voter.hear(byte)
    settle(voter)
    usual = member.vocabulary.longest_match(text)
    assert usual is not None
    assert product >= twin.probability(tuple(usual)) * (1 - 1e-9)
    ending = math.fsum(twin.probability((*usual, end)) for end in member.vocabulary.ends.tolist())
    assert product * voter.vote()[END_OF_TEXT] >= ending * (1 - 1e-9)


def test_the_twin_itself_is_a_distribution() -> None:
    member = TableMember.random("m", V, seed=1)
    twin = Twin(member, MemberPrompt([0]))
    for text in (b"", b"a", b"ab", "é".encode(), b"\xc3", b"b", b"ba", b"bab"):
        assert math.fsum(twin.vote(text).values()) == pytest.approx(1)


def test_a_vote_and_its_forwards_worked_out_by_hand() -> None:
    """After "a": the token "a", or the beginning of "ab"."""
    v = Vocabulary.build([b"a", b"b", b"ab", b"</s>"], {3: Kind.END})
    member = TableMember("m", v, {(0,): logs(0.4, 0.1, 0.3, 0.2), (0, 0): logs(0.1, 0.7, 0.1, 0.1)})
    voter = exact([member]).voter(0, MemberPrompt([0]))
    assert settle(voter) == 1
    assert voter.vote()[[*b"ab", END_OF_TEXT]] == pytest.approx([0.7, 0.1, 0.2])
    voter.hear(ord("a"))
    assert settle(voter) == 1
    assert voter.vote()[[*b"ab", END_OF_TEXT]] == pytest.approx(
        [0.4 * 0.2 / 0.7, (0.3 + 0.4 * 0.7) / 0.7, 0.4 * 0.1 / 0.7]
    )
    voter.close()


def test_the_members_own_next_token_is_told_where_it_has_no_open_bytes() -> None:
    member = TableMember.random("m", V, seed=3)
    voter, twin = exact([member]).voter(0, MemberPrompt([0])), Twin(member, MemberPrompt([0]))
    settle(voter)
    told = voter.next_token()
    assert told is not None
    masses, end = told
    expected = twin.probabilities(())
    np.testing.assert_allclose(masses, [expected[i] for i in V.order.tolist()], atol=1e-12)
    assert end == pytest.approx(expected[9])


def test_inside_a_token_there_is_no_next_token_to_tell() -> None:
    voter = exact([constant(V, {0: 0.1, 8: 0.9})]).voter(0, MemberPrompt([0]))
    settle(voter)
    voter.hear(ord("b"))
    assert voter.next_token() is None


# Any epsilon


def check(voter: ByteVoter, member: TableMember, prompt: MemberPrompt, text: bytes) -> None:
    """The member's contexts hold the branches' tokens and nothing else; the tokens spell the text; what the branches
    know is what a fresh read would tell."""
    assert {b.line.context for b in voter._branches} == set(member._contexts)
    twin = Twin(member, MemberPrompt([]))
    for branch in voter._branches:
        ids = branch.line.ids[: branch.n]
        assert branch in branch.line.branches
        assert member._contexts[branch.line.context][: branch.n] == ids
        assert ids[: len(prompt.ids) - prompt.heal] == list(prompt.ids)[: len(prompt.ids) - prompt.heal]
        spelled = member.vocabulary.join([*ids, *branch.unread]) + branch.prefix + branch.behind
        assert spelled == member.vocabulary.join(prompt.ids) + prompt.tail + text
        if branch.row is not None:
            expected = twin.probabilities(tuple(ids))
            np.testing.assert_allclose(
                branch.row.masses / branch.row.total, [expected[i] for i in member.vocabulary.order.tolist()], atol=1e-9
            )


@given(tables(), st.sampled_from(EPSILONS), st.booleans(), st.booleans(), st.booleans(), st.data())
def test_whatever_the_others_choose_a_vote_is_a_distribution_and_the_contexts_hold_the_branches(
    member: TableMember, epsilon: float, utf8: bool, heal: bool, canonical: bool, data: st.DataObject
) -> None:
    """The others choose any byte that the voter says it can take, likely or not."""
    prompt = data.draw(prompts(member, heal))
    most = data.draw(st.integers(1, 6))
    merge = data.draw(st.sampled_from([None, 0, 1, 2]))
    unit = ByteVoting([member], epsilon=epsilon, max_branches=most, utf8=utf8, canonical=canonical, merge=merge)
    voter = unit.voter(0, prompt)
    text = b""
    for _ in range(10):
        settle(voter)
        check(voter, member, prompt, text)
        vote = voter.vote()
        assert vote.shape == (N_CHOICES,)
        assert (vote >= 0).all() and vote.sum() == pytest.approx(1)
        assert len(voter.branches) <= max(most, 2)
        allowed = [
            b
            for b in can_follow(np.logical_and.reduce([np.ones(N_CHOICES, bool), *voter.masks(vote)]))
            if bytes([b]) in ALPHABET
        ]
        if not allowed:
            break
        byte = data.draw(st.sampled_from(allowed))
        voter.hear(byte)
        text += bytes([byte])
        assert len(member._contexts) <= max(most, 2)
    voter.close()
    voter.close()
    assert not member._contexts


@given(tables(whole=True), st.sampled_from(EPSILONS), texts(10), st.booleans(), st.data())
def test_any_text_can_be_heard_by_a_member_that_can_write_it(
    member: TableMember, epsilon: float, text: bytes, heal: bool, data: st.DataObject
) -> None:
    merge = data.draw(st.sampled_from([None, 0, 1, 2]))
    unit = ByteVoting([member], epsilon=epsilon, max_branches=4, utf8=False, merge=merge)
    voter = unit.voter(0, data.draw(prompts(member, heal)))
    for byte in text:
        settle(voter)
        assert voter.vote().sum() == pytest.approx(1)
        voter.hear(byte)
    settle(voter)
    assert voter.vote().sum() == pytest.approx(1)


@given(tables(whole=True), st.sampled_from(EPSILONS[1:]), st.lists(st.sampled_from("ab é"), max_size=8).map("".join))
def test_some_byte_that_goes_on_with_utf8_can_always_be_chosen(member: TableMember, epsilon: float, text: str) -> None:
    """Dropping branches must not leave only those that go on with what is masked."""
    unit = ByteVoting([member], epsilon=epsilon)
    voter = unit.voter(0, MemberPrompt([0]))
    for byte in text.encode():
        settle(voter)
        assert unit.ballot([voter]).sum() == pytest.approx(1)
        voter.hear(byte)


def test_a_piece_that_is_no_utf8_does_not_bar_the_way_when_the_other_branch_is_dropped() -> None:
    v = Vocabulary.build([b"a", b"\xc3", b"\xa9", b"\xc3a", b"</s>"], {4: Kind.END})
    member = constant(v, {0: 0.1, 1: 0.1, 2: 0.1, 3: 0.6, 4: 0.1})
    unit = ByteVoting([member], epsilon=0.2)
    voter = unit.voter(0, MemberPrompt([0]))
    settle(voter)
    voter.hear(C3)
    settle(voter)
    [vote] = unit.ballot([voter])
    assert can_follow(vote) == [A9]


def test_a_dead_end_of_the_vocabulary_is_no_choice_rather_than_a_failure() -> None:
    """Only one piece has the second half of a character, and it goes on with what is no UTF-8."""
    unit = ByteVoting(
        [constant(Vocabulary.build([b"a", b"\xc3", b"\xc3\xa9\xff"]), {0: 0.1, 1: 0.1, 2: 0.8})], epsilon=0.2
    )
    voter = unit.voter(0, MemberPrompt([0]))
    hear(voter, "é".encode())
    assert voter.vote()[0xFF] == pytest.approx(1)
    with pytest.raises(NoCommonChoice):
        unit.ballot([voter])


# What epsilon costs


@pytest.mark.parametrize("epsilon", [0.001, 0.01, 0.1])
def test_the_votes_differ_from_the_exact_ones_by_no_more_than_epsilon_for_every_branch_dropped(epsilon: float) -> None:
    """Over texts that the member itself writes, the expected share of what was dropped does not grow after it was."""
    apart, bounds = [], []
    for seed in range(30):
        member = TableMember.random("m", V, seed, spread=3.0)
        prompt = MemberPrompt([0])
        true = exact([member]).voter(0, prompt)
        near = ByteVoting([member], epsilon=epsilon, max_branches=NO_LIMIT, utf8=False, merge=0).voter(0, prompt)
        random = np.random.default_rng(seed)
        for _ in range(10):
            settle(true)
            settle(near)
            apart.append(float(np.abs(true.vote() - near.vote()).sum() / 2))
            bounds.append(min(1.0, epsilon * near.n_dropped))
            choice = int(random.choice(N_CHOICES, p=true.vote()))
            if choice == END_OF_TEXT:
                break
            true.hear(choice)
            near.hear(choice)
    assert len(apart) > 100
    assert float(np.mean(apart)) <= float(np.mean(bounds))
    assert float(np.mean(apart)) < 10 * epsilon
    assert max(apart) > 0


def test_epsilon_bounds_how_many_branches_are_kept() -> None:
    member = TableMember.random("m", V, seed=2, spread=0.5)
    few, many = (ByteVoting([member], epsilon=e, max_branches=NO_LIMIT).voter(0, MemberPrompt([0])) for e in (0.2, 0.0))
    text = "ab ab éab".encode()
    hear(few, text)
    hear(many, text)
    assert len(few.branches) <= 5 < len(many.branches)
    assert few.n_dropped > 0 == many.n_dropped


def forgetful(member: TableMember, n: int) -> TableMember:
    """The same, but it only remembers the last n tokens."""
    return TableMember("forgetful", member.vocabulary, lambda ids: member._answer(ids[-n:]))


@given(tables(), st.integers(1, 2), st.booleans(), st.data())
def test_merging_is_exact_for_a_member_that_looks_no_further_back(
    drawn: TableMember, n: int, heal: bool, data: st.DataObject
) -> None:
    member = forgetful(drawn, n)
    prompt = data.draw(prompts(member, heal))
    voters = [
        ByteVoting([member], epsilon=0, max_branches=NO_LIMIT, utf8=False, merge=merge).voter(0, prompt)
        for merge in (n, 0)
    ]
    for _ in range(6):
        for voter in voters:
            settle(voter)
        merged, all_apart = voters
        np.testing.assert_allclose(merged.vote(), all_apart.vote(), atol=1e-9)
        assert len(merged.branches) <= len(all_apart.branches)
        if not can_follow(merged.vote()) or len(all_apart.branches) > 64:
            break
        byte = data.draw(st.sampled_from(can_follow(merged.vote())))
        for voter in voters:
            voter.hear(byte)
    for voter in voters:
        voter.close()
    assert not member._contexts


def test_branches_that_end_in_the_same_tokens_count_as_the_heaviest_of_them() -> None:
    v = Vocabulary.build([b"a", b"b", b"ab", b" ", b"</s>"], {4: Kind.END})
    member = constant(v, {0: 0.3, 1: 0.2, 2: 0.1, 3: 0.3, 4: 0.1})
    found = {}
    for merge in (0, 1, 2):
        member.n_read = 0
        voter = ByteVoting([member], epsilon=0.001, merge=merge).voter(0, MemberPrompt([3]))
        for byte in b"ab  ":
            settle(voter)
            voter.hear(byte)
        settle(voter)
        lines = [list(ids) for _, ids in voter.lines]
        found[merge] = (voter.n_merged, len(voter.branches), lines, member.n_read)
        assert voter.vote()[[97, 98]] == pytest.approx([0.4, 0.2])
    apart = [[3, 0, 1, 3, 3], [3, 2, 3, 3]]  # "a" "b" has 0.3 * 0.2, "ab" 0.1
    assert found[0][:2] == (0, 2) and sorted(found[0][2]) == apart
    assert found[1][:3] == (1, 1, [apart[1]]) and found[2][:3] == (1, 1, [apart[1]])
    assert found[1][3] < found[2][3] < found[0][3]


def test_nothing_is_merged_at_epsilon_0_unless_one_asks_for_it() -> None:
    members = [constant(V, {0: 0.5, 1: 0.5})]
    units = [ByteVoting(members, epsilon=e, merge=m) for e, m in ((0, None), (0.1, None), (0, 3), (0.1, 0))]
    assert [unit.merge for unit in units] == [0, 4, 3, 0]
    assert [unit.max_branches for unit in units] == [64, 8, 64, 16]


def test_no_more_than_max_branches_are_kept_and_the_heaviest_are() -> None:
    member = TableMember.random("m", V, seed=2, spread=0.5)
    true = exact([member]).voter(0, MemberPrompt([0]))
    near = ByteVoting([member], epsilon=0, max_branches=3, utf8=False).voter(0, MemberPrompt([0]))
    hear(true, b"ab")
    hear(near, b"ab")
    assert [prefix for prefix, _ in near.branches] == [prefix for prefix, _ in true.branches[:3]]


# Retelling


def test_after_what_a_member_gave_no_chance_it_says_what_it_would_say_there() -> None:
    voter = ByteVoting([constant(V, {0: 1.0})], epsilon=0.01).voter(0, MemberPrompt([0]))
    hear(voter, b"aab ab")
    assert voter.vote()[ord("a")] == pytest.approx(1)
    [(prefix, share)] = voter.branches
    assert prefix == b"" and share == pytest.approx(1)


@pytest.mark.parametrize("text", ["é", "aé", "éa", "é é"])
@pytest.mark.parametrize("heal", [False, True])
def test_half_a_character_that_a_member_gave_no_chance_is_heard_in_a_few_forwards(text: str, heal: bool) -> None:
    member = constant(V, {0: 1.0})
    voter = ByteVoting([member]).voter(0, MemberPrompt([0, 0], b"", heal))
    hear(voter, text.encode())
    assert voter.vote()[ord("a")] == pytest.approx(1)
    voter.close()
    assert not member._contexts


def test_a_dropped_branch_is_taken_up_again_when_no_other_can_go_on() -> None:
    """ "ab" was 50 times as likely as "a", which was dropped; then comes no b."""
    v = Vocabulary.build([b"a", b"b", b"ab"])
    member = TableMember("m", v, lambda ids: np.log([0.02, 0.01, 0.97] if len(ids) == 1 else [0.2, 0.3, 0.5]))
    voter = ByteVoting([member], epsilon=0.1).voter(0, MemberPrompt([1]))
    settle(voter)
    voter.hear(ord("a"))
    settle(voter)
    [(prefix, share)] = voter.branches
    assert prefix == b"a" and share == pytest.approx(0.97 / 0.99)
    voter.hear(ord("a"))
    settle(voter)
    assert voter.n_retold == 1
    assert list(member._contexts.values()) == [[1, 0, 0]]
    after_a, inside_ab = 0.2 / 0.7, 0.5 / 0.7
    assert voter.vote()[list(b"ab")] == pytest.approx([after_a * (0.2 + 0.5), after_a * 0.3 + inside_ab])


def test_reviving_takes_up_the_heaviest_of_the_dropped_first_and_says_when_there_is_none() -> None:
    v = Vocabulary.build([b"a", b"b", b"ab", b"a"])
    member = constant(v, {0: 0.02, 1: 0.01, 2: 0.94, 3: 0.03})
    voter = ByteVoting([member], epsilon=0.1).voter(0, MemberPrompt([1]))
    settle(voter)
    voter.hear(ord("a"))
    settle(voter)
    votes = []
    for last in (3, 0):
        assert voter.revive()
        [feed] = voter.pending()
        assert list(feed.ids)[-1] == last
        settle(voter)
        votes.append(voter.vote()[ord("a")])
    assert not voter.revive()
    assert 0 < votes[0] < votes[1]
    exact_voter = exact([member]).voter(0, MemberPrompt([1]))
    hear(exact_voter, b"a")
    np.testing.assert_allclose(voter.vote(), exact_voter.vote(), atol=1e-12)


# The tokeniser's own tokens only


@given(tables(whole=True), st.lists(st.sampled_from("ab é"), max_size=6).map("".join), st.data())
def test_canonical_never_drops_the_tokenisers_own_tokenisation(
    member: TableMember, text: str, data: st.DataObject
) -> None:
    unit = ByteVoting([member], epsilon=0, max_branches=NO_LIMIT, canonical=True)
    prompt = data.draw(prompts(member))
    voter = unit.voter(0, prompt)
    hear(voter, text.encode())
    ways = [[*b.line.ids[: b.n], *b.unread] for b in voter._branches if not b.prefix]
    assert [*prompt.ids, *member.encode(text)] in ways
    assert voter.n_retold == 0


def test_canonical_drops_what_the_tokeniser_would_not_write() -> None:
    member = TableMember.random("m", V, seed=4)
    loose, strict = (
        ByteVoting([member], epsilon=0, canonical=canonical, max_branches=NO_LIMIT).voter(0, MemberPrompt([0]))
        for canonical in (False, True)
    )
    for voter in (loose, strict):
        hear(voter, b" ab")
    assert sorted(b.line.ids[1 : b.n] for b in loose._branches if not b.prefix) == [[2, 0, 1], [2, 6], [7, 1]]
    assert [b.line.ids[1 : b.n] for b in strict._branches if not b.prefix] == [[7, 1]]


# The whole ensemble


@given(members(max_members=2), st.booleans(), st.data())
def test_without_epsilon_an_ensemble_writes_what_a_dictionary_of_all_tokenisations_would(
    drawn: list[TableMember], utf8: bool, data: st.DataObject
) -> None:
    shares = [w / math.fsum(raw) for raw in [data.draw(weights(len(drawn)))] for w in raw]
    ensemble = Ensemble(drawn, shares, epsilon=0, utf8=utf8)
    assert isinstance(ensemble.unit, ByteVoting)
    ensemble.unit.max_branches = NO_LIMIT
    twins = [Twin(member, raw_prompt(member, PROMPT, heal=False)) for member in drawn]
    generation = ensemble.generate(PROMPT, max_tokens=None, heal=False)
    text = b""
    for _ in range(4):
        votes = reference_bytes.ballot(twins, text, utf8=utf8)
        pooled = reference_bytes.pooled(votes, shares)
        if not pooled:
            with pytest.raises(NoCommonChoice):
                next(generation)
            break
        best = max(sorted(pooled), key=pooled.__getitem__)
        step = next(generation)
        assert step.piece == (b"" if best == END_OF_TEXT else bytes([best]))
        assert math.exp(step.logprob) == pytest.approx(pooled[best], abs=1e-9)
        for thought, vote in zip(step.votes, votes, strict=True):
            assert math.exp(thought.chosen_logprob) == pytest.approx(vote.get(best, 0.0), abs=1e-9)
        if step.finish:
            assert step.finish == "end"
            break
        text += step.piece
        if any(len(member._contexts) > 64 for member in drawn):
            break
    generation.close()
    assert not any(member._contexts for member in drawn)


@given(members(max_members=3), st.sampled_from(EPSILONS), st.booleans(), st.data())
def test_all_that_is_written_is_utf8_and_in_bytes_that_every_member_has(
    drawn: list[TableMember], epsilon: float, heal: bool, data: st.DataObject
) -> None:
    generation = Ensemble(drawn, data.draw(weights(len(drawn))), epsilon=epsilon).generate(
        PROMPT, max_tokens=8, heal=heal
    )
    data_written, finish = run(generation, most=24)
    assert reference_bytes.begins_utf8(data_written)
    if finish == "end":
        assert generation.text == data_written.decode()
    for member in drawn:
        assert set(data_written) <= set(b"".join(member.vocabulary.pieces))
    assert not any(member._contexts for member in drawn)


def run(generation: Generation, most: int) -> tuple[bytes, str | None]:
    """What is written in so many steps, until nothing can follow."""
    out = b""
    try:
        for _, step in zip(range(most), generation, strict=False):
            out += step.piece
    except NoCommonChoice:  # some drawn vocabularies have the first byte of a character and not the second
        pass
    generation.close()
    return out, generation.finish


@given(tables(whole=True), st.sampled_from([0.0, 0.01]), st.booleans())
def test_two_copies_of_a_member_write_what_one_does(member: TableMember, epsilon: float, heal: bool) -> None:
    copy = TableMember("copy", member.vocabulary, member._answer)
    alone = Ensemble([member], epsilon=epsilon).generate(PROMPT, max_tokens=6, heal=heal)
    both = Ensemble([member, copy], [0.5, 0.5], epsilon=epsilon).generate(PROMPT, max_tokens=6, heal=heal)
    assert run(alone, most=12) == run(both, most=12)


def test_a_byte_that_some_member_lacks_is_never_chosen_and_its_mass_is_gone_before_pooling() -> None:
    """The first member would write x, which the second lacks; of the rest it prefers a."""
    one = scripted(byte_vocabulary({"</s>": Kind.END}), [ord("x"), 256], "one")
    lacks = byte_vocabulary({"</s>": Kind.END}, missing=b"x")
    other = constant(lacks, {ord("b"): 0.6, ord("a"): 0.4}, "other")
    step = next(Ensemble([one, other], [0.6, 0.4]).generate("q", heal=False))
    assert step.piece == b"b"
    one_vote, other_vote = step.votes
    n_left = 128 + 51 + 1 - 1  # all that can begin a character, and the end; all alike
    assert math.exp(one_vote.chosen_logprob) == pytest.approx(1 / n_left)
    assert math.exp(other_vote.chosen_logprob) == pytest.approx(0.6)
    assert math.exp(step.logprob) == pytest.approx(0.6 / n_left + 0.4 * 0.6)


def test_a_byte_that_a_member_has_only_inside_a_piece_can_be_chosen_as_part_of_it() -> None:
    v = Vocabulary.build([b"a", b"xyz", b"</s>"], {2: Kind.END})
    member = scripted(v, [1, 0, 2])
    assert Ensemble([member]).generate("a", heal=False).run() == "xyza"


def test_a_member_that_wants_only_what_others_cannot_read_has_no_say() -> None:
    one = constant(byte_vocabulary({}), {ord("x"): 1.0}, "one")
    other = constant(byte_vocabulary({}, missing=b"x"), {ord("a"): 1.0}, "other")
    unit = ByteVoting([one, other])
    voters = [unit.voter(n, MemberPrompt([ord("q")])) for n in range(2)]
    for voter in voters:
        settle(voter)
    assert unit.ballot(voters).sum(axis=1) == pytest.approx([0, 1])
    assert voters[0].vote()[ord("x")] == 1  # the votes themselves are left as they were


def test_nothing_that_every_member_can_read_is_an_error() -> None:
    one = constant(byte_vocabulary({}), {ord("x"): 1.0}, "one")
    other = constant(byte_vocabulary({}, missing=b"xy"), {ord("a"): 1.0}, "other")
    alone = constant(byte_vocabulary({}, missing=b"a"), {ord("y"): 1.0}, "third")
    with pytest.raises(NoCommonChoice, match="every member can read"):
        Ensemble([one, other, alone]).generate("q", heal=False).run()
    assert not one._contexts and not other._contexts and not alone._contexts


# Its length

WORDS = Vocabulary.build(
    [bytes([b]) for b in range(256)] + [b"hello", b" wor", b" world", b"ld", "é!".encode(), b"</s>"], {261: Kind.END}
)
SCRIPT = [256, 258, 260, 261]


@pytest.mark.parametrize(("n", "written"), [(1, "hello"), (2, "hello world"), (3, "hello worldé!")])
def test_max_tokens_counts_whole_tokens_of_the_first_member_and_the_text_stops_where_one_ends(
    n: int, written: str
) -> None:
    words = scripted(WORDS, SCRIPT, "words")
    letters = scripted(byte_vocabulary({"</s>": Kind.END}), [*"hello worldé!".encode(), 256], "letters")
    for drawn, heavy in (([words], [1.0]), ([words, letters], [0.5, 0.5])):
        generation = Ensemble(drawn, heavy).generate("x", max_tokens=n, heal=False)
        assert (generation.run(), generation.finish, generation.stats.n_tokens) == (written, "length", n)
    generation = Ensemble([letters, words]).generate("x", max_tokens=n, heal=False)
    assert (generation.run(), generation.finish, generation.stats.n_tokens) == ("hello"[:n], "length", n)


def test_a_text_that_ends_by_itself_has_as_many_tokens_as_were_written() -> None:
    generation = Ensemble([scripted(WORDS, SCRIPT)]).generate("x", heal=False)
    assert (generation.run(), generation.finish, generation.stats.n_tokens) == ("hello worldé!", "end", 3)


def test_a_known_way_takes_one_forward_a_token() -> None:
    member = scripted(WORDS, SCRIPT)
    generation = Ensemble([member]).generate("x", heal=False)
    generation.run()
    assert generation.stats.n_forwards == [4]
    assert generation.stats.n_read == [4]


@pytest.mark.parametrize("n_ctx", [2, 3])
def test_a_context_that_is_full_ends_the_text_at_a_token_that_needs_not_be_read(n_ctx: int) -> None:
    """A prompt of one token, n_ctx - 1 more that are read, and one that needs not be."""
    generation = Ensemble([scripted(WORDS, SCRIPT, n_ctx=n_ctx)]).generate("x", max_tokens=None, heal=False)
    assert (generation.run(), generation.finish) == (["hello world", "hello worldé!"][n_ctx - 2], "length")


def test_a_context_that_is_full_after_retelling_ends_the_text_too() -> None:
    """The first member thinks of "aaaab" and drops "a"; the second goes on with a, and the first then has to read one
    token for each of them."""
    v = Vocabulary.build([b"a", b"b", b"aaaab"])
    first = TableMember(
        "first", v, lambda ids: np.log([0.09, 0.01, 0.9] if len(ids) == 1 else [0.9, 0.05, 0.05]), n_ctx=2
    )
    second = constant(byte_vocabulary({}), {ord("a"): 1.0}, "second")
    generation = Ensemble([first, second], [0.1, 0.9], epsilon=0.2).generate("b", max_tokens=None, heal=False)
    text = generation.run()
    assert (set(text), generation.finish) == ({"a"}, "length")


# Logits that are none


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("heal", [False, True])
def test_bad_logits_name_the_member_and_leave_no_context(bad: float, heal: bool) -> None:
    """With healing, also where only the row before the last of the prompt is bad."""
    n_bad = 1 if heal else 2
    broken = TableMember("broken", V, lambda ids: np.full(V.n_ids, bad) if len(ids) == n_bad else np.zeros(V.n_ids))
    sound = constant(V, {0: 1.0}, "sound")
    with pytest.raises(BadLogits, match="broken"):
        Ensemble([sound, broken]).generate("a ", heal=heal).run()
    assert not sound._contexts and not broken._contexts


def test_a_member_that_fails_while_children_wait_leaves_no_context() -> None:
    failing = FailingMember("failing", V, lambda ids: np.zeros(V.n_ids))
    failing.fail_at = 4
    with pytest.raises(Exception, match="failing was told to fail"):
        Ensemble([failing], epsilon=0).generate("ab ", heal=False).run()
    assert not failing._contexts


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_row_keeps_its_precision_and_control_tokens_take_no_mass(dtype: type[np.float32 | np.float64]) -> None:
    logits: FloatArray = np.arange(V.n_ids).astype(dtype)
    masses, end, total, _ = SortedRow(V).read(logits)
    assert masses.dtype == dtype
    assert masses.sum() + end == pytest.approx(total)
    expected = np.exp(np.arange(10.0)) / np.exp(np.arange(10.0)).sum()
    np.testing.assert_allclose(masses / total, expected[V.order], rtol=1e-5)
    assert end / total == pytest.approx(expected[9], rel=1e-5)
    np.testing.assert_array_equal(logits, np.arange(V.n_ids))


@given(vocabularies(), st.integers(1, 5), st.integers(0, 1 << 20))
def test_a_row_knows_what_may_follow_any_prefix_whatever_portions_it_was_read_in(
    vocabulary: Vocabulary, portion: int, seed: int
) -> None:
    logits = np.random.default_rng(seed).normal(0, 3, vocabulary.n_ids)
    probs = np.exp(logits) * (vocabulary.kinds <= Kind.END)
    assume(probs.any())
    probs /= probs.sum()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "PORTION", portion)
        sorted_row = SortedRow(vocabulary)
        row = sorted_row.read(logits)
    for prefix in {piece[:n] for piece in vocabulary.pieces for n in range(len(piece) + 1)}:
        expected: dict[int, float] = {}
        for piece, prob in zip(vocabulary.pieces, probs.tolist(), strict=True):
            if piece.startswith(prefix) and len(piece) > len(prefix):
                expected[piece[len(prefix)]] = expected.get(piece[len(prefix)], 0.0) + prob
        next_bytes, sums = sorted_row.by_next_byte(row, prefix)
        assert dict(zip(next_bytes.tolist(), sums.tolist(), strict=True)) == pytest.approx(expected)


@pytest.mark.parametrize("at", [0, 9, 10])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_with_something_infinite_is_none(at: int, bad: float) -> None:
    logits = np.zeros(V.n_ids)
    logits[at] = bad
    with pytest.raises(FloatingPointError):
        SortedRow(V).read(logits)


def test_a_row_that_leaves_only_control_tokens_is_none() -> None:
    logits = np.full(V.n_ids, -np.inf)
    logits[10] = 0
    with pytest.raises(FloatingPointError):
        SortedRow(V).read(logits)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("gap", [80, 89, 95, 700, 740, 800])
def test_what_is_next_to_impossible_may_be_chosen_all_the_same(dtype: type, gap: float) -> None:
    v = Vocabulary.build([b"aab", b"x", b"aaab"])
    logits: FloatArray = np.array([-gap, 0, -gap - 0.1]).astype(dtype)
    one = TableMember("one", v, lambda ids: logits.copy())
    two = TableMember("two", Vocabulary.build([b"a", b"b", b"x"]), lambda ids: np.array([5, 4.9, -80], dtype=dtype))
    ensemble = Ensemble([one, two], [1, 3])
    assert not np.isnan(ensemble.score("x", "aab").pooled).any()
    text = ensemble.generate("x", max_tokens=3, heal=False).run()
    assert set(text) <= set("abx")


def test_without_epsilon_many_more_branches_are_kept() -> None:
    v = Vocabulary.build([*(b"a" * n for n in range(1, 25)), b"b"])
    member = TableMember.random("m", v, spread=0.1)
    unit = exact([member])
    found = Ensemble([member], epsilon=0).score("b", "a" * 6 + "b").logprob
    voter = unit.voter(0, MemberPrompt([24]))
    true = 0.0
    for byte in b"a" * 6 + b"b":
        settle(voter)
        true += math.log(unit.ballot([voter])[0][byte])
        voter.hear(byte)
    assert found == pytest.approx(true, abs=1e-12)


def test_a_fork_that_finds_no_context_leaves_none_open() -> None:
    v = Vocabulary.build([b"a", b"a"])
    for n_contexts in range(1, 9):
        member = TableMember("m", v, lambda ids: np.zeros(2), n_contexts=n_contexts)
        with contextlib.suppress(CacheFull):
            Ensemble([member]).generate("a", heal=False, max_tokens=6).run()
        assert not member._contexts


def test_healing_keeps_other_ids_of_the_prompts_last_piece_where_its_own_is_impossible() -> None:
    v = Vocabulary.build([b"a", b"a", b"b", b"ab"])
    member = constant(v, {1: 0.5, 2: 0.25, 3: 0.25})
    voter = exact([member]).voter(0, MemberPrompt([2, 0], heal=True))
    settle(voter)
    # b"a" as id 1 (0.5), then anything; or inside b"ab" (0.25), then b
    np.testing.assert_allclose(voter.vote()[[97, 98]], [(0.5 * 0.75) / 0.75, (0.5 * 0.25 + 0.25) / 0.75])


@pytest.mark.parametrize("rule", ["linear", "log-linear"])
def test_a_member_without_a_say_neither_adds_nor_vetoes(rule: str) -> None:
    one = constant(Vocabulary.build([b"a", b"b", b"</s>"], {2: Kind.END}), {0: 0.75, 1: 0.25}, "one")
    two = constant(Vocabulary.build([b"b", b"c", b"a"]), {1: 1.0}, "two")
    step = next(Ensemble([one, two], rule=rule).generate("a", heal=False))
    assert step.piece == b"a"
    assert math.exp(step.logprob) == pytest.approx(0.75)


def test_what_was_dropped_is_forgotten_where_a_branch_can_write_anything_even_if_some_bytes_are_missing() -> None:
    """Or a branch dropped long ago would be taken up, and all the text since be read again in many ways."""
    v = Vocabulary.build([b"a", b"b", b"ab", b"ba", b"aba", b"bab"])
    member = TableMember.random("m", v, seed=4)
    assert len(v.missing_bytes) == 254
    voter = ByteVoting([member], epsilon=0.2).voter(0, MemberPrompt([0]))
    for byte in b"ab" * 20:
        settle(voter)
        voter.hear(byte)
        if any(not prefix for prefix, _ in voter.branches):
            assert not voter._dormant
    assert voter.n_dropped > 0
