"""Members without a model: two fans of a word each, who cut it up differently, write one together.

A TableMember answers from a function of the ids it has read. docs/adding-a-member.md shows how to bring a real model.
"""

from __future__ import annotations

import numpy as np

from unisono import Ensemble
from unisono.members.fake import TableMember
from unisono.vocabulary import Kind, Vocabulary


def fan(word: bytes, pieces: list[bytes], sure: float) -> TableMember:
    """A member that likes whatever goes on towards the word, by so many nats, and then stops."""
    vocabulary = Vocabulary.build([b"", *pieces], kinds={0: Kind.END})

    def logits(ids: tuple[int, ...]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        text = vocabulary.join(ids)
        rest = word[len(text) :] if word.startswith(text) else b""
        return np.array([sure * (rest.startswith(piece) if piece else not rest) for piece in vocabulary.pieces])

    return TableMember(f"{word.decode()} fan", vocabulary, logits)


letters = fan(b"bet", [b"b", b"e", b"t", b"s"], sure=3.0)
syllables = fan(b"best", [b"b", b"be", b"e", b"st", b"s", b"t"], sure=3.0)

for unit in ("bytes", "pieces"):  # on pieces, "s" and "st" split what is one vote on bytes
    with Ensemble([letters, syllables], weights=[0.4, 0.6], vote=unit) as ensemble:
        generation = ensemble.generate("b", max_tokens=8)
        for step in generation:
            wanted = [f"{name}: {vote.favourite!r}" for name, vote in zip(ensemble.names, step.votes, strict=True)]
            print(f"{step.piece!r:8} {', '.join(wanted)}")
        print(f"on {unit}: b{generation.text}\n")
