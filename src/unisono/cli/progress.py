"""How far a long piece of work has come: a bar on a terminal, else a line every few seconds. All on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING

from unisono.cli import show

if TYPE_CHECKING:
    from rich.progress import Progress

EVERY_S = 5.0
"""Seconds between two lines."""


class Meter:
    """Counts bytes; use it as a context manager.

    Args:
        total: How many there are.
        done: How many of them need no work any more.
        quiet: Show nothing.
    """

    def __init__(self, total: int, done: int = 0, quiet: bool = False, clock: Callable[[], float] = monotonic) -> None:
        self._total, self._before, self._done = total, done, done
        self._quiet, self._clock = quiet, clock
        self._begun = self._told = clock()
        self._bar: Progress | None = None

    def __enter__(self) -> Meter:
        self._begun = self._told = self._clock()
        if not self._quiet and sys.stderr.isatty():
            from rich.progress import BarColumn, Progress, TextColumn

            columns = [TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[said]}")]
            self._bar = Progress(*columns, console=show.console(stderr=True), transient=True)
            self._bar.add_task("", total=self._total, completed=self._done, said="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def tell(self, what: str, done: int) -> None:
        """So many bytes are done, and this is what is being worked on."""
        self._done = done
        if self._bar:
            self._bar.update(self._bar.task_ids[0], description=show.harmless(what), completed=done, said=self._said())
        elif not self._quiet and self._clock() - self._told >= EVERY_S:
            self._told = self._clock()
            show.say(f"{what}: {self._said()}")

    def teller(self, what: str, before: int) -> Callable[[int], None]:
        """For one of several pieces of work: is told how many bytes of that are done."""
        return lambda n_bytes: self.tell(what, before + n_bytes)

    def _said(self) -> str:
        """Bytes, rate and what is left."""
        parts = [f"{self._done:,} of {self._total:,} bytes"]
        seconds = self._clock() - self._begun
        fresh = self._done - self._before
        if fresh > 0 and seconds > 0:
            rate = fresh / seconds
            parts += [f"{rate:.1f} bytes/s", f"{duration((self._total - self._done) / rate)} left"]
        return ", ".join(parts)


def duration(seconds: float) -> str:
    """Time for people.

    >>> duration(42.4), duration(200), duration(8000)
    ('42 s', '3 min 20 s', '2 h 13 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
