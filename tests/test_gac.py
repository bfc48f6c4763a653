"""Configuration files of the published code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from test_cli import PROMPT, REPLIES, invoke, refusal
from unisono.config import Config, checked
from unisono.errors import ConfigError, UnknownName
from unisono.gac import translated

TWO: list[dict[str, Any]] = [
    {"weight": "owner/first", "max_memory": {0: "24GiB"}, "num_gpus": 0.5, "name": "first", "score": 90},
    {"weight": "some/folder", "max_memory": {0: "8GiB"}, "num_gpus": 0.5, "score": 30, "quantization": "4bit"},
]


def config(n_gpus: int = 0, members: list[dict[str, Any]] = TWO, **values: Any) -> tuple[Config, list[str]]:
    found, notes = translated({"CONFIG_API_SERVER": members, **values}, "old.yaml", n_gpus)
    return checked(Config, found, "old.yaml"), notes


def test_supportive_models_vote_at_every_step_on_pieces_with_equal_weights() -> None:
    made, notes = config(NORM_TYPE_API_SERVER="average", THRESHOLD_API_SERVER=1.0)
    assert (made.vote, made.rule, made.threshold, made.gate) == ("pieces", "linear", None, None)
    assert [(m.model, m.name, m.weight) for m in made.members] == [
        ("hf:owner/first", "first", None),
        ("hf:some/folder", None, None),
    ]
    assert [m.quantization for m in made.members] == ["none", "4bit"]
    assert [note for note in notes if "GPU" not in note] == [
        "old.yaml: THRESHOLD_API_SERVER has no meaning where no model has the priority primary.",
        "old.yaml: scores have no meaning where NORM_TYPE_API_SERVER is average.",
    ]


def test_scores_are_weights_and_the_primary_model_is_the_gate() -> None:
    second = {**TWO[1], "priority": "primary"}
    made, notes = config(members=[TWO[0], second], NORM_TYPE_API_SERVER="score", THRESHOLD_API_SERVER=0.5)
    assert [m.weight for m in made.members] == [90, 30]
    assert (made.gate, made.threshold, made.members[1].name) == ("folder", 0.5, "folder")
    assert all("GPU" in note for note in notes)


@pytest.mark.parametrize(
    ("n_gpus", "shares", "expected"),
    [
        (1, (0.5, 0.5), [{0: "24GiB"}, {0: "8GiB"}]),
        (2, (1, 1), [{0: "24GiB"}, {1: "8GiB"}]),
        (1, (1, 1), [{0: "24GiB"}, None]),
        (0, (1, 1), [None, None]),
    ],
)
def test_gpus_are_handed_out_in_order_and_what_cannot_be_is_told(
    n_gpus: int, shares: tuple[float, float], expected: list[Any]
) -> None:
    members = [{**member, "num_gpus": share} for member, share in zip(TWO, shares, strict=True)]
    made, notes = config(n_gpus, members)
    assert [m.max_memory for m in made.members] == expected
    assert sum("num_gpus and max_memory of" in note for note in notes) == expected.count(None)


def test_a_model_without_max_memory_takes_the_gpus_that_it_asks_for() -> None:
    members: list[dict[str, Any]] = [
        {"weight": "a/b", "num_gpus": 1},
        {"weight": "c/d", "num_gpus": 2},
        {"weight": "e/f"},
    ]
    made, notes = config(3, members)
    assert [(m.device, m.device_map) for m in made.members] == [("cuda:0", None), (None, "auto"), (None, None)]
    assert not notes


def test_keys_of_ours_may_stand_beside_and_win() -> None:
    made, _ = config(vote="bytes", max_tokens=9)
    assert (made.vote, made.max_tokens) == ("bytes", 9)
    made, _ = config(members=[{"weight": "a/b", "priority": "primary"}], threshold=0.3)
    assert (made.threshold, made.gate) == (0.3, "b")


def test_the_gate_is_the_primary_model_even_where_another_is_called_alike() -> None:
    made, _ = config(members=[{"weight": "x/b"}, {"weight": "y/b", "priority": "primary"}], THRESHOLD_API_SERVER=0.5)
    assert [m.name for m in made.members] == [None, "b"] and made.gate == "b"


@pytest.mark.parametrize(
    ("values", "error", "said"),
    [
        ({"members": ["a.gguf"]}, ConfigError, "CONFIG_API_SERVER and members both name models"),
        ({"CONFIG_API_SERVER": []}, ConfigError, "CONFIG_API_SERVER"),
        ({"NORM_TYPE_API_SERVER": "sum"}, UnknownName, "'sum'"),
        ({"TRESHOLD_API_SERVER": 1.0}, UnknownName, "'THRESHOLD_API_SERVER'"),
        ({"CONFIG_API_SERVER": [{"wieght": "a/b"}]}, (UnknownName, ConfigError), "weight"),
        ({"CONFIG_API_SERVER": [{"weight": "a/b", "quantisation": "4bit"}]}, UnknownName, "'quantization'"),
        ({"CONFIG_API_SERVER": [{"weight": "a/b"}], "NORM_TYPE_API_SERVER": "score"}, ConfigError, "has no score"),
        ({"CONFIG_API_SERVER": [{"weight": "a/b", "priority": "primary"}]}, ConfigError, "give a THRESHOLD_API_SERVER"),
        (
            {"CONFIG_API_SERVER": [{"weight": "a/b", "priority": "primary"}] * 2, "THRESHOLD_API_SERVER": 1},
            ConfigError,
            "2 models have the priority primary",
        ),
        ({"THRESHOLD_API_SERVER": 2}, ConfigError, "THRESHOLD_API_SERVER"),
        ({"CONFIG_API_SERVER": [{"weight": "a/b", "num_gpus": float("inf")}]}, ConfigError, "num_gpus"),
        ({"CONFIG_API_SERVER": [{"weight": "a/b", "score": float("nan")}]}, ConfigError, "score"),
        ({"max_token": 1}, UnknownName, "'max_tokens'"),
        ({"CONFIG_API_SERVER": ["a/b"]}, ConfigError, "CONFIG_API_SERVER.0: should be keys and values, not 'a/b'"),
    ],
)
def test_what_cannot_be_read_is_named(values: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        translated({"CONFIG_API_SERVER": TWO, **values}, "old.yaml", 0)


def test_the_command_line_takes_such_a_file_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unisono.registry.BACKENDS", {"hf": "test_cli:open_table"})
    file = tmp_path / "old.yaml"
    file.write_text(
        "NORM_TYPE_API_SERVER: 'score'\nTHRESHOLD_API_SERVER: 1.0\nCONFIG_API_SERVER:\n"
        "  - weight: 'some'\n    max_memory:\n      0: '24GiB'\n    num_gpus: 0.5\n    name: 'one'\n    score: 100\n"
        "    priority: 'primary'\n    quantization: 'none'\n"
        "  - weight: 'others'\n    max_memory:\n      0: '24GiB'\n    num_gpus: 0.5\n    name: 'two'\n    score: 50\n"
        "    priority: 'supportive'\n    quantization: 'none'\n"
    )
    result = invoke("run", "--config", str(file), PROMPT)
    assert (result.exit_code, result.stdout) == (0, REPLIES["some"][1])
    assert result.stderr.count("have no meaning on this machine, which has no GPU") == 2
    assert invoke("run", "-q", "--config", str(file), PROMPT).stderr == ""
    file.write_text(file.read_text().replace("priority", "prority"))
    assert "Did you mean 'priority'?" in refusal("run", "--config", str(file), PROMPT)
