"""unisono chat: turns, commands, Ctrl-C, and errors that do not end a conversation."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import Result

from test_cli import COMMAND, SOME, TESTS, invoke, refusal
from unisono.cli.conversation import NAMES, Conversation, parsed
from unisono.cli.stopping import GentleStop
from unisono.config import MemberConfig
from unisono.errors import ConfigError, PromptError, UnknownName
from unisono.members.fake import TableMember
from unisono.registry import BACKENDS
from unisono.vocabulary import Kind, Vocabulary

TALK = COMMAND.replace("table=", "talker='test_cli_chat:open_talker', table=")
"""The command line with the backends of the tests, this file's among them."""


def open_talker(where: str, name: str, config: MemberConfig) -> TableMember:
    """A member that answers how many questions it has read, the last of them, and yes. A name that is a number is how
    many tokens its context holds. At the question nan it fails after a while; stop sends Ctrl-C after a while, stop now
    at once."""
    vocabulary = Vocabulary.build(SOME, kinds={0: Kind.END})
    sent: set[str] = set()

    def answer(ids: tuple[int, ...]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        read, _, said = vocabulary.join(ids).decode(errors="replace").rpartition("\nAssistant:")
        questions = re.findall("^User: (.*)$", read, re.MULTILINE)
        out = np.zeros(vocabulary.n_ids)
        if not questions:
            return out
        question = questions[-1]
        if question == "nan" and len(said) > 2:
            out[:] = np.nan
        if (question == "stop now" or (question == "stop" and len(said) > 5)) and read not in sent:
            sent.add(read)
            os.kill(os.getpid(), signal.SIGINT)
        reply = f" {len(questions)}: {question}, {'x' * 50 if question == 'stop' else 'yes'}"
        rest = reply[len(said) :].encode() if reply.startswith(said) else b""
        out[max(range(1, len(SOME)), key=lambda i: len(SOME[i]) * rest.startswith(SOME[i])) if rest else 0] = 9
        return out

    return TableMember(name, vocabulary, answer, n_ctx=int(where) if where.isdigit() else 1 << 20)


Chat = Callable[..., Result]


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> Chat:
    """Runs a chat with a talker through the lines given."""
    monkeypatch.setitem(BACKENDS, "talker", f"{__name__}:open_talker")

    def run(*arguments: str, lines: str | bytes) -> Result:
        members = () if "-m" in arguments else ("-m", "talker:anna")
        result = invoke("chat", *members, *arguments, input=lines)
        assert result.exit_code == 0
        return result

    return run


def test_each_line_is_a_turn_and_the_answers_alone_are_on_standard_output(chat: Chat) -> None:
    result = chat(lines="hi\n\n  \r\nyo\r\nlast")
    assert result.stdout == " 1: hi, yes\n 2: yo, yes\n 3: last, yes\n"
    assert result.stderr.count("has no chat template") == 1, "a note is told once"
    assert result.stderr.count("; finish: end\n") == 3
    assert chat("-q", lines="hi\nyo").stderr == ""


def test_no_lines_are_a_conversation_too(chat: Chat) -> None:
    assert chat("-q", lines="").output == ""


def test_options_hold_for_each_answer(chat: Chat) -> None:
    assert chat("--max-tokens", "3", lines="hi\nyo").stdout == " 1:\n 2:\n"
    assert chat("--stop", ",", lines="hi\nyo").stdout == " 1: hi\n 2: yo\n"


def test_reset_forgets_the_turns_and_keeps_the_system_message(chat: Chat, tmp_path: Path) -> None:
    path = tmp_path / "a b.json"
    result = chat("-q", "--system", "Un café.", lines=f"hi\n/reset\nyo\n/save {path}\n")
    assert result.stdout == " 1: hi, yes\n 1: yo, yes\n"
    assert result.stderr == (f"The conversation begins anew; the system message stays.\nSaved: 3 messages in {path}\n")
    assert json.loads(path.read_text(encoding="utf-8")) == [
        {"role": "system", "content": "Un café."},
        {"role": "user", "content": "yo"},
        {"role": "assistant", "content": "1: yo, yes"},
    ]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_undo_takes_back_one_turn_after_the_other(chat: Chat) -> None:
    result = chat("-q", lines="hi\nyo\n/undo\nho\n/undo\n/undo\n/undo\n")
    assert result.stdout == " 1: hi, yes\n 2: yo, yes\n 2: ho, yes\n"
    assert result.stderr.splitlines() == [
        "Taken back: yo",
        "Taken back: ho",
        "Taken back: hi",
        "There is no turn to take back.",
    ]


def test_votes_are_shown_from_the_next_answer_on(chat: Chat) -> None:
    result = chat("-q", lines="hi\n/votes\nyo\n/votes\nho")
    first, *table, last = result.stdout.splitlines()
    assert (first, last) == (" 1: hi, yes", " 3: ho, yes")
    assert table[3].split() == ["word", "choice", "p", "anna"]
    assert table[-2:] == ["", " 2: yo, yes"]
    assert "Votes are shown from the next answer on.\nVotes are hidden" in result.stderr
    begun = chat("-q", "--show-votes", "--votes-by", "character", lines="hi\n/votes\nyo").stdout.splitlines()
    assert begun[3].split()[0] == "char"
    assert begun[-1] == " 2: yo, yes"


def test_help_names_every_command_and_quit_leaves(chat: Chat) -> None:
    result = chat("-q", lines="/help\n/quit\nhi")
    assert result.stdout == ""
    assert all(name in result.stderr for name in NAMES)


def test_two_slashes_are_one_and_no_command(chat: Chat) -> None:
    assert chat("-q", lines="//reset\n/reset\n").stdout == " 1: /reset, yes\n"
    assert parsed("//") == (None, "/")


@pytest.mark.parametrize(
    ("line", "kind", "said"),
    [
        ("/rest", UnknownName, "Did you mean '/reset'?"),
        ("/save", PromptError, "/save FILE.json"),
        ("/save chat.txt", PromptError, "ends in .json"),
        ("/undo 2", PromptError, "/undo stands alone on its line: leave out '2'"),
        ("/usr/bin is what?", UnknownName, "A line that begins with // is text"),
    ],
)
def test_a_command_that_cannot_be_obeyed_says_why(line: str, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=re.escape(said)):
        parsed(line)


def test_what_cannot_be_obeyed_or_read_does_not_end_the_conversation(chat: Chat, tmp_path: Path) -> None:
    lines = f"hi\n/rest\n/save {tmp_path}/x\0.json\n\xff\n\x01\nyo".encode("latin-1")
    result = chat("-q", lines=lines)
    assert result.stdout == " 1: hi, yes\n 2: yo, yes\n"
    said = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert [line.split()[1] for line in said] == ["No", f"{tmp_path}/x\0.json", "line", "The"]


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.mkdir()
    with pytest.raises(ConfigError, match=r"chat\.json cannot be written: .*directory"):
        Conversation(None, [("hi", "ho")]).save(path)
    assert list(tmp_path.iterdir()) == [path]
    (tmp_path / "old.json").write_text("old")
    with pytest.raises(ConfigError, match="cannot be written"):
        Conversation(None, [("hi", "\ud800")]).save(tmp_path / "old.json")
    assert (tmp_path / "old.json").read_text() == "old"


def test_a_turn_that_fails_is_taken_back(chat: Chat) -> None:
    result = chat("-q", lines="hi\nnan\nyo")
    hi, begun, yo = result.stdout.splitlines()
    assert (hi, yo) == (" 1: hi, yes", " 2: yo, yes")
    assert " 2: nan".startswith(begun)
    assert result.stderr.startswith("Error: anna returned NaN")
    assert result.stderr.endswith("\nThe turn is taken back.\n")


def test_a_conversation_that_no_longer_fits_is_kept(chat: Chat, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    result = chat("-q", "-m", "talker:60", lines=f"hi\n{'y' * 40}\nyo\n/save {path}\n/reset\nho\n")
    assert result.stdout == " 1: hi, yes\n 2: yo, yes\n 1: ho, yes\n"
    assert "whose context holds 60" in result.stderr
    assert "/reset begins anew" in result.stderr
    assert "--n-ctx" in result.stderr
    assert [m["content"] for m in json.loads(path.read_text())] == ["hi", "1: hi, yes", "yo", "2: yo, yes"]


def test_ctrl_c_stops_an_answer_and_keeps_what_was_written(chat: Chat, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    before = signal.getsignal(signal.SIGINT)
    result = chat(lines=f"stop\nyo\n/save {path}\n")
    first, second = result.stdout.splitlines()
    assert first.startswith(" 1: s") and len(first) < 20
    assert second == " 2: yo, yes"
    assert "; finish: interrupted\n" in result.stderr
    assert json.loads(path.read_text())[1]["content"] == first.strip()
    assert signal.getsignal(signal.SIGINT) is before


def test_an_answer_stopped_before_its_first_word_is_no_turn(chat: Chat) -> None:
    result = chat("-q", lines="stop now\nyo")
    assert result.stdout.splitlines()[-1] == " 1: yo, yes"
    assert result.stderr == "Nothing has been written: the turn is taken back.\n"


def test_a_second_ctrl_c_does_not_wait() -> None:
    with GentleStop() as stop:
        stop.check()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            stop.check()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        stop.over = True
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_who_ignores_ctrl_c_goes_on_ignoring_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with GentleStop() as stop:
            signal.raise_signal(signal.SIGINT)
            assert not stop.asked
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "No members: give each with -m"),
        (["-m", "no-such.gguf"], "No such file"),
        (["-m", "table:some", "--votes-by", "wrod"], "Did you mean 'word'?"),
        (["-m", "table:some", "--vote", "pieces", "--epsilon", "0.1"], "--epsilon is for voting on bytes"),
        (["-m", "table:some", "--top-k", "3"], "top_k is for drawing"),
        (["-m", "table:narrow", "-q"], "whose context holds 4"),
        (["-m", "table:some", "--system", "a\udcff"], "The system message is not valid UTF-8"),
    ],
)
def test_errors_at_the_start_exit_2(arguments: list[str], message: str) -> None:
    assert message in refusal("chat", *arguments, input="hi\n")


