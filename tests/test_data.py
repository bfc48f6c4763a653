"""The texts that the evaluations use, through the real tokenizers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import SHARED
from unisono.chat import readable
from unisono.members.llamacpp import LlamaCppMember

pytestmark = pytest.mark.models

DATA = SHARED / "data"

FILES = [
    "text-english-dev.txt",
    "text-multilingual-dev.txt",
    "text-multilingual-dev.jsonl",
    "text-python-dev.txt",
    "text-wikitext-dev.txt",
]

ODD = [
    "",
    " ",
    "   \n\n\t\t \r\n",
    "\u0000\u0001\u007f\u0080\u00a0\u2028\ufeff\uffff",
    "e\u0301 é ﬁ ½ ㎞ İ ı ß ẞ",  # nothing is normalised
    "▁ Ġ Ċ <0x0A> </s> <unk> <|im_end|> <end_of_turn>",
    "👨‍👩‍👧‍👦 🏳️‍🌈 🇫🇷 ✋🏽",
    "العربية עברית ไทย हिन्दी 한국어 日本語 ελληνικά русский",
    "\U0010ffff\U000e0001",
]


@pytest.fixture(scope="module", params=["smollm2-135m", "gemma3-270m", "qwen"])
def model(request: pytest.FixtureRequest, load_model: Callable[..., LlamaCppMember]) -> Iterator[LlamaCppMember]:
    member = load_model(request.param, n_ctx=64, n_batch=8, n_contexts=1)
    yield member
    member.close()


def check(model: LlamaCppMember, text: str) -> None:
    ids = model.encode(text)
    assert model.vocabulary.join(ids) == text.encode()
    assert not set(ids) & set(model.vocabulary.ends.tolist() + model.vocabulary.controls.tolist())


@pytest.mark.parametrize("name", FILES)
def test_the_pieces_of_a_texts_ids_joined_are_its_bytes(model: LlamaCppMember, name: str) -> None:
    path = DATA / name
    if not path.is_file():
        pytest.skip(f"{path.name} lies in ../shared/data on some machines only")
    for text in texts(path):
        check(model, text)


def texts(path: Path) -> list[str]:
    """The text whole, and line by line or record by record."""
    whole = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        return [json.loads(record)["text"] for record in whole.splitlines()]
    return [whole, *whole.splitlines(keepends=True)]


@pytest.mark.parametrize("text", ODD)
def test_odd_texts_are_read_as_they_stand_as_far_as_the_vocabulary_goes(model: LlamaCppMember, text: str) -> None:
    missing = set(model.vocabulary.missing_bytes)
    known = bytes(b for b in text.encode() if b not in missing or b >= 0x80)
    assert model.vocabulary.join(readable(model, known.decode())) == known


def test_every_id_is_one_of_llama_cpps_own(model: LlamaCppMember) -> None:
    v = model.vocabulary
    assert v.n_ids == model._lib.llama_vocab_n_tokens(model._vocab)
    for i in v.controls.tolist() + v.ends.tolist():
        assert v.pieces[i] == b""
    assert all(v.pieces[i] for i in v.text_ids.tolist())


def test_every_piece_is_what_llama_cpp_writes_for_the_id(model: LlamaCppMember) -> None:
    import ctypes

    buffer = ctypes.create_string_buffer(512)
    v = model.vocabulary
    for i in v.text_ids.tolist():
        n = model._lib.llama_token_to_piece(model._vocab, i, buffer, len(buffer), 0, True)
        assert buffer.raw[:n] == v.pieces[i], i
