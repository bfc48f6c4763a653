"""unisono inspect: vocabularies, what they share, and how they cut up a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from test_cli import REPLIES, invoke, refusal

TWO = ["-m", "table:some", "-m", "table:others"]


@pytest.fixture
def text(tmp_path: Path) -> list[str]:
    path = tmp_path / "text"
    path.write_text("the café there", encoding="utf-8")
    return ["--text", str(path)]


def inspected(*arguments: str) -> dict[str, Any]:
    result = invoke("inspect", *arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    outcome: dict[str, Any] = json.loads(result.stdout)
    return outcome


def test_each_member_and_the_set(text: list[str]) -> None:
    outcome = inspected(*TWO, *text)
    some, others = outcome["members"]
    assert (some["name"], some["n_ids"], some["n_text_ids"]) == ("some", 102, 101)
    assert (some["ends"], some["begin"], some["n_controls"]) == ([{"id": 0, "mark": ""}], [], 0)
    assert "0x00" in some["missing_bytes"]
    assert "0xC0" not in some["missing_bytes"]
    assert (others["chat_template"], others["n_ctx_trained"]) == (False, None)
    # 96 letters, two halves of é, and ESC; " the" and "re", "é", " there" and " here"
    together = outcome["set"]
    assert (together["n_shared_by_all"], together["n_union"], together["n_left_out"]) == (99, 104, 0)
    assert together["shared_by_two"] == [{"members": ["some", "others"], "n_pieces": 99}]


def test_tokens_and_common_boundaries_of_a_text(text: list[str]) -> None:
    # some: t h e _ c a f C3 A9 _the re; others: t h e _ c a f é _there
    cut = inspected(*TWO, *text)["text"]
    assert cut["n_bytes"] == 15
    assert [m["n_tokens"] for m in cut["members"]] == [11, 9]
    assert cut["members"][1]["bytes_per_token"] == pytest.approx(15 / 9)
    assert cut["common_boundaries"] == pytest.approx(8 / 10)
    assert cut["common_to_two"] == [{"members": ["some", "others"], "share": pytest.approx(8 / 10)}]


def test_an_empty_text_has_no_shares(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    cut = inspected(*TWO, "--text", str(tmp_path / "empty"))["text"]
    assert (cut["n_bytes"], cut["common_boundaries"], cut["members"][0]["bytes_per_token"]) == (0, None, None)


def test_a_piece_that_some_member_cannot_read_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REPLIES, "few", ([b"", b"a"], ""))
    monkeypatch.setitem(REPLIES, "more", ([b"", b"a", b"a\x01"], ""))
    outcome = inspected("-m", "table:few", "-m", "table:more")
    assert (outcome["set"]["n_left_out"], outcome["set"]["left_out"]) == (1, ["a\\x01"])
    assert "which few cannot read" in outcome["text"]["members"][0]["note"]
    assert outcome["text"]["common_boundaries"] is None


def test_the_tables_show_the_same(text: list[str]) -> None:
    out = invoke("inspect", *TWO, "-m", "table:doubter", *text).stdout
    for shown in ("bytes it lacks", "pieces in the union", "pieces that some and doubter have", "80.0 %", "others"):
        assert shown in out


def test_the_built_in_sample_is_cut_up_without_a_text() -> None:
    assert inspected("-m", "table:some")["text"]["text"] == "the built-in sample"


def test_errors_name_the_thing(tmp_path: Path) -> None:
    assert refusal("inspect", *TWO, "--text", "no-file").startswith("The text no-file cannot be read")
    (tmp_path / "text").write_bytes(b"ab\xff")
    assert "not valid UTF-8 at byte 2" in refusal("inspect", *TWO, "--text", str(tmp_path / "text"))
    assert "No members" in refusal("inspect")


@pytest.mark.models
def test_the_demo_models() -> None:
    outcome = inspected("--preset", "demo")
    smol, gemma = outcome["members"]
    assert (smol["n_ids"], gemma["n_ids"]) == (49_152, 262_144)
    assert {"0x04", "0x06", "0x13", "0x14", "0x16", "0x1D"} <= set(smol["missing_bytes"])
    assert (smol["chat_template"], gemma["chat_template"]) == (True, False)
    assert gemma["begin"] == [{"id": 2, "mark": "<bos>"}]
    assert {"id": 106, "mark": "<end_of_turn>"} in gemma["ends"]
    assert outcome["set"]["n_union"] > 250_000
    assert 0.3 < outcome["text"]["common_boundaries"] < 0.9
    assert all(m["n_tokens"] for m in outcome["text"]["members"])
