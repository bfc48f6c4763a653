"""What the benchmark scripts share: loading members once, and printing a table with the command that made it."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from unisono import Ensemble
from unisono.config import PRESETS

os.environ.setdefault("GOMP_SPINCOUNT", "20000")  # as under the command line; see cli/main.py

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
"""Real evaluation texts, where they lie beside the project."""


def dev_prompts(n: int) -> list[str]:
    """The first questions of each evaluation set in turn; a few sentences of our own where the sets are absent."""
    sets = [
        [json.loads(line)["question"] for line in path.read_text(encoding="utf-8").splitlines()]
        for path in sorted(DATA.glob("*-dev.jsonl"))
        if not path.name.startswith("text-")
    ] or [
        ["Once upon a time", "The capital of France is", "def fibonacci(n):\n", "Water boils at", "To make tea, first"]
    ]
    turns = [questions[k] for k in range(max(map(len, sets))) for questions in sets if k < len(questions)]
    return turns[:n]


def arguments(description: str, **defaults: int | float | str) -> argparse.Namespace:
    """-m, --threads, and a flag for each default."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("-m", "--model", action="append", help="spec of a member; the demo models if none is given")
    parser.add_argument("--threads", type=int, default=2)
    for name, default in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    out = parser.parse_args()
    out.model = out.model or PRESETS["demo"]
    return out


def load(args: argparse.Namespace, **options: Any) -> Ensemble:
    """The ensemble of the arguments."""
    return Ensemble.load(args.model, threads=args.threads, **options)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table, and below it how it was made."""
    table = Table(title=title, title_justify="left")
    for n, column in enumerate(columns):
        table.add_column(column, justify="left" if n == 0 else "right")
    for row in rows:
        table.add_row(*(f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row))
    console = Console()
    console.print(table)
    console.print(f"python {shlex.join(sys.argv)}   ({platform.machine()}, Python {platform.python_version()})")
