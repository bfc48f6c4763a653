from __future__ import annotations

import base64
import importlib
import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import SHARED
from gguf_files import byte_level
from unisono.errors import ModelFileError, UnsupportedModel
from unisono.members.hf_fast import FastTokens
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
    tokenizer.add_tokens([AddedToken("<keep>", lstrip=True, rstrip=True), AddedToken("word", single_word=True)])
    tokenizer.add_special_tokens([AddedToken("<|user|>", rstrip=True, normalized=False)])
    return tokenizer


def byte_level_bpe() -> Any:
    return wrapped(trained_bpe(), eos_token="<|im_end|>", bos_token="<|endoftext|>")


def byte_level_bpe_with_a_space() -> Any:
    return wrapped(trained_bpe(prefix=True), eos_token="<|endoftext|>", add_prefix_space=True)


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
    "<keep>", "word", "\x00", "\x7f", "\u2028", "\ufeff",
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


def spelled(ours: HFTokenizer, name: str) -> int:
    """The one id that is a control token or an end of this name, or has this piece."""
    v, data = ours.vocabulary, name.encode()
    [i] = [i for i in range(v.n_ids) if v.marks.get(i, v.pieces[i]) == data]
    return i


def kinds(ours: HFTokenizer, *names: str) -> list[int]:
    return [int(ours.vocabulary.kinds[spelled(ours, name)]) for name in names]


def test_byte_level_tokens_are_read_as_bytes(load: Callable[[str], Loaded]) -> None:
    theirs, ours = load("byte-level BPE")
    for name, i in theirs.backend_tokenizer.get_vocab(with_added_tokens=False).items():
        if i > 2:
            assert byte_level(ours.vocabulary.pieces[i]) == name
    assert kinds(ours, "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|user|>") == [2, 3, 2, 3]
    assert kinds(ours, "<tool_call>", "      ", "<keep>") == [Kind.TEXT] * 3
    assert ours.vocabulary.missing_bytes == ()


@pytest.mark.parametrize("family", ["Llama's BPE", "Metaspace BPE", "Unigram with bytes", "SentencePiece BPE"])
def test_marks_are_read_as_spaces_and_names_of_bytes_as_bytes(load: Callable[[str], Loaded], family: str) -> None:
    theirs, ours = load(family)
    v = ours.vocabulary
    for i in v.text_ids.tolist():
        name = theirs.convert_ids_to_tokens(i)
        if v.kinds[i] == Kind.BYTE:
            assert name == byte_token(v.pieces[i][0])
        else:
            assert name == v.pieces[i].decode().replace(" ", "▁")
    assert np.count_nonzero(v.kinds == Kind.BYTE) == 256
    assert kinds(ours, "<unk>", "</s>") == [Kind.CONTROL, Kind.END]


def test_added_tokens_that_are_text_are_text(load: Callable[[str], Loaded]) -> None:
    theirs, ours = load("Gemma's BPE")
    assert ours.vocabulary.pieces[theirs.convert_tokens_to_ids("▁▁")] == b"  "
    assert ours.vocabulary.pieces[theirs.convert_tokens_to_ids("<h1>")] == b"<h1>"
    assert ours.encode("a<h1>b")[1] == theirs.convert_tokens_to_ids("<h1>")
    assert kinds(ours, "<h1>", "<unused0>", "<end_of_turn>", "<start_of_turn>", "<eos>") == [0, 3, 2, 3, 2]


def test_a_name_that_stands_twice_in_a_unigram_table_has_two_ids_of_one_piece() -> None:
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("a", -2.0)], 0))
    v = read(wrapped(tokenizer), 3).vocabulary
    assert (v.pieces, v.kinds.tolist()) == ([b"", b"a", b"a"], [Kind.CONTROL, Kind.TEXT, Kind.TEXT])


@pytest.mark.parametrize(
    ("family", "begin", "space"),
    [
        ("byte-level BPE", None, False),
        ("byte-level BPE, a space first", None, True),
        ("Llama's BPE", "<s>", True),
        ("Metaspace BPE", "<s>", True),
        ("Gemma's BPE", "<bos>", False),
        ("Unigram with bytes", None, True),  # it puts an end behind a text, which is no beginning
        ("tiktoken file", None, False),
        ("tiktoken", None, False),
        ("SentencePiece BPE", None if transformers.__version__ >= "5" else "<s>", True),
    ],
)
def test_a_text_begins_as_the_tokenizer_begins_it(
    load: Callable[[str], Loaded], family: str, begin: str | None, space: bool
) -> None:
    _, ours = load(family)
    v = ours.vocabulary
    assert (v.begin, v.space_prefix) == (() if begin is None else (spelled(ours, begin),), space)


