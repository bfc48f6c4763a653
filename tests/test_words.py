"""From steps to words and characters: where they are cut, and what the members thought of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.cli.votes import agreement, favourite
from unisono.steps import MemberVote, Step
from unisono.words import BY, By, Word, WordStream, words


def byte_steps(text: str | bytes, end: bool = False) -> list[Step]:
    """One step a byte, each with half of the vote, and END if wanted."""
    data = text.encode() if isinstance(text, str) else text
    return piece_steps([data[at : at + 1] for at in range(len(data))], end)


def piece_steps(pieces: Sequence[bytes], end: bool = False) -> list[Step]:
    """One step a piece."""
    return [Step(p, math.log(0.5), (), "") for p in pieces] + ([Step(b"", math.log(0.5), (), "", "end")] if end else [])


def cut(steps: Sequence[Step], by: By = "word") -> list[str]:
    return [one.text for one in words(steps, by) if isinstance(one, Word)]


@pytest.mark.parametrize(
    "expected",
    [
        ["Once", " upon", " a", " time", ","],
        ["naïve", " café", "."],
        ["  four", "   spaces"],
        ["a", "\n\n", "  b", "\r\n", "c"],
        ["end", " ", "\n"],
        ["x_1", " +=", " f", "(", "n", "-", "1", ");"],
        ["don", "'", "t", "?!", " 3", ".", "14"],
        ["東", "京", "へ", "。", " 行", "く"],
        ["hi", " 😀", "🎉", "!"],
        ["👩‍💻", "👍🏽", "❤️", "🇫🇷", "🇩🇪"],
        ["е́ж", " हिन्दी", " 한국어"],
        ["\t", "\n", "\u0301x"],
    ],
)
def test_words_are_cut_where_people_would(expected: list[str]) -> None:
    assert cut(byte_steps("".join(expected))) == expected


def test_the_end_of_the_text_is_a_word_of_its_own() -> None:
    found = [one for one in words(byte_steps("ab", end=True)) if isinstance(one, Word)]
    assert [(one.piece, one.finish, one.n_steps) for one in found] == [(b"ab", None, 2), (b"", "end", 1)]


TEXTS = st.text(st.sampled_from("ab_1 \n\r\t,.'é語あ한😀\u0301\u200d\ufe0f🏽🇫🇷ก"), max_size=20)


@given(TEXTS, st.sampled_from(BY), st.booleans())
def test_nothing_is_lost_and_no_character_is_cut(text: str, by: By, end: bool) -> None:
    steps = byte_steps(text, end)
    found = [one for one in words(steps, by) if isinstance(one, Word)]
    assert b"".join(one.piece for one in found).decode() == text
    assert sum(one.n_steps for one in found) == len(steps)
    assert [one.logprob for one in found] == pytest.approx([one.n_steps * math.log(0.5) for one in found])
    if by != "step":
        assert [one.piece.decode() for one in found] == [one.text for one in found]
    if by == "character":
        assert [one.text for one in found if one.piece] == list(text)


@given(st.binary(max_size=12), st.sampled_from(BY))
def test_bytes_that_are_no_text_are_kept_too(data: bytes, by: By) -> None:
    found = [one for one in words(byte_steps(data), by) if isinstance(one, Word)]
    assert b"".join(one.piece for one in found) == data


@given(TEXTS, st.data())
def test_pieces_are_grouped_and_never_cut(text: str, data: st.DataObject) -> None:
    whole = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, len(whole) - 1), max_size=6))) if len(whole) > 1 else []
    pieces = [p for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True) if (p := whole[a:b])]
    edges = {len(b"".join(pieces[:n])) for n in range(len(pieces) + 1)}
    assert cut(piece_steps(pieces), "step") == [p.decode(errors="backslashreplace") for p in pieces]
    found = [one.piece for one in words(piece_steps(pieces), "word") if isinstance(one, Word)]
    assert {len(b"".join(found[:n])) for n in range(len(found) + 1)} <= edges
    assert "".join(p.decode() for p in found) == text, "a word ends inside a character"


def test_steps_are_handed_on_before_their_word_is_whole() -> None:
    asked: list[Step] = []

    def writing() -> Iterator[Step]:
        for step in byte_steps("ab c"):
            asked.append(step)
            yield step

    seen = []
    for one in words(writing()):
        if isinstance(one, Step):
            assert asked[-1] is one, "the next step was asked for before this one was handed on"
        seen.append(one.piece.decode())
    assert seen == ["a", "b", " ", "ab", "c", " c"]


def test_what_is_left_comes_out_when_a_text_breaks_off() -> None:
    stream = WordStream()
    assert [stream.add(step) for step in byte_steps("a caf\xc3\xa9".encode("latin-1")[:-1])][-1] == []
    assert [word.piece for word in stream.flush()] == [b" caf\xc3"]
    assert stream.flush() == []


def voted(chosen: str, *favourites: str | bytes) -> Word:
    """A member's votes on a word, a byte a step: 0.5 for its favourite, 0.25 for the choice where that is another."""
    steps = []
    for byte, liked in zip(chosen.encode(), favourites, strict=True):
        piece, best = bytes([byte]), liked.encode() if isinstance(liked, str) else liked
        vote = MemberVote(best, math.log(0.5), math.log(0.5 if best == piece else 0.25))
        steps.append(Step(piece, math.log(0.5), (vote,), ""))
    return Word.of(steps)


