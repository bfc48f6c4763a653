"""unisono score: bits per byte of files under each member and under the ensemble. docs/score.md has the method."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from hashlib import sha256
from operator import add
from pathlib import Path
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
    configuration,
)
from unisono.errors import ConfigError

if TYPE_CHECKING:
    from unisono.cli.documents import Document
    from unisono.cli.grid import Grid
    from unisono.cli.scores import Checkpoint, FileScore, Part
    from unisono.config import Config
    from unisono.ensemble import Ensemble
    from unisono.score import Window

CONTEXT, STRIDE, GRID_STEP = 512, 2048, 0.1
"""The defaults of the options called so."""


def score(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE...", help="Texts in UTF-8, whatever their names."),
    ] = None,
    models: Models = None,
    preset: Preset = None,
    config: ConfigFile = None,
    context: Annotated[
        int | None,
        typer.Option(
            min=4, metavar="BYTES", help=f"Bytes that every window is given to read before its own ({CONTEXT})."
        ),
    ] = None,
    stride: Annotated[int | None, typer.Option(min=1, metavar="BYTES", help=f"Bytes of a window ({STRIDE:,}).")] = None,
    max_bytes: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Score only the first N bytes of each file.")
    ] = None,
    grid: Annotated[
        bool, typer.Option("--grid", help="Also every subset of the members, with equal and with the best weights.")
    ] = False,
    grid_step: Annotated[
        float | None, typer.Option(metavar="STEP", help="With --grid: weights are multiples of this (0.1).")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="Write the log-probability of every byte to a file.")
    ] = None,
    load: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="Report from such a file; no files and members then.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="FILE.jsonl", help="Keep every window in a file, and go on from those that it holds."),
    ] = None,
    threads: Threads = None,
    n_ctx: NCtx = None,
    n_batch: NBatch = None,
    n_gpu_layers: NGpuLayers = None,
    device: Device = None,
    dtype: Dtype = None,
    quantization: Quantization = None,
    vote: Annotated[str | None, typer.Option(metavar="UNIT", help="Only bytes: a score is of bytes.")] = None,
    rule: Rule = None,
    plausibility: Plausibility = None,
    epsilon: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Drop branches with less than this share of a member; 0 is exact and slow."),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Score texts: bits per byte, of members and ensemble.

    Under each member and under the ensemble, for each file and in total. Fewer is better. The first character of a file
    is not scored. Progress goes to standard error.
    """
    from unisono.cli.documents import read
    from unisono.cli.grid import Grid
    from unisono.cli.paths import check_distinct
    from unisono.cli.scores import check_rereadable, load_scores, save_scores
    from unisono.rules import UNITE

    if grid_step is not None and not grid:
        raise ConfigError("--grid-step is for --grid: give that as well.")
    step = GRID_STEP if grid_step is None else grid_step
    flags = {"vote": vote, "rule": rule, "plausibility": plausibility, "epsilon": epsilon}
    sizes = {"n_ctx": n_ctx, "n_batch": n_batch, "n_gpu_layers": n_gpu_layers}
    placing = {"device": device, "dtype": dtype, "quantization": quantization}
    if load:
        made_then = {"context": context, "stride": stride, "max_bytes": max_bytes, "threads": threads}
        given = [key for key, value in {**made_then, **flags, **sizes, **placing}.items() if value is not None]
        if given:
            option = f"--{given[0].replace('_', '-')}"
            raise ConfigError(f"{option} is for scoring, and --load has its scores from a file: leave it out.")
        if files or models or preset or config or save or resume:
            raise ConfigError("--load has its scores from a file: leave out texts, members, --save and --resume.")
        scores, made = load_scores(load)
        mixtures = Grid(len(made["members"]), step) if grid else None
        made = {**made, "command": about.command(), "scored_by": made["command"]}
    else:
        wanted = configuration(models, preset, config, quiet=quiet, threads=threads, **sizes, **placing, **flags)
        if wanted.rule == UNITE:
            raise ConfigError("A score is of bytes, and the rule unite is for voting on pieces: choose another rule.")
        if wanted.vote != "bytes":
            raise ConfigError(f"A score is of bytes, and cannot vote on {wanted.vote}: leave out --vote {wanted.vote}.")
        if not files:
            raise ConfigError("No texts to score: give one or more files.")
        mixtures = Grid(len(wanted.members), step) if grid else None
        documents = [read(path, max_bytes) for path in files]
        read_too = [*(("text", path) for path in files), ("configuration", config)]
        check_distinct({"--save": save, "--resume": resume}, read_too, wanted)
        for path in filter(None, (save, resume)):
            check_rereadable(path)
        settings = {
            "context": CONTEXT if context is None else context,
            "stride": STRIDE if stride is None else stride,
            "max_bytes": max_bytes,
        }
        scores, made = measured(documents, wanted, settings, resume, keep=bool(save or grid), quiet=quiet)
        if save:
            save_scores(save, scores, made)
    outcome = report(scores, made, mixtures)
    if json:
        show.put_json(outcome)
    else:
        from unisono.cli.score_tables import print_tables

        print_tables(outcome)


