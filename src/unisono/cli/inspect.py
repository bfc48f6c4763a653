"""unisono inspect: what the members' tokenizers have in common, and where they differ."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unisono.cli import show
from unisono.cli.common import ConfigFile, Json, Models, Preset, configuration
from unisono.errors import ConfigError, PromptError

if TYPE_CHECKING:
    from unisono.config import Config
    from unisono.members.base import Member

SAMPLE = """\
The lighthouse keeper's daughter counted 1,024 waves before breakfast; "not one of them," she wrote, "was mine."
Über den Dächern läuft eine große graue Katze. La forêt était pleine d'échos, et l'été n'en finissait pas.
В старом городе часы идут медленнее. Η θάλασσα ήταν ήσυχη όλη τη νύχτα. القمر فوق النهر هادئ الليلة.
春になると、川沿いの桜が一斉に咲く。老人每天早上在公园里打太极拳。
바람이 불면 꽃잎이 눈처럼 내린다. हर सुबह चाय की दुकान खुलती है।
Let's meet at 7:30 pm 🎉 – bring café crème, 3½ apples & naïve ideas…

def fibonacci(n: int) -> int:
    \"\"\"The n-th Fibonacci number.\"\"\"
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a
"""
"""What is tokenised where no text is given."""

NEVER_IN_UTF8 = {0xC0, 0xC1, *range(0xF5, 0x100)}
"""Bytes that no text holds, so that nobody misses them."""

N_SHOWN = 6
"""How many of a long list a table shows."""


def inspect(
    models: Models = None,
    preset: Preset = None,
    config: ConfigFile = None,
    text: Annotated[
        Path | None,
        typer.Option("--text", metavar="FILE", help="Tokenise this text (UTF-8) instead of the built-in sample."),
    ] = None,
    json: Json = False,
) -> None:
    """Show what the members' vocabularies share.

    And how each of them cuts up a text, its ends, control tokens and missing bytes.
    """
    wanted = small(configuration(models, preset, config))
    sample = _read(text) if text else SAMPLE
    from unisono.ensemble import Ensemble

    with Ensemble.from_config(wanted) as ensemble:
        outcome = {
            "members": [about_member(member) for member in ensemble.members],
            "set": about_set(ensemble.members),
            "text": about_text(ensemble.members, sample, str(text) if text else "the built-in sample"),
        }
    if json:
        show.put_json(outcome)
    else:
        _print(outcome)


def small(config: Config) -> Config:
    """The same members with hardly any room to write: their tokenizers are all that is asked."""
    tight = {"n_ctx": 8, "n_cells": None, "n_batch": 8, "n_contexts": 1}
    return config.model_copy(update={"members": [member.model_copy(update=tight) for member in config.members]})


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except OSError as exc:
        raise ConfigError(f"The text {path} cannot be read: {exc.strerror}.") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"The text {path} is not valid UTF-8 at byte {exc.start}: convert it to UTF-8.") from None


def about_member(member: Member) -> dict[str, Any]:
    """What there is to know of one member's tokenizer."""
    vocabulary = member.vocabulary

    def named(ids: Sequence[int]) -> list[dict[str, Any]]:
        return [{"id": i, "mark": vocabulary.marks.get(i, b"").decode(errors="replace")} for i in ids]

    return {
        "name": member.name,
        "n_ids": vocabulary.n_ids,
        "n_text_ids": len(vocabulary.text_ids),
        "missing_bytes": [f"0x{b:02X}" for b in vocabulary.missing_bytes if b not in NEVER_IN_UTF8],
        "begin": named(vocabulary.begin),
        "ends": named(vocabulary.ends.tolist()),
        "n_controls": len(vocabulary.controls),
        "controls": named(vocabulary.controls.tolist()[:N_SHOWN]),
        "chat_template": member.chat_template is not None,
        "n_ctx_trained": getattr(member, "n_ctx_trained", None),
    }


def about_set(members: Sequence[Member]) -> dict[str, Any]:
    """What the members' vocabularies have in common; END is not counted as a piece."""
    from unisono.union import UnionVocabulary

    union = UnionVocabulary.remembered([member.vocabulary for member in members])
    owned = {member.name: {p for p in member.vocabulary.pieces if p} for member in members}
    left_out = sorted(set().union(*owned.values()).difference(union.pieces))
    return {
        "n_union": len(union.pieces) - 1,
        "n_shared_by_all": union.n_shared,
        "n_left_out": len(left_out),
        "left_out": [show.visible(piece) for piece in left_out],
        "shared_by_two": [{"members": [a, b], "n_pieces": len(owned[a] & owned[b])} for a, b in combinations(owned, 2)],
    }


