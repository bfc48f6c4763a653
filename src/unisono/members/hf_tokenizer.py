"""Hugging Face tokenizers on bytes: every id's piece from the tokenizer's own tables, and texts as ids that spell them.

Three kinds come through transformers: fast ones (the `tokenizers` library: byte-level and SentencePiece-style BPE,
Unigram), slow SentencePiece ones, and those that wrap a tiktoken encoding.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from unisono import cache
from unisono.errors import EnsembleError, ModelFileError, UnsupportedModel
from unisono.members.base import ChatTemplate
from unisono.tokens import byte_level_piece
from unisono.vocabulary import Kind, Vocabulary

END_NAMES = frozenset(
    {
        "</s>", "<eos>", "<|endoftext|>", "<|end_of_text|>", "<|end|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>",
        "<end_of_turn>", "<turn|>", "<|end_of_turn|>", "<|return|>", "<|call|>", "<EOT>", "[EOS]", "[EOT]",
        "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<reponame>",
        "<|file_sep|>",
    }
)  # fmt: skip
"""Control tokens that end a text or a turn wherever they exist, also where a model's files forget to say so."""

BYTE = re.compile(r"<0x([0-9A-F]{2})>")
"""How SentencePiece writes a byte that it has no other piece for."""

KEPT = ("ByteLevel", "Replace")
"""Normalizers that leave the text as it is, but for its spelling inside the tokenizer."""

UNLIKELY = -1e6
"""Log-probability of a piece that is never to be taken where there is any other way."""

DROP_SPACES = ("Whitespace", "WhitespaceSplit", "BertPreTokenizer", "CharDelimiterSplit")
"""Pre-tokenizers that throw white space away."""


class _Table(NamedTuple):
    """What a tokenizer's own tables say."""

    tokens: Mapping[int, tuple[bytes, Kind]]
    """Of each id: its bytes and what it is; control tokens with their spelling."""
    encode: Callable[[str, bool], list[int]]
    """A text as ids, and whether control tokens are read in it."""


