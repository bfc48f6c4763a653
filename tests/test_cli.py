"""The command line as a whole: starting, exit codes, being stopped. Also what the tests of its commands share."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import unisono
from unisono.cli.main import app
from unisono.config import MemberConfig
from unisono.demo import open_demo
from unisono.members.base import Member
from unisono.members.fake import TableMember
from unisono.registry import BACKENDS
from unisono.vocabulary import Kind, Vocabulary

TESTS = Path(__file__).parent

COMMAND = """
import unisono.__main__, unisono.registry
unisono.registry.BACKENDS.update(table="test_cli:open_table", hasty="test_cli:open_hasty")
unisono.__main__.main()
"""
"""The command line with the backends of this file besides."""

LETTERS = [bytes([b]) for b in (10, *range(32, 127))]
SOME = [b"", *LETTERS, b"\xc3", b"\xa9", b"\x1b", b" the", b"re"]
"""A vocabulary that spells é as two pieces."""
OTHERS = [b"", *LETTERS, "é".encode(), b"\xc3", b"\xa9", b"\x1b", b" there", b" here"]
"""One that has it as a piece of its own."""

PROMPT = "Who is"
REPLIES = {
    "some": (SOME, " there, café?\n"),
    "others": (OTHERS, " there, café?\n"),
    "doubter": (OTHERS, " here, café?\n"),
    "rude": (SOME, " a \x1b[2J[red]b"),
}
"""What members of the backend "table" write after PROMPT."""


def open_table(where: str, name: str, config: MemberConfig) -> TableMember:
    """A member without a model: one of REPLIES, or nan, late-nan, narrow; slow and stubborn never end."""
    if where == "stubborn":
        _stubborn_callback()
    pieces, reply = REPLIES.get(where, REPLIES["some"])
    vocabulary = Vocabulary.build(pieces, kinds={0: Kind.END})
    whole = (PROMPT + reply).encode()

    def answer(ids: tuple[int, ...]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        read = vocabulary.join(ids)
        out = np.zeros(vocabulary.n_ids)
        if where == "nan" or (where == "late-nan" and len(read) > len(PROMPT) + 5):
            out[:] = np.nan
        elif where in ("slow", "stubborn"):
            time.sleep(0.05)
            out[pieces.index(b"x")] = 9
        elif whole.startswith(read) and (rest := whole[len(read) :]):
            out[max(range(1, len(pieces)), key=lambda i: len(pieces[i]) * rest.startswith(pieces[i]))] = 9
        else:
            out[0] = 9
        return out

    return TableMember(name, vocabulary, answer, n_ctx=4 if where == "narrow" else 1 << 20)


def open_hasty(where: str, name: str, config: MemberConfig) -> Member:
    """A demo model, with Ctrl-C so many seconds after it has begun to load."""
    threading.Timer(float(where), os.kill, (os.getpid(), signal.SIGINT)).start()
    return open_demo("gemma3-270m", name, config)


def _stubborn_callback() -> None:
    """C code that calls back to Python again and again, as llama.cpp does when a model loads; Ctrl-C comes in there."""
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    calls = iter(range(1 << 20))

    def compare(a: int, b: int) -> int:
        if next(calls) == 10:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.001)
        return 0

    numbers = (ctypes.c_int * 64)()
    ctypes.CDLL(None).qsort(numbers, 64, ctypes.sizeof(ctypes.c_int), kind(compare))


def invoke(*arguments: str, input: str | bytes | None = None) -> Result:
    """Run a command in this process, with the backend "table" and a cache folder of its own."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setitem(BACKENDS, "table", f"{__name__}:open_table")
        patch.setenv("UNISONO_CACHE", folder)
        result = CliRunner().invoke(app, arguments, input=input)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def refusal(*arguments: str, input: str | bytes | None = None) -> str:
    """The one message of a command that must exit 2 and print nothing else."""
    result = invoke(*arguments, input=input)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("Error: ").strip()


