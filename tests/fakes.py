"""Members and vocabularies for tests that need to know them by heart."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from unisono.arrays import Logits
from unisono.errors import BackendError
from unisono.members.base import ChatTemplate, Feed
from unisono.members.fake import TableMember
from unisono.vocabulary import Kind, Vocabulary


def constant(
    vocabulary: Vocabulary, probabilities: Mapping[int, float], name: str = "m", n_ctx: int = 64
) -> TableMember:
    """A member of one opinion: these probabilities whatever it has read, the rest impossible."""
    logits = np.full(vocabulary.n_ids, -np.inf)
    for i, p in probabilities.items():
        logits[i] = np.log(p)
    return TableMember(name, vocabulary, lambda ids: logits.copy(), n_ctx=n_ctx)


def scripted(
    vocabulary: Vocabulary, script: Sequence[int], name: str = "m", n_prompt: int = 1, n_ctx: int = 64
) -> TableMember:
    """A member that wants these ids one after the other, once it has read n_prompt ids, and then only the last."""

    def answer(ids: tuple[int, ...]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        logits = np.zeros(vocabulary.n_ids)
        logits[script[min(len(ids) - n_prompt, len(script) - 1)]] = 10.0
        return logits

    return TableMember(name, vocabulary, answer, n_ctx=n_ctx)


def byte_vocabulary(marks: Mapping[str, Kind], begin: str | None = None, missing: bytes = b"") -> Vocabulary:
    """Every byte for itself, then the marks: an id is a byte, or 256 and up in the order of the marks."""
    pieces = [b"" if b in missing else bytes([b]) for b in range(256)] + [m.encode() for m in marks]
    kinds = {256 + n: kind for n, kind in enumerate(marks.values())}
    return Vocabulary.build(pieces, kinds, begin=[] if begin is None else [256 + list(marks).index(begin)])


class ByteMember(TableMember):
    """Reads bytes, and control tokens by their spelling where asked to; wants nothing in particular."""

    def __init__(self, name: str, vocabulary: Vocabulary, template: str | None = None, n_ctx: int = 1 << 20) -> None:
        super().__init__(name, vocabulary, lambda ids: np.zeros(vocabulary.n_ids), n_ctx=n_ctx)
        self.chat_template = None if template is None else ChatTemplate(template, {"bos_token": "<s>"})

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        by_mark = {mark: i for i, mark in self.vocabulary.marks.items()}
        data = text.encode()
        if not special or not by_mark:
            return list(data)
        pattern = b"|".join(re.escape(mark) for mark in sorted(by_mark, key=len, reverse=True))
        ids: list[int] = []
        for part in re.split(b"(" + pattern + b")", data):
            ids += [by_mark[part]] if part in by_mark else list(part)
        return ids


class FailingMember(TableMember):
    """Raises once, at the given forward (counted from 0)."""

    fail_at = -1

    def forward(self, feeds: Sequence[Feed]) -> list[Logits]:
        self.fail_at -= 1
        if self.fail_at == -1:
            raise BackendError(f"{self.name} was told to fail.")
        return super().forward(feeds)
