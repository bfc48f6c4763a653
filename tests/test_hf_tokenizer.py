"""Hugging Face tokenizers on bytes: one small tokenizer of each family, trained here, and the real ones."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comparing import TEXT
from conftest import SHARED
from unisono.chat import readable
from unisono.errors import ModelFileError, UnsupportedModel
from unisono.members.fake import TableMember
from unisono.vocabulary import Kind

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'unisono[hf]'")

import sentencepiece
import tiktoken
import tokenizers
import transformers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from unisono.members.hf_loading import gguf_tokenizer
from unisono.members.hf_tokenizer import HFTokenizer
from unisono.members.llamacpp import LlamaCppMember

DATA = SHARED / "data"

CORPUS = [TEXT, "naïve café, 東京 へ行く, Привет мир, 👩‍💻 😀", "def f(x):\n        return x + 1\n", "  two  spaces "]

CHAT = "{% for m in messages %}{{ m['content'] }}{{ eos_token }}{% endfor %}"


def fast(backend: Any, **more: Any) -> Any:
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>", chat_template=CHAT, **more
    )


def byte_level(add_prefix_space: bool = False, nfc: bool = False) -> Any:
    backend = tokenizers.Tokenizer(models.BPE())
    if nfc:
        backend.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    marks = ["<unk>", "<s>", "</s>", "<|im_end|>", "<|role|>"]
    backend.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=400, special_tokens=marks, initial_alphabet=alphabet)
    )
    backend.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    return fast(backend)


def split_level() -> Any:
    """As newer models have it: a pattern first, and then bytes; with a BOS."""
    backend = tokenizers.Tokenizer(models.BPE())
    pattern = tokenizers.Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+")
    split = pre_tokenizers.Split(pattern, behavior="isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=380, special_tokens=["<unk>", "<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return fast(backend)


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def sentencepiece_style(dummy: bool, metaspace: bool = False) -> Any:
    """Llama 2's way with a dummy space, Gemma's without; both fall back to bytes."""
    model = models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    backend = tokenizers.Tokenizer(model)
    if metaspace:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first" if dummy else "never", split=False)
    else:
        steps = [normalizers.Prepend("▁")] if dummy else []
        backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(
        vocab_size=560, special_tokens=["<unk>", "<s>", "</s>", "<end_of_turn>", *BYTES], limit_alphabet=60
    )
    backend.train_from_iterator(CORPUS, trainer)
    for byte in BYTES:  # they are no special tokens to the tokenizer itself
        assert backend.token_to_id(byte) is not None
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return fast(_without_byte_marks(backend))


def _without_byte_marks(backend: Any) -> Any:
    """The same tokenizer, in which bytes are ordinary tokens."""
    state = json.loads(backend.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if not token["content"].startswith("<0x")]
    return tokenizers.Tokenizer.from_str(json.dumps(state))


def unigram(fallback: bool) -> Any:
    """SentencePiece's Unigram, as transformers converts it, with its normalization."""
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0)]
    pieces += [(byte, -20.0) for byte in BYTES] if fallback else []
    letters = sorted({c for text in CORPUS for c in text.replace(" ", "▁")})
    pieces += [(letter, -8.0) for letter in letters] + [("▁the", -3.0), ("ing", -4.0), ("▁▁", -5.0), ("▁lamp", -4.5)]
    backend = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=fallback))
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")])
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.add_special_tokens(["<s>", "</s>", "<unk>"])
    return fast(backend)


class Slow:
    """What transformers' slow SentencePiece tokenizers offer, ids moved as some of them do."""

    chat_template = None
    eos_token_id = 3
    unk_token_id = 1
    all_special_ids = (0, 1, 2, 3)
    special_tokens_map: Mapping[str, str] = MappingProxyType({"bos_token": "<s>", "eos_token": "</s>"})

    def __init__(self) -> None:
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS * 20), model_writer=model, vocab_size=340, byte_fallback=True,
            model_type="bpe", character_coverage=0.98, minloglevel=2,
        )  # fmt: skip
        self.sp_model = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        self.added_tokens_decoder = {0: AddedToken("<pad>", special=True), 341: AddedToken("<tool>", special=False)}

    def get_vocab(self) -> dict[str, int]:
        moved = {self.sp_model.IdToPiece(i): i + 1 for i in range(self.sp_model.GetPieceSize())}
        return {**moved, "<pad>": 0, "<tool>": 341}

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        ids = [i + 1 for i in self.sp_model.EncodeAsIds(text)]
        return {"input_ids": [2, *ids] if add_special_tokens else ids}


