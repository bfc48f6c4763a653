"""Small GGUF files, written by hand. Format: github.com/ggml-org/ggml, docs/gguf.md."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

import reference

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Types of tokens."""

F32 = 0
"""The ggml type of the tensors here."""


@dataclass(frozen=True)
class Raw:
    """A value as it is to stand in the file: its type's number and its bytes."""

    kind: int
    data: bytes


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def value(given: object) -> bytes:
    """A type's number and the value."""
    if isinstance(given, Raw):
        return struct.pack("<I", given.kind) + given.data
    if isinstance(given, bool):
        return struct.pack("<I?", 7, given)
    if isinstance(given, int):
        return struct.pack("<II", 4, given)
    if isinstance(given, float):
        return struct.pack("<If", 6, given)
    if isinstance(given, str):
        return struct.pack("<I", 8) + string(given)
    if isinstance(given, np.ndarray):
        kinds = {"int32": 5, "uint32": 4, "float32": 6}
        return struct.pack("<IIQ", 9, kinds[given.dtype.name], len(given)) + given.tobytes()
    assert isinstance(given, Sequence)
    if given and isinstance(given[0], list):
        return struct.pack("<IIQ", 9, 9, len(given)) + b"".join(value(inner)[4:] for inner in given)
    if given and isinstance(given[0], int):
        return value(np.array(given, dtype=np.int32))
    return struct.pack("<IIQ", 9, 8, len(given)) + b"".join(string(s) for s in given)


def gguf(metadata: Mapping[str, object], tensors: Sequence[int] = (), version: int = 3, alignment: int = 32) -> bytes:
    """A whole file; each tensor is so many float32 values."""
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    header += b"".join(string(key) + value(given) for key, given in metadata.items())
    offset = 0
    for n, size in enumerate(tensors):
        header += string(f"tensor{n}") + struct.pack("<IQIQ", 1, size, F32, offset)
        offset += -(-4 * size // alignment) * alignment
    if not tensors:
        return header
    last_padding = -4 * tensors[-1] % alignment
    return header + bytes(-len(header) % alignment) + bytes(offset - last_padding)


def byte_level(piece: bytes) -> str:
    """Bytes as a byte-level vocabulary writes them."""
    character = {b: c for c, b in reference.byte_alphabet().items()}
    return "".join(character[b] for b in piece)


def tokenizer(model: str, tokens: Sequence[tuple[str | bytes, int]], **more: object) -> dict[str, object]:
    """Metadata of a tokenizer with these tokens and their types; more keys go under tokenizer.ggml."""
    return {
        "general.architecture": "test",
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.tokens": [token for token, _ in tokens],
        "tokenizer.ggml.token_type": np.array([type_ for _, type_ in tokens], dtype=np.int32),
        **{f"tokenizer.ggml.{key}": given for key, given in more.items()},
    }
