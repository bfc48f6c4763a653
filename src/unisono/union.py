"""The union vocabulary: every piece that some member can emit and all can read, once each, and END.

M_i of the paper (arXiv 2406.12585, section 3.1), the 0/1 map from member i's ids to the union, is kept as an index:
projecting a vote is a gather and a fix-up for the pieces that several ids of one member share.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from unisono import cache
from unisono.arrays import FloatArray, IdArray, IntArray, Probs
from unisono.vocabulary import Vocabulary

END = 0
"""The union id of the end of the text."""

SHORTEST = 256
"""Stretches of ids that count up beside the union ids are read as one from this length on."""

PORTION = 1 << 16
"""How many shares are worked on at once: what stays in the processor's cache."""

BLOCK = 256
"""How many shares are looked at together for the largest."""


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

    @property
    def used(self) -> IntArray:
        """int64[n]: every id of the member that counts."""
        return np.concatenate([self._own_ids, self.extra_ids])

    @cached_property
    def unused(self) -> IntArray:
        """int64[n]: every other id."""
        return np.setdiff1d(np.arange(self.n_ids), self.used)

    @cached_property
    def own(self) -> IntArray:
        """int64[n_own]: the union ids that the member has, in the order of its ids."""
        has = np.flatnonzero(self.usual < self.n_ids)
        return has[np.argsort(self.usual[has], kind="stable")]

    @cached_property
    def _own_ids(self) -> IntArray:
        return self.usual[self.own]

    @cached_property
    def place(self) -> IdArray:
        """int32[n_union]: where in `own` a union id stands; -1 for what the member does not have."""
        out = np.full(len(self.usual), -1, dtype=np.int32)
        out[self.own] = np.arange(len(self.own))
        return out

    @cached_property
    def of_id(self) -> IdArray:
        """int32[n_ids]: the union id of each of the member's ids; -1 for those that do not count."""
        out = np.full(self.n_ids, -1, dtype=np.int32)
        out[self._own_ids] = self.own
        out[self.extra_ids] = self.extra_union
        return out

    @cached_property
    def extra(self) -> IntArray:
        """int64[n_extra]: where in `own` the other ids belong."""
        return self.place[self.extra_union].astype(np.int64)

    @cached_property
    def extra_portions(self) -> list[int]:
        """The portions that those lie in."""
        return [int(k) for k in np.unique(self.extra // PORTION)]

    @cached_property
    def portions(self) -> list[Portion]:
        """`own`, cut into portions. Ids count up beside the union ids over long stretches, so most logits are read
        straight through; the others are gathered."""
        ids = self._own_ids
        out = []
        for start in range(0, len(ids), PORTION):
            here = ids[start : start + PORTION]
            starts = np.concatenate([[0], np.flatnonzero(np.diff(here) != 1) + 1])
            lengths = np.diff(np.concatenate([starts, [len(here)]]))
            long = lengths >= SHORTEST
            stretches = [(int(at), int(here[at]), int(n)) for at, n in zip(starts[long], lengths[long], strict=True)]
            lone = np.flatnonzero(np.repeat(~long, lengths))
            out.append(Portion(slice(start, start + len(here)), stretches, lone, here[lone]))
        return out


class Portion(NamedTuple):
    """Neighbours in `Projection.own`, and where their logits are."""

    places: slice
    stretches: Sequence[tuple[int, int, int]]
    """(place in the portion, id, length) of stretches in which no id is left out."""
    lone: IntArray
    """int64[n]: the places outside of them."""
    lone_ids: IntArray
    """int64[n]: the ids of those."""


class Shares:
    """How much a row of logits is for each of one member's union ids. It is kept from step to step and filled anew:
    asking the system for new megabytes every time costs more than the sums."""

    def __init__(self, projection: Projection) -> None:
        self._projection = projection
        self.values: FloatArray = np.empty(0)
        """float[n_own]: exp(logit) up to a common factor, in the order of `Projection.own`; several ids summed."""
        self.total = 0.0
        """The sum of those; a share divided by it is a probability."""
        self._tops: FloatArray = np.empty(0)

    def read(self, logits: FloatArray) -> None:
        """Take logits float[n_ids].

        Raises:
            FloatingPointError: a logit is nan or +inf, or nothing is left.
        """
        self.total = 0.0
        n = len(self._projection.own)
        if self.values.shape != (n,) or self.values.dtype != logits.dtype:
            self.values = np.empty(n, dtype=logits.dtype)
            self._tops = np.empty(len(self._projection.portions), dtype=logits.dtype)
        # Few models have logits far from 0, so that finding the top and taking it off can be spared as a rule.
        total = self._exp(logits, 0.0)
        if not 1e-10 < total < 1e30:  # nan is not, either
            top = logits[self._projection.used].max(initial=-np.inf)
            total = self._exp(logits, top) if -np.inf < top < np.inf else 0.0
        if not total > 0 or not logits.take(self._projection.unused).max(initial=-np.inf) < np.inf:
            raise FloatingPointError("no finite logits")
        self.total = total

    def _exp(self, logits: FloatArray, top: float | np.floating[Any]) -> float:
        total = 0.0
        with np.errstate(over="ignore"):
            for k, (places, stretches, lone, lone_ids) in enumerate(self._projection.portions):
                part = self.values[places]
                for at, i, n in stretches:
                    stretch = logits[i : i + n]
                    if top:
                        stretch = np.subtract(stretch, top, out=part[at : at + n])
                    np.exp(stretch, out=part[at : at + n])
                if len(lone):
                    part[lone] = np.exp(logits.take(lone_ids) - top)
                total += float(part.sum())
                self._tops[k] = part.max()
            if len(extra := self._projection.extra):
                shares = np.exp(logits.take(self._projection.extra_ids) - top)
                np.add.at(self.values, extra, shares)
                total += float(shares.sum())
                for k in self._projection.extra_portions:
                    self._tops[k] = self.values[self._projection.portions[k].places].max()
        return total

    def best(self) -> tuple[int, float]:
        """The union id with the largest share, ties to the member's lowest id, and that share."""
        k = int(self._tops.argmax())
        place = k * PORTION + int(self.values[self._projection.portions[k].places].argmax())
        return int(self._projection.own[place]), float(self.values[place])

    def at_least(self, share: float) -> IntArray:
        """int64[n]: the union ids that have this share or more."""
        share = min(share, float(np.finfo(self.values.dtype).max))  # of a member whose weight is next to nothing
        portions = np.flatnonzero(self._tops >= share).tolist()
        found = [k * PORTION + np.flatnonzero(self.values[k * PORTION : (k + 1) * PORTION] >= share) for k in portions]
        return self._projection.own[np.concatenate(found)] if found else np.empty(0, dtype=np.int64)

    def largest(self, n: int) -> IntArray:
        """int64[n] or fewer: the union ids with the largest shares, falling, ties to the member's lowest id; without
        those of no share."""
        tops = np.maximum.reduceat(self.values, np.arange(0, len(self.values), BLOCK))
        floor = np.partition(tops, -n)[-n] if n <= len(tops) else 0  # n shares or more are as large as this
        places = np.flatnonzero((self.values >= floor) & (self.values > 0))
        ranked = np.argsort(-self.values[places], kind="stable")
        return self._projection.own[places[ranked[:n]]]

    def of(self, choices: IntArray | Sequence[int]) -> FloatArray:
        """float64[n]: the shares of these union ids; 0 for what the member does not have."""
        at = self._projection.place[choices]
        return np.where(at >= 0, self.values[at], 0.0).astype(np.float64)

    def share(self, choice: int) -> float:
        """The same of one."""
        at = self._projection.place[choice]
        return float(self.values[at]) if at >= 0 else 0.0

    def spread(self, n_union: int) -> Probs:
        """float[n_union]: the probabilities of all union ids."""
        out = np.zeros(n_union, dtype=self.values.dtype)
        out[self._projection.own] = self.values / self.total
        return out


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
        shares = Shares(self.projections[member])
        shares.read(logits)
        return shares.spread(len(self.pieces))

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
