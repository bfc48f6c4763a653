from __future__ import annotations

import base64
import importlib
import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import SHARED
from gguf_files import byte_level
from unisono.members.hf_loading import gguf_tokenizer
from unisono.members.hf_tokenizer import HFTokenizer
from unisono.members.llamacpp import LlamaCppMember
from unisono.tokens import byte_token
from unisono.vocabulary import Kind

tokenizers: Any = pytest.importorskip("tokenizers")
transformers: Any = pytest.importorskip("transformers")
AddedToken, Regex, Tokenizer = tokenizers.AddedToken, tokenizers.Regex, tokenizers.Tokenizer
models, normalizers, pre_tokenizers = tokenizers.models, tokenizers.normalizers, tokenizers.pre_tokenizers
decoders, processors, trainers = tokenizers.decoders, tokenizers.processors, tokenizers.trainers

CORPUS = [
    "the quick brown fox jumps over the lazy dog, and the dog sleeps on.",
    "def hello(name):\n    return 'hello ' + name\n\n\n",
    "Der Fuchs sprang über den faulen Hund; é, ß, ñ, ø.",
    "Быстрая лиса прыгает через ленивую собаку. 12345 67 8.",
    "素早い茶色の狐が怠け者の犬を飛び越える。日本語の文章です。",
    "  spaces  and   more    spaces\tand tabs\t\t",
] * 4


# Tokenizers of every family


def wrapped(tokenizer: Any, **more: Any) -> Any:
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **more)


def trained_bpe(prefix: bool = False) -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    # As Qwen and GPT-NeoX have them: text that is cut out before anything else.
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("      ", normalized=True)])
    tokenizer.add_special_tokens([AddedToken("<|user|>", rstrip=True, normalized=False)])
    return tokenizer


def byte_level_bpe() -> Any:
    return wrapped(trained_bpe(), eos_token="<|im_end|>", bos_token="<|endoftext|>")


def byte_level_bpe_with_a_space() -> Any:
    return wrapped(trained_bpe(prefix=True), eos_token="<|endoftext|>")


def fallback_bpe(specials: Sequence[str]) -> Any:
    """SentencePiece's BPE: special tokens, the 256 bytes, then what was learnt, with a mark for a space."""
    learning = Tokenizer(models.BPE())
    learning.normalizer = normalizers.Replace(" ", "▁")
    learning.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, show_progress=False))
    learnt = json.loads(learning.to_str())["model"]
    names = [*specials, *map(byte_token, range(256)), *sorted(learnt["vocab"], key=learnt["vocab"].__getitem__)]
    merges = [tuple(merge) for merge in learnt["merges"]]
    vocabulary = {name: i for i, name in enumerate(names)}
    return models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)


def beginning_with(tokenizer: Any, bos: str) -> Any:
    return processors.TemplateProcessing(f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))])


LLAMA = ["<unk>", "<s>", "</s>"]


def llama_bpe() -> Any:
    tokenizer = Tokenizer(fallback_bpe(LLAMA))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in LLAMA])
    tokenizer.post_processor = beginning_with(tokenizer, "<s>")
    return wrapped(tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def metaspace_bpe() -> Any:
    tokenizer = Tokenizer(fallback_bpe(LLAMA))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in LLAMA])
    tokenizer.post_processor = beginning_with(tokenizer, "<s>")
    return wrapped(tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def gemma_bpe() -> Any:
    tokenizer = Tokenizer(fallback_bpe(["<pad>", "<eos>", "<bos>", "<unk>"]))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in specials])
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in ("▁▁", "\n\n", "<h1>", "<unused0>")])
    tokenizer.post_processor = beginning_with(tokenizer, "<bos>")
    return wrapped(tokenizer, bos_token="<bos>", eos_token="<eos>", unk_token="<unk>", pad_token="<pad>")


def unigram(fallback: bool) -> Any:
    learning = Tokenizer(models.Unigram())
    learning.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    learning.train_from_iterator(CORPUS, trainer)
    entries = [(name, score) for name, score in json.loads(learning.to_str())["model"]["vocab"]]
    if fallback:
        entries += [(byte_token(byte), 0.0) for byte in range(256)]
    tokenizer = Tokenizer(models.Unigram(entries, 0, fallback))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), "▁")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    return wrapped(tokenizer, eos_token="</s>", unk_token="<unk>")


def unigram_with_bytes() -> Any:
    return unigram(fallback=True)


@lru_cache
def ranks() -> dict[bytes, int]:
    """What tiktoken's files hold: every byte, then what was learnt."""
    learnt = json.loads(trained_bpe().to_str())["model"]["merges"]
    alphabet = {byte_level(bytes([byte])): bytes([byte]) for byte in range(256)}
    pieces = [bytes([byte]) for byte in range(256)]
    pieces += [b"".join(alphabet[c] for c in "".join(merge)) for merge in learnt]
    return {piece: rank for rank, piece in enumerate(dict.fromkeys(pieces))}