class Tiktoken:
    """What remote code with a tiktoken encoding inside looks like."""

    chat_template = None
    eos_token_id = 300
    special_tokens_map: Mapping[str, str] = MappingProxyType({})

    def __init__(self) -> None:
        ranks = {bytes([b]): b for b in range(256)} | {b"th": 256, b"the": 257, b" the": 258, b"  ": 259, b" th": 260}
        self.tokenizer = tiktoken.Encoding(
            "own", pat_str=r" ?\S+|\s+", mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 300, "<|fim|>": 301}
        )

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": self.tokenizer.encode_ordinary(text)}


FAMILIES: dict[str, Callable[[], Any]] = {
    "byte-level": byte_level,
    "byte-level, prefix space": lambda: byte_level(add_prefix_space=True),
    "byte-level, normalized": lambda: byte_level(nfc=True),
    "split, then bytes": split_level,
    "Llama 2": lambda: sentencepiece_style(dummy=True),
    "Llama 2, Metaspace": lambda: sentencepiece_style(dummy=True, metaspace=True),
    "Gemma": lambda: sentencepiece_style(dummy=False),
    "Unigram": lambda: unigram(False),
    "Unigram, bytes": lambda: unigram(True),
    "slow SentencePiece": Slow,
    "tiktoken": Tiktoken,
}
DUMMY_SPACE = {
    "byte-level, prefix space",
    "Llama 2",
    "Llama 2, Metaspace",
    "Unigram",
    "Unigram, bytes",
    "slow SentencePiece",
}
BOS = {
    "split, then bytes": (1,),
    "Llama 2": (1,),
    "Llama 2, Metaspace": (1,),
    "Gemma": (1,),
    "slow SentencePiece": (2,),
}

_made: dict[str, HFTokenizer] = {}


def made(family: str) -> HFTokenizer:
    if family not in _made:
        _made[family] = HFTokenizer(FAMILIES[family](), n_ids=700, ends=[], where="the model")
    return _made[family]


def member(tokenizer: HFTokenizer) -> TableMember:
    out = TableMember("m", tokenizer.vocabulary, {})
    out.encode = tokenizer.encode  # type: ignore[method-assign]
    return out


