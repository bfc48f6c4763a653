from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference
from strategies import vocabularies
from unisono import union as union_module
from unisono.arrays import FloatArray
from unisono.union import END, Shares, UnionVocabulary, unreadable
from unisono.vocabulary import Kind, Vocabulary

several = st.lists(vocabularies(), min_size=1, max_size=3)


def logits_for(vocabulary: Vocabulary, seed: int) -> FloatArray:
    return 4 * np.random.default_rng(seed).standard_normal(vocabulary.n_ids)


@given(several)
def test_the_union_holds_every_piece_that_all_can_read_once(vocabularies: list[Vocabulary]) -> None:
    assert list(UnionVocabulary.build(vocabularies).pieces) == reference.union_pieces(vocabularies)


@given(several)
def test_a_remembered_union_is_the_built_one(vocabularies: list[Vocabulary]) -> None:
    built = UnionVocabulary.build(vocabularies)
    for _ in range(2):  # made and put in the cache, then read from it
        again = UnionVocabulary.remembered(vocabularies)
        assert list(again.pieces) == list(built.pieces)
        for one, other in zip(again.projections, built.projections, strict=True):
            assert one.usual.tolist() == other.usual.tolist()
            assert one.extra_ids.tolist() == other.extra_ids.tolist()
            assert one.extra_union.tolist() == other.extra_union.tolist()
            assert one.n_ids == other.n_ids


def check_votes(vocabularies: list[Vocabulary], seed: int) -> None:
    union = UnionVocabulary.build(vocabularies)
    for m, v in enumerate(vocabularies):
        logits = logits_for(v, seed + m)
        vote = union.vote(m, logits)
        expected = reference.vote(v, union.pieces, logits)
        np.testing.assert_allclose(vote, [expected[p] for p in union.pieces], rtol=1e-9, atol=1e-12)


@given(several, st.integers(0, 1 << 20))
def test_a_vote_is_the_masked_softmax_summed_by_piece(vocabularies: list[Vocabulary], seed: int) -> None:
    check_votes(vocabularies, seed)


@given(several, st.integers(0, 1 << 20))
def test_a_vote_in_single_precision_is_close_to_it(vocabularies: list[Vocabulary], seed: int) -> None:
    union = UnionVocabulary.build(vocabularies)
    for m, v in enumerate(vocabularies):
        logits = logits_for(v, seed + m).astype(np.float32)
        vote = union.vote(m, logits)
        expected = reference.vote(v, union.pieces, logits)
        assert vote.dtype == np.float32
        np.testing.assert_allclose(vote, [expected[p] for p in union.pieces], rtol=1e-5, atol=1e-7)


@given(several, st.integers(0, 1 << 20))
def test_projecting_leaves_the_logits_as_they_were(vocabularies: list[Vocabulary], seed: int) -> None:
    union = UnionVocabulary.build(vocabularies)
    for m, v in enumerate(vocabularies):
        logits = logits_for(v, seed)
        before = logits.copy()
        union.vote(m, logits)
        np.testing.assert_array_equal(logits, before)


@given(several)
def test_a_piece_that_some_member_cannot_read_is_unreadable(vocabularies: list[Vocabulary]) -> None:
    everything = sorted(set().union(*(reference.text_pieces(v) for v in vocabularies)))
    expected = {p for p in everything if any(reference.longest_match(v, p) is None for v in vocabularies)}
    assert unreadable(everything, vocabularies) == expected


@given(several)
def test_shared_pieces_are_those_that_every_member_has(vocabularies: list[Vocabulary]) -> None:
    shared = set.intersection(*(reference.text_pieces(v) for v in vocabularies))
    assert UnionVocabulary.build(vocabularies).n_shared == len(shared)


def test_union_ids_are_end_and_then_the_pieces_of_the_largest_vocabulary_in_their_order() -> None:
    a, b = Vocabulary.build([b"b", b"a"]), Vocabulary.build([b"a", b"ab", b"b"])
    c = Vocabulary.build([b"b", b"abb", b"a"])
    assert list(UnionVocabulary.build([a, b]).pieces) == list(UnionVocabulary.build([b, a]).pieces)
    assert list(UnionVocabulary.build([a, b]).pieces) == [b"", b"a", b"ab", b"b"]
    assert list(UnionVocabulary.build([b, c]).pieces) == [b"", b"a", b"ab", b"b", b"abb"]


