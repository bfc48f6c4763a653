"""TableMember: a member without a model, for tests of everything that is not a model."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from unisono.arrays import Logits
from unisono.members.base import ChatTemplate, Feed, check_feed, free_number
from unisono.vocabulary import Vocabulary

Table = Callable[[tuple[int, ...]], np.ndarray[tuple[int], np.dtype[np.float64]]]
"""The ids read so far -> float64[n_ids], the logits for what comes next."""


class TableMember:
    """Answers from a function of the ids read so far, or from a dict of them.

    >>> from unisono.vocabulary import Kind
    >>> v = Vocabulary.build([b"", b"a", b"b"], kinds={0: Kind.END})
    >>> m = TableMember("tiny", v, {(): [0.0, 1.0, 2.0], (2,): [5.0, 0.0, 0.0]})
    >>> [row.tolist() for row in m.forward([Feed(m.new(), at=0, ids=[2])])]
    [[[5.0, 0.0, 0.0]]]
    """

    chat_template: ChatTemplate | None = None
    device = "cpu"

    def __init__(
        self,
        name: str,
        vocabulary: Vocabulary,
        table: Table | Mapping[tuple[int, ...], Sequence[float]],
        n_ctx: int = 1 << 20,
        n_contexts: int = 1 << 10,
    ) -> None:
        self.name, self.vocabulary, self.n_ctx = name, vocabulary, n_ctx
        self._answer: Table = (
            (lambda ids: np.array(table[ids], dtype=np.float64)) if isinstance(table, Mapping) else table
        )
        self._contexts: dict[int, list[int]] = {}
        self.n_contexts = n_contexts
        self._closed = False
        self.n_read = 0
        """How many ids all forwards have read."""

    @classmethod
    def random(
        cls, name: str, vocabulary: Vocabulary, seed: int = 0, spread: float = 2.0, n_ctx: int = 1 << 20
    ) -> TableMember:
        """Logits drawn anew for every context, the same on every call and machine."""

        def answer(ids: tuple[int, ...]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
            key = zlib.crc32(np.array(ids, dtype=np.int64).tobytes())
            return spread * np.random.default_rng([seed, key]).standard_normal(vocabulary.n_ids)

        return cls(name, vocabulary, answer, n_ctx)

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        ids = self.vocabulary.longest_match(text.encode())
        if ids is None:
            raise ValueError(f"{self.name} cannot write {text!r}")
        return ids

    def new(self) -> int:
        context = free_number(self._contexts, self)
        self._contexts[context] = []
        return context

    def forward(self, feeds: Sequence[Feed]) -> list[Logits]:
        for feed in feeds:
            check_feed(feed, len(self._contexts[feed.context]), self)
        out: list[Logits] = []
        for feed in feeds:
            context = self._contexts[feed.context]
            context[feed.at :] = feed.ids
            self.n_read += len(feed.ids)
            n = len(context)
            rows = [self._answer(tuple(context[:end])) for end in range(n - feed.rows + 1, n + 1)]
            out.append(np.array(rows).reshape(feed.rows, self.vocabulary.n_ids))
        return out

    def fork(self, context: int, at: int) -> int:
        shared = self._contexts[context][:at]
        copy = self.new()
        self._contexts[copy] = shared
        return copy

    def release(self, context: int) -> None:
        assert context in self._contexts

    def drop(self, context: int) -> None:
        if not self._closed:
            del self._contexts[context]

    def close(self) -> None:
        self._closed = True
        self._contexts.clear()
