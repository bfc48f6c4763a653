"""Voting on pieces: GaC to the letter (arXiv 2406.12585, section 3).

A vote is a member's distribution over the union vocabulary; the chosen piece is spelled in every member's own tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

from unisono.arrays import FloatArray, IntArray, Logits, Probs, Weights
from unisono.errors import BadLogits
from unisono.members.base import Feed, Member
from unisono.pooling import Rule, linear, unite
from unisono.sampling import Tilt, greedy
from unisono.text import split_characters
from unisono.union import END, Shares, UnionVocabulary
from unisono.voting.base import Lines, MemberPrompt, Opinion, Sure, Voter, begin_context, n_common

TOP_UNION = 10
"""How many of each member's choices the rule unite takes, unless the user says otherwise; as in arXiv 2410.03777."""


class PieceVoting:
    """The union of the members' vocabularies, and each member's spelling of its pieces.

    Args:
        members: Who votes.
        top_union: How many of each member's choices the rule unite takes.
        respell: At the end of each word, have every member read it anew in the tokens of its own tokenizer.
    """

    def __init__(self, members: Sequence[Member], *, top_union: int = TOP_UNION, respell: bool = False) -> None:
        self.members, self.top_union, self.respell = members, top_union, respell
        self.union = UnionVocabulary.remembered([m.vocabulary for m in members])
        self.end = END
        self._spellers = [Speller(m) for m in members]

    def pool(self, voters: Sequence[Voter], rule: Rule, weights: Weights) -> PooledPieces:
        own = [voter for voter in voters if isinstance(voter, PieceVoter)]
        if rule is unite:
            return UnitedPieces(own, rule, weights, self.top_union)
        return PooledPieces(own, rule, weights)

    def n_tokens(self, voters: Sequence[Voter], n_steps: int) -> int:
        """Every piece counts as one."""
        return n_steps

    def alone(self, voter: Voter) -> tuple[int, float]:
        """What one member likes best, and its probability."""
        assert isinstance(voter, PieceVoter)
        choice, share = voter.favourite
        return choice, share / voter.shares.total

    def spelled(self, choice: int) -> bytes:
        return self.union.pieces[choice]

    n_contexts = 1

    tilts = True

    @cached_property
    def _choices(self) -> dict[bytes, int]:
        return {piece: choice for choice, piece in enumerate(self.union.pieces)}

    def choice_of(self, piece: bytes) -> int | None:
        return self._choices.get(piece) if piece else None

    def voter(
        self,
        member: int,
        prompt: MemberPrompt,
        held: Lines = (),
        tilt: Tilt | None = None,
    ) -> PieceVoter:
        return PieceVoter(self.union, member, self._spellers[member], prompt, held, self.respell)


@dataclass(frozen=True)
class PooledPieces:
    """The pieces' votes, pooled as far as is asked for: the union is large, and most of it matters to nobody."""

    voters: Sequence[PieceVoter]
    rule: Rule
    weights: Weights

    @cached_property
    def probs(self) -> Probs:
        return self.rule(np.stack([voter.vote() for voter in self.voters]), self.weights)

    def best(self) -> tuple[int, float]:
        if self.rule is not linear:
            choice = greedy(self.probs)
            return choice, float(self.probs[choice])
        # A choice can only win if some member gives it an n-th of what the best favourite has with its member alone.
        ballots = [voter.shares for voter in self.voters]
        scales = [weight / shares.total for weight, shares in zip(self.weights.tolist(), ballots, strict=True)]
        floor = max(scale * voter.favourite[1] for scale, voter in zip(scales, self.voters, strict=True))
        floor *= (1 - 1e-5) / len(ballots)
        found = [shares.at_least(floor / scale) for scale, shares in zip(scales, ballots, strict=True)]
        candidates = sorted(set().union(*(choices.tolist() for choices in found)))
        pooled = np.zeros(len(candidates))
        for scale, shares in zip(scales, ballots, strict=True):
            pooled += scale * shares.of(candidates)
        best = greedy(pooled)
        return candidates[best], float(pooled[best])

    def opinions(self, choice: int) -> list[Opinion]:
        out = []
        for voter in self.voters:
            best, share = voter.favourite
            own = voter.shares.share(choice)
            out.append(Opinion(best, share / voter.shares.total, own / voter.shares.total))
        return out


