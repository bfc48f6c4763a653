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

SHORTEST = 256
"""Stretches of ids that count up beside the union ids are read as one from this length on."""


PORTION = 1 << 15
"""How many of a stretch at once."""


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

    def shares(self, logits: FloatArray, out: FloatArray | None = None) -> tuple[FloatArray, float]:
        """exp(logits - top) of the member's own union ids, float[n_own] in the order of `own`, and the sum of all; what
        several ids share is summed. `top` is the highest logit. Written into `out` where that fits: asking the system
        for new megabytes at every step costs more than the sums.

        Raises:
            FloatingPointError: a logit is nan or +inf, or nothing is left.
        """
        if out is None or out.shape != self.own.shape or out.dtype != logits.dtype:
            out = np.empty(len(self.own), dtype=logits.dtype)
        for again in (False, True):
            top = logits[self.used].max(initial=-np.inf) if again else logits.max()
            if not -np.inf < top < np.inf:  # nan is not, either
                break
            total = self._exp(logits, top, out)
            if total > 1e-20:
                return out, total
            # A masked token towers so high that the rest underflows: measure from the highest that counts instead.
        raise FloatingPointError("no finite logits")

    def _exp(self, logits: FloatArray, top: float, out: FloatArray) -> float:
        """Ids count up beside the union ids over long stretches, so most of it is read straight through, in portions
        that stay in the processor's cache: after a forward nothing else does."""
        total = 0.0
        for at, i, n in self._stretches:
            for k in range(0, n, PORTION):
                part = out[at + k : at + min(k + PORTION, n)]
                np.subtract(logits[i + k : i + k + len(part)], top, out=part)
                total += float(np.exp(part, out=part).sum())
        lone = np.exp(logits.take(self._lone_ids) - top)
        out[self._lone] = lone
        extra = np.exp(logits.take(self.extra_ids) - top)
        np.add.at(out, self._extra, extra)
        return total + float(lone.sum()) + float(extra.sum())

    @property
    def used(self) -> IntArray:
        """int64[n]: every id of the member that counts."""
        return np.concatenate([self._own_ids, self.extra_ids])

    @cached_property
    def own(self) -> IntArray:
        """int64[n_own]: the union ids that the member has, in the order of its ids."""
        has = np.flatnonzero(self.usual < self.n_ids)
        return has[np.argsort(self.usual[has], kind="stable")]

    @cached_property
    def _own_ids(self) -> IntArray:
        return self.usual[self.own]

    def places(self, choices: IntArray) -> IntArray:
        """int64[n]: where in `own` these union ids stand; -1 for what the member does not have."""
        ids = self.usual[choices]
        return np.where(ids < self.n_ids, np.searchsorted(self._own_ids, ids), -1)

    @cached_property
    def _extra(self) -> IntArray:
        return self.places(self.extra_union.astype(np.int64))

    @cached_property
    def _runs(self) -> tuple[list[tuple[int, int, int]], IntArray]:
        """Stretches (place in `own`, id, length) in which no id is left out, and the places outside of them."""
        ids = self._own_ids
        breaks = np.flatnonzero(np.diff(ids) != 1) + 1
        starts = np.concatenate([[0], breaks]) if len(ids) else breaks
        lengths = np.diff(np.concatenate([starts, [len(ids)]]))
        long = lengths >= SHORTEST
        stretches = [(int(s), int(ids[s]), int(n)) for s, n in zip(starts[long], lengths[long], strict=True)]
        return stretches, np.flatnonzero(np.repeat(~long, lengths))

    @property
    def _stretches(self) -> list[tuple[int, int, int]]:
        return self._runs[0]

    @property
    def _lone(self) -> IntArray:
        return self._runs[1]

    @cached_property
    def _lone_ids(self) -> IntArray:
        return self._own_ids[self._lone]


@dataclass(frozen=True, eq=False)
class UnionVocabulary:
    """Every piece once each: END, then the pieces of the largest vocabulary in the order of its ids, then what each
    smaller one adds in the order of its own. So the same members always give the same union ids, and where most of the
    work is, ids and union ids run side by side: projecting is a walk through memory instead of a hunt.

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
        for v in sorted(vocabularies, key=lambda v: -len(v.text_ids)):
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
        shares, total = projection.shares(logits)
        out = np.zeros(len(self.pieces), dtype=logits.dtype)
        out[projection.own] = shares / total
        return out

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
