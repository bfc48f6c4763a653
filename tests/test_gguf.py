from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gguf_files import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, Raw, byte_level, gguf, string, tokenizer
from unisono.errors import ModelFileError, UnsupportedModel
from unisono.gguf import GGUFHeader, remembered_vocabulary
from unisono.vocabulary import Kind, Vocabulary

BYTE_LEVEL = tokenizer(
    "gpt2",
    [
        ("<|end|>", CONTROL),
        (byte_level(b" hello"), NORMAL),
        (byte_level(b"\xc3"), NORMAL),
        (byte_level(b"\n\x00"), NORMAL),
        ("  ", USER_DEFINED),
        ("日本", NORMAL),
        ("<unused0>", UNUSED),
        ("<|im_end|>", CONTROL),
    ],
    eos_token_id=0,
    eot_token_id=7,
)

SENTENCEPIECE = tokenizer(
    "llama",
    [
        ("<unk>", UNKNOWN),
        ("<s>", CONTROL),
        ("</s>", CONTROL),
        ("<0x0A>", BYTE),
        ("<0xE8>", BYTE),
        ("▁hello▁", NORMAL),
        ("é", NORMAL),
        ("<tool>", USER_DEFINED),
        ("<unused>", UNUSED),
        ("<0x41>", NORMAL),
    ],
    bos_token_id=1,
    eos_token_id=2,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def read(path: Path, data: bytes) -> GGUFHeader:
    path.write_bytes(data)
    return GGUFHeader.read(path)


def vocabulary(path: Path, metadata: dict[str, object]) -> Vocabulary:
    return read(path, gguf(metadata)).vocabulary()


# What a sound file says


def test_a_byte_level_table_is_read_as_bytes(path: Path) -> None:
    v = vocabulary(path, BYTE_LEVEL)
    assert list(v.pieces) == [b"", b" hello", b"\xc3", b"\n\x00", b"  ", "日本".encode(), b"", b""]
    assert (v.ends.tolist(), v.controls.tolist()) == ([0, 7], [6])
    assert dict(v.marks) == {0: b"<|end|>", 6: b"<unused0>", 7: b"<|im_end|>"}
    assert (v.begin, v.space_prefix) == ((), False)


def test_a_sentencepiece_table_is_read_as_bytes(path: Path) -> None:
    v = vocabulary(path, SENTENCEPIECE)
    assert list(v.pieces) == [b"", b"", b"", b"\n", b"\xe8", b" hello ", "é".encode(), b"<tool>", b"", b"<0x41>"]
    assert (v.ends.tolist(), v.controls.tolist()) == ([2], [0, 1, 8])
    assert v.kinds[3] == v.kinds[4] == Kind.BYTE
    assert (v.begin, v.space_prefix) == ((1,), True)


def test_a_mark_that_the_file_calls_user_defined_is_no_text(path: Path) -> None:
    tokens = [("a", NORMAL), ("<start_of_image>", USER_DEFINED), ("<|user|>", USER_DEFINED), ("<h1>", USER_DEFINED)]
    header = read(path, gguf(tokenizer("llama", tokens)))
    v = header.vocabulary()
    assert list(v.pieces) == [b"a", b"", b"", b"<h1>"]
    assert (v.controls.tolist(), header.user_defined().tolist()) == ([1, 2], [1, 2, 3])


def test_every_key_that_names_ends_counts_and_ids_beyond_the_table_do_not(path: Path) -> None:
    tokens = [("a", NORMAL), ("b", NORMAL), ("<1>", CONTROL), ("<2>", CONTROL), ("<3>", CONTROL), ("<4>", CONTROL)]
    more = {"eos_token_id": 2, "eot_token_id": 3, "eom_token_id": 99, "eos_token_ids": [4, 5, -1]}
    assert vocabulary(path, tokenizer("gpt2", tokens, **more)).ends.tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("model", "more", "begin", "space"),
    [
        ("llama", {"bos_token_id": 1}, (1,), True),
        ("llama", {"bos_token_id": 1, "add_bos_token": False}, (), True),
        ("llama", {"bos_token_id": 1, "add_space_prefix": False}, (1,), False),
        ("gpt2", {"bos_token_id": 1}, (), False),
        ("gpt2", {"bos_token_id": 1, "add_bos_token": True}, (1,), False),
        ("gpt2", {"add_bos_token": True}, (), False),
        ("gpt2", {"bos_token_id": 2, "add_bos_token": True}, (), False),
    ],
)
def test_a_text_begins_as_the_file_says(
    path: Path, model: str, more: dict[str, object], begin: tuple[int, ...], space: bool
) -> None:
    v = vocabulary(path, tokenizer(model, [("a", NORMAL), ("<s>", CONTROL)], **more))
    assert (v.begin, v.space_prefix) == (begin, space)


