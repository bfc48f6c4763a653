"""Texts to score: read, and checked against the members before any time is spent on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from unisono.errors import ConfigError

if TYPE_CHECKING:
    from unisono.members.base import Member


@dataclass(frozen=True)
class Document:
    """A text to score."""

    file: str
    data: bytes
    file_bytes: int
    """How many bytes the file holds; `data` is its beginning."""


def read(path: Path, max_bytes: int | None) -> Document:
    """A file, or its first bytes up to a whole character.

    Raises:
        ConfigError: it cannot be read, is no UTF-8, or holds nothing to score.
    """
    try:
        with path.open("rb") as file:
            data = file.read(-1 if max_bytes is None else max_bytes)
            n = max(path.stat().st_size, len(data) + len(file.read(1)))  # a pipe has no size
    except OSError as exc:
        raise ConfigError(f"The text {path} cannot be read: {exc.strerror}.") from exc
    try:
        text = data.decode()
    except UnicodeDecodeError as exc:
        if n == len(data) or exc.reason != "unexpected end of data":
            raise ConfigError(
                f"The text {path} is not valid UTF-8 at byte {exc.start:,} (0x{data[exc.start]:02X}):"
                " convert it to UTF-8."
            ) from None
        data = data[: exc.start]
        text = data.decode()
    if len(text) < 2:
        begin = "" if max_bytes is None else f" in its first {max_bytes} bytes"
        raise ConfigError(
            f"The text {path} holds {len(text) or 'no'} character{begin}: at least 2 are needed, as the first is not"
            " scored."
        )
    return Document(str(path), data, n)


def check_fits(members: Sequence[Member], context: int, stride: int) -> None:
    """Raise ConfigError where a window may not fit a member's context. A token is a byte at least, and a window's last
    character may reach three bytes beyond it."""
    for member in members:
        beyond = len(member.vocabulary.begin) + member.vocabulary.space_prefix + 3
        needed = beyond + context + stride
        if needed <= member.n_ctx:
            continue
        room = member.n_ctx - beyond
        mends = [f"--stride {room - context} or less" if room > context else "a smaller --context and --stride"]
        trained = getattr(member, "n_ctx_trained", None)
        if trained is None or needed <= trained:
            mends.append(f"--n-ctx {needed} or more")
        raise ConfigError(
            f"A window of {stride:,} bytes after {context:,} others may take {needed:,} tokens of {member.name}, whose"
            f" context holds {member.n_ctx:,}: give {', or '.join(mends)}."
        )


def check_readable(members: Sequence[Member], document: Document) -> None:
    """Raise ConfigError where a member has no token for a byte of the text, before hours are spent on what stands
    before it."""
    for member in members:
        if (at := member.vocabulary.unwritable_at(document.data)) is not None:
            raise ConfigError(
                f"The text {document.file} holds byte 0x{document.data[at]:02X} at byte {at:,}, which"
                f" {member.name} cannot read: remove it, or leave {member.name} out."
                " `unisono inspect` lists the bytes a member lacks."
            )
