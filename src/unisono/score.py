"""The log-probability of a known text, byte by byte, under each member and under the ensemble.

A known text needs no forward a token: `Foresight` reads ahead what each branch would read if the text went on in the
usual tokens, many in one forward, and hands the rows out as the voter asks for them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from unisono.arrays import FloatArray, Probs, Votes
from unisono.errors import UnreadableByte
from unisono.members.base import Feed
from unisono.voting.bytes import ByteVoter, ByteVoting, Line

ROW_BYTES = 32 << 20
"""How many bytes of logits one branch may hold in advance."""
FIRST, MOST = 2, 64
"""How many tokens a branch reads ahead at first, and at most; it doubles with every time that all were of use."""


@dataclass(frozen=True)
class Score:
    """What a text is worth."""

    names: tuple[str, ...]
    """The members."""
    logprobs: FloatArray
    """float64[n_members, n_bytes]: natural log of the probability of every byte under each member."""
    pooled: FloatArray
    """float64[n_bytes]: the same under the ensemble."""
    n_forwards: tuple[int, ...]
    """Forwards, one count a member."""
    n_read: tuple[int, ...]
    """Tokens read by those, prompt and reading ahead included."""

    @property
    def n_bytes(self) -> int:
        """How many bytes were scored."""
        return len(self.pooled)

    @property
    def logprob(self) -> float:
        """Natural log of the text's probability under the ensemble: Σ log q(byte)."""
        return float(self.pooled.sum())

    @property
    def bits_per_byte(self) -> float:
        """Of the ensemble."""
        return bits(self.pooled)

    @property
    def member_bits_per_byte(self) -> list[float]:
        """Of each member alone."""
        return [bits(row) for row in self.logprobs]


def bits(logprobs: FloatArray) -> float:
    """Bits per byte of natural-log probabilities float64[n_bytes]."""
    return -float(logprobs.mean()) / math.log(2) if len(logprobs) else math.nan


