"""Write the README's table of options anew, from Config, MemberConfig and the flags of `unisono run`.

python tools/options.py            # write it
python tools/options.py --check    # say whether it is up to date, and exit 1 if it is not
"""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer.main
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from unisono.cli.main import app
from unisono.config import Config, MemberConfig

README = Path(__file__).resolve().parents[1] / "README.md"
BEGIN, END = "<!-- options: begin; `make docs` writes this -->\n", "<!-- options: end -->\n"
WORDS: dict[Any, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    Any: "anything",
    MemberConfig: "member",
}
FLAGS = {"members": "`-m` for each", "weight": "`-m SPEC=WEIGHT`", "model": "`-m SPEC`"}
"""Flags that are not called like the key."""


def tables() -> str:
    """Both tables, as markdown."""
    return f"An ensemble:\n\n{table(Config)}\nEach of its `members`:\n\n{table(MemberConfig)}"


def table(model: type[BaseModel]) -> str:
    """One row a field."""
    flags = run_flags()
    rows = [["key", "value", "default", "flag", "meaning"], ["---"] * 5]
    for key, field in model.model_fields.items():
        flag = FLAGS.get(key) or flags.get(key, "")
        meaning = " ".join((field.description or "").split()).replace("None", "null")  # as YAML spells it
        rows.append([f"`{key}`", value(field), default(field), flag, meaning.replace("|", "\\|")])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def value(field: FieldInfo) -> str:
    """What may stand there, in words."""
    null = ["or null"] if type(None) in get_args(field.annotation) else []
    return " ".join([_words(field.annotation), *_bounds(field.metadata), *null])


def _bounds(metadata: Sequence[Any]) -> list[str]:
    limits = {type(limit).__name__: limit for limit in metadata}
    bounds = [f"from {limits['Ge'].ge}"] if "Ge" in limits else []
    bounds += [f"to {limits['Le'].le}"] if "Le" in limits else []
    bounds += [f"below {limits['Lt'].lt}"] if "Lt" in limits else []
    assert len(bounds) == len(limits.keys() - {"MinLen"}), f"a bound without words: {limits}"
    return bounds


def _words(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(_words(part) for part in arguments if part is not type(None))
    if origin is Literal:
        return " or ".join(f"`{choice}`" for choice in arguments)
    if origin is Annotated:
        return " ".join([_words(arguments[0]), *_bounds(annotation.__metadata__[0].metadata)])
    if origin is dict:
        return f"{_words(arguments[0])} to {_words(arguments[1])}"
    if origin is list:
        return f"list of {_words(arguments[0])}s"
    return WORDS[annotation]


def default(field: FieldInfo) -> str:
    """As YAML spells it; empty where a value must be given."""
    if field.is_required():
        return ""
    spelled = {None: "null", True: "true", False: "false"}
    plain = field.get_default()
    return f"`{spelled[plain] if plain is None or isinstance(plain, bool) else plain}`"


def run_flags() -> dict[str, str]:
    """Parameter -> its flag, and the one that says no, of `unisono run`."""
    command: Any = typer.main.get_command(app)
    options = [param for param in command.commands["run"].params if param.opts[0].startswith("-")]
    return {
        option.name: ", ".join(f"`{flag}`" for flag in (*option.opts[:1], *option.secondary_opts)) for option in options
    }


def written(text: str) -> str:
    """The README with the tables as they should be."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


def main() -> int:
    text = README.read_text(encoding="utf-8")
    if text == written(text):
        return 0
    if "--check" in sys.argv[1:]:
        print("The README's table of options is out of date: run `make docs`.", file=sys.stderr)
        return 1
    README.write_text(written(text), encoding="utf-8")
    print("Written: the README's table of options.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