@dataclass(frozen=True)
class UnitedPieces(PooledPieces):
    """The votes over the choices that some member likes best, pooled; the rest of the union is left out."""

    top_union: int

    @cached_property
    def choices(self) -> IntArray:
        """int64[n]: the union ids of each member's best choices, rising."""
        return np.unique(np.concatenate([voter.shares.largest(self.top_union) for voter in self.voters]))

    @cached_property
    def united(self) -> Probs:
        """float64[n]: the pooled vote over those."""
        return self.rule(np.stack([voter.vote_over(self.choices) for voter in self.voters]), self.weights)

    @cached_property
    def probs(self) -> Probs:
        out: Probs = np.zeros(len(self.voters[0].vote()))
        out[self.choices] = self.united
        return out

    def best(self) -> tuple[int, float]:
        k = greedy(self.united)
        return int(self.choices[k]), float(self.united[k])


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


_WORD = re.compile(rb".*\S(?=\s)", re.DOTALL)
LONGEST_WORD = 256
"""Bytes of a word that are looked at, where a script puts no spaces."""


def last_word(data: bytes) -> bytes:
    """The last word and the white space before it, which is where words are taken to begin.

    >>> last_word(b"one  two"), last_word(b"one two \\n"), last_word(b"one")
    (b'  two', b' \\n', b'one')
    >>> len(last_word("é".encode() * 200 + b"x"))
    255
    """
    before = _WORD.match(data)
    word = data[before.end() :] if before else data
    return word if len(word) <= LONGEST_WORD else word[-LONGEST_WORD:].lstrip(bytes(range(0x80, 0xC0)))


def cuts(member: Member, before: bytes, after: bytes) -> bool:
    """Whether the member's tokenizer, given both as one text, ends a token where the second begins.

    >>> from unisono.members.fake import TableMember
    >>> from unisono.vocabulary import Vocabulary
    >>> member = TableMember("tiny", Vocabulary.build([b"S", b"o", b"f", b"i", b"a", b"So", b"Sofia"]), {})
    >>> cuts(member, b"So", b"f"), cuts(member, b"So", b"fia"), cuts(member, b"So", b"So"), cuts(member, b"", b"fia")
    (True, False, True, True)
    """
    if not before:
        return True
    try:
        text, _ = split_characters(before + after)  # the last character may be half there
        ids = member.encode(text)
    except ValueError:  # no text, or beyond the tokenizer
        return False
    ends = accumulate(len(member.vocabulary.pieces[i]) for i in ids)
    return len(before) in ends or len(before) == len(text.encode())


