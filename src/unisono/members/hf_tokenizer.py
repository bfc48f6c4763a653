"""The tokenizer of a Hugging Face model: its vocabulary as bytes, and texts as ids that spell them exactly."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from unisono.errors import EnsembleError, ModelFileError, UnsupportedModel
from unisono.members.base import ChatTemplate
from unisono.members.hf_fast import FastTokens
from unisono.members.hf_slow import SentencePieceTokens, TiktokenTokens, tiktoken_encoding
from unisono.tokens import byte_token
from unisono.vocabulary import Kind, Vocabulary

END_NAMES = frozenset((
    "</s>", "<eos>", "[EOS]", "<EOT>", "_<EOT>", "[EOT]", "<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>",
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<turn|>", "<end_of_utterance>", "[e~[",
    "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<|tool_response>",
    # What ends a middle that was filled in, or a file of a repository.
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]",
    "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>",
))  # fmt: skip
"""Control tokens that end a text or a turn wherever they are known: llama.cpp's list, so that a model stops at the same
tokens through either backend."""


class Tokens(Protocol):
    """What each kind of tokenizer says of itself."""

    pieces: list[bytes]
    """[n_ids]; the spelling of control tokens too."""
    kinds: np.ndarray[tuple[int], np.dtype[np.uint8]]
    """uint8[n_ids], of Kind; ends are not told apart from other control tokens."""
    space_mark: str
    """What its tokens hold for a space; empty where they hold bytes, or spaces as they are."""

    def encode(self, text: str, special: bool) -> list[int]:
        """The text as ids; with `special`, the spelling of a control token becomes that token."""


class HFTokenizer:
    """A tokenizer as transformers loads it, on bytes.

    Args:
        tokenizer: A PreTrainedTokenizerBase: a fast one, a slow one on SentencePiece, or one on tiktoken.
        n_ids: The width of the model's rows of logits; ids beyond the tokenizer are control tokens.
        ends: The ids that the model's files name as ends; the tokenizer's own, and END_NAMES, come on top.
        where: What to call it in messages.

    Raises:
        UnsupportedModel: its tokens are not bytes of the text, or the model does not know all of them.
        ModelFileError: its tables are damaged.
    """

    def __init__(self, tokenizer: Any, *, n_ids: int, ends: Sequence[int], where: str) -> None:
        try:
            self._tokens = tokens = _read(tokenizer, n_ids, where)
            _mark_ends(tokens, {*ends, *_ids(getattr(tokenizer, "eos_token_id", None))})
            kinds = tokens.kinds.tolist()
            bare = Vocabulary.build(tokens.pieces, kinds)
            begin, space_prefix = _beginning(tokenizer, bare, where)
            self.vocabulary = Vocabulary(bare.pieces, bare.kinds, begin, space_prefix, bare.marks)
            self.chat_template = _chat_template(tokenizer, where)
        except EnsembleError:
            raise
        except Exception as exc:  # what comes from anywhere may fail in any way
            raise ModelFileError(
                f"{where} is damaged: its tokenizer cannot be read ({type(exc).__name__}: {exc}). Fetch it again."
            ) from exc
        self._is_text = (self.vocabulary.kinds <= Kind.BYTE).tolist()

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The text as ids, as if it went on from other text: no BOS, no dummy space.

        With `special`, the spelling of a control token becomes that token; without, it stays text. What the vocabulary
        cannot write is left out; with `special`, "▁" is read as a space where SentencePiece's vocabularies say so.
        """
        data = text.encode()
        ids = self._tokens.encode(text, special)
        if special:
            return ids
        if self.vocabulary.join(ids) != data:
            ids = self._around_names(text)
        return [i for i in ids if self._is_text[i]]

    def _around_names(self, text: str) -> list[int]:
        """The text as ids, with the longest pieces where it spells what the tokenizer takes for something else."""
        ids: list[int] = []
        for n, part in enumerate(self._misread.split(text) if self._misread else [text]):
            spelled = self.vocabulary.longest_match(part.encode()) if n % 2 else None
            ids += self._tokens.encode(part, special=False) if spelled is None else spelled
        return ids

    @cached_property
    def _misread(self) -> re.Pattern[str] | None:
        """Names of tokens that are not read as the text they are: "▁" is a space; Unigram finds "</s>" and "<0x0A>"."""
        join, encode = self.vocabulary.join, self._tokens.encode
        names = [mark.decode(errors="ignore") for mark in self.vocabulary.marks.values()]
        names += [byte_token(byte) for byte in range(256)]
        names.append(self._tokens.space_mark)
        wrong = [name for name in names if name and join(encode(name, special=False)) != name.encode()]
        return re.compile(f"({'|'.join(map(re.escape, sorted(wrong, key=len, reverse=True)))})") if wrong else None


