"""Being told to stop: by Ctrl-C, which a command may take as the end of one answer only, and by SIGTERM."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any


class Terminated(KeyboardInterrupt):
    """SIGTERM came: everything is wound up as after Ctrl-C, and the exit code tells the two apart."""


class GentleStop:
    """Within it, Ctrl-C waits for the next `check`, so that no member is left in the midst of a step; a second one does
    not wait. A program that was started to ignore Ctrl-C goes on ignoring it."""

    def __init__(self) -> None:
        self.asked = False
        """Whether Ctrl-C came."""
        self.over = False
        """Whether there is nothing left to stop; Ctrl-C does nothing then."""

    def __enter__(self) -> GentleStop:
        self._before: Any = signal.getsignal(signal.SIGINT)
        if callable(self._before):
            signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if callable(self._before):
            signal.signal(signal.SIGINT, self._before)

    def check(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C came."""
        if self.asked:
            raise KeyboardInterrupt

    def _ask(self, signum: int, frame: FrameType | None) -> None:
        if not self.over:
            self.check()
            self.asked = True
