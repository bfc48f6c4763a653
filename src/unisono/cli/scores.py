"""The scores of files: added up window by window, kept in a checkpoint on the way, saved whole at the end."""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from unisono import cache
from unisono.arrays import FloatArray
from unisono.cli.paths import check_writable
from unisono.errors import ConfigError

FORMAT = "unisono score 1"
"""The first record of a checkpoint names it."""


@dataclass(frozen=True)
class Part:
    """The score of one window."""

    logprobs: FloatArray
    """float64[n_members + 1, n_bytes]: natural logs, the ensemble's last."""
    n_forwards: Sequence[int]
    """One count a member."""
    n_read: Sequence[int]
    """Tokens read by those, one count a member."""
    seconds: float


@dataclass
class FileScore:
    """The score of one file, as far as it has come."""

    file: str
    file_bytes: int
    """How many the file holds."""
    bytes: int
    """How many of them were taken."""
    sha256: str
    """Of those."""
    n_scored: int = 0
    """Bytes scored: all taken but the first character."""
    sums: list[float] = field(default_factory=list)
    """Natural log of the probability of the scored bytes under each member, and last under the ensemble."""
    n_forwards: list[int] = field(default_factory=list)
    n_read: list[int] = field(default_factory=list)
    seconds: float = 0.0
    parts: list[FloatArray] = field(default_factory=list, repr=False)
    """What the windows held, where that is wanted: float64[n_members + 1, n] each."""

    def add(self, part: Part, keep: bool) -> None:
        """One more window."""
        sums = part.logprobs.sum(axis=1).tolist()
        self.n_scored += part.logprobs.shape[1]
        self.sums = _added(self.sums, sums)
        self.n_forwards = _added(self.n_forwards, list(part.n_forwards))
        self.n_read = _added(self.n_read, list(part.n_read))
        self.seconds += part.seconds
        if keep:
            self.parts.append(part.logprobs)

    @classmethod
    def total(cls, scores: Sequence[FileScore]) -> FileScore:
        """All of them as one."""
        out = cls("total", sum(s.file_bytes for s in scores), sum(s.bytes for s in scores), "")
        for s in scores:
            out.n_scored += s.n_scored
            out.sums = _added(out.sums, s.sums)
            out.n_forwards, out.n_read = _added(out.n_forwards, s.n_forwards), _added(out.n_read, s.n_read)
            out.seconds += s.seconds
        return out

    def record(self) -> dict[str, Any]:
        """All but the numbers of the bytes, as JSON can hold it."""
        return {key: value for key, value in self.__dict__.items() if key not in ("parts", "sums")}


def _added(a: list[Any], b: list[Any]) -> list[Any]:
    return [x + y for x, y in zip(a, b, strict=True)] if a else list(b)


def check_rereadable(path: Path) -> None:
    """Raise ConfigError if nothing can be written there and read again; whatever the file holds stays."""
    if not check_writable(path, _refusal):
        raise ConfigError(f"{path} is no regular file: give one that can be written and read again.")


