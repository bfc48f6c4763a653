"""Voting on pieces: GaC to the letter (arXiv 2406.12585, section 3).

A vote is a member's distribution over the union vocabulary; the chosen piece is spelled in every member's own tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unisono.arrays import Logits, Probs, Votes
from unisono.errors import BadLogits
from unisono.members.base import Feed, Member
from unisono.union import END, UnionVocabulary
from unisono.voting.base import MemberPrompt, Voter


class PieceVoting:
    """The union of the members' vocabularies, and each member's spelling of its pieces."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = members
        self.union = UnionVocabulary.remembered([m.vocabulary for m in members])
        self.end = END
        self._spellers = [Speller(m) for m in members]

    def ballot(self, voters: Sequence[Voter]) -> Votes:
        return np.stack([voter.vote() for voter in voters])

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
        self._union, self._number, self._speller = union, number, speller
        self._context: int | None = self.member.new()
        self._n_read = 0
        self._lag = list(prompt.ids)
        if prompt.tail:
            self._lag += speller.spell(prompt.tail)
        self._n_prompt = len(self._lag)
        self._vote: Probs | None = None

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
            self._vote = self._union.vote(self._number, logits[0][-1])
        except FloatingPointError as exc:
            raise BadLogits(self.member.name) from exc

    def vote(self) -> Probs:
        assert self._vote is not None and not self._lag
        return self._vote

    def hear(self, choice: int) -> None:
        self._lag.extend(self._speller.spell(self._union.pieces[choice]))

    def close(self) -> None:
        if self._context is not None:
            self.member.drop(self._context)
            self._context = None