def test_a_file_without_token_types_holds_text_only(path: Path) -> None:
    metadata = tokenizer("gpt2", [("a", NORMAL), ("b", NORMAL)])
    del metadata["tokenizer.ggml.token_type"]
    assert vocabulary(path, metadata).kinds.tolist() == [Kind.TEXT, Kind.TEXT]


def test_values_of_every_type_are_read(path: Path) -> None:
    metadata = {
        "bool": True,
        "int": 7,
        "float": 0.5,
        "string": "é",
        "strings": [b"a", b"\xff"],
        "ints": np.array([1, 2], dtype=np.int32),
        "nested": [[1, 2], [3]],
        "u8": Raw(0, b"\x07"),
        "i64": Raw(11, struct.pack("<q", -5)),
        "f64": Raw(12, struct.pack("<d", 0.25)),
    }
    got = read(path, gguf(metadata)).metadata
    assert {key: got[key] for key in ("bool", "int", "float", "string", "strings", "u8", "i64", "f64")} == {
        "bool": True,
        "int": 7,
        "float": 0.5,
        "string": "é",
        "strings": [b"a", b"\xff"],
        "u8": 7,
        "i64": -5,
        "f64": 0.25,
    }
    assert got["ints"].tolist() == [1, 2]
    assert [inner.tolist() for inner in got["nested"]] == [[1, 2], [3]]


@pytest.mark.parametrize("alignment", [32, 64])
def test_a_whole_file_is_read_and_one_byte_less_is_cut_short(path: Path, alignment: int) -> None:
    whole = gguf({**BYTE_LEVEL, "general.alignment": alignment}, tensors=[3, 10, 5], alignment=alignment)
    assert read(path, whole).vocabulary().n_ids == 8
    with pytest.raises(ModelFileError, match="cut short") as caught:
        read(path, whole[:-1])
    assert str(path) in str(caught.value)


# Damage


def test_a_file_cut_anywhere_is_refused_by_name(path: Path) -> None:
    whole = gguf(SENTENCEPIECE, tensors=[8])
    for length in range(len(whole)):
        with pytest.raises(ModelFileError) as caught:
            read(path, whole[:length])
        assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no GGUF file"),
        (b"GGU", "no GGUF file"),
        (b"PK\x03\x04 something else", "no GGUF file"),
        (b"FUGG" + gguf(BYTE_LEVEL)[4:], "no GGUF file"),
        (b"GGUF", "damaged"),
        (gguf(BYTE_LEVEL, version=1), "version 1"),
        (gguf(BYTE_LEVEL, version=4), "version 4"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 62) + b"abc", "damaged"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 63), "damaged"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 63, 0), "damaged"),
        (gguf({"key": Raw(13, b"")}), "damaged"),
        (gguf({"key": Raw(8, struct.pack("<Q", (1 << 64) - 1) + b"abc")}), "damaged"),
        (gguf({"key": Raw(9, struct.pack("<IQ", 8, 1 << 61))}), "damaged"),
        (gguf({"key": Raw(9, struct.pack("<IQ", 5, 1 << 61))}), "damaged"),
        (gguf({"key": Raw(9, struct.pack("<IQ", 5, (1 << 64) - 1))}), "damaged"),
        (gguf({"key": Raw(9, struct.pack("<IQ", 9, 1) * 5000)}), "damaged"),
        (gguf({"general.alignment": 0}, tensors=[1]), "damaged"),
        (gguf({"general.alignment": float("inf")}, tensors=[1]), "damaged"),
        (gguf({"general.alignment": [1, 2]}, tensors=[1]), "damaged"),
        (gguf({}) + b"", "no tokenizer"),
        (gguf({"tokenizer.ggml.model": "gpt2"}), "no tokenizer"),
    ],
)
def test_a_damaged_file_is_refused_by_name(path: Path, data: bytes, said: str) -> None:
    with pytest.raises(ModelFileError, match=said) as caught:
        read(path, data).vocabulary()
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "metadata",
    [
        {**BYTE_LEVEL, "tokenizer.ggml.token_type": np.array([1, 1], dtype=np.int32)},
        {**BYTE_LEVEL, "tokenizer.ggml.token_type": "normal"},
        {**BYTE_LEVEL, "tokenizer.ggml.tokens": "a b c"},
        {**BYTE_LEVEL, "tokenizer.ggml.tokens": np.arange(8, dtype=np.int32)},
        {**BYTE_LEVEL, "tokenizer.ggml.model": np.arange(8, dtype=np.int32)},
        {**BYTE_LEVEL, "tokenizer.ggml.eos_token_id": "two"},
        tokenizer("gpt2", [(b"\xff\xfe", NORMAL)]),
        tokenizer("llama", [("<0xZZ>", BYTE)]),
        tokenizer("llama", [("a", BYTE)]),
    ],
)
def test_tables_that_do_not_fit_are_refused_by_name(path: Path, metadata: dict[str, object]) -> None:
    with pytest.raises(ModelFileError) as caught:
        vocabulary(path, metadata)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("model", ["bert", "t5", "rwkv", "no such thing"])
