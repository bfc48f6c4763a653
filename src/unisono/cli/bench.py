"""unisono bench: what the ensemble costs beside its members alone. docs/bench.md says what each number means."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unisono.cli import about, show
from unisono.cli.common import (
    ConfigFile,
    Device,
    Dtype,
    Json,
    Models,
    NBatch,
    NCtx,
    NGpuLayers,
    Plausibility,
    Preset,
    Quantization,
    Quiet,
    Rule,
    Threads,
    TopUnion,
    Vote,
    configuration,
)

if TYPE_CHECKING:
    from unisono.arrays import FloatArray
    from unisono.config import Config
    from unisono.ensemble import Ensemble
    from unisono.steps import Stats

ENSEMBLE = "ensemble"
"""The row of all members together."""


def bench(
    models: Models = None,
    preset: Preset = None,
    config: ConfigFile = None,
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="What every text goes on from.")] = "Once upon a time",
    max_tokens: Annotated[int, typer.Option(min=2, metavar="N", help="Tokens to write each time, at most.")] = 64,
    repeat: Annotated[int, typer.Option(min=1, metavar="N", help="How often to write each text.")] = 3,
    texts: Annotated[
        int, typer.Option(min=1, max=64, metavar="N", help="Also write so many texts at the same time.")
    ] = 1,
    threads: Threads = None,
    n_ctx: NCtx = None,
    n_batch: NBatch = None,
    n_gpu_layers: NGpuLayers = None,
    device: Device = None,
    dtype: Dtype = None,
    quantization: Quantization = None,
    vote: Vote = None,
    rule: Rule = None,
    plausibility: Plausibility = None,
    top_union: TopUnion = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Time each member alone and the ensemble.

    In turns; printed are medians. Also measures loading, peak memory, and how long it takes to make the vocabularies
    and their union.
    """
    from unisono.cli.vocabulary_times import vocabulary_times
    from unisono.ensemble import Ensemble

    tell: Callable[[str], None] = (lambda line: None) if quiet else show.say
    settings = {"n_ctx": n_ctx, "n_batch": n_batch, "n_gpu_layers": n_gpu_layers}
    placing = {"device": device, "dtype": dtype, "quantization": quantization}
    voting = {"vote": vote, "rule": rule, "plausibility": plausibility, "top_union": top_union}
    wanted = configuration(models, preset, config, quiet=quiet, threads=threads, **settings, **placing, **voting)
    wanted = _with_room(wanted, texts)
    tell("loading")
    begun = perf_counter()
    with Ensemble.from_config(wanted) as ensemble:
        load_s = perf_counter() - begun
        subjects = alone(ensemble, wanted)
        if len(ensemble.members) > 1:
            subjects[ENSEMBLE] = ensemble
        for subject in subjects.values():  # touch every page and fill every memo once, unmeasured
            measure(subject, prompt, min(max_tokens, 8), wanted.heal)
        measured: dict[str, list[dict[str, Any]]] = {name: [] for name in subjects}
        many: dict[str, list[float]] = {name: [] for name in subjects}
        for turn in range(repeat):
            for name, subject in subjects.items():
                measured[name].append(measure(subject, prompt, max_tokens, wanted.heal))
                tell(f"{turn + 1} of {repeat}: {name}, {_shown(measured[name][-1]['ms_per_token'], '.1f')} ms a token")
                if texts > 1:
                    many[name].append(together(subject, prompt, max_tokens, wanted.heal, texts))
                    tell(f"{turn + 1} of {repeat}: {name}, {texts} texts at once, {many[name][-1]:.1f} tokens/s")
        peak = peak_memory()
        tell("vocabularies and union")
        outcome = {
            "rows": rows(measured, many),
            "load_s": load_s,
            "memory": memory(ensemble, peak),
            "vocabularies": vocabulary_times(ensemble.members),
            "prompt": prompt,
            "max_tokens": max_tokens,
            "repeat": repeat,
            "texts": texts,
            "members": about.members(ensemble, wanted),
            "config": wanted.model_dump(mode="json"),
            "versions": about.versions(),
            "machine": about.machine(),
            "command": about.command(),
        }
    if json:
        show.put_json(outcome)
    else:
        _print(outcome)


def alone(ensemble: Ensemble, config: Config) -> dict[str, Ensemble]:
    """Each member as an ensemble of one, by name; it shares the member's model and must not be closed."""
    from unisono.ensemble import Ensemble

    of_ours = ("vote", "rule", "epsilon", "merge", "utf8", "plausibility", "top_union")
    options = {key: getattr(config, key) for key in of_ours}
    return {member.name: Ensemble([member], **options) for member in ensemble.members}


