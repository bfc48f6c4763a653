"""Members, weights, unit of voting and rule in one object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from unisono.arrays import Probs, Votes, Weights
from unisono.chat import PLAIN_STOP, Message, chat_prompt, check_kwargs, raw_prompt
from unisono.choosing import Sampler, tilt_of
from unisono.config import Config, MemberConfig, TextConfig, checked
from unisono.engine import Engine, Text
from unisono.errors import ConfigError, PromptError, UnknownName
from unisono.members.base import Member
from unisono.policy import Threshold
from unisono.registry import open_member, shared_out, short_name
from unisono.rules import rule_of, weights_for
from unisono.score import Score, score_bytes
from unisono.steps import Finish, Stats, Step
from unisono.text import split_characters
from unisono.voting.base import MemberPrompt, Pooled, Unit, Voter
from unisono.voting.bytes import EPSILON, ByteVoter, ByteVoting, filled
from unisono.voting.pieces import TOP_UNION, PieceVoting
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
        merge: int | None = None,
        utf8: bool = True,
        plausibility: float | None = None,
        top_union: int | None = None,
        respell: str = "none",
        drafter: str | None = None,
        threshold: float | None = None,
        gate: str | None = None,
        skip: bool = True,
        boundaries: bool = False,
        chat: bool = False,
        chat_template_kwargs: Sequence[Mapping[str, Any]] | None = None,
        settings: TextConfig | None = None,
    ) -> None:
        """From members that are already open; `load` opens them from specs. The options are those of `Config`, and
        `chat_template_kwargs` those of `MemberConfig`, one for each member.

        Raises:
            ConfigError: weights that are not positive and finite (contrastive takes negative ones), or not one a
                member; an option that the rule does not have, or a unit of voting that it cannot pool.
            UnknownName: no such rule or unit of voting.
            PluginError: a plugin's rule that does not work.
            TemplateError: a chat template that has to take keywords does not parse.
        """
        self.members = tuple(members)
        self.names = tuple(member.name for member in self.members)
        if vote not in ("bytes", "pieces"):
            raise UnknownName("unit of voting", vote, ("bytes", "pieces"))
        self.rule = rule
        self._rule = rule_of(rule, vote, plausibility, top_union)
        self.weights = weights_for(rule, [None] * len(self.members) if weights is None else list(weights), self.names)
        _check_ways(self.names, vote, respell, drafter, merge)
        self.policy = _policy_of(self.names, self.weights, vote, threshold, gate, skip, boundaries)
        """When all vote; None: at every step."""
        self.unit: Unit = (
            PieceVoting(
                self.members, top_union=TOP_UNION if top_union is None else top_union, respell=respell == "word"
            )
            if vote == "pieces"
            else ByteVoting(self.members, epsilon=epsilon, merge=merge, utf8=utf8)
        )
        self.engine = Engine(self.unit)
        """Where its texts are written."""
        self.settings = TextConfig() if settings is None else settings
        """How texts are written where `generate` is told nothing else."""
        self.chat = chat
        """Whether a prompt is what a user says in a conversation."""
        self._template_kwargs = [{}] * len(self.members) if chat_template_kwargs is None else chat_template_kwargs
        for member, kwargs in zip(self.members, self._template_kwargs, strict=True):
            check_kwargs(member, kwargs)
        self._drafter = drafter

    @property
    def _gate_weight(self) -> float:
        """The gate's weight where it may outvote all others; 0 where the rule does not add up probabilities."""
        return float(self.weights[self.policy.gate]) if self.policy and self.rule == "linear" else 0.0

    def _drafting(self) -> int | None:
        """The number of the member that drafts; None where nobody does. With "auto" it is the one that has taken least
        for a token so far, or else the one with the smallest vocabulary."""
        if self._drafter is None or len(self.members) == 1:
            return None
        if self._drafter != "auto":
            return self.names.index(self._drafter)
        costs = self.engine.costs
        return min(range(len(self.members)), key=lambda n: (costs.one(n) or 0.0, self.members[n].vocabulary.n_ids))

    def _pool_voters(self, voters: Sequence[Voter]) -> Pooled:
        """All of the voters, or one alone."""
        weights = self.weights if len(voters) == len(self.members) else np.ones(1)
        return self.unit.pool(voters, self._rule, weights)

    def _pool(self, votes: Votes) -> Probs:
        return self._rule(filled(votes), self.weights)

    @classmethod
    def load(
        cls, models: Sequence[str | MemberConfig], weights: Sequence[float] | None = None, **options: Any
    ) -> Ensemble:
        """Open members from specs such as "demo:smollm2-135m" or "gguf:PATH"; options are those of `Config`
        (threads, rule) and, for all members that have a use for it, those of `MemberConfig` (n_ctx and so on).

        Raises:
            EnsembleError: whatever is wrong, with the mend.
        """
        for_members = {
            key: options.pop(key) for key in list(options) if key in MemberConfig.model_fields and key != "threads"
        }
        members = shared_out([m if isinstance(m, MemberConfig) else {"model": m} for m in models], for_members)
        config = checked(Config, {"members": members, **options}, "the options")
        return cls.from_config(config, weights)

    @classmethod
    def from_config(cls, config: Config, weights: Sequence[float] | None = None) -> Ensemble:
        """Open the members that a configuration names. Raises EnsembleError."""
        names = _distinct([m.name for m in config.members], [short_name(m.model) for m in config.members])
        given = [m.weight for m in config.members] if weights is None else list(weights)
        # What is wrong is said before any model is opened, which takes long.
        rule_of(config.rule, config.vote, config.plausibility, config.top_union)
        shares = weights_for(config.rule, given, names)
        for key in ("epsilon", "utf8"):
            if config.vote != "bytes" and key in config.model_fields_set:
                raise ConfigError(f"{key} is for voting on bytes: leave it out, or vote on those.")
        _check_ways(names, config.vote, config.respell, config.drafter, config.merge)
        _policy_of(names, shares, config.vote, config.threshold, config.gate, config.skip, config.boundaries)
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
                merge=config.merge,
                utf8=config.utf8,
                plausibility=config.plausibility,
                top_union=config.top_union,
                respell=config.respell,
                drafter=config.drafter,
                threshold=config.threshold,
                gate=config.gate,
                skip=config.skip,
                boundaries=config.boundaries,
                chat=config.chat,
                chat_template_kwargs=[member.chat_template_kwargs for member in config.members],
                settings=config,
            )
        except BaseException:
            for open_one in opened:
                open_one.close()
            raise

    def generate(
        self,
        prompt: str | bytes | None = None,
        *,
        messages: Sequence[Message] | None = None,
        settings: TextConfig | None = None,
        **given: Any,
    ) -> Generation:
        """Write on from a prompt, or answer the last of several messages. Several texts that are under way at the same
        time are written together, one forward a member for all of them.

        Args:
            prompt: Plain text to go on from; or, in an ensemble that was asked for `chat`, the user's message.
            messages: Instead of a prompt: a conversation, which each member gets through its own chat template.
            settings: How the text is written: max_tokens, stop, temperature and all else in `TextConfig`; None: as the
                ensemble's configuration says.
            given: The same by name; these win.

        Raises:
            PromptError: the prompt cannot be read; nothing has been written then.
            ConfigError, UnknownName: a setting that is out of range, does not exist, or means nothing here.
            CacheFull, BadLogits: while iterating; what was written before stays.
        """
        if (prompt is None) == (messages is None):
            raise TypeError("give a prompt or messages, and not both")
        like = self.settings if settings is None else settings
        base = like.model_dump(include=set(TextConfig.model_fields))
        if isinstance(given.get("stop"), Iterable) and not isinstance(given["stop"], str):
            given["stop"] = list(given["stop"])
        settings = checked(TextConfig, {**base, **given}, "the settings of a text")
        self._check(settings)
        notes: list[str] = []
        prompts: list[MemberPrompt] = []
        if self.chat and prompt is not None:
            text = prompt if isinstance(prompt, str) else prompt.decode(errors="surrogateescape")
            messages = [{"role": "user", "content": text}]
        if messages is not None and (isinstance(messages, str) or not all(isinstance(m, Mapping) for m in messages)):
            raise PromptError("messages are a list of mappings, each with a role and a content.")
        with self.engine.alone():
            for member, kwargs in zip(self.members, self._template_kwargs, strict=True):
                if messages is not None:
                    own, said = chat_prompt(member, messages, kwargs)
                    notes += said
                else:
                    assert prompt is not None
                    own = raw_prompt(member, prompt, settings.heal)
                prompts.append(own)
        if messages is not None and any(member.chat_template is None for member in self.members):
            settings = settings.model_copy(update={"stop": [*settings.stop, PLAIN_STOP]})
        return Generation(self, prompts, settings, notes)

    def _check(self, settings: TextConfig) -> None:
        """Refuse what means nothing in this ensemble. Raises ConfigError."""
        if settings.temperature == 0:
            plain = TextConfig()
            for key in ("top_k", "top_p", "min_p", "single_voice"):
                if getattr(settings, key) != getattr(plain, key):
                    raise ConfigError(f"{key} is for drawing: give a temperature above 0 as well.")
        if settings.include_stop and not settings.stop:
            raise ConfigError("include_stop is for stop: give a string to stop at as well.")
        for key, given in (("stop", settings.stop), ("logit_bias", settings.logit_bias)):
            for text in given:
                if not text:
                    raise ConfigError(f"{key}: an empty text stands nowhere: leave it out.")
                try:
                    text.encode()
                except UnicodeEncodeError as exc:
                    raise ConfigError(f"{key}: {text!r} is no valid Unicode text.") from exc
        if settings.single_voice:
            shaped = (settings.top_k, settings.top_p, settings.min_p) != (None, 1.0, 0.0) or tilt_of(settings)
            if settings.temperature != 1 or shaped or not self.unit.tilts or self.rule != "linear" or self.policy:
                raise ConfigError(
                    "single_voice draws as the whole ensemble would only in voting on pieces, under the linear rule, at"
                    " temperature 1, with no cut, penalty, bias or threshold: leave it out, or those."
                )
        if settings.min_tokens and settings.max_tokens is not None and settings.min_tokens > settings.max_tokens:
            raise ConfigError(
                f"min_tokens is {settings.min_tokens} and max_tokens {settings.max_tokens}: lower the first."
            )
        if self.unit.tilts:
            for piece in settings.logit_bias:
                if self.unit.choice_of(piece.encode()) is None:
                    raise ConfigError(_no_such_token(piece))
        elif settings.logit_bias:
            for piece in settings.logit_bias:
                if not any(piece.encode() in member.vocabulary.canonical for member in self.members):
                    raise ConfigError(_no_such_token(piece))

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
        with self.engine.alone():
            try:
                for number, member in enumerate(self.members):
                    voters.append(self.unit.voter(number, raw_prompt(member, prompt)))
                return score_bytes(self.unit, voters, self._pool, data, progress)
            finally:
                for voter in voters:
                    voter.close()

    def close(self) -> None:
        """Free the models; texts that are being written end."""
        self.engine.close()

    def __enter__(self) -> Ensemble:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Generation(Iterator[Step]):
    """A text being written: iterate over its steps, or call `run()` to get it whole."""

    def __init__(
        self,
        ensemble: Ensemble,
        prompts: Sequence[MemberPrompt],
        settings: TextConfig,
        notes: Sequence[str],
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
            unit = ensemble.unit
            return Writing(
                unit,
                voters,
                ensemble._pool_voters,
                settings,
                stats,
                sampler=Sampler(settings, unit.end, tilt if unit.tilts else None, unit.choice_of),
                weights=ensemble.weights,
                drafter=drafter,
                costs=ensemble.engine.costs,
                policy=ensemble.policy,
                gate_weight=ensemble._gate_weight,
            )

        tilt = tilt_of(settings)
        self._of = Text(prompts, begin, None if ensemble.unit.tilts else tilt)
        self._joined = False

    def __next__(self) -> Step:
        text = self._of
        try:
            if not self._joined and not text.done:
                self._engine.join(text)
                self._joined = True
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
        self._engine.leave(self._of)
        self._of.steps.clear()

    def __del__(self) -> None:
        if hasattr(self, "_of") and not self._of.done:
            self._engine.give_up(self._of)


def _no_such_token(piece: str) -> str:
    return (
        f"logit_bias: no member has a token that is exactly {piece!r}. Tokens within a text mostly begin with a space;"
        " a word of several tokens cannot be given a bias."
    )


def _check_ways(names: Sequence[str], vote: str, respell: str, drafter: str | None, merge: int | None) -> None:
    """Refuse ways to write that do not exist or do not go together. Raises ConfigError, UnknownName."""
    if respell not in ("none", "word"):
        raise UnknownName("way to respell", respell, ("none", "word"))
    if respell != "none" and vote != "pieces":
        raise ConfigError("respell is for voting on pieces: on bytes, contexts are in their own tokens anyway.")
    if merge is not None and vote != "bytes":
        raise ConfigError("merge is for voting on bytes: leave it out, or vote on those.")
    if drafter is not None and drafter not in ("auto", *names):
        raise UnknownName("member to draft", drafter, ("auto", *names))


def _policy_of(
    names: Sequence[str],
    weights: Weights,
    vote: str,
    threshold: float | None,
    gate: str | None,
    skip: bool,
    boundaries: bool,
) -> Threshold | None:
    """When all vote; None: at every step. Raises ConfigError, UnknownName."""
    if boundaries and vote != "pieces":
        raise ConfigError("boundaries are for voting on pieces: on bytes, a vote inside of tokens is exact.")
    if threshold is None:
        if boundaries:
            threshold = 1.0
        elif gate is not None:
            raise ConfigError(
                f"A gate ({gate}) is for threshold mode and for boundaries: give a threshold as well, 0.5, say."
            )
        elif not skip:
            raise ConfigError("Not to skip is for threshold mode: give a threshold as well, 0.5, say.")
        else:
            return None
    if gate is not None and gate not in names:
        raise UnknownName("member to be the gate", gate, names)
    if not 0 <= threshold <= 1:
        raise ConfigError(f"threshold is {threshold}: give a probability from 0 to 1.")
    number = 0 if gate is None else list(names).index(gate)
    if weights[number] < 0:
        raise ConfigError(
            f"{names[number]} has a negative weight, and what it likes cannot be taken: choose another gate."
        )
    return Threshold(number, threshold, skip, boundaries)


def _distinct(given: Sequence[str | None], short: Sequence[str]) -> list[str]:
    """The names that were given, and short ones for the rest, with -2, -3 where a name is taken.

    >>> _distinct([None, "b", None, None], ["a", "b", "a", "b"])
    ['a', 'b', 'a-2', 'b-2']

    Raises:
        ConfigError: two members were given the same name.
    """
    taken: set[str] = set()
    for name in given:
        if name in taken:
            raise ConfigError(f"Two members are called {name!r}: give each a name of its own.")
        taken.update([name] if name else [])
    out: list[str] = []
    for name, base in zip(given, short, strict=True):
        n, unique = 1, name or base
        while name is None and unique in taken:
            n += 1
            unique = f"{base}-{n}"
        taken.add(unique)
        out.append(unique)
    return out
