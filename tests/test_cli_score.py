"""unisono score: what a text is worth, in windows, with mixtures, and gone on with after an interruption."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from test_cli import COMMAND, TESTS, invoke, open_table, refusal, start
from unisono.cli import documents
from unisono.cli.grid import Grid, best_of, simplex
from unisono.cli.progress import Meter
from unisono.cli.scores import FileScore, Part
from unisono.config import MemberConfig
from unisono.ensemble import Ensemble
from unisono.errors import ConfigError
from unisono.members.fake import TableMember
from unisono.score import bits, windows

TWO = ["-m", "table:some", "-m", "table:others"]
THREE = [*TWO, "-m", "table:doubter"]
SMALL = ["--context", "8", "--stride", "16"]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "a.txt"
    path.write_text("Who is there, café?\nWho else is here? é\n", encoding="utf-8")
    return path


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "b.jsonl"
    path.write_text('{"a": "here, there"}\n{"b": "the end"}\n', encoding="utf-8")
    return path


def scored(*arguments: str) -> dict[str, Any]:
    """What a command reports, without the times that differ from run to run."""
    result = invoke("score", *arguments, "--json", "-q")
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    outcome: dict[str, Any] = json.loads(result.stdout)
    for row in (*outcome["files"], outcome["total"]):
        assert row.pop("seconds") > 0
    return outcome


def opened(*names: str) -> list[TableMember]:
    return [open_table(name, name, MemberConfig(model=f"table:{name}")) for name in names]


def test_bits_are_those_of_the_library_in_windows(text: Path) -> None:
    outcome = scored(str(text), "-m", "table:some=3", "-m", "table:others=1", *SMALL)
    ensemble = Ensemble(opened("some", "others"), [3, 1])
    data = text.read_bytes()
    parts = [ensemble.score(w.prompt, w.text) for w in windows(data, 8, 16)]
    assert len(parts) > 2
    [row] = outcome["files"]
    assert (row["file"], row["n_scored"], row["bytes"], row["file_bytes"]) == (
        str(text),
        len(data) - 1,
        *[len(data)] * 2,
    )
    assert row["bits_per_byte"]["ensemble"] == pytest.approx(bits(np.concatenate([p.pooled for p in parts])))
    for number, name in enumerate(("some", "others")):
        assert row["bits_per_byte"]["members"][name] == pytest.approx(
            bits(np.concatenate([p.logprobs[number] for p in parts]))
        )
        assert row["n_forwards"][name] == sum(p.n_forwards[number] for p in parts)
        assert row["n_read"][name] == sum(p.n_read[number] for p in parts)


def test_the_total_counts_every_byte_alike_and_json_lines_are_text(text: Path, lines: Path) -> None:
    outcome = scored(str(text), str(lines), *TWO, *SMALL)
    a, b = outcome["files"]
    assert b["bytes"] == lines.stat().st_size
    together = (a["n_scored"] * a["bits_per_byte"]["ensemble"] + b["n_scored"] * b["bits_per_byte"]["ensemble"]) / (
        a["n_scored"] + b["n_scored"]
    )
    assert outcome["total"]["bits_per_byte"]["ensemble"] == pytest.approx(together)
    assert {"members", "config", "versions", "machine", "command", "context", "stride", "max_bytes"} <= set(outcome)
    assert len(a["sha256"]) == 64


def test_the_first_bytes_alone_end_between_characters(text: Path) -> None:
    first = text.read_bytes().index("é".encode()) + 1
    outcome = scored(str(text), *TWO, *SMALL, "--max-bytes", str(first))
    assert (outcome["files"][0]["bytes"], outcome["max_bytes"]) == (first - 1, first)
    assert outcome["files"][0]["file_bytes"] == text.stat().st_size
    shown = invoke("score", str(text), *TWO, *SMALL, "--max-bytes", str(first), "-q").stdout
    assert f"the first {first} bytes of each file" in shown


def test_the_table_has_a_line_a_file_and_the_cost(text: Path, lines: Path) -> None:
    result = invoke("score", str(text), str(lines), *TWO, *SMALL, "--grid", "-q")
    assert result.stderr == ""
    for what in ("a.txt", "b.jsonl", "total", "ensemble", "gain", "some + others", "tokens read", "bytes/s", "* "):
        assert what in result.stdout
    alone = invoke("score", str(text), "-m", "table:some", *SMALL, "-q").stdout
    assert "ensemble" not in alone


# Mixtures


@given(
    st.integers(1, 4).flatmap(
        lambda n: st.lists(st.lists(st.floats(0.01, 1), min_size=n, max_size=n), min_size=1, max_size=5)
    ),
    st.sampled_from([0.25, 0.2, 0.1]),
)
def test_every_mixture_is_what_the_obvious_sum_gives(drawn: list[list[float]], step: float) -> None:
    probabilities = np.array(drawn).T  # [n_members, n_bytes]
    n, n_bytes = probabilities.shape
    grid = Grid(n, step)
    mixtures = grid.mixtures(grid.sums([np.log(probabilities)]), n_bytes)
    assert [m.members for m in mixtures[:n]] == [(k,) for k in range(n)]
    assert len({m.members for m in mixtures}) == 2**n - 1

    def slow(members: tuple[int, ...], weights: list[float]) -> float:
        pooled = [math.fsum(w * row[k] for w, k in zip(weights, members, strict=True)) for row in drawn]
        return -math.fsum(math.log2(q) for q in pooled) / len(drawn)

    for mixture in mixtures:
        k = len(mixture.members)
        assert mixture.equal == pytest.approx(slow(mixture.members, [1 / k] * k))
        assert mixture.best == pytest.approx(slow(mixture.members, list(mixture.weights)))
        assert min(mixture.weights) > 0 and math.fsum(mixture.weights) == pytest.approx(1)
        inside = [row.tolist() for row in simplex(k, round(1 / step)) if row.min() > 0]
        assert mixture.best == pytest.approx(min(slow(mixture.members, weights) for weights in inside))
    assert best_of(mixtures).best == min(m.best for m in mixtures)


def test_sums_of_two_texts_add_up_and_chunks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = np.log(np.random.default_rng(0).random((3, 100)))
    whole = Grid(3, 0.1).sums([parts])
    monkeypatch.setattr("unisono.cli.grid.CHUNK", 500)
    np.testing.assert_allclose(Grid(3, 0.1).sums([parts[:, :33]]) + Grid(3, 0.1).sums([parts[:, 33:]]), whole)


def test_a_byte_without_probability_costs_infinitely_many_bits() -> None:
    impossible = np.array([[0.0, -math.inf], [math.log(0.5)] * 2])
    grid = Grid(2, 0.5)
    one, other, both = grid.mixtures(grid.sums([impossible]), 2)
    assert (one.best, other.best) == (math.inf, 1.0)
    assert both.equal == pytest.approx(-math.log2(0.75 * 0.25) / 2)


@pytest.mark.parametrize(
    ("n", "step", "message"),
    [
        (2, 0.3, "--grid-step 0.3 does not divide 1"),
        (2, 0, "does not divide 1"),
        (2, -0.5, "does not divide 1"),
        (3, 0.5, "3 members cannot all have weight: give 0.1 or less"),
        (5, 0.01, "--grid-step 0.01 makes 4,598,126 mixtures of 5 members"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(n: int, step: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Grid(n, step)


def test_mixtures_of_the_command_agree_with_ensembles_of_them(text: Path, lines: Path) -> None:
    outcome = scored(str(text), str(lines), *THREE, *SMALL, "--grid", "--epsilon", "0")
    for row in (*outcome["files"], outcome["total"]):
        by_members = {tuple(mixture["members"]): mixture for mixture in row["grid"]}
        assert len(by_members) == 7
        for name, alone in row["bits_per_byte"]["members"].items():
            assert by_members[(name,)]["equal"] == by_members[(name,)]["best"] == pytest.approx(alone)
        assert by_members["some", "others", "doubter"]["equal"] == pytest.approx(row["bits_per_byte"]["ensemble"])
    best = {tuple(m["members"]): m for m in outcome["files"][0]["grid"]}["some", "others"]
    weighted = [f"table:{name}={weight}" for name, weight in zip(best["members"], best["weights"], strict=True)]
    again = scored(
        str(text), *(a for one in weighted for a in ("-m", one)), *SMALL, "--epsilon", "0"
    )  # the same bytes are masked here
    assert again["files"][0]["bits_per_byte"]["ensemble"] == pytest.approx(best["best"])
    assert outcome["grid_step"] == 0.1


# Saved


def test_what_was_saved_gives_the_same_report_without_any_model(text: Path, lines: Path, tmp_path: Path) -> None:
    path = tmp_path / "scores.npz"
    first = scored(str(text), str(lines), *TWO, *SMALL, "--grid", "--save", str(path))
    again = scored("--load", str(path), "--grid")
    assert again.pop("scored_by") == first["command"]
    for key, value in first.items():
        if key not in ("files", "total", "command"):
            assert again[key] == value
    for a, b in zip([*first["files"], first["total"]], [*again["files"], again["total"]], strict=True):
        assert b["bits_per_byte"]["ensemble"] == pytest.approx(a["bits_per_byte"]["ensemble"])
        assert [m["weights"] for m in b["grid"]] == [m["weights"] for m in a["grid"]]
        assert (b["n_forwards"], b["n_read"], b["file"]) == (a["n_forwards"], a["n_read"], a["file"])
    with np.load(path) as tables:
        assert tables["logprobs"].shape == (2, first["total"]["n_scored"])
        assert tables["offsets"].tolist() == [0, first["files"][0]["n_scored"], first["total"]["n_scored"]]
        assert bits(tables["pooled"]) == pytest.approx(first["total"]["bits_per_byte"]["ensemble"])
    assert "does not divide" in refusal("score", "--load", str(path), "--grid", "--grid-step", "0.3")
    assert "leave out texts, members" in refusal("score", "--load", str(path), str(text))
    assert "--max-bytes is for scoring" in refusal("score", "--load", str(path), "--max-bytes", "7")
    assert "--rule is for scoring" in refusal("score", "--load", str(path), "--rule", "log-linear")


def test_a_file_that_holds_no_scores(text: Path, tmp_path: Path) -> None:
    assert "cannot be read: No such file" in refusal("score", "--load", str(tmp_path / "none.npz"))
    assert "does not hold scores" in refusal("score", "--load", str(text))
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    assert "does not hold scores" in refusal("score", "--load", str(tmp_path / "other.npz"))


def test_without_grid_or_save_no_byte_is_kept() -> None:
    part = Part(np.full((2, 5), -1.0), [1], [2], 0.5)
    score = FileScore("a", 9, 9, "")
    for _ in range(3):
        score.add(part, keep=False)
    assert (score.n_scored, score.sums, score.parts) == (15, [-15.0, -15.0], [])
    assert (score.n_forwards, score.n_read, score.seconds) == ([3], [6], 1.5)


# Resumed


def test_a_run_goes_on_where_it_was_cut_off(text: Path, lines: Path, tmp_path: Path) -> None:
    plain = [str(text), str(lines), *TWO, *SMALL, "--grid"]
    whole = scored(*plain)
    path = tmp_path / "checkpoint.jsonl"
    assert scored(*plain, "--resume", str(path)) == {**whole, "command": whole["command"]}
    kept = path.read_bytes()
    records = kept.splitlines(keepends=True)
    assert len(records) == 1 + 3 + 3
    for n_whole in range(len(records)):
        path.write_bytes(b"".join(records[:n_whole]) + records[n_whole][:-7])
        assert scored(*plain, "--resume", str(path)) == whole
        assert [without_seconds(r) for r in path.read_bytes().splitlines()] == [without_seconds(r) for r in records]


def without_seconds(record: bytes) -> dict[str, Any]:
    return {key: value for key, value in json.loads(record).items() if key != "seconds"}


def test_what_is_in_the_checkpoint_is_not_scored_again(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint.jsonl"
    whole = scored(str(text), *TWO, *SMALL, "--resume", str(path))
    monkeypatch.setattr(Ensemble, "score", None)
    assert scored(str(text), *TWO, *SMALL, "--resume", str(path)) == whole
    assert "grid" in scored(str(text), *TWO, *SMALL, "--resume", str(path), "--grid")["total"]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (["--stride", "17"], "stride = 16, not 17"),
        (["--context", "9"], "context = 8, not 9"),
        (["--max-bytes", "30"], "max_bytes = None, not 30"),
        (["--rule", "log-linear"], "rule = 'linear', not 'log-linear'"),
        (["--epsilon", "0.1"], "epsilon = 0.01, not 0.1"),
        (["-m", "table:doubter"], "members.0.weight = 0.5, not 0.333"),
    ],
)
def test_a_checkpoint_of_other_settings_is_refused(text: Path, tmp_path: Path, changed: list[str], named: str) -> None:
    path = tmp_path / "checkpoint.jsonl"
    scored(str(text), *TWO, *SMALL, "--resume", str(path))
    kept = path.read_bytes()
    said = refusal("score", str(text), *TWO, *SMALL, *changed, "--resume", str(path))
    assert said.startswith(f"The checkpoint {path} was made with {named}")
    assert path.read_bytes() == kept


def test_a_checkpoint_of_another_plausibility_is_refused(text: Path, tmp_path: Path) -> None:
    contrast = [str(text), *TWO, *SMALL, "--rule", "contrastive", "--resume", str(tmp_path / "checkpoint.jsonl")]
    whole = scored(*contrast)
    assert scored(*contrast, "--plausibility", "0.1")["total"] == whole["total"]
    assert "plausibility = 0.1, not 0.0" in refusal("score", *contrast, "--plausibility", "0")


def test_a_checkpoint_of_another_text_is_refused(text: Path, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.jsonl"
    scored(str(text), *TWO, *SMALL, "--resume", str(path))
    text.write_bytes(text.read_bytes().replace(b"W", b"w"))
    assert "was made with files.0.sha256 = '" in refusal("score", str(text), *TWO, *SMALL, "--resume", str(path))


def test_a_file_that_is_no_checkpoint_is_left_alone(text: Path, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    for notes in ("my notes\n", "my notes", '{"type": "header"}\n', "[1]\n"):
        path.write_text(notes)
        assert "is no checkpoint of" in refusal("score", str(text), *TWO, *SMALL, "--resume", str(path))
        assert path.read_text() == notes


def test_a_damaged_checkpoint_is_refused_by_line(text: Path, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.jsonl"
    scored(str(text), *TWO, *SMALL, "--resume", str(path))
    header, first, second, *rest = path.read_bytes().splitlines(keepends=True)
    for damaged in (
        b"?\n",
        second.replace(b'"start": 16', b'"start": 17'),
        second.replace(b'"logprobs": "', b'"logprobs": "A'),
        second.replace(b'"seconds": ', b'"seconds": null, "taken": '),
        second.replace(b'"n_read": [', b'"n_read": ["a", '),
    ):
        path.write_bytes(b"".join([header, first, damaged, *rest]))
        assert "is damaged in line 3" in refusal("score", str(text), *TWO, *SMALL, "--resume", str(path), "-q")


def test_an_interrupted_run_says_how_to_go_on(text: Path, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.jsonl"
    arguments = ["score", str(text), "-m", "table:slow", "--context", "4", "--stride", "4", "--resume", str(path)]
    process = start(*arguments)
    until = time.monotonic() + 30
    while time.monotonic() < until and (not path.exists() or path.read_bytes().count(b"\n") < 2):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"")
    assert err.decode().endswith(f"kept in {path}: the same command goes on from there.\nInterrupted.\n")
    assert 2 <= path.read_bytes().count(b"\n") < 12


# Progress


def test_lines_come_at_most_every_few_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    with Meter(1000, 200, clock=lambda: now[0]) as meter:
        tell = meter.teller("a.txt", 100)
        for n in range(200, 900, 50):
            now[0] += 1
            tell(n)
    assert capsys.readouterr().err == (
        "a.txt: 500 of 1,000 bytes, 60.0 bytes/s, 8 s left\na.txt: 750 of 1,000 bytes, 55.0 bytes/s, 5 s left\n"
    )


def test_a_terminal_sees_a_bar(text: Path) -> None:
    import os
    import sys

    import pexpect

    environment = {**os.environ, "PYTHONPATH": str(TESTS), "TERM": "xterm", "COLUMNS": "120"}
    arguments = ["-c", COMMAND, "score", str(text), "-m", "table:slow", "--context", "4", "--stride", "4"]
    child = pexpect.spawn(sys.executable, [*arguments, "--max-bytes", "12"], env=environment, encoding="utf-8")
    child.expect(r"━.* of 11 bytes, .* bytes/s")
    child.expect("Bits per byte")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


# What is refused


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "holds no character: at least 2 are needed"),
        ("é".encode(), "holds 1 character: at least 2"),
        (b"ab\xff", "is not valid UTF-8 at byte 2 (0xFF)"),
        (b"abc\xc3", "is not valid UTF-8 at byte 3 (0xC3)"),
        (b"ab\x01c", "holds byte 0x01 at byte 2, which some cannot read"),
    ],
)
def test_texts_that_cannot_be_scored_are_named(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "text"
    path.write_bytes(data)
    said = refusal("score", str(path), *TWO)
    assert said.startswith(f"The text {path} ")
    assert message in said


def test_half_a_character_ends_a_file_only_where_it_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("aé語".encode())
    assert documents.read(path, 5).data == "aé".encode()
    assert documents.read(path, 6).data == documents.read(path, 99).data == "aé語".encode()
    path.write_bytes(b"ab\xff\xc3\xa9")
    with pytest.raises(ConfigError, match="at byte 2"):
        documents.read(path, 4)
    path.write_bytes("é語".encode())
    with pytest.raises(ConfigError, match="holds 1 character in its first 4 bytes"):
        documents.read(path, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such.txt", *TWO], "The text no-such.txt cannot be read: No such file or directory."),
        ([".", *TWO], "The text . cannot be read: Is a directory."),
        (TWO, "No texts to score: give one or more files."),
        (["a.txt"], "No members: give each with -m"),
        (
            ["a.txt", *TWO, "--vote", "pieces"],
            "A score is of bytes, and cannot vote on pieces: leave out --vote",
        ),
        (["a.txt", *TWO, "--grid-step", "0.1"], "--grid-step is for --grid: give that as well."),
        (["a.txt", *TWO, "--grid", "--grid-step", "0.3"], "--grid-step 0.3 does not divide 1"),
        (["a.txt", "-m", "table:nan"], "nan returned NaN or infinite logits"),
        (["a.txt", *TWO, "--save", "no/such.npz"], "no/such.npz cannot be written: No such file or directory."),
        (["a.txt", *TWO, "--resume", "."], ". cannot be written: Is a directory."),
        (
            ["a.txt", "-m", "table:narrow"],
            "A window of 2,048 bytes after 512 others may take 2,563 tokens of narrow, whose context holds 4:"
            " give a smaller --context and --stride, or --n-ctx 2563 or more.",
        ),
    ],
)
def test_what_a_user_can_repair_is_told_and_exits_2(
    arguments: list[str], message: str, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(text.parent)
    assert message in refusal("score", *arguments, "-q")
    assert sorted(path.name for path in text.parent.iterdir()) == ["a.txt"]


def test_a_window_that_surely_fits_is_let_through() -> None:
    vocabulary = opened("some")[0].vocabulary
    for n_ctx, fits in ((2563, True), (2562, False)):
        member = TableMember("m", vocabulary, {}, n_ctx=n_ctx)
        if fits:
            documents.check_fits([member], 512, 2048)
        else:
            with pytest.raises(ConfigError, match="give --stride 2047 or less, or --n-ctx 2563 or more"):
                documents.check_fits([member], 512, 2048)


def test_help_names_the_command() -> None:
    assert "score" in invoke("--help").stdout


@pytest.mark.models
def test_the_demo_models(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("The café opened at seven, and the sun rose over the old harbour.\n", encoding="utf-8")
    demo = ["--preset", "demo", "--threads", "1", "--n-ctx", "64", "--context", "16", "--stride", "20"]
    outcome = scored(str(path), *demo, "--max-bytes", "41", "--grid", "--resume", str(tmp_path / "checkpoint"))
    [row] = outcome["files"]
    assert row["n_scored"] == 40
    assert all(0.5 < one < 4 for one in [*row["bits_per_byte"]["members"].values(), row["bits_per_byte"]["ensemble"]])
    assert [mixture["weights"] for mixture in row["grid"]][:2] == [[1.0], [1.0]]
    assert [len(member["sha256"]) for member in outcome["members"]] == [64, 64]
    assert scored(str(path), *demo, "--max-bytes", "41", "--grid", "--resume", str(tmp_path / "checkpoint")) == outcome
    short = refusal("score", str(path), "--preset", "demo", "--threads", "1", "--n-ctx", "64", "--context", "16")
    assert "give --stride 45 or less, or --n-ctx 2067 or more" in short


# Rules


@pytest.mark.parametrize("rule", [["adaptive"], ["contrastive", "--plausibility", "0"], ["log-linear"]])
def test_every_rule_on_bytes_scores_and_the_grid_is_linear_all_the_same(text: Path, rule: list[str]) -> None:
    plain = scored(str(text), *TWO, *SMALL, "--grid")["total"]
    other = scored(str(text), *TWO, *SMALL, "--grid", "--rule", *rule)["total"]
    assert other["grid"] == plain["grid"]
    assert other["bits_per_byte"]["members"] == plain["bits_per_byte"]["members"]
    assert other["bits_per_byte"]["ensemble"] != plain["bits_per_byte"]["ensemble"]


def test_an_amateur_takes_part_in_a_score(text: Path) -> None:
    found = scored(
        str(text), "-m", "table:some=1", "-m", "table:doubter=-0.5", *SMALL, "--rule", "contrastive", "--grid"
    )
    assert [member["weight"] for member in found["members"]] == [1, -0.5]


def test_rules_that_cannot_score_are_refused(text: Path) -> None:
    assert "choose another rule" in refusal("score", str(text), *TWO, *SMALL, "--rule", "unite")
    assert "linear has no use for it" in refusal("score", str(text), *TWO, *SMALL, "--plausibility", "0.2")


def test_nothing_is_written_over_what_is_read(tmp_path: Path) -> None:
    text = tmp_path / "t.txt"
    text.write_text("abcd")
    same = tmp_path / "x.npz"
    for options in (["--save", str(text)], ["--resume", str(text)], ["--save", str(same), "--resume", str(same)]):
        assert "would be written over" in refusal("score", "-m", "table:some", *options, str(text))
    assert text.read_text() == "abcd" and not same.exists()


def test_the_same_file_is_known_by_any_of_its_names(tmp_path: Path) -> None:
    text, config, link = tmp_path / "t.txt", tmp_path / "c.yaml", tmp_path / "link"
    text.write_text("abcd")
    config.write_text("members: ['table:some']")
    link.symlink_to(text)
    said = refusal("score", "-m", "table:some", "--save", str(link), str(text))
    assert said == f"--save {link} would be written over the text {text}: give --save another file."
    said = refusal("score", "--config", str(config), "--resume", str(config), str(text))
    assert f"over the configuration {config}" in said
    (tmp_path / "sub").mkdir()
    new, roundabout = tmp_path / "new", tmp_path / "sub" / ".." / "new"
    said = refusal("score", "-m", "table:some", "--save", str(new), "--resume", str(roundabout), str(text))
    assert f"over that of --save, {new}" in said
    assert (config.read_text(), text.read_text()) == ("members: ['table:some']", "abcd")


def test_a_checkpoint_that_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "t.txt"
    text.write_text("abcd")
    assert "is no regular file" in refusal("score", "-m", "table:some", "--resume", "/dev/null", str(text))


def test_names_that_are_too_long_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "t.txt"
    text.write_text("abcd")
    assert "too long" in refusal("score", "-m", "table:some", "--save", "s" * 304, str(text)).lower()
    assert "too long" in refusal("score", "-m", "m" * 5000 + "=1", str(text)).lower()
    assert "too long" in refusal("score", "-m", "m" * 5000 + ".gguf", str(text)).lower()
    assert "No model named" in refusal("score", "-m", "m" * 5000, str(text))


def test_scores_are_saved_under_the_longest_name_that_the_system_takes(text: Path) -> None:
    path = text.parent / ("s" * 251 + ".npz")
    assert invoke("score", "-m", "table:some", *SMALL, "--save", str(path), str(text), "-q").exit_code == 0
    assert invoke("score", "--load", str(path)).exit_code == 0
    assert sorted(text.parent.iterdir()) == sorted([path, text])


def test_file_names_that_are_not_utf8_are_escapes_in_json(tmp_path: Path) -> None:
    text, saved, kept = (tmp_path / f"{name}\udcff" for name in ("text", "saved.npz", "kept"))
    text.write_text("abcd")
    odd = ["-m", "table:some", "--save", str(saved), "--resume", str(kept), str(text)]
    outcome = scored(*odd)
    assert outcome["files"][0]["file"] == str(text)
    assert scored("--load", str(saved))["files"] == outcome["files"]
    assert scored(*odd) == outcome


def test_a_model_whose_name_is_not_utf8_is_refused(text: Path) -> None:
    assert "rename that, or link to it" in refusal("score", "-m", "odd\udcff.gguf", str(text))


def test_a_table_has_a_file_name_that_is_not_utf8(tmp_path: Path) -> None:
    text = tmp_path / "text\udcff"
    text.write_text("abcd")
    out, err = start("score", "-m", "table:some", "-q", str(text)).communicate(timeout=60)
    assert "\\udcff" in out.decode()
    assert err == b""


def test_the_first_bytes_of_a_pipe_may_end_inside_a_character(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes("abcé more".encode()))
    writer.start()
    assert documents.read(pipe, 4).data == b"abc"
    writer.join()
