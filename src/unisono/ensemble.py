"""Members, weights, unit of voting and rule in one object."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

from unisono import chat
from unisono.arrays import Probs, Votes
from unisono.config import Config, MemberConfig, checked, weights_of
from unisono.engine import Engine, Text
from unisono.errors import ConfigError, PromptError, UnknownName
from unisono.members.base import Member
from unisono.policy import Threshold
from unisono.pooling import RULES
from unisono.registry import open_member, short_name
from unisono.score import Score, score_bytes
from unisono.steps import Finish, Limits, Stats, Step
from unisono.text import split_characters
from unisono.voting.base import MemberPrompt, Pooled, Unit, Voter
from unisono.voting.bytes import EPSILON, ByteVoter, ByteVoting
from unisono.voting.pieces import PieceVoting
from unisono.writing import Writing


class Ensemble:
    """Several models that write one text together.

    Use it as a context manager, or call `close()`, to free the models early.
    """

    def __init__(
        self,
        members: Sequence[Member],
        weights: Sequence[float] | None = None,
        *,
        vote: str = "bytes",
        rule: str = "linear",
        epsilon: float = EPSILON,
        utf8: bool = True,
        drafter: str | None = None,
        threshold: float | None = None,
        gate: str | None = None,
        skip: bool = True,
    ) -> None:
        """From members that are already open; `load` opens them from specs.

        Raises:
            ConfigError: weights that are not positive and finite, or not one a member.
            UnknownName: no such rule or unit of voting.
        """
        self.members = tuple(members)
        self.names = tuple(member.name for member in self.members)
        self.weights = weights_of([None] * len(self.members) if weights is None else list(weights), self.names)
        if rule not in RULES:
            raise UnknownName("rule", rule, RULES)
        if vote not in ("bytes", "pieces"):
            raise UnknownName("unit of voting", vote, ("bytes", "pieces"))
        self.rule = rule
        self.unit: Unit = (
            PieceVoting(self.members) if vote == "pieces" else ByteVoting(self.members, epsilon=epsilon, utf8=utf8)
        )

        self.engine = Engine(self.unit)
        if gate is not None and threshold is None:
            raise ConfigError(f"A gate ({gate}) is for threshold mode: give a threshold as well, 0.5, say.")
        if gate is not None and gate not in self.names:
            raise UnknownName("member to be the gate", gate, self.names)
        if threshold is not None and not 0 <= threshold <= 1:
            raise ConfigError(f"threshold is {threshold}: give a probability from 0 to 1.")
        self.policy = (
            None if threshold is None else Threshold(0 if gate is None else self.names.index(gate), threshold, skip)
        )
        """When all vote; None: at every step."""
        self._drafter = drafter
        if drafter is not None and drafter not in ("auto", *self.names):
            raise UnknownName("member to draft", drafter, ("auto", *self.names))

    @property
    def _gate_weight(self) -> float:
        """The gate's weight where it may outvote all others; 0 where the rule does not add up probabilities."""
        return float(self.weights[self.policy.gate]) if self.policy and self.rule == "linear" else 0.0

    def _drafting(self) -> tuple[int, float] | None:
        """The number of the member that drafts, so that the others can look ahead, and its time for a token as a share
        of theirs together; None where there is none. With "auto" it is the one that has taken least for a token so far,
        or else the one with the smallest vocabulary."""
        if self._drafter is None or len(self.members) == 1:
            return None
        known = self.engine.token_s
        if self._drafter != "auto":
            number = self.names.index(self._drafter)
        else:
            number = min(range(len(known)), key=lambda n: (known[n] or 0.0, self.members[n].vocabulary.n_ids))
        own, others = known[number], [seconds for n, seconds in enumerate(known) if n != number]
        if own is None or None in others:
            return number, 0.2
        return number, own / sum(seconds for seconds in others if seconds is not None)

    def _pool_voters(self, voters: Sequence[Voter]) -> Pooled:
        return self.unit.pool(voters, RULES[self.rule], self.weights)

    def _pool(self, votes: Votes) -> Probs:
        return RULES[self.rule](votes, self.weights)

    @classmethod
    def load(
        cls, models: Sequence[str | MemberConfig], weights: Sequence[float] | None = None, **options: Any
    ) -> Ensemble:
        """Open members from specs such as "demo:smollm2-135m" or "gguf:PATH"; options are those of `Config`
        (threads, rule) and, for all members alike, those of `MemberConfig` (n_ctx and so on).

        Raises:
            EnsembleError: whatever is wrong, with the mend.
        """
        for_members = {
            key: options.pop(key) for key in list(options) if key in MemberConfig.model_fields and key != "threads"
        }
        members = [m if isinstance(m, MemberConfig) else {"model": m, **for_members} for m in models]
        config = checked(Config, {"members": members, **options}, "the options")
        return cls.from_config(config, weights)

    @classmethod
    def from_config(cls, config: Config, weights: Sequence[float] | None = None) -> Ensemble:
        """Open the members that a configuration names. Raises EnsembleError."""
        names = _distinct([m.name or short_name(m.model) for m in config.members])
        given = [m.weight for m in config.members] if weights is None else list(weights)
        shares = weights_of(given, names)  # before any model is opened, which takes long
        if config.rule not in RULES:
            raise UnknownName("rule", config.rule, RULES)
        opened: list[Member] = []
        try:
            for member, name in zip(config.members, names, strict=True):
                threads = member.threads if member.threads is not None else config.threads
                opened.append(open_member(member.model_copy(update={"threads": threads}), name))
            return cls(
                opened,
                shares.tolist(),
                vote=config.vote,
                rule=config.rule,
                epsilon=config.epsilon,
                utf8=config.utf8,
                drafter=config.drafter,
                threshold=config.threshold,
                gate=config.gate,
                skip=config.skip,
            )
        except BaseException:
            for open_one in opened:
                open_one.close()
            raise

    def generate(
        self,
        prompt: str | bytes | None = None,
        *,
        messages: Sequence[chat.Message] | None = None,
        max_tokens: int | None = 256,
        stop: Sequence[str] = (),
        heal: bool = True,
    ) -> Generation:
        """Write on from a prompt, or answer the last of several messages; the members write greedily, every step.

        Args:
            prompt: Plain text to go on from.
            messages: Instead of a prompt: a conversation, which each member gets through its own chat template.
            max_tokens: How many tokens to write at most: whole tokens of the first member, or pieces in voting on
                pieces; None: until a context is full.
            stop: Strings that end the text; they are not part of it.
            heal: In voting on bytes, let the last token of a plain prompt be the beginning of a longer one.

        Raises:
            PromptError: the prompt cannot be read; nothing has been written then.
            ConfigError: max_tokens is less than 1.
            CacheFull, BadLogits: while iterating; what was written before stays.
        """
        if (prompt is None) == (messages is None):
            raise TypeError("give a prompt or messages, and not both")
        if max_tokens is not None and max_tokens < 1:
            raise ConfigError(f"max_tokens is {max_tokens}: give at least 1, or None to write until a context is full.")
        notes: list[str] = []
        prompts: list[MemberPrompt] = []
        for member in self.members:
            if messages is not None:
                own, said = chat.chat_prompt(member, messages)
                notes += said
            else:
                assert prompt is not None
                own = chat.raw_prompt(member, prompt, heal)
            prompts.append(own)
        stops = tuple(stop)
        if messages is not None and any(member.chat_template is None for member in self.members):
            stops += (chat.PLAIN_STOP,)
        return Generation(self, prompts, Limits(max_tokens, stops), notes)

    def score(
        self, prompt: str | bytes, continuation: str | bytes, progress: Callable[[int], None] = lambda n_bytes: None
    ) -> Score:
        """The log-probability of a continuation of the prompt, under the ensemble and under each member.

        Args:
            prompt: What comes before; not empty where a member has no BOS token.
            continuation: What is scored; both together are UTF-8.
            progress: Is told from time to time how many bytes are done.

        Raises:
            ConfigError: the ensemble votes on pieces; scores are of bytes.
            PromptError: the prompt or the continuation cannot be read.
            CacheFull: both do not fit a member's context; see `unisono.score.windows`.
        """
        if not isinstance(self.unit, ByteVoting):
            raise ConfigError("Only an ensemble that votes on bytes can score a text: use vote='bytes'.")
        try:
            data = continuation.encode() if isinstance(continuation, str) else continuation
            if self.unit.utf8:
                begun = split_characters(prompt)[1] if isinstance(prompt, bytes) else b""
                split_characters(begun + data)
        except UnicodeError as exc:
            raise PromptError(f"The continuation is no valid Unicode text: {exc}.") from exc
        voters: list[ByteVoter] = []
        try:
            for number, member in enumerate(self.members):
                voters.append(self.unit.voter(number, chat.raw_prompt(member, prompt)))
            return score_bytes(self.unit, voters, self._pool, data, progress)
        finally:
            for voter in voters:
                voter.close()

    def close(self) -> None:
        """Free the models; texts that are being written end."""
        self.engine.close()
        for member in self.members:
            member.close()

    def __enter__(self) -> Ensemble:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Generation(Iterator[Step]):
    """A text being written: iterate over its steps, or call `run()` to get it whole."""

    def __init__(
        self, ensemble: Ensemble, prompts: Sequence[MemberPrompt], limits: Limits, notes: Sequence[str]
    ) -> None:
        n = len(prompts)
        self.notes = notes
        """What the user should know about how the prompt was read."""
        self.text = ""
        """What has been written so far and can be shown."""
        self.finish: Finish | None = None
        """Why the text is over, once it is."""
        self.stats = Stats(
            ensemble.names,
            [len(p.ids) for p in prompts],
            n_forwards=[0] * n,
            n_read=[0] * n,
            forward_s=[0.0] * n,
        )
        self._engine = ensemble.engine

        stats, drafter = self.stats, ensemble._drafting()

        def begin(voters: Sequence[Voter]) -> Writing:  # holds no reference to the generation, which may be given up
            return Writing(
                ensemble.unit,
                voters,
                ensemble._pool_voters,
                likeliest,
                limits,
                stats,
                drafter,
                ensemble.policy,
                ensemble._gate_weight,
            )

        self._of = Text(prompts, begin)
        self._joined = False

    def __next__(self) -> Step:
        text = self._of
        if not self._joined and not text.done:
            self._joined = True
            self._engine.join(text)
        try:
            self._engine.advance(text)
        except BaseException:
            self.close()
            raise
        if not text.steps:
            error, text.error = text.error, None
            if error is not None:
                raise error
            raise StopIteration
        step = text.steps.popleft()
        self.text += step.text
        if step.finish:
            self.finish = step.finish
        return step

    def run(self) -> str:
        """Write to the end; the text."""
        for _ in self:
            pass
        return self.text

    def close(self) -> None:
        """Let go of the members' contexts; the text stays, and there are no more steps. Done by itself at the end."""
        self._of.steps.clear()
        self._engine.leave(self._of)

    def __del__(self) -> None:
        if hasattr(self, "_of"):
            self.close()


def likeliest(pooled: Pooled) -> tuple[int, float]:
    """Greedy: the likeliest choice and its probability."""
    return pooled.best()


def _distinct(names: Sequence[str]) -> list[str]:
    """The names, with -2, -3 after those that came before.

    >>> _distinct(["a", "b", "a"])
    ['a', 'b', 'a-2']
    """
    out: list[str] = []
    for name in names:
        n, unique = 1, name
        while unique in out:
            n += 1
            unique = f"{name}-{n}"
        out.append(unique)
    return out
