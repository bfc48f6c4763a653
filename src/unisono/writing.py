"""Writing one text: vote, pool, choose, hear, until something ends it.

The loop is a generator, so that an engine can run many of them: it yields a step for each choice, and None where it
waits for forwards.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from unisono.arrays import Weights
from unisono.choosing import Sampler
from unisono.config import TextConfig
from unisono.drafting import Costs, Drafter
from unisono.policy import Threshold
from unisono.reading import Reader
from unisono.steps import Finish, MemberVote, Stats, Step, logprob
from unisono.text import TextStream
from unisono.voting.base import Opinion, Pooled, Unit, Voter


class Choice(NamedTuple):
    """One choice, and what the members thought of it."""

    choice: int
    prob: float
    opinions: Sequence[Opinion] = ()
    """Empty where not all have voted."""
    heard_by: int | None = None
    """A member that has heard the choice already."""
    pooled: Pooled | None = None
    """What it was chosen from."""


class _NoRoom(Exception):
    """A context cannot hold what comes next."""


class Writing:
    """One text being written. The voters already hold the prompt; they stay open."""

    def __init__(
        self,
        unit: Unit,
        voters: Sequence[Voter],
        pool: Callable[[Sequence[Voter]], Pooled],
        settings: TextConfig,
        stats: Stats,
        *,
        sampler: Sampler,
        weights: Weights,
        drafter: int | None = None,
        costs: Costs | None = None,
        policy: Threshold | None = None,
        gate_weight: float = 0.0,
    ) -> None:
        """`pool` takes all of the voters, or one alone. `drafter` is the number of the member that drafts; `costs` tell
        how much of it pays."""
        self.unit, self.voters, self.pool, self.settings, self.stats = unit, voters, pool, settings, stats
        self.sampler, self._weights = sampler, weights
        self.readers = [Reader(number, voter) for number, voter in enumerate(voters)]
        self.drafter: Drafter | None = None
        if drafter is not None:
            others = [number for number in range(len(voters)) if number != drafter]
            self.drafter = Drafter(self.readers[drafter], others, costs or Costs(len(voters)))
        self.policy = policy
        """None: all vote at every step."""
        self._gate_weight = gate_weight
        """What the gate's probability counts for where it alone may decide; 0 where it never may."""
        self._alone = False
        """The gate is drawing a token by itself."""
        self._decided: deque[int] = deque()
        """The gate's choices for the token that it was sure of, those still to be written."""
        self.waits: list[Reader | Drafter] = []
        """Those that need a forward before the text can go on."""
        self._begun = 0.0

    def begin_clock(self) -> None:
        """Count the time from here on as this text's."""
        self._begun = time.perf_counter()

    def stop_clock(self) -> None:
        """Until here."""
        now = time.perf_counter()
        self.stats.wall_s += now - self._begun
        self._begun = now

    def steps(self) -> Iterator[Step | None]:
        """A step for each choice until the text is over; None where `waits` have to read first."""
        stream = TextStream(self.settings.stop, self.settings.include_stop)
        stats, n_whole = self.stats, 0
        while True:
            try:
                chosen = yield from self._choose()
            except _NoRoom:
                yield Step(b"", 0.0, (), stream.finish(), "length", n_tokens=n_whole)
                return
            piece = self.unit.spelled(chosen.choice)
            top = self._top(chosen.pooled)  # before the voters go on
            stats.n_steps += 1
            stats.n_bytes += len(piece)
            text = stream.add(piece)
            finish: Finish | None = None
            if chosen.choice == self.unit.end:
                finish = "end"
            else:
                for reader in self.readers:
                    if reader.number != chosen.heard_by:
                        reader.hear(chosen.choice)
                counted = self.voters if self.policy is None else [self.voters[self.policy.gate]]
                stats.n_tokens = self.unit.n_tokens(counted, stats.n_steps)
                enough = self.settings.max_tokens is not None and stats.n_tokens >= self.settings.max_tokens
                if not self._decided:  # the gate has heard a token that is still being written
                    n_whole = stats.n_tokens
                if stream.stopped:
                    finish = "stop"
                elif self._decided:
                    pass  # in the midst of a token
                elif enough or any(voter.n_tokens > voter.member.n_ctx for voter in self.voters):
                    finish = "length"
            if finish:
                text += stream.finish()
            thoughts = tuple(self._thought(opinion) for opinion in chosen.opinions)
            step = Step(piece, logprob(chosen.prob), thoughts, text, finish, top, n_whole)
            if stats.n_steps == 1:
                self.stop_clock()
                stats.first_s, stats.first_forward_s = stats.wall_s, sum(stats.forward_s)
                stats.first_tokens = stats.n_tokens
            yield step
            if finish:
                return

    def _choose(self) -> Generator[None, None, Choice]:
        if self.policy is not None and (alone := (yield from self._ask_gate(self.policy))) is not None:
            return alone
        if self.settings.single_voice:
            return (yield from self._ask_one(self.readers[self.sampler.member(self._weights.tolist())]))
        yield from self._look_ahead()
        yield from self._settle(self.readers)
        self.stats.n_votes += 1
        return self._chosen(self.voters)

    def _ask_one(self, reader: Reader) -> Generator[None, None, Choice]:
        """One member's choice."""
        yield from self._settle([reader])
        return self._chosen([reader.voter])

    def _chosen(self, voters: Sequence[Voter]) -> Choice:
        pooled = self.pool(voters)
        choice, prob = self.sampler.choose(pooled, self._may_end)
        opinions = pooled.opinions(choice) if len(voters) == len(self.voters) else ()
        return Choice(choice, prob, opinions, pooled=pooled)

    @property
    def _may_end(self) -> bool:
        return not self.settings.ignore_end and self.stats.n_tokens >= self.settings.min_tokens

    def _ask_gate(self, policy: Threshold) -> Generator[None, None, Choice | None]:
        """The gate's choice where it needs nobody else."""
        gate = self.readers[policy.gate]
        if self._decided:
            return Choice(self._decided.popleft(), 1.0, heard_by=gate.number)
        if any(voter.captive for voter in self.voters):  # not everything can follow, and they have to be asked what
            return None
        yield from self._settle([gate])
        if not self.sampler.is_plain:
            return (yield from self._gate_draws(policy, gate))
        token = gate.voter.sure(policy.threshold)
        if token is not None and (self._may_end or token.choices[0] != self.unit.end):
            first, *rest = token.choices
            if first != self.unit.end:
                gate.voter.adopt(token)
            self._decided.extend(rest)
            return Choice(first, token.prob, heard_by=gate.number)
        if policy.skip and self._gate_weight > 0.5:
            choice, prob = self.unit.alone(gate.voter)
            if self._gate_weight * prob > 0.5 * (1 + 1e-6) and (self._may_end or choice != self.unit.end):
                return Choice(choice, prob)
        if policy.boundaries and not self._begins_tokens(gate):
            return Choice(*self.unit.alone(gate.voter))
        return None

    def _begins_tokens(self, gate: Reader) -> bool:
        """Whether what the gate likes best would begin a token for all others."""
        choice, _ = self.unit.alone(gate.voter)
        piece = self.unit.spelled(choice)
        return choice == self.unit.end or all(
            voter.begins_token(piece) for voter in self.voters if voter is not gate.voter
        )

    def _gate_draws(self, policy: Threshold, gate: Reader) -> Generator[None, None, Choice | None]:
        """Where choices are drawn or penalised, a gate that is sure votes alone until its token is whole."""
        if gate.voter.at_boundary:
            sure = gate.voter.sure(policy.threshold) is not None
            self._alone = sure or (policy.boundaries and not self._begins_tokens(gate))
        return (yield from self._ask_one(gate)) if self._alone else None

    def _look_ahead(self) -> Iterator[None]:
        """Where another than the drafter has to read, let that draft first."""
        drafter = self.drafter
        if drafter is None:
            return
        others = [reader for reader in self.readers if reader.number != drafter.number]
        if all(reader.n_guessed or reader.settle() for reader in others):
            return
        yield from self._settle([drafter.reader])
        for _ in drafter.draft(others, self.stats.n_steps):
            self.waits = [drafter]
            yield None

    def _settle(self, readers: Sequence[Reader]) -> Iterator[None]:
        """Wait until all of these can vote. Raises _NoRoom."""
        while True:
            late = [reader for reader in readers if not reader.settle()]
            self.waits = [*late]
            if not late:
                return
            for reader in late:
                if any(feed.at + len(feed.ids) > reader.voter.member.n_ctx for feed in reader.voter.pending()):
                    self.waits = []
                    raise _NoRoom
            yield None

    def _top(self, pooled: Pooled | None) -> tuple[tuple[bytes, float], ...]:
        if not self.settings.top_logprobs or pooled is None:
            return ()
        probs = pooled.probs
        n = min(self.settings.top_logprobs, len(probs))
        likeliest = np.argpartition(-probs, n - 1)[:n]
        order = sorted(likeliest.tolist(), key=lambda choice: (-probs[choice], choice))
        return tuple((self.unit.spelled(choice), logprob(float(probs[choice]))) for choice in order)

    def _thought(self, opinion: Opinion) -> MemberVote:
        favourite = self.unit.spelled(opinion.favourite)
        return MemberVote(favourite, logprob(opinion.favourite_prob), logprob(opinion.prob))