@pytest.fixture(params=sorted(FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


ODD = [
    "",
    " ",
    "a",
    " a",
    "  a  b ",
    "\n\n\t",
    "e\u0301 é ﬁ ½ İ ẞ",
    "👩‍💻👍🏽",
    "語 ไทย ελ",
    "</s> <s> <unk> <|im_end|>",
    "<tool> x <tool>",
]


@pytest.mark.parametrize("text", [*CORPUS, *ODD])
def test_the_pieces_of_a_texts_ids_joined_are_its_bytes(family: str, text: str) -> None:
    tokenizer = made(family)
    if family == "Unigram" and not set(text) <= set("".join(CORPUS)):
        pytest.skip("a vocabulary without bytes lacks most characters")
    ids = tokenizer.encode(text)
    assert tokenizer.vocabulary.join(ids) == text.encode()
    assert set(tokenizer.vocabulary.kinds[ids].tolist()) <= {Kind.TEXT, Kind.BYTE}


@given(
    st.sampled_from(sorted(set(FAMILIES) - {"Unigram"})), st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
)
def test_any_text_is_spelled_as_it_stands(family: str, text: str) -> None:
    tokenizer = made(family)
    assert tokenizer.vocabulary.join(readable(member(tokenizer), text)) == text.encode()
    if "▁" not in text:
        assert tokenizer.vocabulary.join(tokenizer.encode(text)) == text.encode()


def test_in_the_midst_of_a_text_the_tokens_are_the_tokenizers_own(family: str) -> None:
    """After a line break the original reads on without a dummy space."""
    if "normalized" in family or family == "Unigram":
        pytest.skip("the original changes the text")
    original, tokenizer = FAMILIES[family](), made(family)
    for text in [TEXT.replace("\n", " ").strip(), "the ships and the lamp", " the lamp the ships"]:
        ids = list(original(text, add_special_tokens=False)["input_ids"])
        again = tokenizer.encode(" " + text if family in DUMMY_SPACE and not text.startswith(" ") else text)
        if family in DUMMY_SPACE and text.startswith(" "):
            continue  # its dummy space is a second one
        assert again == ids


def test_a_dummy_space_and_a_bos_are_found(family: str) -> None:
    v = made(family).vocabulary
    assert v.space_prefix == (family in DUMMY_SPACE)
    assert v.begin == BOS.get(family, ())


def test_control_tokens_are_read_only_where_asked_for(family: str) -> None:
    tokenizer = made(family)
    v = tokenizer.vocabulary
    assert v.marks and v.ends.size
    for i, mark in v.marks.items():
        if mark.decode() in ("<unk>",):
            continue
        text = mark.decode()
        if family != "Unigram":
            assert v.join(tokenizer.encode(f"a{text}a")) == f"a{text}a".encode()
        ids = tokenizer.encode(f"a{text}a", special=True)
        assert ids.count(i) == 1 or family == "slow SentencePiece"


def test_ids_beyond_the_tokenizer_are_control_tokens(family: str) -> None:
    v = made(family).vocabulary
    assert v.n_ids == 700
    assert v.kinds[699] == Kind.CONTROL and v.pieces[699] == b""


def test_turn_ends_are_ends_and_text_that_was_added_is_text() -> None:
    v = made("byte-level").vocabulary
    named = {v.marks[i].decode() for i in v.ends.tolist()}
    assert named == {"</s>", "<|im_end|>"}
    assert v.canonical[b"<tool>"] in made("byte-level").encode("x<tool>y")
    more = HFTokenizer(byte_level(), n_ids=700, ends=[4], where="the model").vocabulary
    assert more.kinds[4] == Kind.END


def test_bytes_are_what_a_vocabulary_falls_back_to() -> None:
    for family in ("Llama 2", "Gemma", "Unigram, bytes", "slow SentencePiece"):
        v = made(family).vocabulary
        assert (v.kinds == Kind.BYTE).sum() == 256
        assert not v.missing_bytes


def test_a_chat_template_comes_with_the_tokens_that_it_names() -> None:
    template = made("byte-level").chat_template
    assert template is not None
    assert template.source == CHAT
    assert template.tokens["eos_token"] == "</s>"
    assert made("tiktoken").chat_template is None


def word_piece() -> Any:
    backend = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")


def word_level() -> Any:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))


def end_of_word() -> Any:
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "a</w>": 1}, [], end_of_word_suffix="</w>"))
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def dropping() -> Any:
    backend = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (word_piece, "kind WordPiece"),
        (word_level, "kind WordLevel"),
        (end_of_word, "marks the ends of words"),
        (dropping, r"drops white space \(Whitespace\)"),
    ],
)
def test_tokens_that_are_not_bytes_of_the_text_are_refused_with_the_reason(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        HFTokenizer(make(), n_ids=10, ends=[], where="the model")


def test_a_tokenizer_larger_than_its_model_is_refused() -> None:
    with pytest.raises(ModelFileError, match="the model knows only 50"):
        HFTokenizer(byte_level(), n_ids=50, ends=[], where="the model")


def test_one_of_an_unknown_kind_is_refused() -> None:
    class Strange:
        eos_token_id = None

        def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
            return {"input_ids": [0]}

    with pytest.raises(UnsupportedModel, match="Strange"):
        HFTokenizer(Strange(), n_ids=10, ends=[], where="the model")
    with pytest.raises(ModelFileError, match="cannot be read"):
        HFTokenizer(object(), n_ids=10, ends=[], where="the model")


def test_a_lone_surrogate_is_no_text() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        made("byte-level").encode("a\ud800")


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
        text = DATA / "text-multilingual-dev.txt"
        for each in [*CORPUS, *ODD[:-2], *([text.read_text(encoding="utf-8")] if text.is_file() else [])]:
            assert tokenizer.encode(each) == model.encode(each)
        for mark in list(v.marks.values())[:20]:
            assert tokenizer.encode(mark.decode(), special=True) == model.encode(mark.decode(), special=True)
    finally:
        model.close()
