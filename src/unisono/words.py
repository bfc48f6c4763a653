"""From steps to what people read: words, characters or tokens, each with what every member thought of it.

In voting on bytes a step is one byte, which says little by itself; a word's probability is the product over its bytes.
"""

from __future__ import annotations

import codecs
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal

from unisono.steps import Finish, Step

By = Literal["word", "character", "token", "step"]
"""What steps are grouped into."""
BY: tuple[By, ...] = ("word", "character", "token", "step")


@dataclass(frozen=True)
class WordVote:
    """What one member thought of one word."""

    chosen_logprob: float
    """Natural log of the probability it gave the word: the sum over its steps; -inf if none."""
    beginning: bytes
    """The word up to where the member first liked something else better; all of it if it never did."""
    other: bytes | None
    """What it liked better there; b"" is the end of the text, None that it agreed at every step."""
    favourite_logprob: float
    """Natural log of the probability it gave to `beginning + other`, or to the word if it agreed."""

    @property
    def agrees(self) -> bool:
        """Whether the member liked the chosen best at every step."""
        return self.other is None

    @property
    def favourite(self) -> bytes:
        """What the member liked best, as far as its votes tell: the word itself, or the beginning of another."""
        return self.beginning + (self.other or b"")


@dataclass(frozen=True)
class Word:
    """Some steps that belong together."""

    piece: bytes
    """What was chosen; b"" is the end of the text."""
    logprob: float
    """Natural log of its pooled probability: the sum over its steps."""
    votes: tuple[WordVote, ...]
    """One a member, in the ensemble's order; empty where one member decided some step alone."""
    n_steps: int
    """How many steps it is made of."""
    finish: Finish | None = None
    """Set where its last step ends the text."""
    top: tuple[tuple[bytes, float], ...] = ()
    """What else the text could have gone on with, and the natural logs of the probabilities: as many of the likeliest
    as each step tells, the word itself among them where it is one. Each of the others is the word up to where it goes
    another way, and the choice it goes on with there (nothing, where that is the end), so no two can come true."""

    @property
    def text(self) -> str:
        """The word as text, with bytes that are none spelled out."""
        return self.piece.decode(errors="backslashreplace")

    @classmethod
    def of(cls, steps: Sequence[Step]) -> Word:
        """These steps as one word."""
        piece = b"".join(step.piece for step in steps)
        all_voted = all(step.votes for step in steps)
        votes = tuple(_vote(steps, member) for member in range(len(steps[0].votes))) if all_voted else ()
        return cls(piece, sum(step.logprob for step in steps), votes, len(steps), steps[-1].finish, _top(steps))


def _top(steps: Sequence[Step]) -> tuple[tuple[bytes, float], ...]:
    """The likeliest ways to go on from where the first step began, as far as the steps tell."""
    most = max(len(step.top) for step in steps)
    beginning, logprob, out = b"", 0.0, []
    for step in steps:
        out += [(beginning + other, logprob + chance) for other, chance in step.top if other != step.piece]
        beginning, logprob = beginning + step.piece, logprob + step.logprob
    out.append((beginning, logprob))
    return tuple(sorted(out, key=lambda way: -way[1])[:most])


def _vote(steps: Sequence[Step], member: int) -> WordVote:
    votes = [step.votes[member] for step in steps]
    chosen = [vote.chosen_logprob for vote in votes]
    beginning, rest = b"", b"".join(step.piece for step in steps)
    for n, (step, vote) in enumerate(zip(steps, votes, strict=True)):
        if vote.favourite not in (step.piece, rest):  # one piece may be what the choice has in several
            return WordVote(sum(chosen), beginning, vote.favourite, sum(chosen[:n]) + vote.favourite_logprob)
        beginning, rest = beginning + step.piece, rest[len(step.piece) :]
    return WordVote(sum(chosen), beginning, None, sum(chosen))


def words(steps: Iterable[Step], by: By = "word") -> Iterator[Step | Word]:
    """Every step as soon as it comes, and after it the words that it has completed; so whoever prints the steps' text
    prints it without delay. A word is known to be complete when the next begins, or the text ends.
    """
    stream = WordStream(by)
    for step in steps:
        yield step
        yield from stream.add(step)
    yield from stream.flush()


class _Kind(Enum):
    """What a character does to a word."""

    SPACE = auto()
    """Begins a word, with all spaces that follow and the word, character or marks behind them."""
    NEWLINE = auto()
    """Newlines in a row are a word of their own."""
    LETTER = auto()
    """Letters, digits and underscores in a row."""
    ALONE = auto()
    """A word by itself: Chinese and Japanese characters, emoji."""
    MARK = auto()
    """Punctuation, symbols and whatever is nothing else, in a row."""
    PART = auto()
    """Belongs to the character before: accents, variation selectors, skin tones, joiners."""


