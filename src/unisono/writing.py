"""Writing one text: vote, pool, choose, hear, until something ends it.

The loop is a generator, so that an engine can run many of them: it yields a step for each choice, and None where it
waits for forwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import NamedTuple

from unisono.reading import Reader
from unisono.steps import Finish, Limits, MemberVote, Stats, Step, logprob
from unisono.text import TextStream
from unisono.voting.base import Opinion, Pooled, Unit, Voter


class Choice(NamedTuple):
    """One choice, and what the members thought of it."""

    choice: int
    prob: float
    opinions: Sequence[Opinion]


class _NoRoom(Exception):
    """A context cannot hold what comes next."""


class Writing:
    """One text being written. The voters already hold the prompt; they stay open."""

    def __init__(
        self,
        unit: Unit,
        voters: Sequence[Voter],
        pool: Callable[[Sequence[Voter]], Pooled],
        choose: Callable[[Pooled], tuple[int, float]],
        limits: Limits,
        stats: Stats,
    ) -> None:
        self.unit, self.voters, self.pool, self.choose = unit, voters, pool, choose
        self.limits, self.stats = limits, stats
        self.readers = [Reader(number, voter) for number, voter in enumerate(voters)]
        self.waits: list[Reader] = []
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
        stream = TextStream(self.limits.stop)
        stats = self.stats
        while True:
            try:
                chosen = yield from self._choose()
            except _NoRoom:
                yield Step(b"", 0.0, (), stream.finish(), "length")
                return
            piece = self.unit.spelled(chosen.choice)
            stats.n_steps += 1
            stats.n_bytes += len(piece)
            text = stream.add(piece)
            finish: Finish | None = None
            if chosen.choice == self.unit.end:
                finish = "end"
            else:
                for reader in self.readers:
                    reader.hear(chosen.choice)
                stats.n_tokens = self.unit.n_tokens(self.voters, stats.n_steps)
                enough = self.limits.max_tokens is not None and stats.n_tokens >= self.limits.max_tokens
                if stream.stopped:
                    finish = "stop"
                elif enough or any(voter.n_tokens > voter.member.n_ctx for voter in self.voters):
                    finish = "length"
            if finish:
                text += stream.finish()
            thoughts = tuple(self._thought(opinion) for opinion in chosen.opinions)
            step = Step(piece, logprob(chosen.prob), thoughts, text, finish)
            if stats.n_steps == 1:
                self.stop_clock()
                stats.first_s, stats.first_forward_s = stats.wall_s, sum(stats.forward_s)
                stats.first_tokens = stats.n_tokens
            yield step
            if finish:
                return

    def _choose(self) -> Generator[None, None, Choice]:
        yield from self._settle(self.readers)
        pooled = self.pool(self.voters)
        choice, prob = self.choose(pooled)
        return Choice(choice, prob, pooled.opinions(choice))

    def _settle(self, readers: Sequence[Reader]) -> Iterator[None]:
        """Wait until all of these can vote. Raises _NoRoom."""
        while True:
            self.waits = [reader for reader in readers if not reader.settle()]
            if not self.waits:
                return
            for reader in self.waits:
                if any(feed.at + len(feed.ids) > reader.voter.member.n_ctx for feed in reader.voter.pending()):
                    self.waits = []
                    raise _NoRoom
            yield None

    def _thought(self, opinion: Opinion) -> MemberVote:
        favourite = self.unit.spelled(opinion.favourite)
        return MemberVote(favourite, logprob(opinion.favourite_prob), logprob(opinion.prob))
