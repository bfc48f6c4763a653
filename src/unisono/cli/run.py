"""unisono run: write on from a prompt, streaming."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unisono.cli import about, show
from unisono.cli.common import (
    Boundaries,
    ConfigFile,
    Device,
    Drafter,
    Dtype,
    Epsilon,
    FrequencyPenalty,
    Gate,
    IgnoreEnd,
    IncludeStop,
    Json,
    LogitBias,
    MaxTokens,
    MinP,
    MinTokens,
    Models,
    NBatch,
    NCtx,
    NGpuLayers,
    Plausibility,
    PresencePenalty,
    Preset,
    Quantization,
    Quiet,
    RepetitionPenalty,
    Respell,
    Rule,
    Seed,
    ShowVotes,
    SingleVoice,
    Skip,
    Stop,
    Temperature,
    Threads,
    Threshold,
    TopK,
    TopLogprobs,
    TopP,
    TopUnion,
    Vote,
    VotesBy,
    configuration,
    settings,
)
from unisono.errors import ConfigError, EnsembleError, PromptError, UnknownName

if TYPE_CHECKING:
    from unisono.cli.votes import VoteTable
    from unisono.config import Config
    from unisono.ensemble import Ensemble, Generation
    from unisono.steps import Stats, Step
    from unisono.words import By


def run(
    prompt: Annotated[
        str | None, typer.Argument(metavar="[PROMPT]", help="What to go on from; absent or - reads standard input.")
    ] = None,
    models: Models = None,
    preset: Preset = None,
    config: ConfigFile = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read the prompt from a file.")
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--no-chat", help="The prompt is a user's message, for each member's chat template."),
    ] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="With --chat: a system message before it.")] = None,
    max_tokens: MaxTokens = None,
    stop: Stop = None,
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
    respell: Respell = None,
    epsilon: Epsilon = None,
    heal: Annotated[
        bool | None,
        typer.Option(
            "--heal/--no-heal",
            help="In voting on bytes: let the prompt's last token be the beginning of a longer one (the default), so"
            " that a prompt may end inside a word.",
        ),
    ] = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Seed = None,
    repetition_penalty: RepetitionPenalty = None,
    presence_penalty: PresencePenalty = None,
    frequency_penalty: FrequencyPenalty = None,
    logit_bias: LogitBias = None,
    single_voice: SingleVoice = None,
    min_tokens: MinTokens = None,
    ignore_end: IgnoreEnd = None,
    include_stop: IncludeStop = None,
    threshold: Threshold = None,
    gate: Gate = None,
    skip: Skip = None,
    boundaries: Boundaries = None,
    drafter: Drafter = None,
    top_logprobs: TopLogprobs = None,
    show_votes: ShowVotes = False,
    votes_by: VotesBy = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE.jsonl", help="Write every step to a file (schema: docs/trace.md).")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write on from a prompt, streaming the text to standard output.

    A prompt from standard input or a file is UTF-8 and is read as it stands, but for one final newline.
    Notes and statistics go to standard error. Ctrl-C keeps what has been written.
    """
    wanted = configuration(models, preset, config, quiet=quiet, **settings(locals()))
    if system is not None and not wanted.chat:
        raise ConfigError("--system is for a conversation: give --chat as well.")
    check_bytes(wanted, epsilon, heal)
    if votes_by is not None and not show_votes:
        raise ConfigError("--votes-by is for --show-votes: give that as well.")
    if top_logprobs and not (trace or json):
        raise ConfigError("--top-logprobs is for a record: give --trace FILE.jsonl or --json as well.")
    by = votes_unit(wanted, votes_by)
    from unisono.cli.paths import check_distinct
    from unisono.cli.trace import TokenRecords, Trace, check_creatable

    if trace:
        check_distinct({"--trace": trace}, [("prompt", file), ("configuration", config)], wanted)
        check_creatable(trace)
    text = read_prompt(prompt, file)
    from unisono.ensemble import Ensemble

    with Ensemble.from_config(wanted) as ensemble:
        generation = begin(ensemble, wanted, text, system)
        try:
            if not quiet:
                for note in generation.notes:
                    show.say(f"Note: {note}")
            made_by = origin(ensemble, wanted, text, system) if trace or json else {}
            record = Trace(trace, ensemble.names, made_by) if trace else None
            tokens = TokenRecords() if json and wanted.top_logprobs else None
            table = vote_table(ensemble, by, json) if show_votes else None
            display = table.step if table else _silent if json else stream
            finish, trouble = follow(generation, [display, *(one.step for one in (record, tokens) if one)])
            if table and not isinstance(trouble, BrokenPipeError):
                table.end()
        finally:
            generation.close()
        error = str(trouble) if isinstance(trouble, EnsembleError) else None
        if record:
            record.end(finish, generation.stats, error)
        if isinstance(trouble, BrokenPipeError):
            raise trouble
        if json:
            from unisono.cli.trace import stats_record

            outcome = {"text": generation.text, "finish": finish, "error": error, "notes": generation.notes}
            told = {"tokens": tokens.end()} if tokens else {}
            show.put_json({**outcome, **told, **made_by, "stats": stats_record(generation.stats)})
        else:
            _finish_text(generation.text, show_votes)
        if not quiet:
            show.say(f"{summary(generation.stats, generation.text, wanted)}; finish: {finish}")
        if trouble:
            raise trouble