class WordStream:
    """Takes the steps as they come and gives out the words that are complete. A word begins and ends with a step, so in
    voting on pieces one that holds several words stays whole; and it never ends inside a character.
    """

    def __init__(self, by: By = "word") -> None:
        self._by = by
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="surrogateescape")
        self._begun: list[Step] = []
        """Steps whose last character is not complete."""
        self._characters = ""
        """The characters of those that are."""
        self._word: list[Step] = []
        """The word so far."""
        self._kind: _Kind | None = None
        """Of that word; None where there is none."""
        self._last = ""
        """Its last character."""
        self._n_flags = 0
        """How many regional indicators it ends in: two make a flag."""
        self._n_tokens = 0
        """Of all before it."""

    def add(self, step: Step) -> list[Word]:
        """The words that this step completes."""
        if self._by == "step":
            return [Word.of([step])]
        if self._by == "token" and step.piece:
            self._word.append(step)
            begun, self._n_tokens = self._n_tokens, max(self._n_tokens, step.n_tokens)
            return self.flush() if self._n_tokens > begun or step.finish else []
        if not step.piece:  # the end of the text is a word of its own
            return [*self.flush(), Word.of([step])]
        out: list[Word] = []
        self._begun.append(step)
        self._characters += self._decoder.decode(step.piece)
        if not self._decoder.getstate()[0]:
            out += self._place()
        if step.finish:
            out += self.flush()
        return out

    def flush(self) -> list[Word]:
        """What is left when nothing more comes."""
        self._decoder.reset()
        rest, self._begun, self._characters = [*self._word, *self._begun], [], ""
        self._word = []
        return [Word.of(rest)] if rest else []

    def _place(self) -> list[Word]:
        """Put the begun steps, now whole characters, behind the word, or after it."""
        begun, characters = self._begun, self._characters
        self._begun, self._characters = [], ""
        out = []
        if self._word and (self._by == "character" or not self._goes_on(characters[0])):
            out.append(Word.of(self._word))
            self._word = []
        if not self._word:
            self._kind, self._last, self._n_flags = None, "", 0
        self._word += begun
        for character in characters:
            self._take(character)
        return out

    def _goes_on(self, character: str) -> bool:
        """Whether the character belongs to the word so far."""
        kind = _kind(character)
        if kind is _Kind.PART:
            return self._kind is not _Kind.NEWLINE
        if kind is _Kind.ALONE:
            joined = self._last == _JOINER or (_is_flag(character) and self._n_flags % 2 == 1)
            return joined or self._kind is _Kind.SPACE
        if kind in (_Kind.SPACE, _Kind.NEWLINE):
            return self._kind is kind
        return self._kind in (_Kind.SPACE, kind)

    def _take(self, character: str) -> None:
        kind = _kind(character)
        if kind is not _Kind.PART:
            self._kind = kind
        elif self._kind is None:
            self._kind = _Kind.LETTER
        self._last = character
        self._n_flags = self._n_flags + 1 if _is_flag(character) else 0


_JOINER = "\u200d"
_PARTS = ((0x200C, 0x200D), (0x1F3FB, 0x1F3FF), (0xE0020, 0xE007F))
"""Joiners, skin tones and the tags of flags; accents and variation selectors are known by their category."""
_ALONE = (
    (0x2300, 0x23FF),  # clocks, keys
    (0x2600, 0x27BF),  # weather, signs, dingbats
    (0x2B00, 0x2BFF),  # stars
    (0x2E80, 0x2FDF),  # radicals
    (0x3005, 0x3007),
    (0x3021, 0x3029),
    (0x3040, 0x30FA),  # hiragana, katakana
    (0x30FC, 0x312F),  # bopomofo
    (0x31A0, 0x31FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),  # the common Chinese characters
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),
    (0x1B000, 0x1B16F),
    (0x1F000, 0x1FAFF),  # emoji
    (0x20000, 0x3FFFF),
)
"""Chinese characters, kana and emoji. Korean is written with spaces, so that its words are found like English ones."""


def _kind(character: str) -> _Kind:
    """
    >>> [_kind(c).name for c in " \\na,語😀\\u0301"]
    ['SPACE', 'NEWLINE', 'LETTER', 'MARK', 'ALONE', 'ALONE', 'PART']
    """
    if character in "\r\n":
        return _Kind.NEWLINE
    if character.isspace():
        return _Kind.SPACE
    point = ord(character)
    if _within(point, _PARTS) or unicodedata.category(character).startswith("M"):
        return _Kind.PART
    if _within(point, _ALONE):
        return _Kind.ALONE
    return _Kind.LETTER if character.isalnum() or character == "_" else _Kind.MARK


def _is_flag(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _within(point: int, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(low <= point <= high for low, high in ranges)
