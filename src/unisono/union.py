"""The union vocabulary: every piece that some member can emit and all can read, once each, and END.

M_i of the paper (arXiv 2406.12585, section 3.1), the 0/1 map from member i's ids to the union, is kept as an index:
projecting a vote is a gather and a fix-up for the pieces that several ids of one member share.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from unisono import cache
from unisono.arrays import FloatArray, IdArray, LogProbs, log_sum_exp
from unisono.vocabulary import Vocabulary

END = 0
"""The union id of the end of the text."""


@dataclass(frozen=True, eq=False)
class Projection:
    """The way from one member's ids to the union's."""

    usual: IdArray
    """int32[n_union]: the member's usual id for a union id; n_ids where it has none."""
    extra_ids: IdArray
    """int32[n_extra]: the member's other ids for pieces it has several of; for END, its other ends."""
    extra_union: IdArray
    """int32[n_extra]: the union ids of those."""
    n_ids: int
    """The width of the member's logits."""

    def carry(self, logits: FloatArray) -> FloatArray:
        """float[n_ids] of logits or log-probabilities onto the union, float[n_union]: shared mass is summed, what the
        member does not have is -inf."""
        padded = np.empty(len(logits) + 1, dtype=logits.dtype)
        padded[:-1] = logits
        padded[-1] = -np.inf
        out: FloatArray = padded.take(self.usual)
        if len(self.extra_ids):
            # logaddexp.at needs no special case for -inf, and extras are few
            np.logaddexp.at(out, self.extra_union, logits[self.extra_ids])
        return out


@dataclass(frozen=True, eq=False)
class UnionVocabulary:
    """Every piece once each, sorted, so that the same members always give the same union ids.

    >>> from unisono.vocabulary import Kind
    >>> a = Vocabulary.build([b"", b"he", b"llo"], kinds={0: Kind.END})
    >>> b = Vocabulary.build([b"he", b"", b"he"], kinds={1: Kind.END})
    >>> union = UnionVocabulary.build([a, b])     # "b" cannot write "llo"
    >>> union.pieces
    [b'', b'he']
    >>> union.projections[1].carry(np.log(np.array([0.2, 0.5, 0.3]))).round(3).tolist()   # END 0.5, "he" 0.2 + 0.3
    [-0.693, -0.693]
    """

    pieces: Sequence[bytes]
    """[n_union]; pieces[END] is b""."""
    projections: Sequence[Projection]
    """One a member, in the order given to build."""

    @classmethod
    def build(cls, vocabularies: Sequence[Vocabulary]) -> UnionVocabulary:
        """From the members' vocabularies. A piece that some member cannot read is left out: its mass is masked."""
        merged = [b""]
        for v in vocabularies:
            merged += v.sorted_pieces
        merged.sort()  # merges the sorted runs, in linear time
        distinct = [b""] + [piece for before, piece in pairwise(merged) if piece != before]
        if beyond := unreadable(distinct, vocabularies):
            distinct = [piece for piece in distinct if piece not in beyond]
        place = {piece: u for u, piece in enumerate(distinct)}
        return cls(distinct, [_project(v, place) for v in vocabularies])

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

    def vote(self, member: int, logits: FloatArray) -> LogProbs:
        """A member's logits float[n_ids] as its log-probabilities over the union; control tokens and what some
        member cannot read are masked before the softmax. nan where nothing is left or a logit is nan or +inf."""
        carried = self.projections[member].carry(logits)
        with np.errstate(invalid="ignore"):
            carried -= log_sum_exp(carried)
        return carried

    @property
    def n_shared(self) -> int:
        """How many pieces every member has, END apart."""
        has = [p.usual < p.n_ids for p in self.projections]
        return int(np.logical_and.reduce(has)[1:].sum())


def unreadable(pieces: Iterable[bytes], vocabularies: Sequence[Vocabulary]) -> set[bytes]:
    """Those of the pieces that some vocabulary has no way to write."""
    out: set[bytes] = set()
    for v in vocabularies:
        if v.missing_bytes:
            suspect = re.compile(b"[" + b"".join(re.escape(bytes([b])) for b in v.missing_bytes) + b"]").search
            out.update(p for p in pieces if suspect(p) and p not in v.canonical and v.longest_match(p) is None)
    return out


def _project(vocabulary: Vocabulary, place: Mapping[bytes, int]) -> Projection:
    ids = np.concatenate([vocabulary.ends.astype(np.int32), vocabulary.order])  # a piece's usual id stands first
    union = [END] * len(vocabulary.ends) + [place.get(p, -1) for p in vocabulary.sorted_pieces]
    union_ids = np.array(union, dtype=np.int32)
    kept = union_ids >= 0
    ids, union_ids = ids[kept], union_ids[kept]
    again = np.zeros(len(ids), dtype=bool)
    again[1:] = union_ids[1:] == union_ids[:-1]  # equal pieces stand side by side
    usual = np.full(len(place), vocabulary.n_ids, dtype=np.int32)
    usual[union_ids[~again]] = ids[~again]
    return Projection(usual, ids[again], union_ids[again], vocabulary.n_ids)

