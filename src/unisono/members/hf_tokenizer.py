from __future__ import annotations
from collections.abc import Sequence
from typing import Any
from unisono.gguf import byte_level_piece
from unisono.members.base import ChatTemplate
from unisono.vocabulary import Kind, Vocabulary


class HFTokenizer:
    def __init__(self, tokenizer: Any, *, n_ids: int, ends: Sequence[int], where: str) -> None:
        self._t = tokenizer
        pieces = [b""] * n_ids
        kinds = [int(Kind.CONTROL)] * n_ids
        special = set(tokenizer.all_special_ids)
        for token, i in tokenizer.get_vocab().items():
            sp = i in special or i in tokenizer.added_tokens_decoder
            pieces[i] = token.encode() if sp else (byte_level_piece(token) if "Ġ" in tokenizer.get_vocab() else token.replace("▁", " ").encode())
            if token.startswith("<0x"):
                pieces[i] = bytes([int(token[3:5], 16)])
            kinds[i] = int(Kind.CONTROL) if sp else int(Kind.TEXT)
        for i in ends:
            kinds[i] = int(Kind.END)
        self.vocabulary = Vocabulary.build(pieces, kinds)
        self.chat_template: ChatTemplate | None = None

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return list(self._t(text, add_special_tokens=False, split_special_tokens=not special).input_ids)
