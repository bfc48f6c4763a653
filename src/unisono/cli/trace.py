"""A run as JSON Lines, one record a step, written as it goes. docs/trace.md has the schema."""

from __future__ import annotations

import codecs
import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from unisono.cli.paths import check_writable
from unisono.cli.show import number, spelled_out
from unisono.errors import ConfigError
from unisono.words import Word, WordStream

if TYPE_CHECKING:
    from unisono.steps import Stats, Step


class Trace:
    """The file comes into being with the first step, so that a run which never got so far leaves none behind."""

    def __init__(self, path: Path, names: Sequence[str], header: Mapping[str, Any]) -> None:
        self._path, self._names, self._header = path, names, header
        self._file: TextIO | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._n_steps = 0

    def step(self, step: Step) -> None:
        """Add one step. Raises ConfigError if it cannot be written."""
        if self._n_steps == 0:
            try:
                self._file = self._path.open("w", encoding="utf-8", newline="\n", buffering=1)
            except OSError as exc:
                raise _refusal(self._path, exc) from exc
            self._write({"type": "header", **self._header})
        text = self._decoder.decode(step.piece, final=step.finish is not None)
        self._write({"type": "step", "index": self._n_steps, "text": text, **step_record(step, self._names)})
        self._n_steps += 1

    def end(self, finish: str, stats: Stats, error: str | None = None) -> None:
        """Add the last record and close the file."""
        if self._file:
            self._write({"type": "end", "finish": finish, "error": error, "stats": stats_record(stats)})
            self._close()

    def _write(self, record: Mapping[str, Any]) -> None:
        assert self._file is not None
        try:
            self._file.write(spelled_out(json.dumps(record, ensure_ascii=False, allow_nan=False)) + "\n")
        except OSError as exc:
            self._close()
            raise _refusal(self._path, exc) from exc

    def _close(self) -> None:
        file, self._file = self._file, None
        if file:
            with contextlib.suppress(OSError):  # told already, when it was written
                file.close()


def check_creatable(path: Path) -> None:
    """Raise ConfigError if a trace cannot be written there; whatever the file holds stays."""
    check_writable(path, _refusal)


def _refusal(path: Path, exc: OSError) -> ConfigError:
    return ConfigError(f"The trace {path} cannot be written: {exc.strerror}. Give --trace a path that can.")


def step_record(step: Step, names: Sequence[str]) -> dict[str, Any]:
    """A step as JSON can hold it."""
    votes = {
        name: {
            **_spelled("favourite", vote.favourite),
            "favourite_logprob": number(vote.favourite_logprob),
            "chosen_logprob": number(vote.chosen_logprob),
        }
        for name, vote in zip(names, step.votes, strict=bool(step.votes))  # none where one member decided alone
    }
    top = {"top": _ways(step.top)} if step.top else {}
    return {**_spelled("piece", step.piece), "logprob": number(step.logprob), "votes": votes, **top}


def _ways(top: Sequence[tuple[bytes, float]]) -> list[dict[str, Any]]:
    return [{**_spelled("piece", piece), "logprob": number(logprob)} for piece, logprob in top]


class TokenRecords:
    """The tokens of a text as JSON can hold them, with what else could have been written."""

    def __init__(self) -> None:
        self._stream = WordStream("token")
        self._tokens: list[Word] = []

    def step(self, step: Step) -> None:
        """Take one step."""
        self._tokens += self._stream.add(step)

    def end(self) -> list[dict[str, Any]]:
        """All of them."""
        self._tokens += self._stream.flush()
        return [
            {**_spelled("piece", token.piece), "logprob": number(token.logprob), "top": _ways(token.top)}
            for token in self._tokens
        ]


def _spelled(key: str, piece: bytes) -> dict[str, str | None]:
    """The piece as text, or as hex digits where its bytes are no whole characters.

    >>> _spelled("piece", b"caf\\xc3\\xa9"), _spelled("piece", b"\\xc3")
    ({'piece': 'café'}, {'piece': None, 'piece_hex': 'c3'})
    """
    try:
        return {key: piece.decode()}
    except UnicodeDecodeError:
        return {key: None, f"{key}_hex": piece.hex()}


def stats_record(stats: Stats) -> dict[str, Any]:
    """Statistics as JSON can hold them, with what follows from them."""
    derived = {
        "tokens_per_s": number(stats.tokens_per_s),
        "overhead": number(stats.overhead),
        "forwards_per_token": [n / stats.n_tokens if stats.n_tokens else None for n in stats.n_forwards],
    }
    return {**asdict(stats), **derived}
