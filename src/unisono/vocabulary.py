"""A member's vocabulary as bytes: what every id adds to the text, which ids end it, which are no text at all.

Sorted once, the pieces make every "starts with" a range of positions, which is what voting on bytes
and spelling by longest match both live on.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from unisono.arrays import IdArray, IntArray


class Kind(IntEnum):
    """What an id is."""

    TEXT = 0
    """Its piece is added to the text."""
    BYTE = 1
    """Text too: one byte that the tokenizer falls back to. Where a TEXT id has the same piece, that one is usual."""
    END = 2
    """Any of the ways to stop: end of text, of turn, of message."""
    CONTROL = 3
    """No text and no end: BOS, role marks, unused ids, padding. Never chosen, masked before the softmax."""


REMEMBERED = 1 << 15
"""How many prefixes a vocabulary remembers the children of, before it begins again."""


@dataclass(frozen=True)
class Children:
    """The pieces that start with a prefix, split by their next byte; positions are those of `Vocabulary.order`."""

    exact: range
    """Positions of the ids whose piece is the prefix itself."""
    next_bytes: IntArray
    """int[k]: the bytes that can follow the prefix inside a piece, ascending."""
    bounds: IntArray
    """int[k + 1]: the pieces that go on with next_bytes[i] stand at bounds[i] to bounds[i + 1]."""
    longer: slice
    """Where all of those stand."""
    starts: IntArray
    """int[k]: where in `longer` each of them begins."""


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Every id's piece and kind.

    >>> v = Vocabulary.build([b"", b"he", b"hello", b"h", b"llo"], kinds={0: Kind.END})
    >>> v.find(b"he")                     # "he" and "hello" stand at positions 1 and 2 of the order
    range(1, 3)
    >>> [v.pieces[i] for i in v.order]
    [b'h', b'he', b'hello', b'llo']
    >>> v.longest_match(b"hello he")      # no piece holds a space
    >>> v.longest_match(b"hellohe")
    [2, 1]
    """

    pieces: Sequence[bytes]
    """[n_ids]; b"" for an id that is no text."""
    kinds: np.ndarray[tuple[int], np.dtype[np.uint8]]
    """uint8[n_ids], of Kind."""
    begin: tuple[int, ...] = ()
    """The ids that a fresh text starts with: BOS, where the model wants one."""
    space_prefix: bool = False
    """The tokenizer puts a space before a fresh text (SentencePiece's dummy prefix)."""
    marks: Mapping[int, bytes] = field(default_factory=dict, repr=False)
    """How the tokenizer itself spells its ends and control tokens."""
    _children: dict[bytes, Children] = field(default_factory=dict, repr=False)

    @classmethod
    def build(
        cls,
        pieces: Iterable[bytes],
        kinds: dict[int, Kind] | Sequence[int] | None = None,
        begin: Sequence[int] = (),
        space_prefix: bool = False,
    ) -> Vocabulary:
        """From pieces and kinds (a list, or only the ids that are not TEXT). An empty piece is a CONTROL."""
        held = list(pieces)
        marks = np.zeros(len(held), dtype=np.uint8)
        if isinstance(kinds, dict):
            for i, kind in kinds.items():
                marks[i] = kind
        elif kinds is not None:
            marks[:] = kinds
        empty = np.array([not piece for piece in held], dtype=bool)
        marks[empty & (marks != Kind.END)] = Kind.CONTROL
        spelled = {}
        for i in np.flatnonzero(marks >= Kind.END).tolist():
            if held[i]:
                spelled[i], held[i] = held[i], b""
        return cls(held, marks, tuple(begin), space_prefix, spelled)

    def with_ends(self, ends: Iterable[int]) -> Vocabulary:
        """The same vocabulary with exactly these ids as ends; former ends become control tokens.

        Raises IndexError for an id outside the vocabulary.
        """
        given = sorted(set(ends))
        for i in given:
            if not 0 <= i < self.n_ids:
                raise IndexError(i)
        kinds = self.kinds.copy()
        kinds[kinds == Kind.END] = Kind.CONTROL
        kinds[given] = Kind.END
        former_text = [i for i in given if self.pieces[i]]
        if not former_text:  # then the pieces and their order stay
            out = Vocabulary(self.pieces, kinds, self.begin, self.space_prefix, self.marks, self._children)
            digest = hashlib.sha256(f"{self.digest} ends {given}".encode()).hexdigest()
            known = {k: self.__dict__[k] for k in ("sorted_pieces", "usual_ids", "canonical") if k in self.__dict__}
            out.__dict__.update(order=self.order, digest=digest, **known)
            return out
        pieces, marks = list(self.pieces), dict(self.marks)
        for i in former_text:
            marks[i], pieces[i] = pieces[i], b""
        return Vocabulary(pieces, kinds, self.begin, self.space_prefix, marks)

    def tables(self) -> dict[str, np.ndarray[Any, Any]]:
        """Everything, the order and the digest included, as arrays for the disk cache."""
        return {
            **_joined("pieces", self.pieces),
            **_joined("marks", list(self.marks.values())),
            "marked": np.array(list(self.marks), dtype=np.int64),
            "kinds": self.kinds,
            "order": self.order,
            "begin": np.array(self.begin, dtype=np.int64),
            "space_prefix": np.array(self.space_prefix),
            "digest": np.array(self.digest),
        }

    @classmethod
    def from_tables(cls, tables: Mapping[str, np.ndarray[Any, Any]]) -> Vocabulary:
        """Back from `tables()`."""
        marked = tables["marked"].tolist()
        marks = dict(zip(marked, _split("marks", tables) if marked else [], strict=True))
        begin, space = tuple(tables["begin"].tolist()), bool(tables["space_prefix"])
        out = cls(_split("pieces", tables), tables["kinds"], begin, space, marks)
        out.__dict__.update(order=tables["order"], digest=str(tables["digest"]))  # cached properties, already known
        return out

    @property
    def n_ids(self) -> int:
        """How many ids, padded ones included: the width of a row of logits."""
        return len(self.pieces)

    @cached_property
    def ends(self) -> IntArray:
        """int[n_ends]: every id that stops the text, ascending."""
        return np.flatnonzero(self.kinds == Kind.END)

    @cached_property
    def controls(self) -> IntArray:
        """int[n_controls]: every id that is neither text nor end, ascending."""
        return np.flatnonzero(self.kinds == Kind.CONTROL)

    @cached_property
    def text_ids(self) -> IntArray:
        """int[n_text]: every id that is text, ascending."""
        return np.flatnonzero(self.kinds <= Kind.BYTE)

    @cached_property
    def order(self) -> IdArray:
        """int32[n_text]: the text ids, sorted by piece; ids that share one stand usual id first."""
        usual_first = [np.flatnonzero(self.kinds == kind) for kind in (Kind.TEXT, Kind.BYTE)]
        ids = np.concatenate(usual_first).tolist()
        ids.sort(key=self.pieces.__getitem__)
        return np.array(ids, dtype=np.int32)

    @cached_property
    def sorted_pieces(self) -> list[bytes]:
        """[n_text]: the pieces in that order."""
        pieces = self.pieces
        return [pieces[i] for i in self.order.tolist()]

    @cached_property
    def digest(self) -> str:
        """A hash of everything above: equal digests, equal vocabularies."""
        h = hashlib.sha256()
        h.update(np.array([len(p) for p in self.pieces], dtype=np.int64).tobytes())
        h.update(b"".join(self.pieces))
        h.update(self.kinds.tobytes())
        h.update(repr((self.begin, self.space_prefix)).encode())
        return h.hexdigest()

    @cached_property
    def usual_ids(self) -> IntArray:
        """int[n_distinct]: the usual id of every piece, ascending."""
        pieces = self.sorted_pieces
        first = np.array([True, *(a != b for a, b in pairwise(pieces))][: len(pieces)], dtype=bool)
        return np.sort(self.order[first]).astype(np.int64)

    @cached_property
    def canonical(self) -> dict[bytes, int]:
        """The usual id of every piece."""
        out: dict[bytes, int] = {}
        for piece, i in zip(reversed(self.sorted_pieces), reversed(self.order.tolist()), strict=True):
            out[piece] = i
        return out

    @cached_property
    def missing_bytes(self) -> tuple[int, ...]:
        """The bytes that no single piece is: texts that hold them may be beyond this member."""
        singles = {p[0] for p in self.sorted_pieces if len(p) == 1}
        return tuple(b for b in range(256) if b not in singles)

    @cached_property
    def longest_with_missing(self) -> int:
        """How long the longest piece is that holds one of those; 0 where none does.

        >>> Vocabulary.build([b"a", b"ab", b"cab"]).longest_with_missing, Vocabulary.build([b"a"]).longest_with_missing
        (3, 0)
        """
        if not self.missing_bytes:
            return 0
        holds = re.compile(b"[" + b"".join(b"\\x%02x" % byte for byte in self.missing_bytes) + b"]").search
        return max((len(piece) for piece in self.sorted_pieces if holds(piece)), default=0)

    def find(self, prefix: bytes) -> range:
        """The positions in `order` of the pieces that start with the prefix."""
        lo = bisect_left(self.sorted_pieces, prefix)
        return range(lo, bisect_left(self.sorted_pieces, _successor(prefix), lo) if prefix else len(self.sorted_pieces))

    def children(self, prefix: bytes) -> Children:
        """The pieces that start with the prefix, split by their next byte. Found once and remembered."""
        known = self._children.get(prefix)
        if known is None:
            if len(self._children) >= REMEMBERED:
                self._children.clear()
            known = self._children[prefix] = self._split(prefix)
        return known

    def _split(self, prefix: bytes) -> Children:
        pieces, found, at = self.sorted_pieces, self.find(prefix), len(prefix)
        first = bisect_left(pieces, prefix + b"\0", found.start, found.stop)
        next_bytes, bounds, position = [], [first], first
        while position < found.stop:
            byte = pieces[position][at]
            next_bytes.append(byte)
            position = bisect_left(pieces, _successor(prefix + bytes([byte])), position, found.stop)
            bounds.append(position)
        at_bounds = np.array(bounds, np.int64)
        return Children(
            range(found.start, first),
            np.array(next_bytes, np.int64),
            at_bounds,
            slice(first, found.stop),
            at_bounds[:-1] - first,
        )

    def longest_match(self, data: bytes) -> list[int] | None:
        """The bytes as ids, longest piece first, stepping back where that leads nowhere; None if there is no way."""
        dead: set[int] = set()
        ends = [0]
        lengths: list[int] = []
        longest = self._longest
        while ends[-1] < len(data):
            start = ends[-1]
            limit = min(longest, len(data) - start)
            if len(lengths) < len(ends):
                lengths.append(limit)
            length = lengths[-1]
            while length > 0 and (start + length in dead or data[start : start + length] not in self.canonical):
                length -= 1
            if length == 0:
                dead.add(start)
                ends.pop()
                lengths.pop()
                if not ends:
                    return None
                lengths[-1] -= 1
                continue
            lengths[-1] = length
            ends.append(start + length)
        return [self.canonical[data[a:b]] for a, b in pairwise(ends)]

    def unwritable_at(self, data: bytes) -> int | None:
        """Where the first byte stands that has no piece of its own, if that leaves no way to write the data.

        >>> v = Vocabulary.build([b"a", b"bc"])
        >>> v.unwritable_at(b"abca"), v.unwritable_at(b"abac")
        (None, 1)
        """
        missing = set(self.missing_bytes)
        at = next((at for at, byte in enumerate(data) if byte in missing), None)
        return at if at is not None and self.longest_match(data) is None else None

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self.sorted_pieces), default=0)

    def join(self, ids: Iterable[int]) -> bytes:
        """The text that these ids add."""
        return b"".join([self.pieces[i] for i in ids])


def _joined(name: str, pieces: Sequence[bytes]) -> dict[str, np.ndarray[Any, Any]]:
    """Pieces as one array, joined by a mark that none of them holds."""
    mark = b"\xff\xfe"
    while (joined := mark.join(pieces)).count(mark) > max(len(pieces) - 1, 0):
        mark += b"\xfe"
    return {name: np.frombuffer(joined, dtype=np.uint8), f"{name}_mark": np.frombuffer(mark, dtype=np.uint8)}


def _split(name: str, tables: Mapping[str, np.ndarray[Any, Any]]) -> list[bytes]:
    """Back again; splitting is several times faster than slicing by lengths."""
    return tables[name].tobytes().split(tables[f"{name}_mark"].tobytes())


def _successor(prefix: bytes) -> bytes:
    """The smallest bytes above everything that starts with the prefix; above all bytes where there is none.

    >>> _successor(b"ab"), _successor(b"a\\xff")
    (b'ac', b'b')
    """
    stripped = prefix.rstrip(b"\xff")
    if not stripped:
        return b"\xff" * 1024  # longer than any piece, so it sorts after all of them
    return stripped[:-1] + bytes([stripped[-1] + 1])
