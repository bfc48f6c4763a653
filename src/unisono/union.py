"""The union vocabulary: every piece that some member can emit and all can read, once each, and END.

M_i of the paper (arXiv 2406.12585, section 3.1), the 0/1 map from member i's ids to the union, is kept as an index:
projecting a vote is a gather and a fix-up for the pieces that several ids of one member share.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from unisono import cache
from unisono.arrays import FloatArray, IdArray, IntArray, Probs
from unisono.vocabulary import Vocabulary

END = 0
"""The union id of the end of the text."""


@dataclass(frozen=True, eq=False)
class Projection:
    """The way from one member's ids to the union's."""

    usual: IntArray
    """int64[n_union]: the member's usual id for a union id; n_ids where it has none."""
    extra_ids: IdArray
    """int32[n_extra]: the member's other ids for pieces it has several of; for END, its other ends."""
    extra_union: IdArray
    """int32[n_extra]: the union ids of those."""
    n_ids: int
    """The width of the member's logits."""

    def carry(self, masses: FloatArray, out: FloatArray) -> None:
        """Carry float[n_ids + 1] of masses, the last of them 0, onto the union, float[n_union]: what several ids share
        is summed, what the member does not have gets 0."""
        if self._dense:
            masses.take(self.usual, out=out, mode="clip")  # with this mode numpy writes straight into `out`
        else:
            out[...] = 0
            out[self._own] = masses[self._own_ids]
        np.add.at(out, self.extra_union, masses[self.extra_ids])

    @property
    def used(self) -> IntArray:
        """int64[n]: every id of the member that counts."""
        return np.concatenate([self._own_ids, self.extra_ids])

    @cached_property
    def _own(self) -> IntArray:
        return np.flatnonzero(self.usual < self.n_ids)

    @cached_property
    def _own_ids(self) -> IntArray:
        return self.usual[self._own]

    @cached_property
    def _dense(self) -> bool:
        return 2 * len(self._own) > len(self.usual)


