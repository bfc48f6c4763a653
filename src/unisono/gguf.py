"""The header of a GGUF file: its metadata, and whether the file is whole.

Reads only what a member needs before llama.cpp opens the file (tokens, their types, the chat template), in bulk:
a vocabulary of 262,144 tokens takes a fraction of a second. Format: github.com/ggml-org/ggml, docs/gguf.md.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unisono import cache
from unisono.arrays import IntArray
from unisono.errors import ModelFileError, UnsupportedModel
from unisono.tokens import SPACE_MARK, byte_level_piece, looks_like_control
from unisono.vocabulary import Kind, Vocabulary

_SCALARS = ("B", "b", "H", "h", "I", "i", "f", "?", "", "", "Q", "q", "d")
_STRING, _ARRAY = 8, 9

# ggml types: bytes per block and values per block, for the check that a file is whole.
_BLOCKS = {
    0: (4, 1), 1: (2, 1), 2: (18, 32), 3: (20, 32), 6: (22, 32), 7: (24, 32), 8: (34, 32), 9: (36, 32),
    10: (84, 256), 11: (110, 256), 12: (144, 256), 13: (176, 256), 14: (210, 256), 15: (292, 256), 16: (66, 256),
    17: (74, 256), 18: (98, 256), 19: (50, 256), 20: (18, 32), 21: (110, 256), 22: (82, 256), 23: (136, 256),
    24: (1, 1), 25: (2, 1), 26: (4, 1), 27: (8, 1), 28: (8, 1), 29: (56, 256), 30: (2, 1), 34: (54, 256),
    35: (66, 256), 39: (17, 32),
}  # fmt: skip

# Token types of `tokenizer.ggml.token_type`.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6

HASHED_BYTES = 16 << 20
"""How much of a file's start names it in the cache: more than the tables of the largest vocabularies known."""


@dataclass(frozen=True)
class GGUFHeader:
    """A file's metadata, key to value; strings as they are, arrays of numbers as numpy arrays, of strings as bytes."""

    path: Path
    metadata: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> GGUFHeader:
        """Read the header and check the file's length against its table of tensors.

        Raises:
            ModelFileError: no such file, not GGUF, or cut short.
        """
        if os.path.isdir(path):
            raise ModelFileError(f"{path} is a folder; give the path of a GGUF file in it.")
        if os.path.exists(path) and not os.path.isfile(path):
            raise ModelFileError(f"{path} is no regular file; give the path of a GGUF file.")
        try:
            file = path.open("rb")
        except FileNotFoundError:
            raise ModelFileError(f"No such file: {path}. Check the path of the GGUF file.") from None
        except OSError as exc:
            raise ModelFileError(f"{path} cannot be read: {exc.strerror}.") from exc
        except ValueError as exc:  # a name that holds a null byte
            raise ModelFileError(f"{str(path)!r} cannot be read: {exc}.") from exc
        with file:
            try:
                if file.read(4) != b"GGUF":
                    raise ModelFileError(f"{path} is no GGUF file: it does not start with 'GGUF'.")
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except (ValueError, OSError) as exc:
                raise ModelFileError(f"{path} cannot be read: {exc}.") from exc
            with data:
                return cls(path, _parse(data, path))

    def user_defined(self) -> IntArray:
        """int64[n]: the ids that llama.cpp finds in any text, however it is asked to read it."""
        return np.flatnonzero(np.asarray(self.metadata.get("tokenizer.ggml.token_type", [])) == _USER_DEFINED)

    def vocabulary(self) -> Vocabulary:
        """The vocabulary as the tables tell it; ends are those that the metadata names.

        Raises:
            UnsupportedModel: a tokenizer whose pieces are not bytes of the text (WordPiece), or an unknown one.
            ModelFileError: the tables are missing, damaged or do not fit one another.
        """
        try:
            return self._vocabulary()
        except (ValueError, TypeError, AttributeError, OverflowError) as exc:
            raise ModelFileError(f"{self.path} is damaged: its tokenizer cannot be read. Fetch it again.") from exc

    def _vocabulary(self) -> Vocabulary:
        meta = self.metadata
        model = meta.get("tokenizer.ggml.model")
        tokens: list[bytes] | None = meta.get("tokenizer.ggml.tokens")
        if model is None or tokens is None:
            raise ModelFileError(f"{self.path} holds no tokenizer (tokenizer.ggml.*): convert the model again.")
        types = np.asarray(meta.get("tokenizer.ggml.token_type", np.full(len(tokens), _NORMAL)))
        if len(types) != len(tokens):
            raise ModelFileError(
                f"{self.path} is damaged: {len(tokens)} tokens, but {len(types)} token types. Fetch it again."
            )
        if model not in _READERS:
            raise UnsupportedModel(
                f"{self.path} has a tokenizer of kind {model!r}, whose tokens are not bytes of the text as they stand."
                f" Kinds that work: {', '.join(sorted(_READERS))}."
            )
        pieces, kinds = _READERS[model](tokens, types)
        for key in END_KEYS:
            for i in np.atleast_1d(np.asarray(meta.get(f"tokenizer.ggml.{key}", []), dtype=np.int64)).tolist():
                if 0 <= i < len(kinds):
                    kinds[i] = Kind.END
        begin: tuple[int, ...] = ()
        bos = meta.get("tokenizer.ggml.bos_token_id")
        if (
            bos is not None
            and meta.get("tokenizer.ggml.add_bos_token", model == "llama")
            and 0 <= int(bos) < len(kinds)
        ):
            begin = (int(bos),)
        space = bool(meta.get("tokenizer.ggml.add_space_prefix", model == "llama"))
        return Vocabulary.build(pieces, kinds.tolist(), begin=begin, space_prefix=space)


