"""From bytes to text as they come: whole characters only, and nothing of a stop string before its time."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from unisono.arrays import BoolArray


class TextStream:
    """Takes the bytes that are written and gives out the text that can be shown.

    >>> stream = TextStream(stop=["END"])
    >>> stream.add(b"caf\\xc3"), stream.add(b"\\xa9 E"), stream.add(b"NE"), stream.add(b"ND more"), stream.stopped
    ('caf', 'é ', 'EN', '', True)
    """

    def __init__(self, stop: Sequence[str] = (), include_stop: bool = False) -> None:
        """With `include_stop`, the stop string itself is the end of the text."""
        self._stops = [s.encode() for s in stop if s]
        self._include_stop = include_stop
        self._held = b""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.stopped: bool = False
        """A stop string has come; whatever follows is not part of the text."""

    def add(self, data: bytes) -> str:
        """The text that may be shown now."""
        if self.stopped:
            return ""
        self._held += data
        if (found := self._find()) is not None:
            self.stopped = True
            out, self._held = self._held[:found], b""
            return self._decoder.decode(out, final=True)
        keep = self._could_be_stop()
        out, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return self._decoder.decode(out)

    def finish(self) -> str:
        """What was held back, when nothing more comes; half a character becomes U+FFFD."""
        out, self._held = self._held, b""
        return "" if self.stopped else self._decoder.decode(out, final=True)

    def _find(self) -> int | None:
        """Where the text ends if a stop string has come: the one complete first, or the longer of two that are."""
        hits = [(at + len(s), at) for s in self._stops if (at := self._held.find(s)) >= 0]
        if not hits:
            return None
        end, start = min(hits)
        return end if self._include_stop else start

    def _could_be_stop(self) -> int:
        """How many of the last bytes may be the beginning of a stop string."""
        longest = max(map(len, self._stops), default=0)
        for n in range(min(longest - 1, len(self._held)), 0, -1):
            tail = self._held[-n:]
            if any(s.startswith(tail) for s in self._stops):
                return n
        return 0


END_OF_TEXT = 256
"""The choice after the 256 bytes."""


class Utf8:
    """Which bytes can come next, so that all that is written is UTF-8 (RFC 3629, section 4).

    >>> state = Utf8()
    >>> state.allowed[0xC3], state.allowed[0xA9], state.allowed[END_OF_TEXT]
    (np.True_, np.False_, np.True_)
    >>> state.step(0xC3)
    >>> state.allowed[0xC3], state.allowed[0xA9], state.allowed[END_OF_TEXT]
    (np.False_, np.True_, np.False_)
    """

    def __init__(self, begun: bytes = b"") -> None:
        """`begun` is the beginning of a character, if one is under way."""
        self._left: tuple[tuple[int, int], ...] = ()
        for byte in begun:
            self.step(byte)

    @property
    def allowed(self) -> BoolArray:
        """bool[257]: the bytes that go on with valid UTF-8; the last, the end of the text, only between characters."""
        return _first_bytes() if not self._left else _between(*self._left[0])

    def step(self, byte: int) -> None:
        """Take the next byte, which was allowed."""
        self._left = self._left[1:] if self._left else _rest_after(byte)


_CONTINUATION = (0x80, 0xBF)


def _rest_after(byte: int) -> tuple[tuple[int, int], ...]:
    """The ranges of the bytes that have to follow a first byte."""
    if byte < 0xC2:
        return ()
    if byte < 0xE0:
        return (_CONTINUATION,)
    if byte < 0xF0:
        second = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F)}.get(byte, _CONTINUATION)  # no overlong forms, no surrogates
        return (second, _CONTINUATION)
    second = {0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}.get(byte, _CONTINUATION)  # nothing above U+10FFFF
    return (second, _CONTINUATION, _CONTINUATION)


@lru_cache(maxsize=1)
def _first_bytes() -> BoolArray:
    allowed = np.zeros(257, dtype=bool)
    allowed[:0x80] = allowed[0xC2:0xF5] = allowed[END_OF_TEXT] = True
    return allowed


@lru_cache(maxsize=8)
def _between(low: int, high: int) -> BoolArray:
    allowed = np.zeros(257, dtype=bool)
    allowed[low : high + 1] = True
    return allowed


def split_characters(data: bytes) -> tuple[str, bytes]:
    """The whole characters, and the beginning of one that the data ends in.

    >>> split_characters("café".encode()[:-1])
    ('caf', b'\\xc3')

    Raises:
        UnicodeDecodeError: it is not the beginning of any UTF-8 text.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    text = decoder.decode(data)
    return text, decoder.getstate()[0]