def measure(ensemble: Ensemble, prompt: str, max_tokens: int, heal: bool = True) -> dict[str, Any]:
    """Write one text. What it took a token after the first step, which reads the prompt; None where a text is too
    short to tell."""
    from unisono.config import TextConfig

    # With settings of its own: those of the configuration are the ensemble's, and not those of a member alone.
    generation = ensemble.generate(prompt, settings=TextConfig(max_tokens=max_tokens, heal=heal))
    stats = generation.stats
    try:
        next(generation)
        n_first, n_bytes_first, first = stats.n_tokens, stats.n_bytes, _per_member(stats)
        for _ in generation:
            pass
    finally:
        generation.close()
    n_tokens = stats.n_tokens - n_first + (generation.finish == "end")  # END takes a step like any token
    n_bytes = stats.n_bytes - n_bytes_first
    seconds = stats.wall_s - stats.first_s
    later = _per_member(stats) - first
    return {
        "ms_per_token": 1000 * seconds / n_tokens if n_tokens > 0 else None,
        "ms_per_byte": 1000 * seconds / n_bytes if n_bytes > 0 else None,
        "overhead": show.number(stats.overhead),
        "forwards_per_token": float(later[0].sum()) / n_tokens if n_tokens > 0 else None,
        "by_member": {
            name: {
                "forwards_per_token": forwards / n_tokens if n_tokens > 0 else None,
                "read_per_token": n_read / n_tokens if n_tokens > 0 else None,
                "forward_ms_per_token": 1000 * forward_s / n_tokens if n_tokens > 0 else None,
            }
            for name, forwards, n_read, forward_s in zip(stats.members, *later.tolist(), strict=True)
        },
        "first_s": stats.first_s,
        "n_tokens": stats.n_tokens,
        "n_steps": stats.n_steps,
        "n_bytes": stats.n_bytes,
        "n_forwards": dict(zip(stats.members, stats.n_forwards, strict=True)),
        "n_read": dict(zip(stats.members, stats.n_read, strict=True)),
        "forward_s": dict(zip(stats.members, stats.forward_s, strict=True)),
        "wall_s": stats.wall_s,
        "finish": generation.finish,
    }


def together(ensemble: Ensemble, prompt: str, max_tokens: int, heal: bool, n: int) -> float:
    """Tokens a second of so many texts that are written at the same time, after the first step of each."""
    from unisono.config import TextConfig

    settings = TextConfig(max_tokens=max_tokens, heal=heal, ignore_end=True)
    generations = [ensemble.generate(prompt, settings=settings) for _ in range(n)]
    try:
        for generation in generations:
            next(generation)
        before = sum(generation.stats.n_tokens for generation in generations)
        begun = perf_counter()
        for generation in generations:
            generation.run()
        seconds = perf_counter() - begun
    finally:
        for generation in generations:
            generation.close()
    return (sum(generation.stats.n_tokens for generation in generations) - before) / seconds


def _with_room(config: Config, n_texts: int) -> Config:
    """The same members with contexts for so many texts, where nothing is said of them."""
    from unisono.voting.bytes import most_branches

    per_text = most_branches(config.epsilon, config.merge) if config.vote == "bytes" else 1
    members = [
        member
        if "n_contexts" in member.model_fields_set
        else member.model_copy(update={"n_contexts": min(256, max(member.n_contexts, per_text * n_texts))})
        for member in config.members
    ]
    return config.model_copy(update={"members": members})


def _per_member(stats: Stats) -> FloatArray:
    """float64[3, n_members]: forwards, tokens read, seconds in forwards, so far."""
    import numpy as np

    return np.array([stats.n_forwards, stats.n_read, stats.forward_s])


def rows(measured: dict[str, list[dict[str, Any]]], many: dict[str, list[float]] | None = None) -> list[dict[str, Any]]:
    """One row a subject: medians over the repetitions, the ratios between them, and the repetitions themselves."""
    times = {name: _median(one["ms_per_token"] for one in runs) for name, runs in measured.items()}
    members = [time for name, time in times.items() if name != ENSEMBLE]
    out = []
    for name, runs in measured.items():
        time = times[name]
        out.append(
            {
                "name": name,
                "ms_per_token": time,
                "tokens_per_s": 1000 / time if time else None,
                "to_slowest": _ratio(time, members, max),
                "to_sum": _ratio(time, members, sum),
                "overhead": _median(one["overhead"] for one in runs),
                "ms_per_byte": _median(one.get("ms_per_byte") for one in runs),
                "forwards_per_token": _median(one["forwards_per_token"] for one in runs),
                "by_member": _by_member([one.get("by_member", {}) for one in runs]),
                "first_s": _median(one["first_s"] for one in runs),
                "together": _together((many or {}).get(name, []), time),
                "repetitions": runs,
            }
        )
    return out