def _read(tokenizer: Any, n_ids: int, where: str) -> Tokens:
    if (backend := getattr(tokenizer, "backend_tokenizer", None)) is not None:
        return FastTokens(backend, n_ids, where)
    if getattr(tokenizer, "sp_model", None) is not None:
        return SentencePieceTokens(tokenizer, n_ids, where)
    if (encoding := tiktoken_encoding(tokenizer)) is not None:
        return TiktokenTokens(encoding, n_ids, where)
    raise UnsupportedModel(
        f"{where} has a tokenizer of class {type(tokenizer).__name__}, whose tables cannot be read: give the model's"
        " folder a tokenizer.json (transformers writes one from a fast tokenizer with save_pretrained)."
    )


def _ids(given: Any) -> list[int]:
    if given is None:
        return []
    return [int(i) for i in given] if isinstance(given, (list, tuple)) else [int(given)]


def _mark_ends(tokens: Tokens, named: set[int]) -> None:
    controls = {tokens.pieces[i].decode(): i for i in np.flatnonzero(tokens.kinds == Kind.CONTROL).tolist()}
    known = END_NAMES.intersection(controls)
    if {"<|return|>", "<|call|>"} <= known:  # gpt-oss: there <|end|> stands between a turn's messages
        known -= {"<|end|>"}
    for i in {controls[name] for name in known} | named:
        if 0 <= i < len(tokens.kinds):
            tokens.kinds[i] = Kind.END


def _beginning(tokenizer: Any, vocabulary: Vocabulary, where: str) -> tuple[tuple[int, ...], bool]:
    """The ids that the tokenizer puts before a text of its own accord, and whether it puts a space; asked, since it
    is said in too many places."""
    bare = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    whole = list(tokenizer("a", add_special_tokens=True)["input_ids"])
    n = next((n for n in range(len(whole)) if bare and whole[n : n + len(bare)] == bare), 0)
    begin = whole[:n]
    if not begin and getattr(tokenizer, "add_bos_token", False) is True:
        begin = _ids(getattr(tokenizer, "bos_token_id", None))[:1]
    if any(not 0 <= i < vocabulary.n_ids for i in bare + begin):
        raise UnsupportedModel(
            f"{where} has a tokenizer that writes tokens ({bare + begin}) beyond the model's, which end at"
            f" {vocabulary.n_ids - 1:,}: take the tokenizer that belongs to the model."
        )
    return tuple(begin), vocabulary.join(bare).startswith(b" ")


def _chat_template(tokenizer: Any, where: str) -> ChatTemplate | None:
    source = getattr(tokenizer, "chat_template", None)
    if isinstance(source, dict):
        source = source.get("default")
    if not source:
        return None
    if not isinstance(source, str):
        raise ModelFileError(f"The chat template of {where} is no text but {source!r}: mend tokenizer_config.json.")
    return ChatTemplate(source, {k: str(v) for k, v in tokenizer.special_tokens_map.items() if not isinstance(v, list)})
