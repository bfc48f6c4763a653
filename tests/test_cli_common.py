"""Options to a configuration: one source of members, flags above the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from unisono.cli.common import configuration
from unisono.errors import ConfigError, UnknownName


def test_members_from_the_command_line_keep_their_weights() -> None:
    config = configuration(["a.gguf=3", "demo:b=1"], None, None)
    assert [(m.model, m.weight) for m in config.members] == [("a.gguf", 3), ("demo:b", 1)]


def test_the_preset_demo_has_two_members() -> None:
    assert [m.model for m in configuration(None, "demo", None).members] == ["demo:smollm2-135m", "demo:gemma3-270m"]


def test_no_members_says_how_to_give_some() -> None:
    with pytest.raises(ConfigError, match="-m, or take the demo models with --preset demo"):
        configuration(None, None, None)


def test_a_flag_reaches_the_members_that_have_a_use_for_it(tmp_path: Path) -> None:
    config = configuration(["a.gguf", "hf:a/b"], None, None, dtype="float16", n_ctx=99)
    assert [(m.dtype, m.n_ctx) for m in config.members] == [("auto", 99), ("float16", 99)]
    file = tmp_path / "c.yaml"
    file.write_text("members: [{model: 'hf:a/b', n_gpu_layers: 5}, a.gguf]")
    config = configuration(None, None, file, n_gpu_layers=0)  # what the file says wrongly stays to be refused
    assert [m.n_gpu_layers for m in config.members] == [5, 0]
    assert configuration(["a.gguf"], None, None, dtype="float16").members[0].dtype == "float16"


def test_a_file_of_the_published_code_names_its_members_itself(tmp_path: Path) -> None:
    file = tmp_path / "old.yaml"
    file.write_text("CONFIG_API_SERVER: [{weight: a/b}]")
    with pytest.raises(ConfigError, match="names its own members: leave out -m"):
        configuration(["a.gguf"], None, file)


def test_models_and_a_preset_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="not from both"):
        configuration(["a.gguf"], "demo", None)


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"No preset named 'dmeo'. Did you mean 'demo'"):
        configuration(None, "dmeo", None)


def test_a_weight_that_is_no_number_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'heavy' in 'a.gguf=heavy' is no weight"):
        configuration(["a.gguf=heavy"], None, None)


FILE = """
members:
  - {model: a.gguf, weight: 2, threads: 8, n_ctx: 64}
  - {model: b.gguf, weight: 1}
rule: log-linear
max_tokens: 7
stop: [END]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "ensemble.yaml"
    path.write_text(FILE)
    return path


def test_the_file_alone(file: Path) -> None:
    config = configuration(None, None, file)
    assert [m.model for m in config.members] == ["a.gguf", "b.gguf"]
    assert (config.rule, config.max_tokens, config.stop) == ("log-linear", 7, ["END"])


def test_flags_override_the_file(file: Path) -> None:
    config = configuration(None, None, file, max_tokens=9, threads=1, n_ctx=32, rule=None)
    assert (config.max_tokens, config.threads, config.rule) == (9, 1, "log-linear")
    assert [(m.threads, m.n_ctx) for m in config.members] == [(1, 32), (1, 32)]


def test_flags_reach_members_that_are_just_specs(file: Path) -> None:
    file.write_text("members: [a.gguf=2, {model: b.gguf, weight: 1}]")
    config = configuration(None, None, file, n_ctx=32)
    assert [(m.model, m.weight, m.n_ctx) for m in config.members] == [("a.gguf", 2, 32), ("b.gguf", 1, 32)]


def test_models_override_the_members_of_the_file(file: Path) -> None:
    config = configuration(["c.gguf"], None, file)
    assert [m.model for m in config.members] == ["c.gguf"]
    assert config.max_tokens == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("members: [{model: a.gguf}]\nrulle: linear", "No key in .*ensemble.yaml named 'rulle'. Did you mean 'rule'"),
        ("members: [{model: a.gguf, wieght: 1}]", "named 'wieght'. Did you mean 'weight'"),
        ("members: [{model: a.gguf}]\nmax_tokens: 0", "ensemble.yaml: max_tokens: .*greater than or equal to 1, not 0"),
        ("members: 3", "ensemble.yaml: members: should be a list, not 3. Write members: "),
        ("members: [7]", "ensemble.yaml: members.0: should be a spec, or keys and values .*, not 7"),
        ("rule: linear", "ensemble.yaml names no members"),
        ("- a", "ensemble.yaml must hold keys and values"),
        ("a: [", "ensemble.yaml is not valid YAML"),
    ],
)
def test_a_wrong_file_is_named_with_the_mend(text: str, message: str, file: Path) -> None:
    file.write_text(text)
    with pytest.raises((ConfigError, UnknownName), match=message):
        configuration(None, None, file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none.yaml cannot be read: No such file .*write the file"):
        configuration(None, None, tmp_path / "none.yaml")
