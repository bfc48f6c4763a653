"""unisono bench: rows, ratios and what is recorded with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from test_cli import PROMPT, invoke, refusal
from unisono.cli import bench

TWO = ["-m", "table:some", "-m", "table:others"]


def test_rows_are_medians_and_ratios_of_them() -> None:
    def runs(*times: float | None) -> list[dict[str, float | None]]:
        return [{"ms_per_token": t, "overhead": 0.1, "forwards_per_token": 1.0, "first_s": 0.5} for t in times]

    a, b, both = bench.rows({"a": runs(1, 2, 30), "b": runs(4, None, 4), "ensemble": runs(6, 6, 6)})
    assert [row["ms_per_token"] for row in (a, b, both)] == [2, 4, 6]
    assert both["tokens_per_s"] == pytest.approx(1000 / 6)
    assert (both["to_slowest"], both["to_sum"], b["to_slowest"]) == (1.5, 1, 1)


def test_a_text_too_short_to_time_has_no_ratio() -> None:
    silent = [{"ms_per_token": None, "overhead": None, "forwards_per_token": None, "first_s": 0.1}]
    [row] = bench.rows({"a": silent})
    assert (row["ms_per_token"], row["to_slowest"], row["overhead"]) == (None, None, None)


def test_json_records_what_made_it() -> None:
    arguments = ["--prompt", PROMPT, "--repeat", "2", "--max-tokens", "5", "--json"]
    result = invoke("bench", *TWO, *arguments)
    assert result.exit_code == 0
    assert "2 of 2: ensemble, " in result.stderr
    outcome = json.loads(result.stdout)
    assert [row["name"] for row in outcome["rows"]] == ["some", "others", "ensemble"]
    assert all(len(row["repetitions"]) == 2 for row in outcome["rows"])
    assert outcome["rows"][2]["ms_per_token"] > 0
    assert outcome["memory"]["files_bytes"] == 0
    assert outcome["vocabularies"] == {"scratch_s": None, "cached_s": None}  # these members have no files
    assert outcome["machine"]["cores"] >= 1
    assert {"versions", "members", "config", "command", "prompt"} <= set(outcome)


def test_many_texts_at_once_are_timed_beside_one() -> None:
    arguments = ["--prompt", PROMPT, "--repeat", "2", "--max-tokens", "5", "--texts", "3", "-q"]
    rows = json.loads(invoke("bench", *TWO, *arguments, "--json").stdout)["rows"]
    for row in rows:
        many = row["together"]
        assert len(many["repetitions"]) == 2 and min(many["repetitions"]) > 0
        assert many["to_one"] == pytest.approx(many["tokens_per_s"] / row["tokens_per_s"])
    assert "3 texts at once" in invoke("bench", *TWO, *arguments).stdout


def test_a_files_ways_to_write_a_text_are_not_used(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("members: ['table:some', 'table:others']\nstop: ['e']\ntemperature: 2\nseed: 1\nmin_tokens: 50\n")
    arguments = ["--prompt", PROMPT, "--repeat", "1", "--max-tokens", "5", "--json", "-q"]
    plain, given = (
        json.loads(invoke("bench", *members, *arguments).stdout)["rows"][2]["repetitions"][0]
        for members in (TWO, ["--config", str(config)])
    )
    assert (given["n_tokens"], given["n_bytes"], given["finish"]) == (
        plain["n_tokens"],
        plain["n_bytes"],
        plain["finish"],
    )


def test_one_member_makes_one_row_and_the_table_has_every_column() -> None:
    result = invoke("bench", "-m", "table:some", "--prompt", PROMPT, "--repeat", "1", "-q")
    assert result.stderr == ""
    assert "ensemble" not in result.stdout
    assert result.stdout.startswith("One text of at most ")
    for heading in ("ms/token", "tokens/s", "x slowest", "x sum", "overhead", "forwards/token", "peak memory"):
        assert heading in result.stdout


@pytest.mark.parametrize(
    "rule",
    [
        ["--rule", "contrastive", "--plausibility", "0.2"],
        ["--rule", "unite", "--vote", "pieces", "--top-union", "3"],
        ["--rule", "adaptive"],
    ],
)
def test_every_rule_is_timed_with_its_options(rule: list[str]) -> None:
    arguments = ["--prompt", PROMPT, "--repeat", "1", "--max-tokens", "3", "--json", "-q"]
    outcome = json.loads(invoke("bench", *TWO, *rule, *arguments).stdout)
    assert [row["name"] for row in outcome["rows"]] == ["some", "others", "ensemble"]
    assert outcome["config"]["rule"] == rule[1]


def test_errors_exit_2() -> None:
    assert "No members" in refusal("bench")
    assert "nan returned NaN" in refusal("bench", "-m", "table:nan", "-q")


@pytest.mark.models
def test_the_demo_models() -> None:
    demo = ["--preset", "demo", "--threads", "1", "--n-ctx", "64"]
    result = invoke("bench", *demo, "--max-tokens", "4", "--repeat", "1", "--json")
    outcome = json.loads(result.stdout)
    assert len(outcome["rows"]) == 3
    assert outcome["vocabularies"]["scratch_s"] > outcome["vocabularies"]["cached_s"] > 0
    assert outcome["memory"]["files_bytes"] == 98_362_432 + 253_113_024
    assert outcome["memory"]["peak_bytes"] > 100e6
