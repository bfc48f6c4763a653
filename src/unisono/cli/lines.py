"""Lines, as a person types them or as they come through a pipe."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from unisono.cli import show

MARK, MARK_STYLE = "> ", "bold cyan"
"""What asks for a line."""


def piped_lines() -> Iterator[str]:
    """The lines of standard input without their ends; those that are not UTF-8 are told and left out."""
    for number, data in enumerate(sys.stdin.buffer if sys.stdin else (), 1):
        try:
            yield data.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            show.say(f"Error: line {number} of standard input is not valid UTF-8: convert it to UTF-8.")


def typed_lines() -> Iterator[str]:
    """What is typed at the terminal, a line after each prompt mark, until Ctrl-D."""
    mark = prompt_mark() if sys.stdout.isatty() else ""
    while True:
        try:
            if sys.stdout.isatty():
                line = input(mark)
            else:  # or else the mark would stand among the answers
                show.console(stderr=True).print(MARK, style=MARK_STYLE, end="")
                line = input()
        except EOFError:
            return
        except UnicodeDecodeError:
            show.say("Error: this line is not valid UTF-8.")
            continue
        yield line


def prompt_mark() -> str:
    """The mark as the terminal wants it, after readline is there to edit lines, where Python has it."""
    console = show.console()
    with console.capture() as captured:
        console.print(MARK, style=MARK_STYLE, end="")
    try:
        import readline  # noqa: F401  (input() uses it once it is there)
    except ImportError:
        return captured.get()
    return re.sub(r"(\x1b\[[0-9;]*m)", "\x01\\1\x02", captured.get())  # readline's signs for what takes no room
