"""Looking ahead: one member writes on by itself, and the others read what it wrote in one forward.

Nothing is decided by a draft. It only says which tokens are worth reading together; the members vote, and the choice is
made, one step after the other as without it. So the text is the same with and without, greedy or sampled, as far as a
backend computes the same whether it reads tokens together or one by one; and where the draft was right, the other
members have read several tokens in about the time of one. (In the manner of speculative decoding, Leviathan et al.,
arXiv 2211.17192, and its form for ensembles, arXiv 2502.01662.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from unisono.arrays import FloatArray, Logits
from unisono.members.base import Feed
from unisono.reading import Reader

MOST = 8
"""How many tokens to draft at most."""
ONE_MORE = 0.2
"""What reading one more token in a forward costs, as a share of reading one, until that has been measured."""
REST = 24
"""For so many choices no draft is made where none would pay."""
LEARNING = 8
"""For so many choices no draft is made where it is not known yet what one token costs."""
MEMORY = 0.9
"""How much what came true of earlier drafts counts beside the last."""


def best_length(accepted: float, cost: float, more: float = ONE_MORE) -> int:
    """How many tokens to draft, when each comes true with this probability after those before it, and drafting one
    costs so much of what reading one costs the others, and one more in the same forward so much of that. 0 where no
    draft pays.

    A round with k drafted tokens writes 1 + p + ... + p^k tokens (Leviathan et al., equation 1) in the time of k + 1
    drafter's forwards and one of the others with k more tokens.

    >>> [best_length(p, 0.2) for p in (0.1, 0.6, 0.8, 0.95)], best_length(0.95, 0.2, more=0.9)
    ([0, 1, 2, 5], 0)
    """
    found, rate = 0, 1 / (1 + cost)
    written = 1.0
    for k in range(1, MOST + 1):
        written += accepted**k
        if (new := written / ((k + 1) * cost + 1 + more * k)) > 1.02 * rate:
            found, rate = k, new
    return found


class Drafter:
    """Lets one member of a text draft. What it reads for that is what it would read anyway, where the draft comes
    true."""

    def __init__(self, reader: Reader, cost: float = 0.2, more: float = ONE_MORE, rest: int = 0) -> None:
        """`cost` is the time that the drafter takes for a token, as a share of what the others take together; `more`
        what each further token in a forward costs them, as a share of the first. No draft is made for the first `rest`
        choices, so that it comes to be known what one token costs."""
        self.reader, self._cost, self._more = reader, cost, more
        self.number = reader.number
        self._trues, self._falses = 4.0, 1.0
        """How often a drafted token came true after those before it, and how often not; old ones fade."""
        self._ends: list[int] = []
        """After how many choices each token of the last draft would have come true, counted from the text's first."""
        self._rest_until = rest
        self._feed: Feed | None = None
        self._rows: FloatArray | None = None

    def draft(self, others: Sequence[Reader], n_steps: int) -> Iterator[None]:
        """Draft, one forward of the drafter at a time (yields None for each), and give the others the guess. The
        drafter's own voter is ready; so many choices have been made."""
        self._learn(n_steps)
        if n_steps < self._rest_until:
            return
        length = best_length(self._trues / (self._trues + self._falses), self._cost, self._more)
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