def _by_member(runs: Sequence[dict[str, dict[str, float | None]]]) -> dict[str, dict[str, float | None]]:
    """The medians of what each member did in a subject."""
    return {
        name: {key: _median(one[name][key] for one in runs) for key in numbers} for name, numbers in runs[0].items()
    }


def _together(rates: list[float], time: float | None) -> dict[str, Any] | None:
    if not rates:
        return None
    rate = median(rates)
    return {"tokens_per_s": rate, "to_one": rate * time / 1000 if time else None, "repetitions": rates}


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _ratio(time: float | None, members: Sequence[float | None], of: Callable[[list[float]], float]) -> float | None:
    known = [value for value in members if value is not None]
    return time / of(known) if time is not None and len(known) == len(members) else None


def memory(ensemble: Ensemble, peak: int | None) -> dict[str, int | None]:
    """Peak resident memory beside the size of the model files, in bytes."""
    files = {path for member in ensemble.members for path in about.model_files(member)}
    size = sum(path.stat().st_size for path in files)
    return {"peak_bytes": peak, "files_bytes": size, "beyond_files_bytes": None if peak is None else peak - size}


def peak_memory() -> int | None:
    """The most memory that this process has held so far, in bytes; None where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _print(outcome: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    of = "One text" if outcome["repeat"] == 1 else f"Medians of {outcome['repeat']} texts"
    title = f"{of} of at most {outcome['max_tokens']} token{'s' * (outcome['max_tokens'] != 1)}"
    votes_on_bytes = outcome["config"]["vote"] == "bytes"
    speed = Table(title=title, title_justify="left")
    speed.add_column("")
    for heading in ("ms/token", "tokens/s", "ms/byte", "x slowest", "x sum", "overhead", "first step"):
        speed.add_column(heading, justify="right")
    for row in outcome["rows"]:
        speed.add_row(
            Text(row["name"]),
            _shown(row["ms_per_token"], ".1f"),
            _shown(row["tokens_per_s"], ".1f"),
            _shown(row["ms_per_byte"], ".2f"),
            _shown(row["to_slowest"], ".2f"),
            _shown(row["to_sum"], ".2f"),
            "-" if row["overhead"] is None else show.share(row["overhead"]),
            _shown(row["first_s"], ".2f", " s"),
        )
    whose = "; tokens are those of the row's first member" if votes_on_bytes else ""
    each = Table(title=f"What each member read, a token{whose}", title_justify="left")
    each.add_column("")
    for heading in ("forwards/token", "read/token", "ms in forwards/token"):
        each.add_column(heading, justify="right")
    for row in outcome["rows"]:
        for name, numbers in row["by_member"].items():
            each.add_row(
                Text(f"{name} in the ensemble" if row["name"] == ENSEMBLE else f"{name} alone"),
                _shown(numbers["forwards_per_token"], ".2f"),
                _shown(numbers["read_per_token"], ".2f"),
                _shown(numbers["forward_ms_per_token"], ".1f"),
            )
    at_once = Table(title=f"{outcome['texts']} texts at once", title_justify="left")
    at_once.add_column("")
    for heading in ("tokens/s", "x one"):
        at_once.add_column(heading, justify="right")
    for row in outcome["rows"]:
        if row["together"]:
            rate, to_one = row["together"]["tokens_per_s"], row["together"]["to_one"]
            at_once.add_row(Text(row["name"]), _shown(rate, ".1f"), _shown(to_one, ".2f"))
    size, made = outcome["memory"], outcome["vocabularies"]
    whole = Table(title="In all", title_justify="left", show_header=False)
    whole.add_column("")
    whole.add_column("", justify="right")
    whole.add_row("loading", _shown(outcome["load_s"], ".2f", " s"))
    whole.add_row("vocabularies and union, from scratch", _shown(made["scratch_s"], ".2f", " s"))
    whole.add_row("vocabularies and union, from the disk cache", _shown(made["cached_s"], ".2f", " s"))
    for what, key in (("peak memory", "peak"), ("model files", "files"), ("peak memory beyond them", "beyond_files")):
        value = size[f"{key}_bytes"]
        whole.add_row(what, _shown(None if value is None else value / 1e6, ",.0f", " MB"))
    out = show.console()
    out.print(speed)
    out.print(each)
    if outcome["texts"] > 1:
        out.print(at_once)
    out.print(whole)


def _shown(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"