def test_a_tokenizer_that_only_says_that_it_wants_a_bos_gets_one() -> None:
    tokenizer = OnTiktoken()
    tokenizer.add_bos_token, tokenizer.bos_token_id = True, tokenizer.eos_token_id  # type: ignore[attr-defined]
    assert read(tokenizer).vocabulary.begin == (tokenizer.eos_token_id,)


def test_ids_beyond_the_tokenizer_are_control_tokens() -> None:
    theirs = byte_level_bpe()
    v = read(theirs, len(theirs) + 3).vocabulary
    assert v.n_ids == len(theirs) + 3
    assert v.kinds[-3:].tolist() == [Kind.CONTROL] * 3


def test_ends_come_from_the_models_files_the_tokenizer_and_the_names_of_turn_ends() -> None:
    theirs = byte_level_bpe()
    theirs.eos_token = "<|im_start|>"
    ours = read(theirs, ends=[spelled(read(theirs), "<|user|>"), 10**6])
    assert kinds(ours, "<|im_start|>", "<|user|>", "<|im_end|>", "<|endoftext|>") == [Kind.END] * 4


def test_an_end_between_messages_is_no_end_of_a_turn() -> None:
    tokenizer = trained_bpe()
    tokenizer.add_special_tokens(["<|end|>"])
    assert kinds(read(wrapped(tokenizer)), "<|end|>") == [Kind.END]
    tokenizer.add_special_tokens(["<|return|>", "<|call|>"])
    assert kinds(read(wrapped(tokenizer)), "<|end|>", "<|return|>", "<|call|>") == [3, 2, 2]


# Encoding


@pytest.mark.parametrize("family", [*ALL_BYTES, *SOME_BYTES])
def test_the_spelling_of_a_control_token_becomes_that_token_where_it_may(
    load: Callable[[str], Loaded], family: str
) -> None:
    _, ours = load(family)
    end = int(ours.vocabulary.ends[0])
    mark = ours.vocabulary.marks[end].decode()
    assert ours.encode(f"the{mark}fox", special=True) == [*ours.encode("the"), end, *ours.encode("fox")]
    assert end not in ours.encode(f"the{mark}fox")


def test_the_spelling_of_a_control_token_is_cut_as_the_tokenizer_cuts_text() -> None:
    tokenizer = trained_bpe()
    before = read(wrapped(tokenizer)).encode("the quick fox")
    tokenizer.add_special_tokens(["quick"])
    ours = read(wrapped(tokenizer))
    assert ours.encode("the quick fox") == before
    assert spelled(ours, "quick") in ours.encode("the quick fox", special=True)


def test_a_control_token_takes_the_spaces_that_the_model_never_saw_and_text_keeps_them() -> None:
    ours = read(byte_level_bpe())
    user = spelled(ours, "<|user|>")
    assert ours.encode("<|user|>\nthe", special=True) == [user, *ours.encode("the")]
    assert ours.vocabulary.join(ours.encode("a  <keep>  b")) == b"a  <keep>  b"
    assert spelled(ours, "<keep>") in ours.encode("a  <keep>  b")


@pytest.mark.parametrize("text", ["▁", "a▁b  ▁▁", "<0x41>", "</s>", "x</s>y", "<unk>"])
@pytest.mark.parametrize("family", ["Llama's BPE", "Gemma's BPE", "Unigram with bytes", "SentencePiece Unigram"])
def test_what_a_tokenizer_takes_for_something_else_is_read_as_it_stands(
    load: Callable[[str], Loaded], family: str, text: str
) -> None:
    _, ours = load(family)
    assert ours.vocabulary.join(ours.encode(text)) == text.encode()


def test_a_name_in_a_text_leaves_the_rest_to_the_tokenizer(load: Callable[[str], Loaded]) -> None:
    _, ours = load("Llama's BPE")
    mark = [spelled_byte(ours, byte) for byte in "▁".encode()]
    assert ours.encode("the dog▁the fox") == [*ours.encode("the dog"), *mark, *ours.encode("the fox")]


def spelled_byte(ours: HFTokenizer, byte: int) -> int:
    v = ours.vocabulary
    [i] = [i for i in range(v.n_ids) if v.kinds[i] == Kind.BYTE and v.pieces[i] == bytes([byte])]
    return i


def test_dropout_is_left_out() -> None:
    theirs = byte_level_bpe()
    once = read(theirs).encode(CORPUS[0])
    theirs.backend_tokenizer.model.dropout = 0.9
    ours = read(theirs)
    assert all(ours.encode(CORPUS[0]) == once for _ in range(20))
    assert theirs.backend_tokenizer.model.dropout == pytest.approx(0.9)


def test_reading_leaves_the_tokenizer_as_it_was(any_family: Loaded) -> None:
    theirs, _ = any_family
    if (backend := getattr(theirs, "backend_tokenizer", None)) is None:
        pytest.skip("no tokenizer of the library")
    before = backend.to_str()
    read(theirs).encode("the fox </s>", special=True)
    assert backend.to_str() == before