def test_a_tokenizer_of_another_kind_is_unsupported_and_named(path: Path, model: str) -> None:
    with pytest.raises(UnsupportedModel, match=model) as caught:
        vocabulary(path, {**BYTE_LEVEL, "tokenizer.ggml.model": model})
    assert str(path) in str(caught.value)


DAMAGEABLE = gguf({**SENTENCEPIECE, "tokenizer.chat_template": "{{ x }}", "general.alignment": 32}, tensors=[4])


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, len(DAMAGEABLE) - 1), st.integers(0, 255), st.booleans())
def test_any_byte_may_be_wrong_and_the_error_is_still_ours(path: Path, at: int, byte: int, high: bool) -> None:
    damaged = bytearray(DAMAGEABLE)
    damaged[at] = byte | 0x80 if high else byte
    with contextlib.suppress(ModelFileError, UnsupportedModel):
        read(path, bytes(damaged)).vocabulary()


@pytest.mark.parametrize("use", [GGUFHeader.read, remembered_vocabulary])
def test_a_file_that_is_not_there_and_a_folder_are_refused_by_name(tmp_path: Path, use: Any) -> None:
    missing = tmp_path / "missing.gguf"
    with pytest.raises(ModelFileError, match="No such file") as caught:
        use(missing)
    assert str(missing) in str(caught.value)
    with pytest.raises(ModelFileError, match="folder") as caught:
        use(tmp_path)
    assert str(tmp_path) in str(caught.value)


# The disk cache


def test_a_pipe_and_a_file_that_cannot_be_read_are_refused_by_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelFileError, match=r"pipe.gguf is no regular file"):
        GGUFHeader.read(tmp_path / "pipe.gguf")
    if Path("/proc/self/mem").exists():
        with pytest.raises(ModelFileError, match="/proc/self/mem cannot be read"):
            GGUFHeader.read(Path("/proc/self/mem"))


def test_a_vocabulary_is_read_from_the_file_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(gguf({**BYTE_LEVEL, "general.name": "read once"}))
    first = remembered_vocabulary(path)

    def never(path: Path) -> GGUFHeader:
        raise AssertionError("read again")

    monkeypatch.setattr(GGUFHeader, "read", never)
    again = remembered_vocabulary(path)
    assert (list(again.pieces), again.digest, dict(again.marks)) == (
        list(first.pieces),
        first.digest,
        dict(first.marks),
    )


def test_a_file_that_has_changed_is_read_again(path: Path) -> None:
    path.write_bytes(gguf(tokenizer("gpt2", [("a", NORMAL)])))
    before = remembered_vocabulary(path)
    path.write_bytes(gguf(tokenizer("gpt2", [("b", NORMAL)])))
    assert (list(before.pieces), list(remembered_vocabulary(path).pieces)) == ([b"a"], [b"b"])


def test_a_string_is_written_as_the_format_says() -> None:
    assert string("é") == b"\x02\0\0\0\0\0\0\0\xc3\xa9"