def test_a_member_that_agrees_at_every_byte_has_the_word_as_its_favourite() -> None:
    word = voted("the", "t", "h", "e")
    [vote] = word.votes
    assert (vote.favourite, vote.agrees, agreement(word)) == (b"the", True, "all")
    assert math.exp(vote.chosen_logprob) == math.exp(vote.favourite_logprob) == pytest.approx(0.125)
    assert favourite(vote, "word") == "the"


def test_the_first_disagreement_ends_what_is_known_of_the_favourite() -> None:
    word = voted("then", "t", "h", "a", "n")
    [vote] = word.votes
    assert (vote.beginning, vote.other, vote.favourite, agreement(word)) == (b"th", b"a", b"tha", "none")
    assert math.exp(vote.chosen_logprob) == pytest.approx(0.5**3 * 0.25)
    assert math.exp(vote.favourite_logprob) == pytest.approx(0.5**3)
    assert favourite(vote, "word") == "tha…"
    assert favourite(voted("é", b"\xc3", b"\xa8").votes[0], "character") == "è"
    assert favourite(voted("é", b"\xc2", b"\xa9").votes[0], "character") == "\\xc2…"
    assert favourite(voted("e", "f").votes[0], "step") == "f"
    assert favourite(voted("en", "e", b"").votes[0], "word") == "e(end)"
    assert favourite(voted("e", b"").votes[0], "word") == "(end)"


def test_a_piece_that_is_the_rest_of_the_word_agrees() -> None:
    vote = MemberVote("é".encode(), math.log(0.5), math.log(0.25))
    half = Step(b"\xc3", 0.0, (vote,), "")
    rest = Step(b"\xa9", 0.0, (MemberVote(b"\xa9", -1.0, -1.0),), "é")
    assert Word.of([half, rest]).votes[0].agrees


def test_a_choice_without_probability_has_none_in_the_word() -> None:
    step = Step(b"a", -1.0, (MemberVote(b"b", 0.0, -math.inf),), "a")
    assert Word.of([step]).votes[0].chosen_logprob == -math.inf


def token_steps(*tokens: bytes) -> list[Step]:
    """One step a byte; a token counts with its last."""
    steps = []
    for n, token in enumerate(tokens):
        counts = [n] * (len(token) - 1) + [n + 1]
        steps += [Step(bytes([b]), -0.5, (), "", n_tokens=k) for b, k in zip(token, counts, strict=True)]
    return steps


def test_a_token_is_what_the_count_of_tokens_says() -> None:
    tokens = ["Once", " up", "on", "é"]
    assert cut(token_steps(*(token.encode() for token in tokens)), "token") == tokens
    assert cut(token_steps(b"\xc3", b"\xa9"), "token") == ["\\xc3", "\\xa9"]
    rest = [Step(b"c", -1.0, (), ""), Step(b"", -1.0, (), "", "end")]
    assert cut([*token_steps(b"ab"), *rest], "token") == ["ab", "c", ""]


def test_the_ways_that_a_token_could_have_gone_exclude_one_another_and_add_up_to_all() -> None:
    half, rest = math.log(0.5), math.log(0.25)
    first = Step(b"a", half, (), "", top=((b"a", half), (b"b", rest), (b"", rest)))
    second = Step(b"c", rest, (), "", top=((b"a", half), (b"c", rest), (b"", rest)))
    top = dict(Word.of([first, second]).top)
    assert list(top) == [b"b", b"", b"aa"]  # the token itself is not among the three likeliest
    assert top[b"aa"] == pytest.approx(math.log(0.25))
    every = [Step(s.piece, s.logprob, (), "", top=(*s.top, (b"z", -9e9), (b"y", -9e9))) for s in (first, second)]
    ways = Word.of(every).top
    assert {piece for piece, _ in ways} == {b"b", b"", b"aa", b"ac", b"a"}
    assert sum(math.exp(logprob) for _, logprob in ways) == pytest.approx(1.0)