def from_a_tiktoken_file(folder: Path) -> Any:
    pytest.importorskip("tiktoken")
    convert: Any = pytest.importorskip("transformers.convert_slow_tokenizer")
    path = folder / "tokenizer.tiktoken"
    path.write_text("".join(f"{base64.b64encode(piece).decode()} {rank}\n" for piece, rank in ranks().items()))
    converter = convert.TikTokenConverter(vocab_file=str(path))
    converter.extra_special_tokens = converter.additional_special_tokens = ["<|endoftext|>", "<|im_end|>"]
    return wrapped(converter.converted(), eos_token="<|endoftext|>")


class OnTiktoken:
    """A tokenizer like Qwen's first: Python around a tiktoken.Encoding."""

    chat_template = None

    def __init__(self) -> None:
        tiktoken = pytest.importorskip("tiktoken")
        n = len(ranks())
        self.tokenizer = tiktoken.Encoding(
            "test",
            pat_str=r"""[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+""",
            mergeable_ranks=ranks(),
            special_tokens={"<|endoftext|>": n, "<|im_end|>": n + 1},
        )
        self.eos_token_id = n

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": self.tokenizer.encode(text)}


def on_sentencepiece(folder: Path, kind: str = "bpe", fallback: bool = True) -> Any:
    sentencepiece = pytest.importorskip("sentencepiece")
    pytest.importorskip("google.protobuf")
    prefix = folder / "tokenizer"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(" ".join(CORPUS).splitlines()),
        model_prefix=str(prefix),
        model_type=kind,
        vocab_size=500 if fallback else 250,
        byte_fallback=fallback,
        user_defined_symbols=["<tool>"],
        hard_vocab_limit=False,
        minloglevel=2,
    )
    given = {"vocab_file": f"{prefix}.model", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    if transformers.__version__ < "5":
        return importlib.import_module("transformers.models.llama.tokenization_llama").LlamaTokenizer(**given)
    return importlib.import_module("transformers.tokenization_utils_sentencepiece").SentencePieceBackend(**given)


ALL_BYTES = {
    "byte-level BPE": byte_level_bpe,
    "byte-level BPE, a space first": byte_level_bpe_with_a_space,
    "Llama's BPE": llama_bpe,
    "Metaspace BPE": metaspace_bpe,
    "Gemma's BPE": gemma_bpe,
    "Unigram with bytes": unigram_with_bytes,
    "tiktoken file": from_a_tiktoken_file,
    "tiktoken": OnTiktoken,
    "SentencePiece BPE": on_sentencepiece,
    "SentencePiece Unigram": lambda folder: on_sentencepiece(folder, "unigram"),
}
"""Families whose vocabularies write every byte."""

SOME_BYTES = {
    "Unigram": lambda: unigram(fallback=False),
    "SentencePiece, no bytes": lambda folder: on_sentencepiece(folder, "unigram", fallback=False),
}

Loaded = tuple[Any, HFTokenizer]
"""transformers' own, and ours."""


def read(tokenizer: Any, n_ids: int | None = None, ends: Sequence[int] = ()) -> HFTokenizer:
    return HFTokenizer(tokenizer, n_ids=1000 if n_ids is None else n_ids, ends=ends, where="models/test")


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Loaded]:
    made: dict[str, Loaded] = {}

    def load_it(family: str) -> Loaded:
        if family not in made:
            make: Any = {**ALL_BYTES, **SOME_BYTES}[family]
            takes_a_folder = make not in (OnTiktoken,) and make.__code__.co_argcount > 0
            theirs = make(tmp_path_factory.mktemp("tokenizer")) if takes_a_folder else make()
            made[family] = (theirs, read(theirs))
        return made[family]

    return load_it


@pytest.fixture(scope="module", params=list(ALL_BYTES))
def every_byte(request: pytest.FixtureRequest, load: Callable[[str], Loaded]) -> Loaded:
    return load(request.param)


@pytest.fixture(scope="module", params=[*ALL_BYTES, *SOME_BYTES])
def any_family(request: pytest.FixtureRequest, load: Callable[[str], Loaded]) -> Loaded:
    return load(request.param)


# Texts

AWKWARD = [
    " ", "  ", "       ", "\n", "\n\n", "\t", "\r\n", "▁", "▁▁", "Ġ", "<0x0A>", "<0xE2>", "<unk>", "<s>", "</s>",
    "<eos>", "<|im_end|>", "<|endoftext|>", "<|user|>", "<end_of_turn>", "<tool_call>", "<tool>", "<h1>", "<unused0>",
    "<pad>", "e\u0301", "é", "ﬁ", "Ａ", "½", "the", " quick", "日本", "犬", "лиса", "☃", "👨‍👩‍👧", "12", "A",
    "\x00", "\x7f", "\u2028", "\ufeff",
]  # fmt: skip
"""What tokenizers like to change, drop, or take for something else."""

