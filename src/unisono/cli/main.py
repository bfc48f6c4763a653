"""The `unisono` command: its subcommands, and what becomes of whatever goes wrong in them.

Exit codes: 0 done; 2 something the user can repair, told in one message on stderr; 130 Ctrl-C; 143 SIGTERM;
141 whoever read our output has gone.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from unisono.cli import bench, chat, inspect, run, score, show
from unisono.cli.stopping import Terminated
from unisono.errors import EnsembleError


class Group(TyperGroup):
    """Turns what a user can repair, and every way to be stopped, into a message and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except EnsembleError as exc:
            show.say(f"Error: {exc}")
            raise typer.Exit(2) from None
        except Terminated:
            show.say("Terminated.")
            raise typer.Exit(143) from None
        except KeyboardInterrupt:
            show.say("Interrupted.")
            raise typer.Exit(130) from None
        except BrokenPipeError:
            show.abandon(sys.stdout)
            raise typer.Exit(141) from None


app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help starts twice as fast
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(run.run)
app.command()(chat.chat)
app.command()(inspect.inspect)
app.command()(bench.bench)
app.command()(score.score)


def _version(wanted: bool) -> None:
    if wanted:
        from unisono import __version__

        typer.echo(f"unisono {__version__}")
        raise typer.Exit


@app.callback()
def unisono(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Several language models write one text together, whatever their tokenizers."""


def main() -> None:
    """Run the command line; ends the process with its exit code."""
    # OpenMP's threads spin while they wait, for a long time: beside another busy process, llama.cpp's then wait for
    # each other thirty times as long. Spinning briefly is as fast on quiet cores, and several times faster on busy.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = _once_more
    nowhere = open(os.devnull, "w")  # noqa: SIM115  (as long as the process)
    sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere  # None where the caller has closed one
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a character sees its number
    try:
        app(prog_name="unisono")
    except KeyboardInterrupt as exc:  # before or after a command
        sys.exit(143 if isinstance(exc, Terminated) else 130)
    finally:
        try:
            sys.stdout.flush()
        except OSError:
            show.abandon(sys.stdout)


def _terminate(signum: int, frame: FrameType | None) -> NoReturn:
    raise Terminated


def _once_more(unraisable: sys.UnraisableHookArgs) -> None:
    """Ctrl-C that falls into a callback from C, such as llama.cpp's log while a model loads, is swallowed there
    (docs.python.org/3/library/ctypes.html#callback-functions); so send it again a moment later."""
    error = unraisable.exc_value
    if not isinstance(error, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
        return
    signum = signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT
    again = threading.Timer(0.02, _thread.interrupt_main, (signum,))
    again.daemon = True
    again.start()
