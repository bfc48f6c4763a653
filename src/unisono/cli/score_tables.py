"""The scores of files as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from unisono.cli import show


def print_tables(outcome: dict[str, Any]) -> None:
    """What `unisono score` prints without --json."""
    files, total = outcome["files"], outcome["total"]
    rows = [*files, total] if len(files) > 1 else files
    out = show.console()
    out.print(bits(rows, title(outcome)))
    for row in rows:
        if "grid" in row:
            out.print(grid(row, outcome["grid_step"]))
    out.print(cost(total))


def title(outcome: dict[str, Any]) -> str:
    """What the numbers are of."""
    n = outcome["max_bytes"]
    first = f", the first {n:,} bytes of each file" if n else ""
    return f"Bits per byte{first}: windows of {outcome['stride']:,} bytes after {outcome['context']:,} others"


def bits(rows: Sequence[dict[str, Any]], heading: str) -> Table:
    """A row a file, and the total."""
    names = list(rows[0]["bits_per_byte"]["members"])
    table = Table(title=Text(heading), title_justify="left")
    table.add_column("", overflow="fold")
    for column in ("bytes", *names, *(["ensemble", "gain"] if len(names) > 1 else [])):
        table.add_column(Text(column), justify="right")
    for row in rows:
        alone = list(row["bits_per_byte"]["members"].values())
        cells = [f"{row['n_scored']:,}", *map(_bits, alone)]
        if len(names) > 1:
            together = row["bits_per_byte"]["ensemble"]
            cells += [_bits(together), _gain(together, alone)]
        table.add_row(Text(row["file"]), *cells)
    return table


def grid(row: dict[str, Any], step: float) -> Table:
    """A row a subset of the members; a star marks the best."""
    mixtures = row["grid"]
    table = Table(title=Text(f"Mixtures, {row['file']}: linear rule, steps of {step:g}"), title_justify="left")
    table.add_column("")
    table.add_column("members", overflow="fold")
    for column in ("equal weights", "best weights", "these", "gain"):
        table.add_column(column, justify="right")
    alone = [mixture["best"] for mixture in mixtures if len(mixture["members"]) == 1]
    known = [mixture["best"] for mixture in mixtures if mixture["best"] is not None]
    starred = min(known) if known else None
    for mixture in mixtures:
        best = mixture["best"]
        star = "*" if best is not None and best == starred else ""
        starred = -1 if star else starred  # one star, for the smallest of those alike
        weights = " ".join(f"{weight:g}" for weight in mixture["weights"])
        cells = [_bits(mixture["equal"]), _bits(best), weights, _gain(best, alone)]
        table.add_row(star, Text(" + ".join(mixture["members"])), *cells)
    return table


def cost(total: dict[str, Any]) -> Table:
    """A row a member."""
    n, seconds = total["n_scored"], total["seconds"]
    rate = f", {n / seconds:,.1f} bytes/s" if seconds > 0 else ""
    table = Table(title=Text(f"{n:,} bytes in {seconds:,.1f} s{rate}"), title_justify="left")
    table.add_column("")
    for column in ("forwards", "tokens read", "tokens a byte"):
        table.add_column(column, justify="right")
    for name, n_read in total["n_read"].items():
        table.add_row(Text(name), f"{total['n_forwards'][name]:,}", f"{n_read:,}", f"{n_read / n:.3f}")
    return table


def _bits(value: float | None) -> str:
    return "inf" if value is None else f"{value:.4f}"


def _gain(value: float | None, alone: Sequence[float | None]) -> str:
    """How many fewer bits than the best member alone."""
    known = [one for one in alone if one is not None]
    if value is None or not known or min(known) == 0:
        return "-"
    return f"{100 * (1 - value / min(known)):+.1f} %"
