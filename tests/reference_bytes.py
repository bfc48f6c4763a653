"""Voting on bytes the slow way: every tokenisation of a text written out, its probabilities multiplied and summed."""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

import reference
from unisono.arrays import FloatArray
from unisono.members.base import Member
from unisono.text import END_OF_TEXT
from unisono.vocabulary import Kind, Vocabulary
from unisono.voting.base import MemberPrompt, Voter
from unisono.voting.bytes import N_CHOICES, ByteVoter, ByteVoting

ByteVote = Mapping[int, float]
"""Byte or END_OF_TEXT -> probability; what is not there has none."""


# What the voters are compared with


def tokenisations(vocabulary: Vocabulary, text: bytes, first: bytes = b"") -> Iterator[tuple[int, ...]]:
    """Every way to write tokens until the text is covered, which the last of them may overshoot; the first one's piece
    starts with `first`."""
    if not text:
        yield ()
        return
    for i, piece in enumerate(vocabulary.pieces):
        if not reference.is_text(vocabulary, i) or not piece.startswith(first):
            continue
        if piece.startswith(text):
            yield (i,)
        elif text.startswith(piece):
            for rest in tokenisations(vocabulary, text[len(piece) :]):
                yield (i, *rest)


class Twin:
    """What one member would write after its prompt, by brute force. Healing takes the prompt's last piece as bytes that
    one token has to start with."""

    def __init__(self, member: Member, prompt: MemberPrompt) -> None:
        self.member, self.vocabulary = member, member.vocabulary
        self.ids, self.first = tuple(prompt.ids), b""
        if prompt.heal and len(self.ids) >= 2 and reference.is_text(self.vocabulary, self.ids[-1]):
            self.ids, self.first = self.ids[:-1], self.vocabulary.pieces[self.ids[-1]]
        self.begun = self.first + prompt.tail
        self._known: dict[tuple[int, ...], dict[int, float]] = {}
        self._masses: dict[bytes, float] = {}

    def probabilities(self, written: tuple[int, ...]) -> dict[int, float]:
        """Of every id that is no control token, after the prompt and these."""
        if written not in self._known:
            logprobs = reference.read_anew(self.member, [*self.ids, *written])
            kinds = self.vocabulary.kinds
            raw = {i: math.exp(logprobs[i]) for i in range(len(kinds)) if kinds[i] != Kind.CONTROL}
            total = math.fsum(raw.values())
            self._known[written] = {i: p / total for i, p in raw.items()}
        return self._known[written]

    def probability(self, written: tuple[int, ...]) -> float:
        """Of writing these tokens, whatever comes then."""
        return math.prod(self.probabilities(written[:n])[i] for n, i in enumerate(written))

    def mass(self, text: bytes) -> float:
        """The probability that what follows the prompt begins with the text."""
        if text not in self._masses:
            ways = tokenisations(self.vocabulary, self.begun + text, self.first)
            self._masses[text] = math.fsum(self.probability(way) for way in ways)
        return self._masses[text]

    def exact(self, text: bytes) -> list[tuple[int, ...]]:
        """The ways to write the text in whole tokens."""
        whole = self.begun + text
        ways = tokenisations(self.vocabulary, whole, self.first)
        return [way for way in ways if self.vocabulary.join(way) == whole and self.probability(way) > 0]

    def ending(self, text: bytes) -> float:
        """The probability that the text follows the prompt, and then the end."""
        ends = self.vocabulary.ends.tolist()
        return math.fsum(self.probability((*way, end)) for way in self.exact(text) for end in ends)

    def vote(self, text: bytes) -> dict[int, float]:
        """P(b | text) = P(text + b) / P(text), and P(END | text) likewise."""
        total = self.mass(text)
        bytes_in_use = sorted(set(b"".join(self.vocabulary.pieces)))
        out = {b: self.mass(text + bytes([b])) / total for b in bytes_in_use}
        out[END_OF_TEXT] = self.ending(text) / total
        return {choice: p for choice, p in out.items() if p > 0}

    def can_take(self, text: bytes, choice: int) -> bool:
        """Whether the member could go on after this choice; the end, only after a whole token."""
        return bool(self.exact(text)) if choice == END_OF_TEXT else self.mass(text + bytes([choice])) > 0


def as_array(vote: ByteVote) -> FloatArray:
    """float64[257]."""
    out = np.zeros(N_CHOICES)
    for choice, p in vote.items():
        out[choice] = p
    return out


def begins_utf8(data: bytes) -> bool:
    """Whether some UTF-8 text begins so."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data)
    except UnicodeDecodeError:
        return False
    return True


def is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def goes_on(begun: bytes, choice: int) -> bool:
    """Whether the choice keeps a text valid UTF-8."""
    return is_utf8(begun) if choice == END_OF_TEXT else begins_utf8(begun + bytes([choice]))


def masked(vote: ByteVote, allowed: set[int]) -> dict[int, float]:
    """What is left of a vote, made to sum to 1 again; empty if that is nothing."""
    left = {choice: p for choice, p in vote.items() if choice in allowed}
    total = math.fsum(left.values())
    return {choice: p / total for choice, p in left.items()}


def ballot(twins: Sequence[Twin], text: bytes, tail: bytes = b"", utf8: bool = True) -> list[dict[int, float]]:
    """The members' votes over what all of them can take and what keeps the text valid UTF-8."""
    votes = [twin.vote(text) for twin in twins]
    allowed = {
        choice
        for choice in {choice for vote in votes for choice in vote}
        if (not utf8 or goes_on(tail + text, choice)) and all(twin.can_take(text, choice) for twin in twins)
    }
    return [masked(vote, allowed) for vote in votes]


def pooled(votes: Sequence[ByteVote], weights: Sequence[float]) -> dict[int, float]:
    """Weighted mean of the probabilities of those who have a say; empty if nobody has."""
    speaking = [vote for vote in votes if vote]
    mean = {c: math.fsum(v.get(c, 0.0) for v in speaking) / len(speaking) for v in speaking for c in v}
    votes = [vote or mean for vote in votes]
    choices = sorted({choice for vote in votes for choice in vote})
    return {c: math.fsum(w * vote.get(c, 0.0) for w, vote in zip(weights, votes, strict=True)) for c in choices}


# The plain way to drive voters


def settle(voter: Voter, most: int = 100) -> int:
    """Read what the voter waits for, one forward a round; how many rounds that took."""
    n = 0
    while feeds := voter.pending():
        assert n < most, "the voter waits for ever"
        voter.read(voter.member.forward(feeds))
        n += 1
    return n


def score(unit: ByteVoting, voters: Sequence[ByteVoter], text: bytes) -> tuple[FloatArray, list[int]]:
    """float64[n_members, n_bytes]: the log-probability of every byte, nothing read ahead; and the forwards of each."""
    out = np.empty((len(voters), len(text)))
    n_forwards = [0] * len(voters)
    for at, byte in enumerate(text):
        for n, voter in enumerate(voters):
            n_forwards[n] += settle(voter)
        votes = unit.ballot(voters)
        for n, voter in enumerate(voters):
            while not votes[n, byte] > 0 and voter.revive():
                n_forwards[n] += settle(voter)
                votes = unit.ballot(voters)
        with np.errstate(divide="ignore"):
            out[:, at] = np.log(votes[:, byte])
        for voter in voters:
            voter.hear(byte)
    return out, n_forwards
