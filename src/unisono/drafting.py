"""Looking ahead: one member writes on by itself, and the others read what it wrote in one forward.

Nothing is decided by a draft. It only says which tokens are worth reading together; the members vote, and the choice is
made, one step after the other as without it. So the text is the same with and without, greedy or sampled, as far as a
backend computes the same whether it reads tokens together or one by one; and where the draft was right, the other
members have read several tokens in about the time of one. (In the manner of speculative decoding, Leviathan et al.,
arXiv 2211.17192, and its form for ensembles, arXiv 2502.01662.)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from unisono.arrays import FloatArray, Logits
from unisono.members.base import Feed
from unisono.reading import Reader

MOST = 8
"""How many tokens to draft at most."""
ONE_MORE = 0.2
"""What reading one more token in a forward costs, as a share of reading one, until that has been measured."""
BLOCK = 4
"""Until it has been measured, a forward is taken to cost as much as one of the next multiple of so many tokens: so the
products of quantised matrices are made, in which three tokens may take longer than four."""
DRAFT_COST = 0.2
"""What drafting a token costs, as a share of what reading one costs the others, where that cannot be measured."""
REST = 24
"""For so many choices no draft is made where none would pay."""
LEARNING = 8
"""For so many choices no draft is made where it is not known yet what one token costs."""
MEMORY = 0.9
"""How much what came true of earlier drafts counts beside the last."""
TRIES = 3
"""So many forwards tell what one of that length takes; fewer may have been held up by something else."""
FORGETTING = 1.02
"""By so much the shortest time is taken to be longer with each new one, in case that all take longer by now."""


class Costs:
    """What a forward of each member takes, by how many tokens it reads in one context, learned from those that are
    made: how many tokens are worth reading together depends on the machine, the model and how it is stored."""

    def __init__(self, n_members: int) -> None:
        self._seconds: list[dict[int, float]] = [{} for _ in range(n_members)]
        self._tries: list[Counter[int]] = [Counter() for _ in range(n_members)]

    def learn(self, member: int, n_tokens: int, seconds: float) -> None:
        """A forward has read so many tokens in so many seconds. The shortest count, as what else the machine does only
        makes them longer."""
        if n_tokens <= MOST + 1:
            self._tries[member][n_tokens] += 1
            known = self._seconds[member].get(n_tokens)
            self._seconds[member][n_tokens] = seconds if known is None else min(seconds, FORGETTING * known)

    def one(self, member: int) -> float | None:
        """Seconds for reading one token; None where that is not known."""
        return self._seconds[member].get(1)

    def of_drafts(self, drafter: int, others: Sequence[int]) -> tuple[float, list[float]] | None:
        """What a token costs the drafter, and what it costs the others together to read 1, 2, ... MOST + 1 tokens in
        one forward, float[MOST + 1], both as a share of what one token costs them. None where it is not known what one
        token costs.

        >>> costs = Costs(2)
        >>> costs.learn(0, 1, 0.01)
        >>> for n_tokens, seconds in 3 * [(1, 0.02), (3, 0.06), (4, 0.048)]:
        ...     costs.learn(1, n_tokens, seconds)
        >>> draft, read = costs.of_drafts(0, [1])
        >>> round(draft, 3), [round(r, 3) for r in read]
        (0.5, [1.0, 2.4, 3.0, 2.4, 3.6, 3.6, 3.6, 3.6, 4.8])
        """
        own, ones = self.one(drafter), [self.one(n) for n in others]
        if own is None or None in ones:
            return None
        together = sum(seconds for seconds in ones if seconds is not None)
        reads = [sum(self._seconds_for(n, n_tokens) for n in others) for n_tokens in range(1, MOST + 2)]
        return own / together, [seconds / together for seconds in reads]

    def _seconds_for(self, member: int, n_tokens: int) -> float:
        """Measured, or else guessed, in the light of how the lengths that have been measured compare with a guess: so
        what promises to pay is tried, and known from then on."""
        known = self._seconds[member]
        if n_tokens == 1 or self._tries[member][n_tokens] >= TRIES:
            return known[n_tokens]
        measured = [n for n, tries in self._tries[member].items() if n > 1 and tries >= TRIES]
        beside = min((known[n] / (known[1] * guessed_cost(n)) for n in measured), default=1.0)
        return min(known[1] * guessed_cost(n_tokens) * beside, known.get(n_tokens, math.inf))


def guessed_cost(n_tokens: int) -> float:
    """What a forward of so many tokens costs, as a share of one that reads one.

    >>> [round(guessed_cost(n), 1) for n in (1, 2, 4, 5)]
    [1.0, 1.6, 1.6, 2.4]
    """
    return 1 + ONE_MORE * (-(-n_tokens // BLOCK) * BLOCK - 1) if n_tokens > 1 else 1.0


def best_length(accepted: float, draft: float, read: Sequence[float]) -> int:
    """How many tokens to draft, when each comes true with the probability `accepted` after those before it, drafting
    one costs `draft`, and reading n tokens costs the others `read[n - 1]`, as shares of what reading one costs them. 0
    where no draft pays.

    A round with k drafted tokens writes 1 + p + ... + p^k tokens (Leviathan et al., equation 1) in the time of k + 1
    drafter's forwards and one of the others with k more tokens.

    >>> cheap, dear = [1 + 0.2 * n for n in range(9)], [1 + 0.9 * n for n in range(9)]
    >>> [best_length(p, 0.2, cheap) for p in (0.1, 0.6, 0.8, 0.95)], best_length(0.95, 0.2, dear)
    ([0, 1, 2, 5], 0)
    >>> best_length(0.8, 0.2, [1, 2, 3, 1.6, 2.6])      # where four tokens are read faster than three
    3
    """
    found, rate = 0, 1 / (draft + read[0])
    written = 1.0
    for k in range(1, len(read)):
        written += accepted**k
        if (new := written / ((k + 1) * draft + read[k])) > 1.02 * rate:
            found, rate = k, new
    return found


class Drafter:
    """Lets one member of a text draft. What it reads for that is what it would read anyway, where the draft comes
    true."""

    def __init__(self, reader: Reader, others: Sequence[int], costs: Costs) -> None:
        """`others` are the numbers of the members that look ahead."""
        self.reader, self._others, self._costs = reader, others, costs
        self.number = reader.number
        self._trues, self._falses = 4.0, 1.0
        """How often a drafted token came true after those before it, and how often not; old ones fade."""
        self._ends: list[int] = []
        """After how many choices each token of the last draft would have come true, counted from the text's first."""
        self._rest_until = 0
        self._feed: Feed | None = None
        self._rows: FloatArray | None = None

    def draft(self, others: Sequence[Reader], n_steps: int) -> Iterator[None]:
        """Draft, one forward of the drafter at a time (yields None for each), and give the others the guess. The
        drafter's own voter is ready; so many choices have been made."""
        self._learn(n_steps)
        if n_steps < self._rest_until:
            return
        costs = self._costs.of_drafts(self.number, self._others)
        if costs is None:
            if n_steps < LEARNING:
                return
            costs = DRAFT_COST, [guessed_cost(n) for n in range(1, MOST + 2)]
        length = best_length(self._trues / (self._trues + self._falses), *costs)
        if not length:
            self._rest_until = n_steps + REST
            self._trues, self._falses = 2.0, 1.0  # after that, see again
            return
        begun = self.reader.voter.draft()
        if begun is None:
            return
        context, at, choices, ids = begun
        self.reader.clear_ahead(context)
        guess: list[int] = []
        while True:
            if at + len(ids) > self.reader.voter.member.n_ctx:
                break
            self._feed = Feed(context, at, ids, len(ids))
            while self._rows is None:  # more than one round where the text was put back
                yield None
            for i, row in zip(ids, self._rows, strict=True):
                self.reader.put_ahead(context, at, i, row)
                at += 1
            last, self._rows = self._rows[-1], None
            guess += choices
            self._ends.append(n_steps + len(guess))
            if len(self._ends) >= length:
                break
            after = self.reader.voter.draft_after(last)
            if after is None:
                break
            choices, ids = after
        for other in others:
            other.guess(guess)

    def _learn(self, n_steps: int) -> None:
        """Count what came true."""
        if not self._ends:
            return
        n_true = sum(end < n_steps for end in self._ends) + (self._ends[-1] == n_steps)
        self._trues = MEMORY * self._trues + n_true
        self._falses = MEMORY * self._falses + (n_true < len(self._ends))
        self._ends = []

    def feeds(self) -> list[Feed]:
        """What the drafter has to read."""
        assert self._feed is not None
        return [self._feed]

    def take(self, logits: Sequence[Logits]) -> None:
        """What that returned."""
        self._rows = logits[0].copy()
        self._feed = None
