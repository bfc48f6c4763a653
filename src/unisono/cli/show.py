"""Text on its way out: whole and exact into a pipe, harmless on a terminal, legible in a table."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sys
from typing import TYPE_CHECKING, Any, TextIO

from unisono.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

END = "(end)"
"""How the end of the text is shown where a piece would stand."""

_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def visible(piece: bytes | str) -> str:
    """A piece on one line, with everything spelled out that does not print; "(end)" for none.

    >>> visible(b" caf\\xc3\\xa9"), visible(b"\\n\\x1b[0m"), visible(b"\\xe2\\x82"), visible(b"")
    ('␣café', '\\\\n\\\\x1b[0m', '\\\\xe2\\\\x82', '(end)')
    """
    text = piece if isinstance(piece, str) else piece.decode(errors="surrogateescape")
    return "".join(map(_spelled, text)) or END


def _spelled(character: str) -> str:
    if character == " ":
        return "␣"
    if "\udc80" <= character <= "\udcff":  # a byte that is no text
        return f"\\x{ord(character) - 0xDC00:02x}"
    if character == "\\" or not character.isprintable():
        return character.encode("unicode_escape").decode()
    return character


def harmless(text: str) -> str:
    """The text without power over a terminal: control characters other than newline and tab are spelled out.

    >>> harmless("a\\n\\tb\\x1b[2J")
    'a\\n\\tb\\\\x1b[2J'
    """
    return _STEERING.sub(lambda match: f"\\x{ord(match.group()):02x}", text)


def put(text: str) -> None:
    """Write to standard output at once: exactly the text, in UTF-8, unless it is a terminal.

    Raises:
        BrokenPipeError: nobody reads it any more.
        ConfigError: it cannot be written, such as on a full disk.
    """
    out = sys.stdout
    try:
        if out.isatty():
            out.write(harmless(text))
        else:
            out.flush()
            out.buffer.write(text.encode())
        out.flush()
    except BrokenPipeError:
        raise
    except OSError as exc:
        abandon(out)
        raise ConfigError(f"Standard output cannot be written: {exc.strerror}.") from exc


def put_json(values: Any) -> None:
    """Write one JSON object to standard output."""
    put(spelled_out(json.dumps(values, ensure_ascii=False, indent=2, allow_nan=False)) + "\n")


def spelled_out(json_text: str) -> str:
    """JSON with lone surrogates, as file names that are not UTF-8 have them, as escapes.

    >>> spelled_out('"a' + chr(0xDCFF) + '"')
    '"a\\\\udcff"'
    """
    return json_text.encode(errors="backslashreplace").decode()


def say(line: str) -> None:
    """Write a line for the person at the keyboard, to standard error."""
    with contextlib.suppress(OSError, AttributeError):  # nobody there to read it
        print(harmless(line) if sys.stderr.isatty() else line, file=sys.stderr, flush=True)


def abandon(stream: TextIO) -> None:
    """Let what is still to be written go nowhere, so that the interpreter does not complain as it ends."""
    with contextlib.suppress(OSError, ValueError):  # a stream without a file has nothing to complain of
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def number(value: float | None) -> float | None:
    """A number as JSON can hold it: nan and infinities become null.

    >>> number(0.5), number(float("-inf"))
    (0.5, None)
    """
    return value if value is not None and math.isfinite(value) else None


def share(value: float) -> str:
    """A share in percent, or how many times the whole where it is a multiple of that.

    >>> share(0.0825), share(15.532)
    ('8.2 %', '15.5 times')
    """
    return f"{100 * value:.1f} %" if value <= 2 else f"{value:.1f} times"


def console(*, stderr: bool = False) -> Console:
    """A rich console: coloured on a terminal without NO_COLOR, and never too narrow for a table in a pipe."""
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> None:  # rich would exit 1
            raise BrokenPipeError

        def print(self, *objects: Any, **options: Any) -> None:
            try:
                super().print(*objects, **options)
            except BrokenPipeError:
                raise
            except OSError as exc:
                abandon(sys.stderr if stderr else sys.stdout)
                name = "error" if stderr else "output"
                raise ConfigError(f"Standard {name} cannot be written: {exc.strerror}.") from exc

    out = Quiet(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not out.is_terminal and "COLUMNS" not in os.environ:
        out.width = 160
    return out