def test_a_full_disk_ends_the_conversation() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    line = [sys.executable, "-c", TALK, "chat", "-m", "talker:anna", "-q"]
    with open("/dev/full", "w") as full:
        env = {**os.environ, "PYTHONPATH": str(TESTS)}
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, env=env, text=True, input="hi\nyo\n")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("Error: Standard output cannot be written: No space left")


@pytest.mark.parametrize("leave", ["eof", "intr", "quit", "term"])
def test_a_terminal_has_a_prompt_mark_and_ctrl_c_stops_answers_only(leave: str) -> None:
    import pexpect

    arguments = ["-c", TALK, "chat", "-m", "table:slow"]
    env = {**os.environ, "PYTHONPATH": str(TESTS), "TERM": "xterm", "NO_COLOR": "1"}
    child = pexpect.spawn(sys.executable, arguments, env=env, encoding="utf-8", timeout=30)
    child.expect("slow: /help lists the commands, Ctrl-D leaves.\r\n")
    for _ in range(2):
        child.expect("> ")
        child.sendline("Hi")
        child.expect("xx")
        child.sendintr()
        child.expect("finish: interrupted\r\n")
    child.expect("> ")
    if leave == "eof":
        child.sendeof()
    elif leave == "intr":
        child.sendintr()
    elif leave == "quit":
        child.sendline("/quit")
    else:
        child.kill(signal.SIGTERM)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == (143 if leave == "term" else 0)