class Foresight:
    """Reads for one voter whose text to come is known."""

    def __init__(self, voter: ByteVoter, text: bytes) -> None:
        self.voter, self.text = voter, text
        self.n_forwards = self.n_read = 0
        self._most = max(1, min(MOST, ROW_BYTES // (4 * voter.member.vocabulary.n_ids)))
        self._ahead: dict[Line, deque[tuple[int, int, FloatArray]]] = {}
        """Of each line: position, id and logits of what its context has read beyond what the branches know."""
        self._length: dict[Line, int] = {}

    def read(self, heard: int) -> None:
        """Give the voter all it waits for; it has heard that many bytes of the text."""
        while feeds := self.voter.pending():
            lines, behind = zip(*self.voter.waiting(), strict=True)
            rows = [self._from_ahead(line, feed) for line, feed in zip(lines, feeds, strict=True)]
            missing = [
                (line, feed, heard - n)
                for line, feed, n, row in zip(lines, feeds, behind, rows, strict=True)
                if row is None
            ]
            if missing:
                fresh = iter(self._forward(missing))
                rows = [next(fresh) if row is None else row for row in rows]
            self.voter.read([row for row in rows if row is not None])
            live = set(self.voter.lines)
            for held in (self._ahead, self._length):
                for line in [line for line in held if line not in live]:
                    del held[line]

    def _from_ahead(self, line: Line, feed: Feed) -> FloatArray | None:
        ahead = self._ahead.get(line)
        if ahead and len(feed.ids) == 1 and feed.rows == 1 and ahead[0][:2] == (feed.at, feed.ids[0]):
            return ahead.popleft()[2][None]
        return None

    def _forward(self, wanted: Sequence[tuple[Line, Feed, int]]) -> Iterator[FloatArray]:
        """The rows of each feed, which ends that many bytes into the text; what is read beyond is kept."""
        longer = []
        for line, feed, covered in wanted:
            used_up = line in self._ahead and not self._ahead[line]
            before = self._length.get(line, 0)
            n = min(2 * before, self._most) if used_up and before else FIRST
            if len(feed.ids) > 1 or feed.rows > 1:  # a prompt, not a branch that may soon die
                n = self._most
            plan = self._plan(covered, n, feed.at + len(feed.ids))
            self._length[line] = len(plan)
            longer.append(Feed(feed.context, feed.at, [*feed.ids, *plan], feed.rows + len(plan)))
        out = self.voter.member.forward(longer)
        self.n_forwards += 1
        self.n_read += sum(len(feed.ids) for feed in longer)
        for (line, feed, _), whole, logits in zip(wanted, longer, out, strict=True):
            first = feed.at + len(feed.ids)
            planned = zip(whole.ids[len(feed.ids) :], logits[feed.rows :], strict=True)
            self._ahead[line] = deque((first + k, i, row.copy()) for k, (i, row) in enumerate(planned))
            yield logits[: feed.rows]

    def _plan(self, covered: int, n: int, position: int) -> list[int]:
        """The tokens that the tokenizer would write next."""
        member = self.voter.member
        n = min(n, member.n_ctx - position)
        span = self.text[covered : covered + 8 * n + 32]
        at_end = covered + len(span) >= len(self.text)
        try:
            ids = list(member.encode(span.decode(errors="strict" if at_end else "ignore")))
        except ValueError:  # begins inside a character
            return []
        if member.vocabulary.join(ids) != span[: len(member.vocabulary.join(ids))]:
            return []
        return ids[: min(n, len(ids) - 1)]  # the last may depend on what follows; nothing comes after it anyway


def score_bytes(
    unit: ByteVoting,
    voters: Sequence[ByteVoter],
    pool: Callable[[Votes], Probs],
    text: bytes,
    progress: Callable[[int], None] = lambda n_bytes: None,
) -> Score:
    """Every byte of the text after the voters' prompts; `progress` is told how many bytes are done.

    Raises:
        UnreadableByte: some member cannot read a byte of the text.
        CacheFull: the text does not fit a member's context.
    """
    _check_readable(unit, text)
    readers = [Foresight(voter, text) for voter in voters]
    logprobs = np.empty((len(voters), len(text)))
    pooled = np.empty(len(text))
    with np.errstate(divide="ignore"):
        for at, byte in enumerate(text):
            for reader in readers:
                reader.read(at)
            votes = unit.ballot(voters)
            for number, reader in enumerate(readers):  # dropping branches may have left no way to this byte
                while not votes[number, byte] > 0 and voters[number].revive():
                    reader.read(at)
                    votes = unit.ballot(voters)
            logprobs[:, at] = np.log(votes[:, byte])
            pooled[at] = np.log(pool(votes)[byte])
            for voter in voters:
                voter.hear(byte)
            if at % 64 == 63:
                progress(at + 1)
    progress(len(text))
    return Score(
        tuple(member.name for member in unit.members),
        logprobs,
        pooled,
        tuple(reader.n_forwards for reader in readers),
        tuple(reader.n_read for reader in readers),
    )


def _check_readable(unit: ByteVoting, text: bytes) -> None:
    for member in unit.members:
        if (at := member.vocabulary.unwritable_at(text)) is not None:
            raise UnreadableByte(member.name, text[at], at)


@dataclass(frozen=True)
class Window:
    """A part of a text to score, and what stands before it."""

    prompt: bytes
    text: bytes


def windows(data: bytes, context: int, stride: int) -> Iterator[Window]:
    """Cut a text into windows of about `stride` bytes, each with about `context` bytes before it; all cuts are between
    characters. The first character is never scored, since a model without BOS needs something to start from.

    >>> [(w.prompt, w.text) for w in windows(b"abcdef", context=2, stride=3)]
    [(b'a', b'bcd'), (b'cd', b'ef')]
    """
    start = _cut(data, 1)
    while start < len(data):
        end = _cut(data, min(start + stride, len(data)))
        yield Window(data[_cut(data, max(start - context, 0)) : start], data[start:end])
        start = end


def _cut(data: bytes, at: int) -> int:
    """The next position from here on that is between two characters."""
    while at < len(data) and data[at] & 0xC0 == 0x80:
        at += 1
    return at
