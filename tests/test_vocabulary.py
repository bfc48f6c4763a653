from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference
from strategies import pieces, texts, vocabularies
from unisono.vocabulary import Kind, Vocabulary


@given(vocabularies(), texts(max_size=5))
def test_find_gives_exactly_the_ids_whose_pieces_start_with_the_prefix(v: Vocabulary, prefix: bytes) -> None:
    found = v.find(prefix)
    assert {int(v.order[at]) for at in found} == reference.starting_with(v, prefix)


@given(vocabularies(), texts(max_size=4))
def test_children_split_the_range_of_a_prefix_by_the_next_byte(v: Vocabulary, prefix: bytes) -> None:
    children = v.children(prefix)
    assert {int(v.order[at]) for at in children.exact} == {
        i for i in reference.starting_with(v, prefix) if v.pieces[i] == prefix
    }
    following = {
        byte: {int(i) for i in v.order[lo:hi]}
        for byte, lo, hi in zip(children.next_bytes, children.bounds[:-1], children.bounds[1:], strict=True)
    }
    expected = {b: ids for b in range(256) if (ids := reference.starting_with(v, prefix + bytes([b])))}
    assert following == expected
    assert v.children(prefix) is children


@given(vocabularies())
def test_the_order_is_by_piece_and_the_usual_id_stands_first_among_equals(v: Vocabulary) -> None:
    order = v.order.tolist()
    assert v.sorted_pieces == [v.pieces[i] for i in order] == sorted(v.sorted_pieces)
    assert sorted(order) == v.text_ids.tolist()
    for at, i in enumerate(order):
        if at == 0 or v.sorted_pieces[at - 1] != v.pieces[i]:
            assert i == reference.usual_id(v, v.pieces[i]) == v.canonical[v.pieces[i]]
    assert set(v.canonical) == reference.text_pieces(v)
    assert v.usual_ids.tolist() == sorted(v.canonical.values())


@given(vocabularies(), texts())
def test_longest_match_is_the_brute_force_one(v: Vocabulary, data: bytes) -> None:
    assert v.longest_match(data) == reference.longest_match(v, data)


@given(st.lists(pieces(max_size=6), min_size=1, max_size=12), st.data())
def test_longest_match_finds_a_way_wherever_there_is_one(known: list[bytes], data: st.DataObject) -> None:
    v = Vocabulary.build(known)
    text = b"".join(data.draw(st.lists(st.sampled_from(known), max_size=6)))
    ids = v.longest_match(text)
    assert ids is not None
    assert v.join(ids) == text


def test_longest_match_steps_back_only_as_far_as_it_must() -> None:
    v = Vocabulary.build([b"ab", b"a", b"bcd", b"c", b"abc"])
    assert v.longest_match(b"abcd") == [1, 2]
    assert v.longest_match(b"abcc") == [4, 3]
    assert v.longest_match(b"abd") is None


def test_longest_match_of_a_long_text_that_leads_nowhere_ends_soon() -> None:
    v = Vocabulary.build([b"a", b"aa", b"aaa", b"aaaa"])
    assert v.longest_match(b"a" * 3000 + b"b") is None


@given(vocabularies())
def test_tables_bring_everything_back(v: Vocabulary) -> None:
    back = Vocabulary.from_tables({key: np.array(table) for key, table in v.tables().items()})
    assert list(back.pieces) == list(v.pieces)
    assert back.kinds.tolist() == v.kinds.tolist()
    assert (back.begin, back.space_prefix, dict(back.marks)) == (v.begin, v.space_prefix, dict(v.marks))
    assert back.order.tolist() == v.order.tolist()
    assert back.digest == v.digest
    assert back.canonical == v.canonical


@given(st.lists(st.sampled_from([b"\xff\xfe", b"\xff", b"\xfe", b"\xfe\xff\xfe", b"\xff\xfe\xfe", b"a"]), min_size=1))
def test_tables_bring_back_pieces_that_look_like_the_mark_between_them(held: list[bytes]) -> None:
    assert list(Vocabulary.from_tables(Vocabulary.build(held).tables()).pieces) == held


@given(vocabularies(), vocabularies())
def test_equal_digests_mean_equal_pieces_and_kinds(one: Vocabulary, other: Vocabulary) -> None:
    same = (list(one.pieces), one.kinds.tolist(), one.begin, one.space_prefix) == (
        list(other.pieces),
        other.kinds.tolist(),
        other.begin,
        other.space_prefix,
    )
    assert (one.digest == other.digest) == same


@given(vocabularies())
def test_every_id_is_text_or_an_end_or_a_control_token(v: Vocabulary) -> None:
    kinds = [*v.text_ids.tolist(), *v.ends.tolist(), *v.controls.tolist()]
    assert sorted(kinds) == list(range(v.n_ids))
    assert all(v.pieces[i] for i in v.text_ids)
    assert not any(v.pieces[i] for i in [*v.ends, *v.controls])


@given(vocabularies())
def test_missing_bytes_are_those_that_are_no_piece(v: Vocabulary) -> None:
    assert set(v.missing_bytes) == {b for b in range(256) if bytes([b]) not in reference.text_pieces(v)}


def test_ends_and_controls_keep_their_spelling_but_add_nothing_to_the_text() -> None:
    v = Vocabulary.build([b"<s>", b"hi", b"</s>", b""], kinds={0: Kind.CONTROL, 2: Kind.END})
    assert v.join([0, 1, 2, 3]) == b"hi"
    assert dict(v.marks) == {0: b"<s>", 2: b"</s>"}


def test_an_id_without_a_piece_is_a_control_token_unless_it_is_an_end() -> None:
    v = Vocabulary.build([b"", b"a", b""], kinds={2: Kind.END})
    assert (v.controls.tolist(), v.ends.tolist()) == ([0], [2])


def test_other_ends_replace_those_the_vocabulary_names() -> None:
    v = Vocabulary.build([b"<s>", b"hi", b"</s>", b"."], kinds={0: Kind.CONTROL, 2: Kind.END}, begin=[0])
    other = v.with_ends([3])
    assert other.ends.tolist() == [3]
    assert other.controls.tolist() == [0, 2]
    assert other.join([1, 3]) == b"hi"
    assert dict(other.marks) == {0: b"<s>", 2: b"</s>", 3: b"."}
    assert other.begin == v.begin
    assert v.ends.tolist() == [2]


@pytest.mark.parametrize("i", [-1, 4])
def test_an_end_outside_the_vocabulary_is_refused(i: int) -> None:
    with pytest.raises(IndexError):
        Vocabulary.build([b"a", b"b", b"c", b"d"]).with_ends([i])


def test_a_text_piece_is_usual_before_the_byte_fallback_of_the_same_bytes() -> None:
    v = Vocabulary.build([b"\n", b"\n", b"\n"], kinds=[Kind.BYTE, Kind.TEXT, Kind.TEXT])
    assert v.canonical == {b"\n": 1}
    assert v.order.tolist() == [1, 2, 0]
