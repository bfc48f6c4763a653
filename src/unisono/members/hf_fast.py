"""Tokenizers of the `tokenizers` library as bytes: byte-level BPE; SentencePiece's BPE and Unigram, converted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from unisono.errors import ModelFileError, UnsupportedModel
from unisono.tokens import byte_level_pieces, byte_token, looks_like_control
from unisono.vocabulary import Kind

KINDS = ("BPE", "Unigram")
"""The kinds of tokenizer whose tokens are bytes of the text."""

SWALLOWING = ("BertPreTokenizer", "CharDelimiterSplit", "Whitespace", "WhitespaceSplit")
"""What cuts a text and leaves out what it cuts at."""

Part = dict[str, Any]
"""One step of a tokenizer, as tokenizer.json writes it."""


class FastTokens:
    """The tables of a tokenizer, and its encoder without anything that changes the text.

    262,144 tokens take less than a second. There is no cache on disk: to hash what the library holds takes as long.

    Args:
        tokenizer: A tokenizers.Tokenizer; it stays as it is.
        n_ids: How many ids the model knows; control tokens beyond are left out.
        where: What to call it in messages.

    Raises:
        UnsupportedModel: its tokens are not bytes of the text, or the model does not know all of them.
        ModelFileError: its tables do not fit one another.
    """

    pieces: list[bytes]
    """[n_ids]; the spelling of control tokens too."""
    kinds: np.ndarray[tuple[int], np.dtype[np.uint8]]
    """uint8[n_ids], of Kind; ends are not told apart from other control tokens."""
    space_mark: str
    """What its tokens hold for a space; empty where they hold bytes, or spaces as they are."""

    def __init__(self, tokenizer: Any, n_ids: int, where: str) -> None:
        self._where = where
        model = tokenizer.model
        normalizers = list(_parts(tokenizer.normalizer, "normalizers", where))
        cutters = list(_parts(tokenizer.pre_tokenizer, "pretokenizers", where))
        byte_level = any(part["type"] == "ByteLevel" for part in normalizers + cutters)
        self.space_mark = "" if byte_level else _space_mark(normalizers, cutters)
        self._refuse_what_is_no_bytes(model, cutters, byte_level)

        state = _state(model, where) if _kind(model) == "Unigram" or model.dropout else {}
        self.pieces = [b""] * n_ids
        self.kinds = np.full(n_ids, Kind.CONTROL, dtype=np.uint8)
        self._beyond: dict[int, str] = {}
        if _kind(model) == "Unigram":
            names = [name for name, _ in state["vocab"]]  # a name may stand there twice
            known = dict(zip(names, range(len(names)), strict=True))
            self._read_model(names, range(len(names)), byte_level)
            unknown, falls_back = state["unk_id"], state.get("byte_fallback", False)
        else:
            known = tokenizer.get_vocab(with_added_tokens=False)
            self._read_model(list(known), list(known.values()), byte_level)
            unknown, falls_back = known.get(model.unk_token), model.byte_fallback
        if falls_back and not byte_level:
            self._read_bytes(known)
        if unknown is not None and unknown < n_ids:
            self.kinds[unknown] = Kind.CONTROL
        self._added = list(self._read_added(tokenizer, known, any(map(_writes_spaces, normalizers))))
        skeleton = _skeleton(normalizers, cutters)
        self._encoders = {special: self._encoder(skeleton, model, state, special) for special in (False, True)}

    def encode(self, text: str, special: bool) -> list[int]:
        """The text as ids; with `special`, the spelling of a control token becomes that token."""
        return list(self._encoders[special].encode(text, add_special_tokens=False).ids)

    def _refuse_what_is_no_bytes(self, model: Any, cutters: Sequence[Part], byte_level: bool) -> None:
        kind = _kind(model)
        if kind not in KINDS:
            fault = f"of kind {kind!r}"
        elif kind == "BPE" and (model.continuing_subword_prefix or model.end_of_word_suffix):
            fault = "that marks the beginnings or ends of words"
        elif not byte_level and not self.space_mark and any(part["type"] in SWALLOWING for part in cutters):
            fault = "that leaves out spaces"
        else:
            return
        raise UnsupportedModel(
            f"{self._where} has a tokenizer {fault}, whose tokens are not bytes of the text as they stand. Kinds that"
            f" work: byte-level BPE, and SentencePiece's BPE and Unigram."
        )

    def _read_model(self, names: Sequence[str], ids: Sequence[int], byte_level: bool) -> None:
        n_ids, mark = len(self.pieces), self.space_mark
        if max(ids, default=0) >= n_ids:
            self._beyond = {i: name for name, i in zip(names, ids, strict=True) if i >= n_ids}
            inside = [(name, i) for name, i in zip(names, ids, strict=True) if i < n_ids]
            names, ids = [name for name, _ in inside], [i for _, i in inside]
        if byte_level:
            pieces = byte_level_pieces(names)
        elif mark:
            pieces = [name.replace(mark, " ").encode() for name in names]
        else:
            pieces = [name.encode() for name in names]
        for i, piece in zip(ids, pieces, strict=True):
            self.pieces[i] = piece
        self.kinds[np.asarray(ids, dtype=np.int64)] = Kind.TEXT

    def _read_bytes(self, known: Mapping[str, int]) -> None:
        for byte in range(256):
            i = known.get(byte_token(byte))
            if i is not None and i < len(self.pieces):
                self.pieces[i], self.kinds[i] = bytes([byte]), Kind.BYTE

    def _read_added(self, tokenizer: Any, known: Mapping[str, int], normalized: bool) -> Iterator[tuple[int, Any]]:
        """The added tokens that the model knows, by id. `normalized`: the normalizer writes marks for spaces."""
        from tokenizers import AddedToken

        n_ids = len(self.pieces)
        for i, token in sorted(tokenizer.get_added_tokens_decoder().items()):
            content = token.content
            control = token.special or looks_like_control(content)
            if i >= n_ids:
                self._beyond.pop(i, None)
                if not control:
                    self._beyond[i] = content
                continue
            if self.kinds[i] == Kind.BYTE:
                continue
            # A name that the model itself writes, or that is looked for after the normalizer, has marks for spaces.
            marked = self.space_mark and not control and (content in known or (normalized and token.normalized))
            self.pieces[i] = (content.replace(self.space_mark, " ") if marked else content).encode()
            self.kinds[i] = Kind.CONTROL if control else Kind.TEXT
            yield (
                i,
                AddedToken(
                    content,
                    single_word=token.single_word,
                    # A template's spaces around a control token go as the model has learnt it; a text's spaces stay.
                    lstrip=control and token.lstrip,
                    rstrip=control and token.rstrip,
                    normalized=token.normalized,
                    special=control,
                ),
            )
        if self._beyond:
            i, name = min(self._beyond.items())
            raise UnsupportedModel(
                f"{self._where} has a tokenizer with {name!r} as token {i:,}, but the model's tokens end at"
                f" {n_ids - 1:,}: take the tokenizer that belongs to the model."
            )

    def _encoder(self, skeleton: Part, model: Any, state: Part, special: bool) -> Any:
        from tokenizers import Tokenizer

        encoder = Tokenizer.from_str(json.dumps(skeleton))
        if state.get("dropout"):  # it would cut the same text differently each time
            encoder = Tokenizer.from_str(json.dumps({**skeleton, "model": {**state, "dropout": None}}))
        else:
            encoder.model = model  # shared, which costs nothing
        encoder.add_tokens([token for _, token in self._added])
        encoder.encode_special_tokens = not special  # the library means: read their spelling as text
        for i, token in self._added:
            if encoder.token_to_id(token.content) != i:
                raise ModelFileError(
                    f"{self._where} is damaged: its tokenizer gives the added token {token.content!r} the id {i:,},"
                    f" but reads it as {encoder.token_to_id(token.content)}. Fetch it again."
                )
        return encoder


def _kind(model: Any) -> str:
    return type(model).__name__


def _state(part: Any, where: str) -> Part:
    """A part of a tokenizer as tokenizer.json writes it."""
    try:
        read: Part = json.loads(part.__getstate__())
    except Exception as exc:  # the library raises bare exceptions
        raise UnsupportedModel(
            f"{where} has a tokenizer with steps of its own in Python ({type(part).__name__}), which cannot be read."
        ) from exc
    return read


def _parts(part: Any, listed: str, where: str) -> Iterator[Part]:
    """The steps of a normalizer or pre-tokenizer, one after the other."""
    if part is None:
        return
    todo = [_state(part, where)]
    while todo:
        step = todo.pop(0)
        if step["type"] == "Sequence":
            todo[:0] = step[listed]
        else:
            yield step


def _space_mark(normalizers: Sequence[Part], cutters: Sequence[Part]) -> str:
    for part in normalizers:
        if _writes_spaces(part):
            return str(part["content"])
    for part in cutters:
        if part["type"] == "Metaspace":
            return str(part["replacement"])
    return ""


def _writes_spaces(part: Part) -> bool:
    return part["type"] == "Replace" and part["pattern"] in ({"String": " "}, {"Regex": " "})


def _skeleton(normalizers: Sequence[Part], cutters: Sequence[Part]) -> Part:
    """A tokenizer without its model, added tokens, and all that changes, adds or drops bytes.

    Dropped are NFC, NFKC, Lowercase, Strip, SentencePiece's map of characters and the like: a prompt is read as it
    stands, since what members have read must be the same bytes for all. Dropped too is whatever puts something
    before a fresh text: that is for the caller to do (Vocabulary.begin, Vocabulary.space_prefix).
    """
    kept = [part for part in normalizers if part["type"] == "ByteLevel" or _writes_spaces(part)]
    cutting = [_keeping(part) for part in cutters if part["type"] not in SWALLOWING]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": kept} if kept else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": cutting} if cutting else None,
        "post_processor": None,
        "decoder": None,
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }


def _keeping(part: Part) -> Part:
    """The same step, with nothing put before the text and nothing left out."""
    changes: Part = {}
    if part["type"] == "ByteLevel":
        changes = {"add_prefix_space": False}
    elif part["type"] == "Metaspace":
        changes = {"prepend_scheme": "never"}
    elif part.get("behavior") == "Removed":
        changes = {"behavior": "Isolated"}
    return {**part, **changes}
