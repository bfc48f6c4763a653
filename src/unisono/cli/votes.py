"""The members' votes as a table that grows with the text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from unisono.cli.show import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from unisono.engine import Step

WIDTH = 14
"""Columns for a piece."""
MARKS = {"all": ("+", "green"), "some": ("~", "yellow"), "none": ("-", "red")}
"""How many members liked the choice best -> mark and colour of the line."""


def agreement(step: Step) -> str:
    """How many members liked the choice best: all, some or none."""
    favoured = [vote.favourite == step.piece for vote in step.votes]
    return "all" if all(favoured) else "some" if any(favoured) else "none"


class VoteTable:
    """Prints a line a step: the choice and its pooled probability, then every member's favourite and its own."""

    def __init__(self, console: Console, names: Sequence[str]) -> None:
        self._console, self._names = console, names
        self._n_steps = 0

    def step(self, step: Step) -> None:
        """Print one step."""
        if self._n_steps == 0:
            self._begin()
        self._n_steps += 1
        self._console.print(self._line(step), soft_wrap=True)

    def _begin(self) -> None:
        from rich.text import Text

        said = ", ".join(f"{mark} {how}" for how, (mark, _) in MARKS.items())
        self._console.print(
            Text(f"How many members liked the choice best: {said}. = marks those that did.", style="dim"),
            soft_wrap=True,
        )
        cells = [f"{'step':>6}  {_cell('choice')} {'p':>5}", *(f"  {_cell(name)} {'p':>5}" for name in self._names)]
        self._console.print(Text("  ".join(cells).rstrip(), style="bold"), soft_wrap=True)

    def _line(self, step: Step) -> Text:
        from rich.text import Text

        mark, colour = MARKS[agreement(step)]
        line = Text(f"{mark}{self._n_steps:>5}  ", style="")
        line.append(f"{_cell(visible(step.piece))} {_probability(step.logprob)}", style=colour)
        for vote in step.votes:
            liked = vote.favourite == step.piece
            line.append("  ")
            line.append(
                f"{'=' if liked else ' '} {_cell(visible(vote.favourite))} {_probability(vote.favourite_logprob)}",
                style="green" if liked else "dim",
            )
        return line


def _cell(text: str) -> str:
    """The text in exactly WIDTH columns of a terminal, where a CJK character takes two."""
    from rich.cells import cell_len, set_cell_size

    return set_cell_size(text, WIDTH) if cell_len(text) <= WIDTH else set_cell_size(text, WIDTH - 1) + "…"


def _probability(logprob: float) -> str:
    return f"{math.exp(logprob):5.3f}"