def remembered_vocabulary(path: Path) -> Vocabulary:
    """The vocabulary of a GGUF file, from the disk cache where the file has been read before.

    Raises what GGUFHeader.read and .vocabulary raise.
    """

    def make() -> cache.Tables:
        return GGUFHeader.read(path).vocabulary().tables()

    try:
        key = fingerprint(path)
    except OSError:
        return GGUFHeader.read(path).vocabulary()  # which says what is wrong with the path
    return Vocabulary.from_tables(cache.remembered("vocabulary", key, make))


END_KEYS = ("eos_token_id", "eos_token_ids", "eot_token_id", "eom_token_id")
"""The keys under which a file names its ends."""


def fingerprint(path: Path) -> str:
    """A hash that names a file's tables: of its size and its first HASHED_BYTES."""
    h = hashlib.sha256(str(path.stat().st_size).encode())
    with path.open("rb") as file:
        left = HASHED_BYTES
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            h.update(block)
            left -= len(block)
    return h.hexdigest()


def _parse(data: mmap.mmap, path: Path) -> dict[str, Any]:
    try:
        version, n_tensors, n_pairs = struct.unpack_from("<IQQ", data, 4)
        if version not in (2, 3):
            raise ModelFileError(f"{path} is GGUF version {version}; versions 2 and 3 can be read. Convert it again.")
        reader = _Reader(data, 24)
        metadata = {}
        for _ in range(n_pairs):
            key = reader.string().decode()
            metadata[key] = reader.value(reader.number("I"))
        whole = _expected_size(reader, n_tensors, int(metadata.get("general.alignment", 32)))
    except (struct.error, LookupError, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError) as exc:
        raise ModelFileError(f"{path} is cut short or damaged: its header cannot be read. Fetch it again.") from exc
    if len(data) < whole:
        raise ModelFileError(
            f"{path} is cut short: its tensors need {whole:,} bytes, but it has {len(data):,}. Fetch it again."
        )
    return metadata


def _expected_size(reader: _Reader, n_tensors: int, alignment: int) -> int:
    end = 0
    for _ in range(n_tensors):
        reader.string()
        shape = [reader.number("Q") for _ in range(reader.number("I"))]
        kind, offset = reader.number("I"), reader.number("Q")
        size, per_block = _BLOCKS.get(kind, (0, 1))  # of a type not known here, only the start is checked
        end = max(end, offset + math.prod(shape) // per_block * size)
    start = -(-reader.at // alignment) * alignment
    return start + end if n_tensors else reader.at


class _Reader:
    """Walks through the header."""

    def __init__(self, data: mmap.mmap, at: int) -> None:
        self.data, self.at = data, at

    def number(self, code: str) -> Any:
        out = struct.unpack_from("<" + code, self.data, self.at)[0]
        self.at += struct.calcsize("<" + code)
        return out

    def string(self) -> bytes:
        return self.strings(1)[0]

    def strings(self, n: int) -> list[bytes]:
        data, at, size = self.data, self.at, len(self.data)
        if n * 8 > size - at:
            raise ValueError("more strings than the file has room for")
        length_of = struct.Struct("<Q").unpack_from
        out = []
        for _ in range(n):
            (length,) = length_of(data, at)
            at += 8
            if length > size - at:
                raise ValueError("a string runs past the end of the file")
            out.append(data[at : at + length])
            at += length
        self.at = at
        return out

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string().decode(errors="replace")
        if kind == _ARRAY:
            of, n = self.number("I"), self.number("Q")
            if of == _STRING:
                return self.strings(n)
            if of == _ARRAY:
                return [self.value(of) for _ in range(n)]
            dtype = np.dtype("<" + _SCALARS[of].replace("?", "?"))
            out = np.frombuffer(self.data, dtype, n, self.at).copy()
            self.at += out.nbytes
            return out
        return self.number(_SCALARS[kind])


_Tables = tuple[list[bytes], np.ndarray[Any, Any]]


def _kinds(tokens: list[bytes], types: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    kinds = np.full(len(types), Kind.CONTROL, dtype=np.uint8)  # unknown, unused and control tokens are no text
    kinds[(types == _NORMAL) | (types == _USER_DEFINED)] = Kind.TEXT
    kinds[types == _BYTE] = Kind.BYTE
    for i in np.flatnonzero(types == _USER_DEFINED).tolist():  # so some files call marks of turns and images, too
        if looks_like_control(tokens[i].decode(errors="replace")):
            kinds[i] = Kind.CONTROL
    return kinds


def _read_byte_level(tokens: list[bytes], types: np.ndarray[Any, Any]) -> _Tables:
    kinds = _kinds(tokens, types)
    pieces = []
    for token, type_ in zip(tokens, types.tolist(), strict=True):
        piece = byte_level_piece(token.decode()) if type_ == _NORMAL else None
        pieces.append(token if piece is None else piece)
    return pieces, kinds


def _read_sentencepiece(tokens: list[bytes], types: np.ndarray[Any, Any]) -> _Tables:
    space = SPACE_MARK.encode()
    pieces = []
    for token, type_ in zip(tokens, types.tolist(), strict=True):
        if type_ == _BYTE:
            pieces.append(bytes([int(token[3:5], 16)]))  # <0xNN>
        elif type_ == _NORMAL:
            pieces.append(token.replace(space, b" "))
        else:
            pieces.append(token)
    return pieces, _kinds(tokens, types)


_READERS: dict[str, Callable[[list[bytes], np.ndarray[Any, Any]], _Tables]] = {
    "gpt2": _read_byte_level,
    "llama": _read_sentencepiece,
    "gemma4": _read_sentencepiece,
}