def check_bytes(config: Config, epsilon: float | None, heal: bool | None) -> None:
    """Refuse options that would change nothing. Raises ConfigError."""
    if config.vote != "bytes" and (epsilon is not None or heal):
        option = "--heal" if epsilon is None else "--epsilon"
        raise ConfigError(f"{option} is for voting on bytes: leave it out, or give --vote bytes.")
    if config.chat and heal:
        raise ConfigError("--heal is for a plain prompt, and a conversation's ends where it should: leave it out.")


def votes_unit(config: Config, votes_by: str | None) -> By:
    """What votes are shown by. Raises UnknownName."""
    from unisono.words import BY

    if votes_by is None:
        return "word" if config.vote == "bytes" else "step"
    for by in BY:
        if by == votes_by:
            return by
    raise UnknownName("unit for --votes-by", votes_by, BY)


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """The prompt from the argument, the file or standard input.

    Raises:
        PromptError: two prompts or none, a file that cannot be read, or bytes that are not UTF-8.
    """
    if file is not None:
        if prompt is not None:
            raise PromptError("Give a prompt or --file, not both.")
        try:
            return _decoded(file.read_bytes(), str(file))
        except OSError as exc:
            raise PromptError(f"The prompt {file} cannot be read: {exc.strerror}.") from exc
    if prompt is None or prompt == "-":
        if sys.stdin is None or (prompt is None and sys.stdin.isatty()):
            raise PromptError("No prompt: give one as an argument, with --file FILE, or on standard input.")
        return _decoded(sys.stdin.buffer.read(), "standard input")
    try:
        prompt.encode()
    except UnicodeEncodeError as exc:  # a byte of the command line that is not UTF-8
        at = len(prompt[: exc.start].encode())
        raise PromptError(f"The prompt is not valid UTF-8 at byte {at}: convert it to UTF-8.") from None
    return prompt


def _decoded(data: bytes, where: str) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as exc:
        raise PromptError(
            f"The prompt from {where} is not valid UTF-8 at byte {exc.start} (0x{data[exc.start]:02X}):"
            " convert it to UTF-8."
        ) from None
    return text.removesuffix("\r\n") if text.endswith("\r\n") else text.removesuffix("\n")


def begin(ensemble: Ensemble, config: Config, prompt: str, system: str | None) -> Generation:
    """The generation that the configuration asks for; nothing is written yet. Raises PromptError."""
    if system is None:
        return ensemble.generate(prompt, settings=config)
    messages = [{"role": "system", "content": system}, {"role": "user", "content": prompt}]
    return ensemble.generate(messages=messages, settings=config)


def origin(ensemble: Ensemble, config: Config, prompt: str, system: str | None) -> dict[str, Any]:
    """What a text was made by and from, for a record of it."""
    return {
        "prompt": prompt,
        "system": system,
        "members": about.members(ensemble, config),
        "config": config.model_dump(mode="json"),
        "versions": about.versions(),
        "command": about.command(),
    }


def follow(
    generation: Generation, readers: Sequence[Callable[[Step], None]]
) -> tuple[str, EnsembleError | KeyboardInterrupt | BrokenPipeError | None]:
    """Hand every step to the readers. How the text ended, and what is to be raised once that has been told."""
    try:
        for step in generation:
            for read in readers:
                read(step)
    except EnsembleError as exc:
        return "error", exc
    except (KeyboardInterrupt, BrokenPipeError) as exc:
        return "interrupted", exc
    assert generation.finish
    return generation.finish, None


def vote_table(ensemble: Ensemble, by: By, json: bool = False) -> VoteTable:
    """The members' votes on standard output, or on standard error where --json has that for itself."""
    from unisono.cli.votes import VoteTable

    return VoteTable(show.console(stderr=json), ensemble.names, by)


def stream(step: Step) -> None:
    """Put what a step adds to the text on standard output."""
    show.put(step.text)


def _silent(step: Step) -> None:
    pass


def _finish_text(text: str, votes: bool) -> None:
    """What comes after the stream: the whole text under a table of votes, a newline for the terminal."""
    if votes:
        show.put(f"\n{text}\n")
    elif sys.stdout.isatty() and not text.endswith("\n"):
        show.put("\n")


def summary(stats: Stats, text: str, wanted: Config) -> str:
    """One line on what a text has cost."""
    gate = wanted.gate if wanted.threshold is not None else None
    tokens = "pieces" if wanted.vote == "pieces" else f"tokens of {gate or stats.members[0]}"
    parts = [
        f"{stats.n_tokens} {tokens}, {len(text.encode())} bytes, {len(text)} characters",
        f"the first after {stats.first_s:.2f} s",
    ]
    if math.isfinite(stats.tokens_per_s):
        parts.append(f"then {stats.tokens_per_s:.1f} tokens/s")
    if math.isfinite(stats.overhead):
        as_much = " as much" if stats.overhead > 2 else ""
        parts.append(f"{show.share(stats.overhead)}{as_much} on top of the members' forwards")
    if stats.n_votes < stats.n_steps:
        parts.append(f"all voted in {stats.n_votes} of {stats.n_steps} steps")
    forwards = []
    for name, n, seconds in zip(stats.members, stats.n_forwards, stats.forward_s, strict=True):
        each = f"{n / stats.n_tokens:.2f} a token, " if stats.n_tokens else ""
        forwards.append(f"{name} {n} ({each}{seconds:.2f} s)")
    return f"{', '.join(parts)}; forwards: {', '.join(forwards)}"
