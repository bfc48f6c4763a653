"""docs/structure.md is true: it names every file, and imports point down its list of layers."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "unisono"
PAGE = (ROOT / "docs" / "structure.md").read_text(encoding="utf-8")

HOMES: dict[str, str | tuple[str, ...]] = {
    "numpy": "",
    "pydantic": ("config", "gac"),
    "yaml": "config",
    "jinja2": "chat",
    "typer": "cli.",
    "rich": "cli.",
    "llama_cpp": "members.llamacpp",
    "torch": "members.hf",
    "transformers": "members.hf",
    "bitsandbytes": "members.hf",
    "gguf": "members.hf",
    "safetensors": "members.hf",
    "tokenizers": "members.hf",
    "sentencepiece": "members.hf",
}
"""What others made -> how the names of the modules that may import it begin."""


def block(language: str) -> list[str]:
    """The lines of the page's one block in this language."""
    [found] = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return [line for line in str(found).splitlines() if line]


def mapped_files() -> Iterator[str]:
    """The paths on the map, relative to the repository."""
    folder = ""
    for line in block("map"):
        path = line.split()[0]
        if line.startswith("  "):
            yield folder + path
        elif path.endswith("/"):
            folder = path
        else:
            yield path


def module_name(path: Path) -> str:
    """As the layers call it: members/base.py is members.base."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


MODULES = {module_name(path): path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"}
LAYERS = [line.split() for line in block("layers")]
DEPTH = {module: depth for depth, modules in enumerate(LAYERS) for module in modules}


def imports(path: Path) -> Iterator[str]:
    """Every name that a file imports, wherever in it: `unisono.cache`, `unisono.__version__`, `numpy.typing`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path}: relative imports hide where they point"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                module = whole.removeprefix("unisono.") in MODULES or node.module == "unisono"
                yield whole if module else node.module


def test_the_map_names_every_file() -> None:
    mapped = list(mapped_files())
    folders = ["src/unisono", "tests", "benchmarks", "examples", "tools"]
    files = {p.relative_to(ROOT).as_posix() for folder in folders for p in (ROOT / folder).rglob("*") if p.is_file()}
    there = {file for file in files if "__pycache__" not in file}
    assert sorted(there.difference(mapped)) == [], "not on the map of docs/structure.md"
    assert [path for path in mapped if not (ROOT / path).is_file()] == [], "on the map, but not there"
    assert len(mapped) == len(set(mapped))


def test_every_module_has_a_layer() -> None:
    assert sorted(DEPTH) == sorted(MODULES)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_point_down(module: str) -> None:
    for name in imports(MODULES[module]):
        ours = name.removeprefix("unisono.")
        if name.startswith("unisono.") and ours != "__version__":
            assert ours in DEPTH, f"{module} imports {name}, which is no module"
            assert DEPTH[module] < DEPTH[ours], f"{module} imports {ours}, which does not lie below it"


@pytest.mark.parametrize("module", sorted(MODULES))
def test_what_others_made_has_one_home(module: str) -> None:
    for name in imports(MODULES[module]):
        top = name.partition(".")[0]
        if top != "unisono" and top not in sys.stdlib_module_names:
            assert top in HOMES, f"{module} imports {top}: give it a home in HOMES"
            assert module.startswith(HOMES[top]), f"{module} imports {top}, whose home is {HOMES[top]}"


def test_only_the_command_line_prints() -> None:
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                assert module.startswith("cli."), f"{module} prints in line {node.lineno}"


def test_importing_the_package_imports_nothing_heavy() -> None:
    program = f"import sys, unisono; print(*[m for m in {list(HOMES)} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
