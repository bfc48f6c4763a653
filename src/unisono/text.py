"""From bytes to text as they come: whole characters only, and nothing of a stop string before its time."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


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