# Chat templates


def test_a_chat_template_comes_with_the_tokens_it_may_name() -> None:
    theirs = gemma_bpe()
    assert read(theirs).chat_template is None
    theirs.chat_template = "{{ bos_token }}"
    template = read(theirs).chat_template
    assert template is not None and template.source == "{{ bos_token }}"
    assert template.tokens == {
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
    }


def test_of_several_chat_templates_the_default_is_taken() -> None:
    theirs = byte_level_bpe()
    theirs.chat_template = {"default": "plain", "tool_use": "tools"}
    template = read(theirs).chat_template
    assert template is not None and template.source == "plain"


# What cannot take part


def word_piece() -> Any:
    return Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##a": 2}, unk_token="[UNK]"))


def word_level() -> Any:
    return Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))


def with_word_ends() -> Any:
    return Tokenizer(models.BPE({"a</w>": 0, "a": 1}, [], end_of_word_suffix="</w>"))


def without_spaces() -> Any:
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


class Cutter:
    def pre_tokenize(self, text: Any) -> None:
        pass


def in_python() -> Any:
    tokenizer = trained_bpe()
    tokenizer.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(Cutter())
    return tokenizer


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (word_piece, "'WordPiece'"),
        (word_level, "'WordLevel'"),
        (with_word_ends, "ends of words"),
        (without_spaces, "leaves out spaces"),
        (in_python, "of its own in Python"),
    ],
)
def test_a_tokenizer_whose_tokens_are_no_bytes_is_refused_with_the_reason(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(UnsupportedModel, match=said) as caught:
        FastTokens(make(), 1000, "models/test")
    assert "models/test" in str(caught.value)


def test_a_tokenizer_without_tables_is_refused_with_the_mend() -> None:
    with pytest.raises(UnsupportedModel, match=r"ByT5Tokenizer.*tokenizer\.json"):
        read(transformers.ByT5Tokenizer())


@pytest.mark.parametrize("make", [byte_level_bpe, gemma_bpe, unigram_with_bytes, OnTiktoken])
def test_text_that_the_model_does_not_know_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(UnsupportedModel, match="tokens end at 199"):
        read(make(), 200)


def test_control_tokens_that_the_model_does_not_know_stay_text() -> None:
    theirs = byte_level_bpe()
    n = len(theirs)
    theirs.add_special_tokens({"pad_token": "<|late|>"})
    assert read(theirs, n).vocabulary.n_ids == n
    assert read(theirs, n + 1).encode("<|late|>", special=True) == [n]
    assert max(read(theirs, n).encode("<|late|>", special=True)) < n


@pytest.mark.parametrize("lacking", ["tokenizer", "__call__", "chat_template"])
def test_an_odd_tokenizer_is_refused_by_name(lacking: str) -> None:
    class Odd(OnTiktoken):
        def __getattribute__(self, name: str) -> Any:
            if name == lacking and lacking != "chat_template":
                raise KeyError(name)
            return super().__getattribute__(name)

        def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
            return {} if lacking == "__call__" else super().__call__(text)

    tokenizer = Odd()
    if lacking == "chat_template":
        tokenizer.chat_template = "{{ bos_token }}"  # type: ignore[assignment]  # but no special_tokens_map
    with pytest.raises(ModelFileError, match="models/test is damaged"):
        read(tokenizer)


# Real tokenizers, as transformers reads them from the GGUF files of the models that llama.cpp reads too


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.skipif(transformers.__version__ < "5", reason="transformers 4 reads GGUF files without the tokens' kinds")
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m", "qwen"])
def test_a_model_has_the_same_tokens_through_transformers_and_through_llama_cpp(
    name: str, model_file: Callable[[str], Path], open_model: Callable[..., LlamaCppMember]
) -> None:
    pytest.importorskip("gguf")
    path = model_file(name)
    theirs = gguf_tokenizer(path, transformers)
    member = open_model(name, n_ctx=64, n_batch=8, n_contexts=1)
    ours = read(theirs, member.vocabulary.n_ids)
    v, w = ours.vocabulary, member.vocabulary
    assert (v.begin, v.space_prefix) == (w.begin, w.space_prefix)
    # Padding, which transformers takes for text as it reads the file; the model's own files do not have it.
    padding = {i for i, mark in w.marks.items() if mark.startswith(b"[PAD")}
    differing = [i for i in range(v.n_ids) if (v.pieces[i], v.kinds[i]) != (w.pieces[i], w.kinds[i])]
    assert set(differing) <= padding
    text = SHARED / "data" / "text-multilingual-dev.txt"
    if not text.is_file():
        pytest.skip(f"{text.name} lies in ../shared/data on some machines only")
    for part in [text.read_text(encoding="utf-8"), *text.read_text(encoding="utf-8").splitlines(keepends=True)]:
        assert ours.encode(part) == member.encode(part)
