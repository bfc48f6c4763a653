from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import reference
from gguf_files import byte_level
from unisono.tokens import byte_alphabet, byte_level_piece, byte_level_pieces, looks_like_control


def test_the_byte_alphabet_is_the_published_one() -> None:
    assert byte_alphabet() == reference.byte_alphabet()


@given(st.binary())
def test_a_byte_level_token_stands_for_the_bytes_it_was_made_of(data: bytes) -> None:
    assert byte_level_piece(byte_level(data)) == data


@given(st.text())
def test_a_byte_level_token_with_a_character_outside_the_alphabet_stands_for_no_bytes(token: str) -> None:
    outside = any(c not in reference.byte_alphabet() for c in token)
    assert (byte_level_piece(token) is None) == outside


@given(st.lists(st.text() | st.binary().map(byte_level)))
def test_tokens_read_together_are_read_as_each_alone(tokens: list[str]) -> None:
    alone = [byte_level_piece(token) for token in tokens]
    assert byte_level_pieces(tokens) == [
        token.encode() if piece is None else piece for token, piece in zip(tokens, alone, strict=True)
    ]


def test_names_of_roles_look_like_control_tokens_and_code_does_not() -> None:
    names = ["<|user|>", "<｜User｜>", "<unused12>", "<pad>", "[@BOS@]", "<end_of_image>", "<audio_soft_token>"]
    assert all(map(looks_like_control, names))
    no_names = ["<|>", "<||>", "<tool_call>", "<|", "a|>", "", "<h1>", "<img>", " <|user|>"]
    assert not any(map(looks_like_control, no_names))