class HFTokenizer:
    """A tokenizer as transformers loads it.

    Args:
        tokenizer: What AutoTokenizer.from_pretrained returns. It is changed, and of no use to anyone else afterwards.
        n_ids: The width of the model's rows of logits.
        ends: The ids that the model's configurations name as ends; those that the tokenizer names are added.
        where: What to call the model in messages.

    Raises:
        UnsupportedModel: its tokens are not bytes of the text as they stand (WordPiece and the like).
        ModelFileError: its tables are damaged, or do not fit the model.
    """

    def __init__(self, tokenizer: Any, *, n_ids: int, ends: Sequence[int], where: str) -> None:
        try:
            begin, plain = _beginning(tokenizer)
            table = _read(tokenizer, where)
            self._encode = table.encode
            space = b"".join(table.tokens[i][0] for i in plain).startswith(b" ")
            kinds = _with_ends(table, {*ends, *_own_ends(tokenizer)})
            self.vocabulary = _vocabulary(table, kinds, n_ids, begin, space, where)
            self.chat_template = _chat_template(tokenizer)
        except EnsembleError:
            raise
        except Exception as exc:  # damaged tables fail in any way
            raise ModelFileError(
                f"The tokenizer of {where} cannot be read ({type(exc).__name__}: {exc}). Fetch the model again."
            ) from exc

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The text as ids, as if it went on from other text: no BOS, no dummy space.

        What a SentencePiece vocabulary cannot tell from white space, "▁" in the text, comes out as white space.

        Raises ValueError: a lone surrogate.
        """
        text.encode()  # a UnicodeEncodeError is a ValueError
        return self._encode(text, special)


def _beginning(tokenizer: Any) -> tuple[tuple[int, ...], list[int]]:
    """The ids that the tokenizer puts before a fresh text, and those of the text "a"."""
    plain = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    whole = list(tokenizer("a")["input_ids"])
    at = next((at for at in range(len(whole)) if whole[at : at + len(plain)] == plain), 0)
    return tuple(whole[:at]), plain


def _own_ends(tokenizer: Any) -> set[int]:
    end = getattr(tokenizer, "eos_token_id", None)
    return set() if end is None else {int(end)}


def _with_ends(table: _Table, ends: set[int]) -> dict[int, Kind]:
    """Of each id what it is, once the ends are known."""
    out = {}
    for i, (data, kind) in table.tokens.items():
        is_end = i in ends or (kind == Kind.CONTROL and data.decode(errors="replace") in END_NAMES)
        out[i] = Kind.END if is_end else kind
    return out


def _vocabulary(
    table: _Table, kinds: Mapping[int, Kind], n_ids: int, begin: Sequence[int], space: bool, where: str
) -> Vocabulary:
    """All ids that the model knows, from the disk cache where they have been sorted before."""
    pieces, marks = [b""] * n_ids, [int(Kind.CONTROL)] * n_ids
    for i, (data, _) in table.tokens.items():
        if i < n_ids:
            pieces[i], marks[i] = data, int(kinds[i])
        elif kinds[i] <= Kind.BYTE:
            raise ModelFileError(
                f"The tokenizer of {where} has the token {i:,} ({data!r}), but the model knows only {n_ids:,}: they do"
                " not belong together. Fetch both again."
            )
    digest = hashlib.sha256(repr((n_ids, tuple(begin), space)).encode())
    digest.update(bytes(marks))
    digest.update(b"".join(len(piece).to_bytes(4, "little") + piece for piece in pieces))

    def build() -> cache.Tables:
        return Vocabulary.build(pieces, marks, begin, space).tables()

    return Vocabulary.from_tables(cache.remembered("vocabulary", digest.hexdigest(), build))


def _chat_template(tokenizer: Any) -> ChatTemplate | None:
    source = getattr(tokenizer, "chat_template", None)
    if isinstance(source, Mapping):  # several, by name
        source = source.get("default")
    if not source:
        return None
    tokens = {key: str(token) for key, token in tokenizer.special_tokens_map.items() if isinstance(key, str)}
    return ChatTemplate(source, {key: token for key, token in tokens.items() if key.endswith("_token")})


def _read(tokenizer: Any, where: str) -> _Table:
    """The tokenizer's tables, by its kind."""
    if (backend := getattr(tokenizer, "backend_tokenizer", None)) is not None:
        return _read_fast(tokenizer, backend, where)
    if (processor := getattr(tokenizer, "sp_model", None)) is not None:
        return _read_sentencepiece(tokenizer, processor)
    for name in ("tokenizer", "model", "encoder"):
        encoding = getattr(tokenizer, name, None)
        if hasattr(encoding, "decode_single_token_bytes") and hasattr(encoding, "encode_ordinary"):
            return _read_tiktoken(encoding)
    raise UnsupportedModel(
        f"The tokenizer of {where} ({type(tokenizer).__name__}) keeps its tokens in a way that is not known here."
        " Kinds that work: fast tokenizers, SentencePiece and tiktoken."
    )


# The tokenizers library


