from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unisono import cache

MADE: cache.Tables = {"numbers": np.arange(5), "text": np.array("a name"), "none": np.zeros(0, dtype=np.int32)}


class Maker:
    """Makes the tables and counts how often."""

    def __init__(self) -> None:
        self.n_made = 0

    def __call__(self) -> cache.Tables:
        self.n_made += 1
        return MADE


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNISONO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def same(tables: cache.Tables) -> bool:
    return tables.keys() == MADE.keys() and all(np.array_equal(tables[key], MADE[key]) for key in MADE)


def test_tables_are_made_once_and_come_back_as_they_were(folder: Path) -> None:
    make = Maker()
    assert all(same(cache.remembered("kind", "key", make)) for _ in range(3))
    assert make.n_made == 1
    assert [p.parent for p in folder.glob("*.npz")] == [folder]


def test_another_key_or_kind_or_format_is_another_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Maker()
    cache.remembered("kind", "key", make)
    cache.remembered("kind", "other", make)
    cache.remembered("other", "key", make)
    monkeypatch.setattr(cache, "FORMAT", cache.FORMAT + 1)
    cache.remembered("kind", "key", make)
    assert make.n_made == 4
    assert len(list(folder.iterdir())) == 4


@pytest.mark.parametrize("damage", [b"", b"PK", b"not a zip file at all", b"\x93NUMPY", b"\x80\x04."])
def test_a_damaged_file_is_made_again(folder: Path, damage: bytes) -> None:
    make = Maker()
    cache.remembered("kind", "key", make)
    [file] = folder.iterdir()
    file.write_bytes(damage)
    assert same(cache.remembered("kind", "key", make))
    assert same(cache.remembered("kind", "key", make))
    assert make.n_made == 2


def test_a_file_cut_anywhere_is_made_again(folder: Path) -> None:
    cache.remembered("kind", "key", Maker())
    [file] = folder.iterdir()
    whole = file.read_bytes()
    for length in range(0, len(whole), 7):
        make = Maker()
        file.write_bytes(whole[:length])
        assert same(cache.remembered("kind", "key", make))
        assert make.n_made == 1


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_file_with_any_byte_wrong_gives_the_tables_all_the_same(folder: Path, data: st.DataObject) -> None:
    for old in folder.glob("*"):
        old.unlink()
    cache.remembered("kind", "key", Maker())
    [file] = folder.iterdir()
    damaged = bytearray(file.read_bytes())
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    file.write_bytes(damaged)
    assert same(cache.remembered("kind", "key", Maker()))


def test_a_folder_that_cannot_be_written_is_done_without(folder: Path) -> None:
    folder.write_text("a file, where the folder should be")
    make = Maker()
    assert same(cache.remembered("kind", "key", make))
    assert same(cache.remembered("kind", "key", make))
    assert make.n_made == 2


def test_a_folder_that_stands_where_the_file_should_is_done_without(folder: Path) -> None:
    cache.remembered("kind", "key", Maker())
    [file] = folder.iterdir()
    file.unlink()
    file.mkdir()
    assert same(cache.remembered("kind", "key", Maker()))
    assert list(folder.iterdir()) == [file]


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_what_was_there_and_nothing_half_written(
    tmp_path: Path, error: BaseException
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")

    def fail(file: cache.File) -> None:
        file.write(b"half")
        raise error

    with pytest.raises(type(error)):
        cache.write_whole(path, fail)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"before"


def test_a_write_that_succeeds_replaces_what_was_there_and_makes_folders(tmp_path: Path) -> None:
    path = tmp_path / "new" / "deep" / "file"
    for content in (b"one", b"two"):
        cache.write_whole(path, lambda file, content=content: file.write(content))  # type: ignore[misc]
        assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


def test_an_error_while_making_is_passed_on_and_nothing_is_kept(folder: Path) -> None:
    def fail() -> cache.Tables:
        raise ValueError("no tables")

    with pytest.raises(ValueError, match="no tables"):
        cache.remembered("kind", "key", fail)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"UNISONO_CACHE": "here"}, "here"),
        ({"UNISONO_CACHE": "here", "XDG_CACHE_HOME": "xdg", "LOCALAPPDATA": "local"}, "here"),
        ({"LOCALAPPDATA": "local"}, "local/unisono/cache"),
        ({"XDG_CACHE_HOME": "xdg"}, "xdg/unisono"),
        ({}, "home/.cache/unisono"),
    ],
)
def test_the_folder_is_the_users_choice_or_else_the_systems(
    environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("UNISONO_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", lambda: Path("home"))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cache.folder() == Path(expected)


def test_what_a_process_that_was_killed_has_left_is_removed_after_a_day(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    old, new, others = (folder / name for name in ("union-1-abc.part", "union-1-def.part", "film.part"))
    (folder / "union-2-abc.part").mkdir()
    for path in (old, new, others):
        path.write_bytes(b"half")
    for path in (old, others, folder / "union-2-abc.part"):
        os.utime(path, (0, 0))
    cache.remembered("union", "key", dict)
    assert sorted(path.name for path in folder.glob("*.part")) == ["film.part", "union-1-def.part"]