@dataclass(frozen=True, eq=False)
class UnionVocabulary:
    """Every piece once each: END, then the first member's pieces in the order of its ids, then what each further member
    adds in the order of its own. So the same members always give the same union ids, and a member's ids and its union
    ids run side by side, which makes projecting a walk through memory instead of a hunt.

    >>> from unisono.vocabulary import Kind
    >>> a = Vocabulary.build([b"", b"he", b"llo"], kinds={0: Kind.END})
    >>> b = Vocabulary.build([b"he", b"", b"he"], kinds={1: Kind.END})
    >>> union = UnionVocabulary.build([a, b])     # "b" cannot write "llo"
    >>> union.pieces
    [b'', b'he']
    >>> union.vote(1, np.log([0.2, 0.6, 0.2])).round(3).tolist()   # END 0.6, "he" 0.2 + 0.2
    [0.6, 0.4]
    """

    pieces: Sequence[bytes]
    """[n_union]; pieces[END] is b""."""
    projections: Sequence[Projection]
    """One a member, in the order given to build."""

    @classmethod
    def build(cls, vocabularies: Sequence[Vocabulary]) -> UnionVocabulary:
        """From the members' vocabularies. A piece that some member cannot read is left out: its mass is masked."""
        place: dict[bytes, int] = {b"": END}
        for v in vocabularies:
            pieces = v.pieces
            for i in v.usual_ids.tolist():
                place.setdefault(pieces[i], len(place))
        if beyond := unreadable(place, vocabularies):
            kept = [piece for piece in place if piece not in beyond]
            place = {piece: u for u, piece in enumerate(kept)}
        return cls(list(place), [_project(v, place) for v in vocabularies])

    @classmethod
    def remembered(cls, vocabularies: Sequence[Vocabulary]) -> UnionVocabulary:
        """As build, from the disk cache where these vocabularies have been united before."""
        key = hashlib.sha256(" ".join(v.digest for v in vocabularies).encode()).hexdigest()
        tables = cache.remembered("union", key, lambda: cls.build(vocabularies)._tables(vocabularies))
        pieces = np.full(len(tables["usual_0"]), b"", dtype=object)
        projections = []
        for m, v in enumerate(vocabularies):
            usual, owned = tables[f"usual_{m}"], tables[f"owned_{m}"]
            projections.append(Projection(usual, tables[f"extra_ids_{m}"], tables[f"extra_union_{m}"], v.n_ids))
            pieces[owned] = np.array(v.pieces, dtype=object)[usual[owned]]
        return cls(pieces.tolist(), projections)

    def _tables(self, vocabularies: Sequence[Vocabulary]) -> cache.Tables:
        """For the cache: the projections, and for every member the pieces that no member before it has."""
        tables: cache.Tables = {}
        known = np.zeros(len(self.pieces), dtype=bool)
        known[END] = True
        for m, p in enumerate(self.projections):
            has = p.usual < p.n_ids
            tables |= {f"usual_{m}": p.usual, f"extra_ids_{m}": p.extra_ids, f"extra_union_{m}": p.extra_union}
            tables[f"owned_{m}"] = np.flatnonzero(has & ~known)
            known |= has
        return tables

    def vote(self, member: int, logits: FloatArray) -> Probs:
        """A member's logits float[n_ids] as its distribution over the union, in their own dtype; control tokens and
        what some member cannot read are masked before the softmax.

        Raises:
            FloatingPointError: a logit is nan or +inf, or nothing is left.
        """
        projection = self.projections[member]
        masses = np.empty(len(logits) + 1, dtype=logits.dtype)
        out = np.empty(len(self.pieces), dtype=logits.dtype)
        masses[-1] = 0
        for again in (False, True):
            top = logits[projection.used].max(initial=-np.inf) if again else logits.max()
            if not -np.inf < top < np.inf:  # nan is not, either
                break
            with np.errstate(over="ignore"):  # of what is masked, where that is above `top`
                np.exp(np.subtract(logits, top, out=masses[:-1]), out=masses[:-1])
            projection.carry(masses, out)
            total = out.sum()
            if total > 1e-20:
                out /= total
                return out
            # A masked token towers so high that the rest underflows: measure from the highest that counts instead.
        raise FloatingPointError("no finite logits")

    @property
    def n_shared(self) -> int:
        """How many pieces every member has, END apart."""
        has = [p.usual < p.n_ids for p in self.projections]
        return int(np.logical_and.reduce(has)[1:].sum())


def unreadable(pieces: Iterable[bytes], vocabularies: Sequence[Vocabulary]) -> set[bytes]:
    """Those of the pieces that some vocabulary has no way to write."""
    held = list(pieces)
    ends = np.cumsum([len(p) for p in held])
    joined = np.frombuffer(b"".join(held), dtype=np.uint8)
    out: set[bytes] = set()
    for v in vocabularies:
        if v.missing_bytes:
            missing = np.zeros(256, dtype=bool)
            missing[list(v.missing_bytes)] = True
            suspects = np.unique(np.searchsorted(ends, np.flatnonzero(missing[joined]), side="right"))
            suspected = (held[k] for k in suspects.tolist())
            out.update(p for p in suspected if p not in v.canonical and v.longest_match(p) is None)
    return out


def _project(vocabulary: Vocabulary, place: Mapping[bytes, int]) -> Projection:
    ids = np.concatenate([vocabulary.ends.astype(np.int32), vocabulary.order])  # a piece's usual id stands first
    union = [END] * len(vocabulary.ends) + [place.get(p, -1) for p in vocabulary.sorted_pieces]
    union_ids = np.array(union, dtype=np.int32)
    kept = union_ids >= 0
    ids, union_ids = ids[kept], union_ids[kept]
    again = np.zeros(len(ids), dtype=bool)
    again[1:] = union_ids[1:] == union_ids[:-1]  # equal pieces stand side by side
    usual = np.full(len(place), vocabulary.n_ids, dtype=np.int64)  # numpy takes by int64 fastest
    usual[union_ids[~again]] = ids[~again]
    return Projection(usual, ids[again], union_ids[again], vocabulary.n_ids)