class PieceVoter:
    """One member's votes over the union; its context holds the prompt and every spelled piece."""

    def __init__(
        self,
        union: UnionVocabulary,
        number: int,
        speller: Speller,
        prompt: MemberPrompt,
        held: Lines = (),
        respell: bool = False,
    ) -> None:
        self.member = speller.member
        self._respell = respell
        self._union, self.number, self._speller = union, number, speller
        ids = [*prompt.ids, *(speller.spell(prompt.tail) if prompt.tail else ())]
        self._n_prompt = len(ids)
        self._context: int | None
        self._read: list[int]
        self._context, self._read = begin_context(self.member, ids, held)
        self._lag = ids[len(self._read) :]
        self._word = b""
        """What has been written of the word under way; it begins with its space."""
        self._word_at = len(ids)
        """Where its tokens begin."""
        self.shares = Shares(union.projections[number])
        self._favourite: tuple[int, float] | None = None

    @property
    def n_tokens(self) -> int:
        return len(self._read) + len(self._lag)

    @property
    def n_written(self) -> int:
        return self.n_tokens - self._n_prompt

    def pending(self) -> list[Feed]:
        if not self._lag:
            return []
        assert self._context is not None
        return [Feed(self._context, len(self._read), self._lag)]

    heaviest_pending = 0
    can_hear = True
    at_boundary = True
    captive = False

    def ahead(self, coming: Sequence[int], most: int, *, whole: bool) -> list[list[int]]:
        ids: list[int] = []
        most = min(most, self.member.n_ctx - self.n_tokens)
        for choice in coming:
            if choice == END or len(ids) >= most:
                break
            ids += self._speller.spell(self._union.pieces[choice])
        return [ids[: max(most, 0)]] if self._lag else []

    @property
    def lines(self) -> Lines:
        return [] if self._context is None else [(self._context, self._read)]

    def read(self, logits: Sequence[Logits]) -> None:
        if not logits:
            return
        self._read += self._lag
        self._lag = []
        try:
            self._favourite = None
            self.shares.read(logits[0][-1])
        except FloatingPointError as exc:
            raise BadLogits(self.member.name) from exc

    def begins_token(self, piece: bytes) -> bool:
        ids = [*self._read[-LONGEST_WORD:], *self._lag][-LONGEST_WORD:]  # as many bytes, at least
        return cuts(self.member, last_word(self.member.vocabulary.join(ids)), piece)

    def sure(self, threshold: float) -> Sure | None:
        choice, share = self.favourite
        prob = min(share / self.shares.total, 1.0)  # as summing rounds
        return Sure([choice], prob, self._speller.spell(self._union.pieces[choice])) if prob > threshold else None

    def adopt(self, token: Sure) -> None:
        self._add(self._union.pieces[token.choices[0]], token.ids)

    def draft(self) -> tuple[int, int, list[int], list[int]] | None:
        assert self.shares.total and self._context is not None
        choice = self.favourite[0]
        ids = list(self._speller.spell(self._union.pieces[choice]))
        return None if choice == END else (self._context, len(self._read), [choice], ids)

    def draft_after(self, row: FloatArray) -> tuple[list[int], list[int]] | None:
        choice = int(self._union.projections[self.number].of_id[int(row.argmax())])
        return ([choice], list(self._speller.spell(self._union.pieces[choice]))) if choice > END else None

    def vote(self) -> Probs:
        assert self.shares.total and not self._lag
        return self.shares.spread(len(self._union.pieces))

    def vote_over(self, choices: IntArray) -> FloatArray:
        """float64[n]: the probability of each of these union ids; of a piece that the member lacks, that of the first
        token which it would spell it with."""
        projection = self._union.projections[self.number]
        stand_ins = choices.copy()
        for k in np.flatnonzero(projection.place[choices] < 0).tolist():
            if choices[k] != END:
                first = self._speller.spell(self._union.pieces[choices[k]])[0]
                stand_ins[k] = projection.of_id[first]
        return np.where(stand_ins >= 0, self.shares.of(stand_ins), 0.0) / self.shares.total

    @property
    def favourite(self) -> tuple[int, float]:
        """The choice that it likes best, ties to its lowest id, and its share."""
        if self._favourite is None:
            self._favourite = self.shares.best()
        return self._favourite

    def hear(self, choice: int) -> None:
        piece = self._union.pieces[choice]
        self._add(piece, self._speller.spell(piece))

    def _add(self, piece: bytes, ids: Sequence[int]) -> None:
        if self._respell and piece[:1].isspace() and self._word:
            self._end_word()
        self._word += piece
        self._lag = [*self._lag, *ids]

    def _end_word(self) -> None:
        """Put the tokens that the tokenizer writes for the word in the place of those that the choices were spelled in;
        what the context has read of the others is dropped."""
        try:
            usual = self.member.encode(self._word.decode())
        except ValueError:  # no whole characters, or beyond the tokenizer
            usual = []
        ids = [*self._read, *self._lag]
        old = ids[self._word_at :]
        if usual != old and self.member.vocabulary.join(usual) == self._word:
            ids[self._word_at :] = usual
            del self._read[self._word_at + n_common(usual, old) :]
            self._lag = ids[len(self._read) :]
        self._word, self._word_at = b"", len(ids)

    def close(self) -> None:
        if self._context is not None:
            self.member.drop(self._context)
            self._context = None
