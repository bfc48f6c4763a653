"""The members' votes as a table that grows with the text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from unisono.cli.show import END, visible
from unisono.text import split_characters
from unisono.words import By, Word, WordStream, WordVote

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from unisono.steps import Step

WIDTH = 12
"""Columns for a word: a table of two members fits into 80."""
MARKS = {"all": ("+", "green"), "some": ("~", "yellow"), "none": ("-", "red")}
"""How many members liked the choice best -> mark and colour of the line."""
ALONE = ("·", "cyan")
"""The same, where one member decided alone."""
HEADINGS: dict[By, str] = {"word": "word", "character": "char", "token": "token", "step": "step"}


def agreement(word: Word) -> str:
    """How many members liked the choice best, at every step of it: all, some or none."""
    favoured = [vote.agrees for vote in word.votes]
    return "all" if all(favoured) else "some" if any(favoured) else "none"


def favourite(vote: WordVote, by: By) -> str:
    """What the member liked best, on one line: "…" stands where its votes tell no further.

    >>> favourite(WordVote(-1.0, b" the", b"r", -0.5), "word"), favourite(WordVote(-1.0, b" the", b"", -0.5), "word")
    ('␣ther…', '␣the(end)')
    """
    if not vote.other:
        return visible(vote.beginning) + (END if vote.beginning and not vote.agrees else "")
    goes_on = by in ("word", "token") or (by == "character" and _ends_inside_a_character(vote.favourite))
    return visible(vote.favourite) + ("…" if goes_on else "")


def _ends_inside_a_character(data: bytes) -> bool:
    try:
        return bool(split_characters(data)[1])
    except UnicodeDecodeError:
        return False


class VoteTable:
    """Prints a line a word (or character, or step): the choice and its pooled probability, then what every member gave
    to it, and what the member liked better if it did."""

    def __init__(self, console: Console, names: Sequence[str], by: By = "step") -> None:
        self._console, self._names, self._by = console, names, by
        self._stream = WordStream(by)
        self._n_lines = 0

    def step(self, step: Step) -> None:
        """Take one step; print what it completes."""
        for word in self._stream.add(step):
            self._print(word)

    def end(self) -> None:
        """Print what a text that was interrupted has left."""
        for word in self._stream.flush():
            self._print(word)

    def _print(self, word: Word) -> None:
        if self._n_lines == 0:
            self._begin()
        self._n_lines += 1
        self._console.print(self._line(word), soft_wrap=True)

    def _begin(self) -> None:
        from rich.text import Text

        said = ", ".join(f"{mark} {how}" for how, (mark, _) in MARKS.items()) + f"; {ALONE[0]} one decided alone"
        notes = [
            f"How many members liked the choice best: {said}.",
            "Under each member: the p that it gave to the choice, and = or what it liked better, with the p of that.",
            "␣ is a space; what a member liked better without one would have gone on from the word before. … stands for"
            " the rest of a word that was not written (the p is of its beginning), or that is too wide.",
        ]
        for note in notes:
            self._console.print(Text(note, style="dim"), soft_wrap=True)
        names = [f"  {_cell(visible(name), WIDTH + 12)}" for name in self._names]
        heading = "".join([f"{HEADINGS[self._by]:>6}  {_cell('choice')} {'p':>5}", *names])
        self._console.print(Text(heading.rstrip(), style="bold"), soft_wrap=True)

    def _line(self, word: Word) -> Text:
        from rich.text import Text

        mark, colour = MARKS[agreement(word)] if word.votes else ALONE
        line = Text(f"{mark}{self._n_lines:>5}  ", style="")
        line.append(f"{_cell(visible(word.piece))} {_probability(word.logprob)}", style=colour)
        for vote in word.votes:
            better = "=" if vote.agrees else favourite(vote, self._by)
            p = "" if vote.agrees else _probability(vote.favourite_logprob)
            line.append("  ")
            line.append(
                f"{_probability(vote.chosen_logprob)} {_cell(better)} {p:5}", style="green" if vote.agrees else "dim"
            )
        line.rstrip()
        return line


def _cell(text: str, width: int = WIDTH) -> str:
    """The text in exactly so many columns of a terminal, where a CJK character takes two."""
    from rich.cells import cell_len, set_cell_size

    return set_cell_size(text, width) if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"


def _probability(logprob: float) -> str:
    return f"{math.exp(logprob):5.3f}"
