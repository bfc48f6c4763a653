from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import reference
from gguf_files import byte_level
from unisono.tokens import byte_alphabet, byte_level_piece


def test_the_byte_alphabet_is_the_published_one() -> None:
    assert byte_alphabet() == reference.byte_alphabet()


@given(st.binary())
def test_a_byte_level_token_stands_for_the_bytes_it_was_made_of(data: bytes) -> None:
    assert byte_level_piece(byte_level(data)) == data


@given(st.text())
def test_a_byte_level_token_with_a_character_outside_the_alphabet_stands_for_no_bytes(token: str) -> None:
    outside = any(c not in reference.byte_alphabet() for c in token)
    assert (byte_level_piece(token) is None) == outside