@given(several, st.integers(0, 1 << 20))
def test_a_vote_is_the_same_where_ids_and_union_ids_run_side_by_side(vocabularies: list[Vocabulary], seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:  # small vocabularies are projected as large ones are
        patch.setattr(union_module, "SHORTEST", 2)
        patch.setattr(union_module, "PORTION", 3)
        check_votes(vocabularies, seed)


@given(several, st.integers(0, 1 << 20), st.sampled_from([0.0, 300.0, -300.0]), st.floats(0, 1))
def test_shares_find_the_best_and_all_above_a_bound_wherever_the_logits_lie(
    vocabularies: list[Vocabulary], seed: int, shift: float, bound: float
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(union_module, "SHORTEST", 2)
        patch.setattr(union_module, "PORTION", 3)
        union = UnionVocabulary.build(vocabularies)
        for m, v in enumerate(vocabularies):
            shares = Shares(union.projections[m])
            for again in range(2):  # what was read before leaves no trace
                logits = logits_for(v, seed + m + again).astype(np.float32) + np.float32(shift)
                shares.read(logits)
            vote = shares.spread(len(union.pieces))
            expected = reference.vote(v, union.pieces, logits)
            np.testing.assert_allclose(vote, [expected[p] for p in union.pieces], rtol=1e-5, atol=1e-7)
            own = union.projections[m].own.tolist()
            of = {u: shares.share(u) for u in range(len(union.pieces))}
            assert of == dict(enumerate(shares.of(range(len(union.pieces))).tolist()))
            best, share = shares.best()
            assert share == max(of.values()) and best == next(u for u in own if of[u] == share)
            assert shares.at_least(bound * share).tolist() == [u for u in own if of[u] >= np.float32(bound * share)]


@given(several, st.integers(0, 1 << 20), st.integers(1, 12), st.integers(1, 4))
def test_shares_find_the_largest_few(vocabularies: list[Vocabulary], seed: int, n: int, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(union_module, "BLOCK", block)
        union = UnionVocabulary.build(vocabularies)
        for m, v in enumerate(vocabularies):
            logits = np.round(logits_for(v, seed + m) / 4)  # so that some are alike
            logits[(logits < -1) & ~np.isin(np.arange(v.n_ids), v.canonical[b"a"])] = -np.inf
            shares = Shares(union.projections[m])
            shares.read(logits)
            own = union.projections[m].own.tolist()
            ranked = sorted((u for u in own if shares.share(u) > 0), key=lambda u: -shares.share(u))
            assert shares.largest(n).tolist() == ranked[:n]


@given(several)
def test_every_id_has_the_union_id_of_its_piece(vocabularies: list[Vocabulary]) -> None:
    union = UnionVocabulary.build(vocabularies)
    pieces = list(union.pieces)
    for m, v in enumerate(vocabularies):
        for i, u in enumerate(union.projections[m].of_id.tolist()):
            if v.kinds[i] == Kind.END:
                assert u == END
            else:
                known = reference.is_text(v, i) and v.pieces[i] in pieces
                assert u == (pieces.index(v.pieces[i]) if known else -1)


@pytest.mark.parametrize("n", [255, 256, 257, 5000, 40000])
def test_a_vote_of_a_large_vocabulary_is_the_softmax(n: int) -> None:
    """Long enough for stretches and their portions; some pieces shared, some masked."""
    names = [b"%06d" % k for k in range(n)]
    large = Vocabulary.build([*names, b"", *names[: n // 3]], kinds={n: Kind.END, 7: Kind.CONTROL})
    other = Vocabulary.build([*names[50:], *(bytes([b]) for b in range(256))])
    union = UnionVocabulary.build([large, other])
    logits = logits_for(large, n)
    masses = np.exp(logits)
    expected = dict.fromkeys(union.pieces, 0.0)
    for i, piece in enumerate(large.pieces):
        if piece in expected and i != 7:
            expected[piece] += masses[i]
    total = sum(expected.values())
    np.testing.assert_allclose(union.vote(0, logits), [expected[p] / total for p in union.pieces], rtol=1e-9)


def test_the_mass_of_what_some_member_cannot_read_goes_to_the_rest() -> None:
    full = Vocabulary.build([b"a", b"\x04", b"</s>"], kinds={2: Kind.END})
    lacking = Vocabulary.build([b"a"])
    union = UnionVocabulary.build([full, lacking])
    assert union.pieces == [b"", b"a"]
    vote = union.vote(0, np.log(np.array([0.2, 0.7, 0.1])))
    np.testing.assert_allclose(vote, [1 / 3, 2 / 3])


def test_halves_of_a_character_meet_across_vocabularies() -> None:
    whole, halves = Vocabulary.build(["é".encode(), b"\xc3", b"\xa9"]), Vocabulary.build([b"\xc3", b"\xa9"])
    assert UnionVocabulary.build([whole, halves]).pieces == [b"", b"\xc3\xa9", b"\xc3", b"\xa9"]


def test_a_member_without_an_end_gives_the_end_no_mass() -> None:
    union = UnionVocabulary.build([Vocabulary.build([b"a", b"b"])])
    assert union.vote(0, np.zeros(2))[END] == 0


@pytest.mark.parametrize("missing", [b"^", b"]", b"-", b"\\", b"[", b"\n", b"&&", b"||"])
def test_bytes_that_mean_something_to_a_regular_expression_may_be_missing(missing: bytes) -> None:
    v = Vocabulary.build([bytes([b]) for b in range(256) if b not in missing])
    both = Vocabulary.build([b"x" + missing, b"x", b"y"])
    assert unreadable([*v.pieces, *both.pieces], [v]) == {b"x" + missing}


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "logits", [[NAN, 0, 0, 0], [0, 0, 0, NAN], [0, INF, 0, 0], [0, 0, 0, INF], [-INF] * 4, [-INF, -INF, -INF, 0]]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logits_that_leave_nothing_to_vote_with_are_an_error(logits: list[float], dtype: type) -> None:
    v = Vocabulary.build([b"a", b"b", b"</s>", b"<s>"], kinds={2: Kind.END, 3: Kind.CONTROL})
    with pytest.raises(FloatingPointError):
        UnionVocabulary.build([v]).vote(0, np.array(logits, dtype=dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("height", [10.0, 50.0, 100.0, 1e4])
def test_a_control_token_that_towers_over_the_rest_takes_nothing_from_it(height: float, dtype: type) -> None:
    v = Vocabulary.build([b"a", b"b", b"</s>", b"<s>"], kinds={2: Kind.END, 3: Kind.CONTROL})
    vote = UnionVocabulary.build([v]).vote(0, np.array([0, np.log(2), 0, height], dtype=dtype))
    np.testing.assert_allclose(vote, [0.25, 0.25, 0.5], rtol=1e-5)