def measured(
    documents: Sequence[Document],
    wanted: Config,
    settings: dict[str, Any],
    resume: Path | None,
    *,
    keep: bool,
    quiet: bool,
) -> tuple[list[FileScore], dict[str, Any]]:
    """The scores of the texts, and what made them. Raises EnsembleError."""
    from unisono.cli.documents import check_fits, check_readable
    from unisono.cli.progress import Meter
    from unisono.cli.scores import Checkpoint, FileScore
    from unisono.ensemble import Ensemble
    from unisono.score import windows

    context, stride = settings["context"], settings["stride"]
    scores = [FileScore(d.file, d.file_bytes, len(d.data), sha256(d.data).hexdigest()) for d in documents]
    with Ensemble.from_config(wanted) as ensemble:
        check_fits(ensemble.members, context, stride)
        for document in documents:
            check_readable(ensemble.members, document)
        members = about.members(ensemble, wanted)
        made_with = origin(members, wanted, settings, scores)
        n_total = sum(len(d.data) - len(next(windows(d.data, context, stride)).prompt) for d in documents)
        with Checkpoint(resume, made_with) as checkpoint:
            try:
                with Meter(n_total, checkpoint.n_bytes, quiet) as meter:
                    for number, (document, one) in enumerate(zip(documents, scores, strict=True)):
                        cut = windows(document.data, context, stride)
                        tell = meter.teller(document.file, sum(s.n_scored for s in scores))
                        for part in parts(ensemble, cut, number, checkpoint, tell):
                            one.add(part, keep)
            except BaseException:
                if resume and not quiet:
                    show.say(f"What is done so far is kept in {resume}: the same command goes on from there.")
                raise
    made = {**settings, "members": members, "config": wanted.model_dump(mode="json")}
    return scores, {**made, "versions": about.versions(), "machine": about.machine(), "command": about.command()}


def origin(
    members: Sequence[dict[str, Any]], wanted: Config, settings: dict[str, Any], scores: Sequence[FileScore]
) -> dict[str, Any]:
    """What decides the numbers, for a checkpoint to be compared with."""
    from unisono.pooling import PLAUSIBILITY

    versions = {name: version for name, version in about.versions().items() if name != "python"}
    made_by = [
        {"name": m["name"], "weight": m["weight"], "sha256": m["sha256"], "ends": config.ends}
        | ({} if m["sha256"] else {"model": m["model"]})
        for m, config in zip(members, wanted.members, strict=True)
    ]
    rules = {"rule": wanted.rule, "epsilon": wanted.epsilon, "merge": wanted.merge, "utf8": wanted.utf8}
    if wanted.rule == "contrastive":
        rules["plausibility"] = PLAUSIBILITY if wanted.plausibility is None else wanted.plausibility
    texts = [{"sha256": s.sha256, "bytes": s.bytes} for s in scores]
    return {**settings, **rules, "members": made_by, "files": texts, "versions": versions}


def parts(
    ensemble: Ensemble, cut: Iterator[Window], number: int, checkpoint: Checkpoint, tell: Callable[[int], None]
) -> Iterator[Part]:
    """The windows of one text, each from the checkpoint or else scored and put there; `tell` is told how many bytes of
    the text are done."""
    import numpy as np

    from unisono.cli.scores import Part

    n_done = 0

    def told(n_bytes: int) -> None:
        tell(n_done + n_bytes)

    for window in cut:
        part = checkpoint.take(number, n_done, len(window.text))
        if part is None:
            begun = perf_counter()
            found = ensemble.score(window.prompt, window.text, told)
            rows = np.vstack([found.logprobs, found.pooled])
            part = Part(rows, found.n_forwards, found.n_read, perf_counter() - begun)
            checkpoint.keep(number, n_done, part)
        n_done += len(window.text)
        tell(n_done)
        yield part


def report(scores: Sequence[FileScore], made: dict[str, Any], grid: Grid | None) -> dict[str, Any]:
    """All results as JSON can hold them."""
    from unisono.cli.scores import FileScore

    names = [member["name"] for member in made["members"]]
    files = [result(one, names) for one in scores]
    total = result(FileScore.total(scores), names)
    if grid:
        sums = [grid.sums(part[:-1] for part in one.parts) for one in scores]
        for found, own in zip([*files, total], [*sums, reduce(add, sums)], strict=True):
            found["grid"] = [
                {
                    "members": [names[member] for member in mixture.members],
                    "equal": show.number(mixture.equal),
                    "best": show.number(mixture.best),
                    "weights": list(mixture.weights),
                }
                for mixture in grid.mixtures(own, found["n_scored"])
            ]
        made = {**made, "grid_step": 1 / grid.n_parts}
    return {"files": files, "total": total, **made}


def result(one: FileScore, names: Sequence[str]) -> dict[str, Any]:
    """One line of the table, and what it has cost."""
    *members, ensemble = [show.number(0.0 - total / (one.n_scored * math.log(2))) for total in one.sums]
    return {
        "file": one.file,
        "file_bytes": one.file_bytes,
        "bytes": one.bytes,
        "sha256": one.sha256 or None,
        "n_scored": one.n_scored,
        "bits_per_byte": {"members": dict(zip(names, members, strict=True)), "ensemble": ensemble},
        "n_forwards": dict(zip(names, one.n_forwards, strict=True)),
        "n_read": dict(zip(names, one.n_read, strict=True)),
        "seconds": one.seconds,
    }