def _read_fast(tokenizer: Any, backend: Any, where: str) -> _Table:
    model = backend.model
    kind = type(model).__name__
    if kind not in ("BPE", "Unigram"):
        raise UnsupportedModel(
            f"{where} has a tokenizer of kind {kind}, whose tokens are not bytes of the text as they stand. Kinds that"
            " work: BPE and Unigram."
        )
    if getattr(model, "end_of_word_suffix", None) or getattr(model, "continuing_subword_prefix", None):
        raise UnsupportedModel(
            f"{where} has a tokenizer that marks the ends of words inside of its tokens, so that these are not bytes of"
            " the text as they stand."
        )
    steps = [*_flat(_state(backend.normalizer)), *_flat(_state(backend.pre_tokenizer))]
    if lossy := next((step["type"] for step in steps if step["type"] in DROP_SPACES), None):
        raise UnsupportedModel(f"{where} has a tokenizer that drops white space ({lossy}), and cannot spell a text.")
    byte_level = any(step["type"] == "ByteLevel" for step in steps)
    mark = next((mark for step in steps if (mark := _space_mark(step))), None)
    if kind == "Unigram":
        state = json.loads(model.__getstate__())
        unknown, fallback = state.get("unk_id"), bool(state.get("byte_fallback"))
        unknown = None if unknown is None else state["vocab"][unknown][0]
    else:
        unknown, fallback = model.unk_token, bool(model.byte_fallback)
    added = backend.get_added_tokens_decoder()
    special = {i for i, token in added.items() if token.special} | set(tokenizer.all_special_ids)
    tokens: dict[int, tuple[bytes, Kind]] = {}
    for token, i in backend.get_vocab(with_added_tokens=True).items():
        if i in special or token == unknown:
            tokens[i] = token.encode(errors="surrogatepass"), Kind.CONTROL
        elif i in added and byte_level:
            tokens[i] = token.encode(), Kind.TEXT
        elif byte_level:
            piece = byte_level_piece(token)
            tokens[i] = token.encode() if piece is None else piece, Kind.TEXT
        elif fallback and (byte := BYTE.fullmatch(token)):
            tokens[i] = bytes([int(byte[1], 16)]), Kind.BYTE
        else:
            tokens[i] = (token.replace(mark, " ") if mark else token).encode(errors="surrogatepass"), Kind.TEXT
    _as_it_stands(backend)
    if kind == "Unigram":
        state["vocab"] = [_hidden(piece, p, tokens[i][1]) for i, (piece, p) in enumerate(state["vocab"])]
        model.__setstate__(json.dumps(state).encode())
        backend.model = model
    return _Table(tokens, _fast_encode(backend))


def _hidden(piece: str, logprob: float, kind: Kind) -> tuple[str, float]:
    """An entry of a Unigram model, such that a text that spells a control token, or a byte, is not read as that."""
    if kind == Kind.CONTROL:
        return f"\U0010fffd{piece}", UNLIKELY
    return piece, UNLIKELY if kind == Kind.BYTE else logprob


def _state(part: Any) -> dict[str, Any]:
    """A part of a tokenizer as its file would have it."""
    return {} if part is None else dict(json.loads(part.__getstate__()))


