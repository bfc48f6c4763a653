"""The log-probability of a known text, byte by byte, under each member and under the ensemble.

A known text needs no forward a token: a `Reader` reads ahead what each branch would read if the text went on in the
usual tokens, many in one forward, and hands the rows out as the voter asks for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from unisono.arrays import FloatArray, Probs, Votes
from unisono.errors import UnreadableByte
from unisono.reading import Reader
from unisono.voting.bytes import ByteVoter, ByteVoting


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
    readers = [Reader(number, voter, text) for number, voter in enumerate(voters)]
    costs = np.zeros((len(voters), 2), dtype=np.int64)
    logprobs = np.empty((len(voters), len(text)))
    pooled = np.empty(len(text))
    with np.errstate(divide="ignore"):
        for at, byte in enumerate(text):
            for number, reader in enumerate(readers):
                costs[number] += reader.catch_up()
            votes = unit.ballot(voters)
            for number, reader in enumerate(readers):  # dropping branches may have left no way to this byte
                while not votes[number, byte] > 0 and voters[number].revive():
                    costs[number] += reader.catch_up()
                    votes = unit.ballot(voters)
            logprobs[:, at] = np.log(votes[:, byte])
            pooled[at] = np.log(pool(votes)[byte])
            for reader in readers:
                reader.hear(byte)
            if at % 64 == 63:
                progress(at + 1)
    progress(len(text))
    return Score(
        tuple(member.name for member in unit.members),
        logprobs,
        pooled,
        tuple(costs[:, 0].tolist()),
        tuple(costs[:, 1].tolist()),
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
