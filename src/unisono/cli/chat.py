"""unisono chat: a conversation in the terminal."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unisono.cli import show
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
    TopP,
    TopUnion,
    Vote,
    VotesBy,
    configuration,
    settings,
)
from unisono.cli.conversation import HELP, Conversation, advice, parsed
from unisono.cli.lines import piped_lines, typed_lines
from unisono.cli.run import check_bytes, follow, stream, summary, vote_table, votes_unit
from unisono.cli.stopping import GentleStop, Terminated
from unisono.errors import ConfigError, EnsembleError

if TYPE_CHECKING:
    from unisono.config import Config
    from unisono.ensemble import Ensemble, Generation
    from unisono.words import By


def chat(
    models: Models = None,
    preset: Preset = None,
    config: ConfigFile = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="A system message before all turns.")] = None,
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
    show_votes: ShowVotes = False,
    votes_by: VotesBy = None,
    quiet: Quiet = False,
) -> None:
    """Talk with the members, line by line.

    Each line is a turn, and they answer it together. /help lists what can be typed besides text. Ctrl-C stops an answer
    and keeps what has been written; at the prompt it leaves, as Ctrl-D does. Without a terminal, the lines of standard
    input are the turns. Answers go to standard output, all else to standard error. --max-tokens and --stop hold for
    each answer.
    """
    wanted = configuration(models, preset, config, quiet=quiet, **{**settings(locals()), "chat": True})
    check_bytes(wanted, epsilon, None)
    by = votes_unit(wanted, votes_by)
    conversation = Conversation(system)
    from unisono.ensemble import Ensemble

    with Ensemble.from_config(wanted) as ensemble:
        session = Session(ensemble, wanted, conversation, by, show_votes, quiet)
        session.begin()
        at_terminal = sys.stdin is not None and sys.stdin.isatty()
        if at_terminal and not quiet:
            show.say(f"{', '.join(ensemble.names)}: /help lists the commands, Ctrl-D leaves.")
        try:
            for line in typed_lines() if at_terminal else piped_lines():
                if not session.take(line):
                    return
        except Terminated:
            raise
        except KeyboardInterrupt:  # not while an answer was written
            pass
        if at_terminal:
            show.say("")  # whatever comes next begins a line of its own


class Session:
    """Does what each line asks for."""

    def __init__(
        self, ensemble: Ensemble, config: Config, conversation: Conversation, by: By, votes: bool, quiet: bool
    ) -> None:
        self.conversation, self.votes = conversation, votes
        self._ensemble, self._config, self._by, self._quiet = ensemble, config, by, quiet
        self._noted: set[str] = set()

    def begin(self) -> None:
        """Find out before the first turn what no turn could mend. Raises EnsembleError."""
        self._begin("Hi").close()

    def take(self, line: str) -> bool:
        """Obey a command or answer a question; False if that was the last line."""
        try:
            command, value = parsed(line)
            if command == "/quit":
                return False
            if command:
                show.say(self.obey(command, value))
                return True
        except EnsembleError as exc:
            show.say(f"Error: {exc}")
            return True
        if value.strip():
            self.answer(value)
        return True

    def obey(self, command: str, value: str) -> str:
        """Do what a command says; what to tell the user. Raises ConfigError."""
        talk = self.conversation
        if command == "/reset":
            talk.turns.clear()
            return "The conversation begins anew" + ("." if talk.system is None else "; the system message stays.")
        if command == "/votes":
            self.votes = not self.votes
            return f"Votes are {'shown' if self.votes else 'hidden'} from the next answer on."
        if command == "/undo":
            return f"Taken back: {talk.turns.pop()[0]}" if talk.turns else "There is no turn to take back."
        if command == "/save":
            path = Path(os.path.expanduser(value))
            talk.save(path)
            n = len(talk.messages())
            return f"Saved: {n} message{'' if n == 1 else 's'} in {path}"
        return HELP

    def answer(self, question: str) -> None:
        """Stream the answer and add the turn to the conversation; a turn that fails leaves that as it was.

        Raises:
            ConfigError, BrokenPipeError: standard output is gone.
            Terminated: SIGTERM came.
        """
        with GentleStop() as stop:
            try:
                generation = self._begin(question)
            except EnsembleError as exc:
                show.say(advice(exc))
                return
            table = vote_table(self._ensemble, self._by) if self.votes else None
            finish, trouble = follow(generation, [table.step if table else stream, lambda step: stop.check()])
            stop.over = True
            generation.close()
            text = generation.text
            if isinstance(trouble, (ConfigError, BrokenPipeError)):
                raise trouble
            if table:
                table.end()
            put_end(text, whole=table is not None)
            if isinstance(trouble, Terminated):
                raise trouble
            if isinstance(trouble, EnsembleError):
                show.say(advice(trouble))
            elif trouble and not text.strip():
                show.say("Nothing has been written: the turn is taken back.")
            else:
                # Templates and plain lines have space of their own around an answer.
                self.conversation.turns.append((question, text.strip()))
                if not self._quiet:
                    show.say(f"{summary(generation.stats, text, self._config)}; finish: {finish}")

    def _begin(self, question: str) -> Generation:
        """The answer, not yet written; tells what has not been told of how the conversation is read."""
        generation = self._ensemble.generate(messages=self.conversation.messages(question), settings=self._config)
        for note in generation.notes:
            if note not in self._noted and not self._quiet:
                show.say(f"Note: {note}")
            self._noted.add(note)
        return generation


def put_end(text: str, whole: bool) -> None:
    """What comes after the steps: under a table of votes the whole text, and always the end of the line."""
    if whole:
        show.put(f"\n{text}")
    if not text.endswith("\n"):
        show.put("\n")
