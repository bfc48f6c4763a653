from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unisono.gguf import byte_level_piece
from unisono.members.base import ChatTemplate
from unisono.vocabulary import Kind, Vocabulary


class HFTokenizer:
    def __init__(self, tokenizer: Any, *, n_ids: int, ends: Sequence[int], where: str) -> None:
        self._t = tokenizer
        pieces: list[Any] = [b""] * n_ids
        kinds = [int(Kind.CONTROL)] * n_ids
        vocab = tokenizer.get_vocab()
        byte_level = "Ġ" in vocab and "▁" not in vocab
        added = set(tokenizer.added_tokens_decoder)
        special = set(tokenizer.all_special_ids)
        for token, i in vocab.items():
            sp = i in special or i in added
            pieces[i] = (
                token.encode() if sp else (byte_level_piece(token) if byte_level else token.replace("▁", " ").encode())
            )
            if token.startswith("<0x"):
                pieces[i] = bytes([int(token[3:5], 16)])
            kinds[i] = int(Kind.CONTROL) if sp else int(Kind.TEXT)
        for i in ends:
            kinds[i] = int(Kind.END)
        self.vocabulary = Vocabulary.build(pieces, kinds)
        self.chat_template: ChatTemplate | None = None

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return list(self._t(text, add_special_tokens=False, split_special_tokens=not special).input_ids)