class Checkpoint:
    """Windows that are done, in the order in which they are done; use it as a context manager.

    JSON Lines: a header that says what they were made with, then one record a window, with its numbers as
    little-endian float64 in base64. A last line that was cut short is dropped.
    """

    def __init__(self, path: Path | None, made_with: Mapping[str, Any]) -> None:
        """With None for a path, nothing is kept.

        Raises:
            ConfigError: the file cannot be written, is no checkpoint, or was made with something else.
        """
        self._path, self._file = path, None
        self._n_lines = 0
        self.n_bytes = 0
        """How many bytes the windows hold that it was opened with."""
        if path is None:
            return
        try:
            self._file = self._opened(path)
        except OSError as exc:
            raise _refusal(path, exc) from exc
        try:
            header = self._line()
            if header is None:
                self._write({"type": "header", "format": FORMAT, **made_with})
            else:
                self._check(header, made_with)
                self.n_bytes = self._count()
        except BaseException:
            self._file.close()
            raise

    _file: IO[bytes] | None

    @staticmethod
    def _opened(path: Path) -> IO[bytes]:
        with contextlib.suppress(FileExistsError):
            return path.open("x+b")
        return path.open("r+b")

    def take(self, number: int, start: int, n_bytes: int) -> Part | None:
        """The window of that file at that byte, from the checkpoint; None where that has no more."""
        record = self._line()
        if record is None:
            return None
        try:
            if (record["file"], record["start"], record["bytes"]) != (number, start, n_bytes):
                raise ValueError
            rows = np.frombuffer(base64.b64decode(record["logprobs"], validate=True), dtype="<f8")
            n_rows = len(record["n_forwards"]) + 1
            logprobs = rows.astype(np.float64).reshape(n_rows, n_bytes)
            counts = (record["n_forwards"], record["n_read"])
            if any(type(n) is not int for each in counts for n in each) or len({len(each) for each in counts}) != 1:
                raise ValueError
            return Part(logprobs, *counts, float(record["seconds"]))
        except (KeyError, TypeError, ValueError, binascii.Error):
            raise ConfigError(
                f"The checkpoint {self._path} is damaged in line {self._n_lines}: give --resume another file."
            ) from None

    def keep(self, number: int, start: int, part: Part) -> None:
        """Add a window. Raises ConfigError if it cannot be written."""
        if self._file is None:
            return
        rows = base64.b64encode(part.logprobs.astype("<f8").tobytes()).decode()
        where = {"type": "window", "file": number, "start": start, "bytes": part.logprobs.shape[1]}
        cost = {"n_forwards": part.n_forwards, "n_read": part.n_read, "seconds": part.seconds}
        self._write({**where, **cost, "logprobs": rows})

    def _line(self) -> dict[str, Any] | None:
        """The next record; None at the end, and then what follows goes there."""
        if self._file is None:
            return None
        at = self._file.tell()
        line = self._file.readline()
        if not line.endswith(b"\n"):
            self._file.seek(at)
            if at or not line or FORMAT.encode() in line:  # else it is a file of somebody else's
                self._file.truncate()
                return None
        self._n_lines += 1
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        return record if isinstance(record, dict) else {}

    def _count(self) -> int:
        """How many bytes the windows from here on hold."""
        assert self._file is not None
        at, n_lines, n_bytes = self._file.tell(), self._n_lines, 0
        while (record := self._line()) is not None:
            found = record.get("bytes")
            n_bytes += found if isinstance(found, int) else 0  # if it is damaged, that is told when it is taken
        self._file.seek(at)
        self._n_lines = n_lines
        return n_bytes

    def _check(self, header: Mapping[str, Any], made_with: Mapping[str, Any]) -> None:
        if header.get("format") != FORMAT:
            raise ConfigError(f"{self._path} is no checkpoint of `unisono score`: give --resume a new file.")
        old, new = dict(_flat(header)), dict(_flat(json.loads(json.dumps(made_with))))
        for key in [*new, *old]:
            if key not in ("type", "format") and old.get(key) != new.get(key):
                raise ConfigError(
                    f"The checkpoint {self._path} was made with {key} = {old.get(key)!r}, not {new.get(key)!r}:"
                    " score with what it was made with, or give --resume a new file."
                )

    def _write(self, record: Mapping[str, Any]) -> None:
        assert self._path is not None and self._file is not None
        try:
            self._file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
            self._file.flush()
        except OSError as exc:
            raise _refusal(self._path, exc) from exc

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file:
            with contextlib.suppress(OSError):
                self._file.close()


def _flat(values: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every number and text in it, under a name like files.0.sha256."""
    if isinstance(values, (dict, list)):
        items = values.items() if isinstance(values, dict) else enumerate(values)
        for name, value in items:
            yield from _flat(value, f"{key}.{name}" if key else str(name))
    else:
        yield key, values


def _refusal(path: Path, exc: OSError) -> ConfigError:
    return ConfigError(f"{path} cannot be written: {exc.strerror}. Give a path that can.")


def save_scores(path: Path, scores: Sequence[FileScore], about: Mapping[str, Any]) -> None:
    """Write all numbers and what they were made with. Raises ConfigError."""
    offsets = np.cumsum([0, *(score.n_scored for score in scores)])
    rows = np.concatenate([part for score in scores for part in score.parts], axis=1)
    said = json.dumps({"format": FORMAT, "files": [score.record() for score in scores], **about}, ensure_ascii=False)
    tables = {"logprobs": rows[:-1], "pooled": rows[-1], "offsets": offsets, "about": np.array(said)}
    try:
        cache.write_whole(path, lambda file: np.savez(file, **tables))
    except OSError as exc:
        raise _refusal(path, exc) from exc


def load_scores(path: Path) -> tuple[list[FileScore], dict[str, Any]]:
    """Back from `save_scores`. Raises ConfigError where the file is missing or something else."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            tables = dict(stored)
        about = json.loads(str(tables["about"]))
        if about.pop("format") != FORMAT:
            raise ValueError
        rows = np.concatenate([tables["logprobs"], tables["pooled"][None]])
        records, offsets = about.pop("files"), tables["offsets"].tolist()
        parts = [rows[:, start:end] for start, end in pairwise(offsets)]
        scores = [
            FileScore(**record, sums=part.sum(axis=1).tolist(), parts=[part])
            for record, part in zip(records, parts, strict=True)
        ]
        return scores, about
    except FileNotFoundError as exc:
        raise ConfigError(f"{path} cannot be read: {exc.strerror}.") from exc
    except Exception as exc:  # a damaged zip file may fail in any way
        raise ConfigError(f"{path} does not hold scores that `unisono score --save` has written.") from exc