def _flat(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, one after the other."""
    if not state:
        return []
    parts = state.get("normalizers", state.get("pretokenizers"))
    return [dict(state)] if parts is None else [step for part in parts for step in _flat(part)]


def _space_mark(step: Mapping[str, Any]) -> str | None:
    """What a step writes for a space, if it does."""
    if step["type"] == "Metaspace":
        return str(step["replacement"])
    return str(step["content"]) if step["type"] == "Replace" and step["pattern"] == {"String": " "} else None


def _as_it_stands(backend: Any) -> None:
    """Have the tokenizer read a text as it is, from its midst: no dummy space, and nothing normalized. What it would
    change (accents that are composed, capitals, runs of spaces) would not be what the other members read."""
    backend.no_truncation()
    backend.no_padding()
    normalizers = [step for step in _flat(_state(backend.normalizer)) if step["type"] in KEPT]
    kept = [step for step in normalizers if step["type"] == "ByteLevel" or _space_mark(step)]
    if backend.normalizer is not None:
        from tokenizers.normalizers import Sequence as Steps

        steps = Steps([])
        steps.__setstate__(json.dumps({"type": "Sequence", "normalizers": kept}).encode())
        backend.normalizer = steps
    if backend.pre_tokenizer is not None:
        part = backend.pre_tokenizer
        part.__setstate__(json.dumps(_without_dummy(_state(part))).encode())
        backend.pre_tokenizer = part


def _without_dummy(state: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(state)
    if "pretokenizers" in out:
        out["pretokenizers"] = [_without_dummy(step) for step in out["pretokenizers"]]
    if out["type"] == "Metaspace":
        out["prepend_scheme"] = "never"
        out.pop("add_prefix_space", None)
    elif out["type"] == "ByteLevel":
        out["add_prefix_space"] = False
    return out


def _fast_encode(backend: Any) -> Callable[[str, bool], list[int]]:
    lock = threading.Lock()

    def encode(text: str, special: bool) -> list[int]:
        with lock:  # whether control tokens are read is a state of the tokenizer
            backend.encode_special_tokens = not special
            return list(backend.encode(text, add_special_tokens=False).ids)

    return encode


# SentencePiece


def _read_sentencepiece(tokenizer: Any, processor: Any) -> _Table:
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    model = cast(Any, sentencepiece_model_pb2).ModelProto.FromString(processor.serialized_model_proto())
    model.normalizer_spec.add_dummy_prefix = False
    model.normalizer_spec.remove_extra_whitespaces = False
    model.normalizer_spec.precompiled_charsmap = b""
    model.normalizer_spec.name = "identity"
    exact = sentencepiece.SentencePieceProcessor()
    exact.LoadFromSerializedProto(model.SerializeToString())
    added = tokenizer.added_tokens_decoder
    special = {i for i, token in added.items() if token.special} | set(tokenizer.all_special_ids)
    ids = dict(tokenizer.get_vocab())
    tokens: dict[int, tuple[bytes, Kind]] = {}
    for token, i in ids.items():
        at = exact.PieceToId(token)
        known = exact.IdToPiece(at) == token
        if i in special or (known and (exact.IsControl(at) or exact.IsUnknown(at) or exact.IsUnused(at))):
            tokens[i] = token.encode(), Kind.CONTROL
        elif known and exact.IsByte(at):
            tokens[i] = bytes([int(token[3:5], 16)]), Kind.BYTE
        else:
            tokens[i] = token.replace("▁", " ").encode(), Kind.TEXT
    unknown = tokenizer.unk_token_id
    marks = {str(token): i for i, token in added.items()}

    def plain(text: str) -> list[int]:
        return [ids.get(piece, unknown) for piece in exact.EncodeAsPieces(text)] if text else []

    return _Table(tokens, _marked_encode(plain, marks, special))


def _marked_encode(
    plain: Callable[[str], list[int]], marks: Mapping[str, int], special: Iterable[int]
) -> Callable[[str, bool], list[int]]:
    """Encoding that reads added tokens by their spelling: all of them, or only those that are text."""
    controls = set(special)

    def splitter(allowed: Iterable[str]) -> re.Pattern[str] | None:
        spelled = sorted((mark for mark in allowed if mark), key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, spelled))})") if spelled else None

    every, texts = splitter(marks), splitter(mark for mark, i in marks.items() if i not in controls)

    def encode(text: str, read_controls: bool) -> list[int]:
        pattern = every if read_controls else texts
        if pattern is None:
            return plain(text)
        out: list[int] = []
        for k, part in enumerate(pattern.split(text)):
            out += [marks[part]] if k % 2 else plain(part)
        return out

    return encode


# tiktoken


def _read_tiktoken(encoding: Any) -> _Table:
    special = {encoding.encode_single_token(mark): mark for mark in encoding.special_tokens_set}
    tokens: dict[int, tuple[bytes, Kind]] = {i: (mark.encode(), Kind.CONTROL) for i, mark in special.items()}
    for i in range(encoding.n_vocab):
        if i not in special:
            try:
                tokens[i] = encoding.decode_single_token_bytes(i), Kind.TEXT
            except KeyError:  # a gap in the numbers
                continue

    def encode(text: str, read_controls: bool) -> list[int]:
        return list(encoding.encode(text, allowed_special="all") if read_controls else encoding.encode_ordinary(text))

    return _Table(tokens, encode)