TEXTS = st.one_of(st.text(), st.lists(st.sampled_from(AWKWARD) | st.text(max_size=4)).map("".join))

WORDS = st.lists(st.sampled_from(["the", "quick", "fox", "Hund", "über", "лиса", "собаку", "日本語", "def", "hello("]))


@settings(deadline=None)
@given(text=TEXTS)
def test_the_pieces_of_a_texts_ids_joined_are_its_bytes(every_byte: Loaded, text: str) -> None:
    _, ours = every_byte
    assert ours.vocabulary.join(ours.encode(text)) == text.encode()


@settings(deadline=None)
@given(text=TEXTS)
def test_text_never_becomes_an_end_or_a_control_token(any_family: Loaded, text: str) -> None:
    _, ours = any_family
    assert all(ours.vocabulary.kinds[i] <= Kind.BYTE for i in ours.encode(text))


@settings(deadline=None)
@given(text=st.lists(st.sampled_from([" ", "  ", "the", "fox", "日本", "</s>", "A", "▁", "é"])).map("".join))
def test_a_vocabulary_that_lacks_bytes_writes_what_it_can(load: Callable[[str], Loaded], text: str) -> None:
    for family in SOME_BYTES:
        _, ours = load(family)
        missing = [c for c in text if c not in "".join(CORPUS)]
        if not missing:
            assert ours.vocabulary.join(ours.encode(text)) == text.encode()


@settings(deadline=None)
@given(words=WORDS)
def test_in_the_midst_of_a_text_the_tokens_are_the_tokenizers_own(any_family: Loaded, words: list[str]) -> None:
    theirs, ours = any_family
    before, text = "☃", " ".join(["the", *words])
    whole = theirs(before + text, add_special_tokens=False)["input_ids"]
    ids = ours.encode(text)
    assert whole[len(whole) - len(ids) :] == ids


@pytest.mark.parametrize("text", ["a\ud800", "\udfff"])
def test_half_a_surrogate_pair_is_no_text(any_family: Loaded, text: str) -> None:
    with pytest.raises(UnicodeEncodeError):
        any_family[1].encode(text)


# Tables


def kinds(ours: HFTokenizer, *names: str) -> list[int]:
    """The kind of the id that each name spells, in a tokenizer with a control token or a piece for each."""
    by_name = {piece.decode(errors="replace"): i for i, piece in enumerate(ours.vocabulary.pieces) if piece}
    by_name |= {mark.decode(): i for i, mark in ours.vocabulary.marks.items()}
    return [int(ours.vocabulary.kinds[by_name[name]]) for name in names]


def test_byte_level_tokens_are_read_as_bytes(load: Callable[[str], Loaded]) -> None:
    theirs, ours = load("byte-level BPE")
    v = ours.vocabulary
    for name, i in theirs.backend_tokenizer.get_vocab(with_added_tokens=False).items():
        if i > 2:
            assert byte_level(v.pieces[i]) == name
    assert kinds(ours, "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|user|>") == [2, 3, 2, 3]
    assert kinds(ours, "<tool_call>", "      ") == [Kind.TEXT, Kind.TEXT]
    assert v.missing_bytes == ()


# Real tokenizers


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m", "qwen"])
def test_a_real_tokenizer_agrees_with_llama_cpps_on_every_token(
    model_file: Callable[[str], Path], load_model: Callable[..., LlamaCppMember], name: str
) -> None:
    path = model_file(name)
    model = load_model(name, n_ctx=64, n_batch=8, n_contexts=1)
    try:
        v = model.vocabulary
        tokenizer = HFTokenizer(gguf_tokenizer(path, transformers), n_ids=v.n_ids, ends=[], where=name)
        w = tokenizer.vocabulary
        assert (w.begin, w.space_prefix) == (v.begin, v.space_prefix)
        assert [w.pieces[i] for i in v.text_ids.tolist()] == [v.pieces[i] for i in v.text_ids.tolist()]
        assert w.ends.tolist() == v.ends.tolist()
        text = SHARED / "data" / "text-multilingual-dev.txt"
        for each in [*CORPUS, *([text.read_text(encoding="utf-8")] if text.is_file() else [])]:
            assert tokenizer.encode(each) == model.encode(each)
        for mark in list(v.marks.values())[:20]:
            assert tokenizer.encode(mark.decode(), special=True) == model.encode(mark.decode(), special=True)
    finally:
        model.close()