def start(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """Run COMMAND in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        # A runner in the background may have had its own SIGINT ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )


def stop_after_first_byte(process: subprocess.Popen[bytes], signum: int) -> tuple[str, str]:
    """Send a signal once something has been written; all of standard output, and standard error."""
    assert process.stdout
    first = process.stdout.read(1)
    time.sleep(0.3)
    process.send_signal(signum)
    out, err = process.communicate(timeout=60)
    return (first + out).decode(), err.decode()


def test_version() -> None:
    assert invoke("--version").stdout == f"unisono {unisono.__version__}\n"


def test_help_names_the_commands() -> None:
    for arguments in ([], ["--help"], ["-h"]):
        out = invoke(*arguments).output
        assert all(command in out for command in ("run", "chat", "inspect", "bench"))


@pytest.mark.parametrize("code", ["import unisono", "from unisono.cli import main"])
def test_starting_imports_nothing_heavy(code: str) -> None:
    heavy = ["numpy", "pydantic", "yaml", "jinja2", "llama_cpp", "rich"]
    check = f"{code}; import sys; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", check], text=True) == "[]\n"


def test_help_starts_quickly() -> None:
    def seconds(*arguments: str) -> float:
        times = []
        for _ in range(3):
            begun = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
            times.append(time.perf_counter() - begun)
        return min(times)

    # 0.2 s on a quiet machine; see it with: time unisono --help
    assert seconds("-m", "unisono", "--help") - seconds("-c", "pass") < 1


@pytest.mark.parametrize("arguments", [["run", "--no-such-option"], ["no-such-command"], ["run", "--max-tokens", "x"]])
def test_what_typer_refuses_exits_2(arguments: list[str]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert arguments[1 if len(arguments) > 1 else 0] in result.stderr


def test_ctrl_c_keeps_the_text_and_tells_the_cost() -> None:
    out, err = stop_after_first_byte(process := start("run", "-m", "table:slow", PROMPT), signal.SIGINT)
    assert process.returncode == 130
    assert set(out) == {"x"}
    assert "finish: interrupted\nInterrupted.\n" in err


def test_sigterm_winds_up_as_ctrl_c_does() -> None:
    out, err = stop_after_first_byte(process := start("run", "-m", "table:slow", PROMPT), signal.SIGTERM)
    assert process.returncode == 143
    assert set(out) == {"x"}
    assert "finish: interrupted\nTerminated.\n" in err


def test_ctrl_c_in_a_callback_from_c_is_not_lost() -> None:
    process = start("run", "-m", "table:stubborn", PROMPT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.endswith(b"Interrupted.\n")
    assert b"Traceback" not in err


def test_a_reader_that_goes_away_ends_it_quietly() -> None:
    process = start("run", "-m", "table:slow", PROMPT)
    assert process.stdout
    assert process.stderr
    process.stdout.read(1)
    process.stdout.close()
    assert process.wait(timeout=60) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


def test_closed_output_is_done_without() -> None:
    line = [sys.executable, "-c", COMMAND, "run", "-m", "table:some", PROMPT]
    command = ["sh", "-c", '"$@" >&- 2>&-', "sh", *line]
    assert subprocess.run(command, env={**os.environ, "PYTHONPATH": str(TESTS)}).returncode == 0


@pytest.mark.parametrize("command", [["run", "-q"], ["run", "-q", "--show-votes"], ["inspect"]], ids=" ".join)
def test_a_full_disk_is_told(command: list[str]) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    prompt = [PROMPT] if command[0] == "run" else []
    line = [sys.executable, "-c", COMMAND, *command, "-m", "table:some", *prompt]
    with open("/dev/full", "w") as full:
        env = {**os.environ, "PYTHONPATH": str(TESTS)}
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, env=env, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("Error: Standard output cannot be written: No space left")


def test_a_terminal_is_not_steered_by_what_models_write() -> None:
    import pexpect

    arguments = ["-c", COMMAND, "run", "-m", "table:rude", "-q", PROMPT]
    child = pexpect.spawn(sys.executable, arguments, env={**os.environ, "PYTHONPATH": str(TESTS)}, encoding="utf-8")
    child.expect(pexpect.EOF)
    child.close()
    assert child.before == " a \\x1b[2J[red]b\r\n"


@pytest.mark.models
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_real_models_can_be_interrupted(signum: int, code: int, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    arguments = ["--preset", "demo", "--threads", "1", "--max-tokens", "2000", "--trace", str(trace)]
    process = start("run", *arguments, "Once upon a time")
    out, err = stop_after_first_byte(process, signum)
    assert process.returncode == code
    assert out.startswith(",")
    assert "finish: interrupted" in err
    assert '"finish": "interrupted"' in trace.read_text().splitlines()[-1]


@pytest.mark.models
@pytest.mark.parametrize("wait_s", ["0.05", "0.2", "0.5"])
def test_ctrl_c_while_models_load(wait_s: str) -> None:
    process = start("run", "-m", f"hasty:{wait_s}", "--threads", "1", "--max-tokens", "2000", "Once upon a time")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.endswith(b"Interrupted.\n")
    assert b"Traceback" not in err