def test_the_prompt_mark_stays_out_of_a_pipe_for_the_answers(tmp_path: Path) -> None:
    import pexpect

    command = ["-c", 'exec "$@" > "$OUT"', "sh", sys.executable, "-c", TALK, "chat", "-m", "talker:anna", "-q"]
    env = {**os.environ, "PYTHONPATH": str(TESTS), "OUT": str(tmp_path / "out")}
    child = pexpect.spawn("sh", command, env=env, encoding="utf-8", timeout=30)
    for line in ("hi", "yo"):
        child.expect("> ")
        child.sendline(line)
    child.expect("> ")
    child.sendeof()
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    assert (tmp_path / "out").read_text() == " 1: hi, yes\n 2: yo, yes\n"


@pytest.mark.models
def test_the_demo_models_talk(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    demo = ["--preset", "demo", "--threads", "1", "--n-ctx", "128", "--max-tokens", "4"]
    result = invoke("chat", *demo, input=f"Name a fruit.\nAnother.\n/save {path}\n{'word ' * 200}\n")
    assert result.exit_code == 0
    roles, contents = zip(*[(m["role"], m["content"]) for m in json.loads(path.read_text())], strict=True)
    assert roles == ("user", "assistant") * 2
    assert all(content in result.stdout for content in contents[1::2])
    assert result.stderr.count("gemma3-270m has no chat template") == 1
    assert "/reset begins anew" in result.stderr
