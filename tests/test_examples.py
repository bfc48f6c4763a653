"""Every program under examples/ runs and prints something."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
NEEDS_NO_MODEL = {"own_member.py"}


@pytest.mark.parametrize(
    "example",
    [pytest.param(e, marks=() if e.name in NEEDS_NO_MODEL else pytest.mark.models, id=e.name) for e in EXAMPLES],
)
def test_every_example_runs(example: Path, tmp_path: Path, model_file: Callable[[str], Path]) -> None:
    if example.name not in NEEDS_NO_MODEL:
        model_file("smollm2-135m"), model_file("gemma3-270m")  # or else this is skipped
    done = subprocess.run(
        [sys.executable, "-W", "error", example], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
