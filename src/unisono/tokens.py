"""How tokenizers write bytes in their tables: the byte-level alphabet, SentencePiece's mark for a space, <0xNN>; and
which names are no text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

SPACE_MARK = "▁"
"""What SentencePiece writes for a space."""


def byte_token(byte: int) -> str:
    """The name of the token that stands for one byte, where a vocabulary falls back to bytes.

    >>> byte_token(10)
    '<0x0A>'
    """
    return f"<0x{byte:02X}>"


@lru_cache(maxsize=1)
def byte_alphabet() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for: printable ones for themselves, the other
    68 for the characters from U+0100 on (GPT-2's byte-level BPE).

    >>> byte_alphabet()["Ġ"], byte_alphabet()["a"]
    (32, 97)
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


def byte_level_piece(token: str) -> bytes | None:
    """The bytes that a byte-level token stands for; None if a character is outside the alphabet.

    >>> byte_level_piece("ĠÃ©")
    b' \\xc3\\xa9'
    """
    try:
        return token.translate(_to_latin1()).encode("latin-1")
    except UnicodeEncodeError:
        return None


def byte_level_pieces(tokens: Sequence[str]) -> list[bytes]:
    """The bytes that each byte-level token stands for; one with a character outside the alphabet stands for itself.

    >>> byte_level_pieces(["ĠÃ©", "日"])
    [b' \\xc3\\xa9', b'\\xe6\\x97\\xa5']
    """
    out = []
    joined = "".join(tokens)
    if (whole := byte_level_piece(joined)) is not None:  # at once, which is several times faster
        at = 0
        for token in tokens:
            out.append(whole[at : (at := at + len(token))])
        return out
    for token in tokens:
        piece = byte_level_piece(token)
        out.append(token.encode() if piece is None else piece)
    return out


@lru_cache(maxsize=1)
def _to_latin1() -> dict[int, int]:
    # What the alphabet does not use maps beyond latin-1, so that encoding refuses it.
    table = {ord(c): b for c, b in byte_alphabet().items()}
    return {c: 0xFFFD for c in range(256) if c not in table} | table


def looks_like_control(name: str) -> bool:
    """Whether an added token is a role mark, the place of an image or the like, even where the tokenizer does not say
    that it is special (DeepSeek's <｜User｜>, Gemma's <unused7>; in GGUF files, Gemma's <start_of_image>).

    >>> looks_like_control("<|user|>"), looks_like_control("<start_of_image>"), looks_like_control("<tool_call>")
    (True, True, False)
    """
    return _CONTROL.fullmatch(name) is not None


_CONTROL = re.compile(
    r"<\|.+\|>|<｜.+｜>|<unused.*>|<pad>|<mask>|<2mass>|\[@BOS@\]"
    r"|<(start|end)_of_(image|audio|video)>|<(image|audio|video)_soft_token>|\[multimodal\]"
)