def about_text(members: Sequence[Member], text: str, where: str) -> dict[str, Any]:
    """How the members cut up a text: tokens, bytes a token, and the share of the boundaries between tokens, as byte
    offsets, that are boundaries for all."""
    from unisono.chat import readable

    n_bytes = len(text.encode())
    counts: list[dict[str, Any]] = []
    cuts: dict[str, set[int]] = {}
    for member in members:
        try:
            ids = readable(member, text)
        except PromptError as exc:
            counts.append({"name": member.name, "n_tokens": None, "bytes_per_token": None, "note": str(exc)})
            continue
        cuts[member.name] = boundaries([len(member.vocabulary.pieces[i]) for i in ids])
        per_token = n_bytes / len(ids) if ids else None
        counts.append({"name": member.name, "n_tokens": len(ids), "bytes_per_token": per_token, "note": None})
    return {
        "text": where,
        "n_bytes": n_bytes,
        "members": counts,
        "common_boundaries": share(list(cuts.values())) if len(cuts) == len(members) else None,
        "common_to_two": [{"members": [a, b], "share": share([cuts[a], cuts[b]])} for a, b in combinations(cuts, 2)],
    }


def boundaries(lengths: Sequence[int]) -> set[int]:
    """Where one token ends and the next begins.

    >>> sorted(boundaries([2, 3, 1]))
    [2, 5]
    """
    from itertools import accumulate

    return set(list(accumulate(lengths))[:-1])


def share(cuts: Sequence[set[int]]) -> float | None:
    """How many of all boundaries are common ones; None where there are no boundaries.

    >>> share([{2, 5}, {2, 4}])
    0.3333333333333333
    """
    every = set().union(*cuts)
    return len(set.intersection(*cuts)) / len(every) if every else None


def _print(outcome: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    about, together, cut = outcome["members"], outcome["set"], outcome["text"]
    rows = {
        "ids": [f"{m['n_ids']:,}" for m in about],
        "text ids": [f"{m['n_text_ids']:,}" for m in about],
        "bytes it lacks": [" ".join(m["missing_bytes"]) or "none" for m in about],
        "begins with": [_marks(m["begin"]) for m in about],
        "ends": [_marks(m["ends"]) for m in about],
        "control tokens": [_marks(m["controls"], m["n_controls"]) for m in about],
        "chat template": ["yes" if m["chat_template"] else "no" for m in about],
        "trained context": [f"{m['n_ctx_trained']:,}" if m["n_ctx_trained"] else "unknown" for m in about],
        "tokens in the text": [
            f"{m['n_tokens']:,}" if m["n_tokens"] is not None else m["note"] for m in cut["members"]
        ],
        "bytes a token": [f"{m['bytes_per_token']:.2f}" if m["bytes_per_token"] else "" for m in cut["members"]],
    }
    members = Table(title="Members", title_justify="left")
    members.add_column("")
    for m in about:
        members.add_column(Text(m["name"]), overflow="fold")
    for what, cells in rows.items():
        members.add_row(what, *map(Text, cells))

    several = len(about) > 2  # of two, a pair is all there is
    left_out = ", ".join(together["left_out"][:N_SHOWN]) + (", ..." if together["n_left_out"] > N_SHOWN else "")
    common = Table(title="Together", title_justify="left", show_header=False)
    common.add_row("pieces in the union", f"{together['n_union']:,}")
    common.add_row("pieces that all have", f"{together['n_shared_by_all']:,}")
    for pair in together["shared_by_two"] if several else ():
        common.add_row(Text(f"pieces that {' and '.join(pair['members'])} have"), f"{pair['n_pieces']:,}")
    common.add_row(
        "pieces left out, as some member cannot read them",
        Text(f"{together['n_left_out']:,}{': ' if left_out else ''}{left_out}"),
    )
    common.add_row(Text(f"bytes of {cut['text']}"), f"{cut['n_bytes']:,}")
    common.add_row("token boundaries common to all", _percent(cut["common_boundaries"]))
    for pair in cut["common_to_two"] if several else ():
        common.add_row(Text(f"token boundaries common to {' and '.join(pair['members'])}"), _percent(pair["share"]))
    out = show.console()
    out.print(members)
    out.print(common)


def _marks(named: Sequence[dict[str, Any]], n: int | None = None) -> str:
    listed = "\n".join(f"{one['id']} {show.visible(one['mark']) if one['mark'] else ''}".rstrip() for one in named)
    if n is None:
        return listed or "none"
    return f"{n:,}" + (f", such as\n{listed}" if listed else "")


def _percent(part: float | None) -> str:
    return "unknown" if part is None else f"{100 * part:.1f} %"
