"""What the pages show, works: their examples are run as a reader would, each page's in a folder of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from unisono import pooling
from unisono.config import Config

ROOT = Path(__file__).parents[1]
README, ADDING, RULES = "README.md", "docs/adding-a-member.md", "docs/rules.md"
PAGES = [README, ADDING, RULES, "CONTRIBUTING.md", "docs/structure.md", "docs/score.md", "docs/writing.md"]
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*) -->\n)?^```(?P<language>\w+)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    """One fenced example."""

    page: str
    language: str
    code: str
    line: int
    mark: str
    """The comment above it: "not run: WHY", "file: NAME", or nothing."""


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(page, m["language"], m["code"], text.count("\n", 0, m.start("code")) + 1, m["mark"] or "")
        for m in BLOCK.finditer(text)
    ]


RUN = [
    pytest.param(b, marks=pytest.mark.models if page == README else (), id=f"{page}:{b.line}")
    for page in (README, ADDING, RULES)
    for b in blocks(page)
    if b.language in ("sh", "python") and not b.mark
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """For each page, a folder that holds the files which it shows."""
    out = {}
    for page in (README, ADDING, RULES):
        out[page] = tmp_path_factory.mktemp("page")
        for block in blocks(page):
            if block.mark.startswith("file: "):
                (out[page] / block.mark.removeprefix("file: ")).write_text(block.code, encoding="utf-8")
    return out


@pytest.mark.parametrize("block", RUN)
def test_every_example_runs(block: Block, folders: dict[str, Path], model_file: Callable[[str], Path]) -> None:
    if block.page == README:
        model_file("smollm2-135m"), model_file("gemma3-270m")  # or else this is skipped
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # our own `unisono`
    shell = ["bash", "-euo", "pipefail", "-c", block.code]
    done = subprocess.run(
        shell if block.language == "sh" else [sys.executable, "-W", "error", "-c", block.code],
        cwd=folders[block.page],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("page", [README, ADDING, RULES])
def test_a_comment_above_an_example_says_why_it_is_not_run(page: str) -> None:
    marks = [block.mark for block in blocks(page) if block.mark]
    assert [mark for mark in marks if not mark.startswith(("not run: ", "file: "))] == []


def test_the_configuration_file_is_valid() -> None:
    [config] = [b for b in blocks(README) if b.language == "yaml"]
    assert len(Config.model_validate(yaml.safe_load(config.code)).members) == 2


def test_the_page_of_rules_names_every_rule() -> None:
    text = (ROOT / RULES).read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+)$", text, re.MULTILINE) == list(pooling.RULES)
    assert re.findall(r"^\| `(\S+)` \|", text, re.MULTILINE) == list(pooling.RULES)


def test_the_two_commands_stand_at_the_top() -> None:
    lines = blocks(README)[0].code.splitlines()
    assert [line.partition("#")[0].strip() for line in lines] == ["make demo", "make test"]


def test_the_table_of_options_is_up_to_date() -> None:
    subprocess.run([sys.executable, ROOT / "tools" / "options.py", "--check"], check=True)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []
