"""Tokenizers in Python as bytes: those on SentencePiece's own library, and those on tiktoken."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from unisono.errors import MissingBackend, UnsupportedModel
from unisono.tokens import SPACE_MARK, looks_like_control
from unisono.vocabulary import Kind


class SentencePieceTokens:
    """The tables of a SentencePiece model, and its encoder without anything that changes the text.

    Args:
        tokenizer: A PreTrainedTokenizer with an `sp_model`; it stays as it is.
        n_ids: How many ids the model knows; control tokens beyond are left out.
        where: What to call it in messages.

    Raises:
        UnsupportedModel: the model does not know all of its tokens.
        MissingBackend: the package that reads SentencePiece's files is not installed.
    """

    space_mark = SPACE_MARK

    def __init__(self, tokenizer: Any, n_ids: int, where: str) -> None:
        model = tokenizer.sp_model
        names = [model.id_to_piece(i) for i in range(model.get_piece_size())]
        # Some tokenizers put tokens of their own before the model's, so that its ids are not theirs.
        self._ids = [int(i) for i in tokenizer.convert_tokens_to_ids(names)]
        self._processor = _as_it_stands(model)
        entries = []
        for n, (name, i) in enumerate(zip(names, self._ids, strict=True)):
            if model.is_byte(n):
                entries.append((i, bytes([int(name[3:5], 16)]), Kind.BYTE))
            elif model.is_control(n) or model.is_unknown(n) or model.is_unused(n):
                entries.append((i, name.encode(), Kind.CONTROL))
            elif i != tokenizer.unk_token_id:  # a piece that the tokenizer itself does not know
                entries.append((i, name.replace(SPACE_MARK, " ").encode(), Kind.TEXT))
        added = {token.content: int(i) for i, token in tokenizer.added_tokens_decoder.items()}
        controls = {t.content for t in tokenizer.added_tokens_decoder.values() if t.special}
        controls.update(filter(looks_like_control, added))
        entries += [(i, name.encode(), Kind.CONTROL if name in controls else Kind.TEXT) for name, i in added.items()]
        self.pieces, self.kinds = _tables(entries, n_ids, where)
        self._added = {name: i for name, i in added.items() if i < n_ids}
        self._splitters = {False: _splitter(self._added.keys() - controls), True: _splitter(self._added)}

    def encode(self, text: str, special: bool) -> list[int]:
        """The text as ids; with `special`, the spelling of a control token becomes that token."""
        splitter = self._splitters[special]
        ids: list[int] = []
        for n, part in enumerate(splitter.split(text) if splitter else [text]):
            ids += [self._added[part]] if n % 2 else [self._ids[i] for i in self._processor.encode(part)]
        return ids


def _as_it_stands(model: Any) -> Any:
    """The same model without its normaliser and its dummy space: a text's bytes stay as they are."""
    try:
        from sentencepiece import sentencepiece_model_pb2 as pb2
    except ImportError as exc:
        raise MissingBackend("Hugging Face", "protobuf", "hf") from exc
    messages: Any = pb2  # which makes its classes as it is imported
    proto = messages.ModelProto.FromString(model.serialized_model_proto())
    rules = proto.normalizer_spec
    rules.name, rules.precompiled_charsmap, rules.normalization_rule_tsv = "identity", b"", ""
    rules.add_dummy_prefix = rules.remove_extra_whitespaces = False
    return type(model)(model_proto=proto.SerializeToString())


class TiktokenTokens:
    """The tables and the encoder of a tiktoken.Encoding.

    Args:
        encoding: The tiktoken.Encoding.
        n_ids: How many ids the model knows; control tokens beyond are left out.
        where: What to call it in messages.

    Raises:
        UnsupportedModel: the model does not know all of its tokens.
    """

    space_mark = ""

    def __init__(self, encoding: Any, n_ids: int, where: str) -> None:
        self._encoding = encoding
        entries = [(i, piece, Kind.TEXT) for piece, i in encoding._mergeable_ranks.items()]
        entries += [(i, name.encode(), Kind.CONTROL) for name, i in encoding._special_tokens.items()]
        self.pieces, self.kinds = _tables(entries, n_ids, where)
        self._controls = {name for name, i in encoding._special_tokens.items() if i < n_ids}

    def encode(self, text: str, special: bool) -> list[int]:
        """The text as ids; with `special`, the spelling of a control token becomes that token."""
        allowed = self._controls if special else set()
        return list(self._encoding.encode(text, allowed_special=allowed, disallowed_special=()))


def tiktoken_encoding(tokenizer: Any) -> Any | None:
    """The tiktoken.Encoding that a tokenizer works with, where it has one (Qwen's first calls it `tokenizer`, Kimi's
    `model`)."""
    for name in ("tokenizer", "model", "encoding"):
        found = getattr(tokenizer, name, None)
        if hasattr(found, "_mergeable_ranks") and hasattr(found, "_special_tokens"):
            return found
    return None


Entry = tuple[int, bytes, Kind]
"""An id, its piece or spelling, its kind."""


def _tables(
    entries: Sequence[Entry], n_ids: int, where: str
) -> tuple[list[bytes], np.ndarray[tuple[int], np.dtype[np.uint8]]]:
    """Pieces and kinds of every id that the model knows; of two entries for an id, the later one counts."""
    pieces, kinds = [b""] * n_ids, np.full(n_ids, Kind.CONTROL, dtype=np.uint8)
    for i, (piece, kind) in {i: (piece, kind) for i, piece, kind in entries}.items():
        if i < n_ids:
            pieces[i], kinds[i] = piece, kind
        elif kind <= Kind.BYTE:
            raise UnsupportedModel(
                f"{where} has a tokenizer with {piece!r} as token {i:,}, but the model's tokens end at {n_ids - 1:,}:"
                " take the tokenizer that belongs to the model."
            )
    return pieces, kinds


def _splitter(names: Iterable[str]) -> re.Pattern[str] | None:
    """Finds the names in a text, longest first."""
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, longest_first))})") if longest_first else None
