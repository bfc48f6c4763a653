"""A conversation, and what can be typed to steer it; nothing here talks to models or terminals."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from unisono.errors import ConfigError, EnsembleError, PromptError, PromptTooLong, UnknownName

COMMANDS = {
    "/reset": "forget the conversation; the system message stays",
    "/votes": "turn the table of votes on or off, for the answers to come",
    "/undo": "take back the last turn",
    "/save FILE.json": "keep the messages in a file",
    "/help": "show this list",
    "/quit": "leave, as Ctrl-D does",
}
"""What can be typed besides text -> what it does."""
NAMES = [usage.partition(" ")[0] for usage in COMMANDS]

HELP = "\n".join(
    [
        *(f"  {usage:<17}{what}" for usage, what in COMMANDS.items()),
        "Ctrl-C stops an answer. A line that begins with // is text that begins with /.",
    ]
)


@dataclass
class Conversation:
    """What has been said. Raises PromptError if the system message is no text.

    >>> talk = Conversation("Be brief.", [("Hi!", "Ho.")])
    >>> [message["content"] for message in talk.messages("And?")]
    ['Be brief.', 'Hi!', 'Ho.', 'And?']
    """

    system: str | None = None
    turns: list[tuple[str, str]] = field(default_factory=list)
    """What the user said, and the answer to it."""

    def __post_init__(self) -> None:
        try:
            (self.system or "").encode()
        except UnicodeEncodeError:  # a byte of the command line that is not UTF-8
            raise PromptError("The system message is not valid UTF-8: convert it to UTF-8.") from None

    def messages(self, question: str | None = None) -> list[dict[str, str]]:
        """All of it as messages, and last a question that has no answer yet."""
        said = [("system", self.system)]
        for asked, answered in self.turns:
            said += [("user", asked), ("assistant", answered)]
        said.append(("user", question))
        return [{"role": role, "content": content} for role, content in said if content is not None]

    def save(self, path: Path) -> None:
        """Write the messages as JSON, all of them or nothing. Raises ConfigError."""
        from unisono.cache import write_whole

        def write(file: IO[bytes]) -> None:
            file.write(json.dumps(self.messages(), ensure_ascii=False, indent=2).encode() + b"\n")

        try:
            write_whole(path, write)
        except (OSError, ValueError) as exc:  # ValueError: a name that no file can have
            why = exc.strerror if isinstance(exc, OSError) else exc
            raise ConfigError(f"{path} cannot be written: {why}. Give a path that can.") from exc


def parsed(line: str) -> tuple[str | None, str]:
    """A line as a command and what follows it, or as None and the text of a turn.

    >>> parsed("/save a b.json"), parsed("//save"), parsed(" Hi /undo ")
    (('/save', 'a b.json'), (None, '/save'), (None, ' Hi /undo '))

    Raises:
        UnknownName: no such command.
        PromptError: it lacks what it needs, or has what it does not take.
    """
    if not line.startswith("/") or line.startswith("//"):
        return None, line[line.startswith("//") :]
    name, *rest = line.split(maxsplit=1)
    value = "".join(rest).strip()
    as_text = "A line that begins with // is text that begins with /."
    if name not in NAMES:
        raise UnknownName("command", name, NAMES, as_text)
    if value and name != "/save":
        raise PromptError(f"{name} stands alone on its line: leave out {value!r}. {as_text}")
    if name == "/save" and not value.endswith(".json"):
        raise PromptError("/save needs a file whose name ends in .json: /save FILE.json")
    return name, value


def advice(error: EnsembleError) -> str:
    """What to say of an answer that could not be written."""
    if isinstance(error, PromptTooLong):
        return (
            f"Error: {error}\nThe conversation no longer fits, and your last turn is taken back. /reset begins anew"
            " (/save FILE.json keeps it first), /undo takes back more turns; or start with a larger --n-ctx."
        )
    return f"Error: {error}\nThe turn is taken back."
