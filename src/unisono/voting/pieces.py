"""Voting on pieces: GaC to the letter (arXiv 2406.12585, section 3).

A vote is a member's distribution over the union vocabulary; the chosen piece is spelled in every member's own tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unisono.arrays import FloatArray, Logits, Probs, Weights
from unisono.errors import BadLogits
from unisono.members.base import Feed, Member
from unisono.pooling import Rule, linear
from unisono.union import END, UnionVocabulary
from unisono.voting.base import MemberPrompt, Opinion, Pooled, Voter


class PieceVoting:
    """The union of the members' vocabularies, and each member's spelling of its pieces."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = members
        self.union = UnionVocabulary.remembered([m.vocabulary for m in members])
        self.end = END
        self._pooled: Probs | None = None
        self._spellers = [Speller(m) for m in members]

    def pool(self, voters: Sequence[Voter], rule: Rule, weights: Weights) -> Pooled:
        ours = [voter for voter in voters if isinstance(voter, PieceVoter)]
        probs = self.linear(ours, weights) if rule is linear else rule(np.stack([v.vote() for v in ours]), weights)
        return Pooled(probs, lambda choice: [voter.opinion(choice) for voter in ours])

    def linear(self, voters: Sequence[PieceVoter], weights: Weights) -> Probs:
        """As pooling.linear of the votes, but without a row of the whole union for a member that has little of it. The
        next call writes into the same array."""
        dtype = voters[0].shares.dtype
        if self._pooled is None or self._pooled.dtype != dtype:
            self._pooled = np.empty(len(self.union.pieces), dtype=dtype)
        out, scales = self._pooled, [dtype.type(w / v.total) for w, v in zip(weights.tolist(), voters, strict=True)]
        owns = [self.union.projections[voter.number].own for voter in voters]
        first = max(range(len(voters)), key=lambda k: len(owns[k]))  # the largest vocabulary comes first in the union
        n = len(owns[first])
        if n and owns[first][-1] == n - 1:  # it has all from 0 on
            np.multiply(voters[first].shares, scales[first], out=out[:n])
            out[n:] = 0
        else:
            out.fill(0)
            out[owns[first]] = voters[first].shares * scales[first]
        for k, voter in enumerate(voters):
            if k != first:
                out[owns[k]] += voter.shares * scales[k]
        return out

    def n_tokens(self, voters: Sequence[Voter], n_steps: int) -> int:
        """Every piece counts as one."""
        return n_steps

    def spelled(self, choice: int) -> bytes:
        return self.union.pieces[choice]

    def voter(self, member: int, prompt: MemberPrompt) -> PieceVoter:
        return PieceVoter(self.union, member, self._spellers[member], prompt)


class Speller:
    """Writes any piece in one member's own tokens, as a continuation, and remembers how."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self._known: dict[bytes, tuple[int, ...]] = {}

    def spell(self, piece: bytes) -> tuple[int, ...]:
        """The ids whose pieces joined are the piece: the member's own token for it, or else what its tokenizer writes,
        or else (half a character, or a tokenizer that would write something else) the longest matches.

        >>> from unisono.members.fake import TableMember
        >>> from unisono.vocabulary import Vocabulary
        >>> v = Vocabulary.build([b"a", b"b", b"ab", b"\\xc3"])
        >>> speller = Speller(TableMember("tiny", v, {}))
        >>> speller.spell(b"ab"), speller.spell(b"aba"), speller.spell(b"a\\xc3")
        ((2,), (2, 0), (0, 3))
        """
        known = self._known.get(piece)
        if known is None:
            known = self._known[piece] = tuple(self._find(piece))
        return known

    def _find(self, piece: bytes) -> Sequence[int]:
        vocabulary = self.member.vocabulary
        if (own := vocabulary.canonical.get(piece)) is not None:
            return [own]
        try:
            ids = self.member.encode(piece.decode())
            if vocabulary.join(ids) == piece:
                return ids
        except ValueError:  # no valid UTF-8 by itself, or beyond the tokenizer
            pass
        longest = vocabulary.longest_match(piece)
        assert longest is not None, "the union holds only what every member can read"
        return longest


class PieceVoter:
    """One member's votes over the union; its context holds the prompt and every spelled piece."""

    def __init__(self, union: UnionVocabulary, number: int, speller: Speller, prompt: MemberPrompt) -> None:
        self.member = speller.member
        self._union, self.number, self._speller = union, number, speller
        self._context: int | None = self.member.new()
        self._n_read = 0
        self._lag = list(prompt.ids)
        if prompt.tail:
            self._lag += speller.spell(prompt.tail)
        self._n_prompt = len(self._lag)
        self.shares: FloatArray = np.empty(0)
        """float[n_own]: how much it is for each of its own union ids; not scaled."""
        self.total = 0.0
        """The sum of those."""

    @property
    def n_tokens(self) -> int:
        return self._n_read + len(self._lag)

    @property
    def n_written(self) -> int:
        return self.n_tokens - self._n_prompt

    def pending(self) -> list[Feed]:
        if not self._lag:
            return []
        assert self._context is not None
        return [Feed(self._context, self._n_read, self._lag)]

    def read(self, logits: Sequence[Logits]) -> None:
        if not logits:
            return
        self._n_read += len(self._lag)
        self._lag = []
        try:
            self.shares, self.total = self._union.projections[self.number].shares(logits[0][-1], self.shares)
        except FloatingPointError as exc:
            raise BadLogits(self.member.name) from exc

    def vote(self) -> Probs:
        assert self.total and not self._lag
        out = np.zeros(len(self._union.pieces), dtype=self.shares.dtype)
        out[self._union.projections[self.number].own] = self.shares / self.total
        return out

    def opinion(self, choice: int) -> Opinion:
        """What it thinks of a choice."""
        own = self._union.projections[self.number].own
        best = int(self.shares.argmax())
        at = int(np.searchsorted(own, choice))
        has = at < len(own) and own[at] == choice
        prob = float(self.shares[at]) / self.total if has else 0.0
        return Opinion(int(own[best]), float(self.shares[best]) / self.total, prob)

    def hear(self, choice: int) -> None:
        self._lag.extend(self._speller.spell(self._union.pieces[choice]))

    def close(self) -> None:
        if self._context is not None:
            self.member.drop(self._context)
            self._context = None
