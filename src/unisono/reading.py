"""Reading for one voter: what it waits for, what it has not heard yet, and what may come.

A voter asks for its forwards one by one. Where the text to come is known, since it is being scored, or since the voter
was not needed for a while, or is guessed, since another member has drafted it, the rows for many of them are read in
one forward and handed out as the voter asks. A guess that turns out wrong costs time and changes nothing: rows are only
ever handed out for the very tokens that they follow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from unisono.arrays import FloatArray, Logits
from unisono.members.base import Feed
from unisono.voting.base import Voter

ROW_BYTES = 32 << 20
"""How many bytes of logits one context may hold in advance."""
FIRST, MOST = 2, 64
"""How many tokens a context reads ahead in a known text at first, and at most; it doubles with every time that all were
of use."""


@dataclass
class _Asked:
    """A feed of the voter that has to be read."""

    place: int
    """Which of those pending."""
    feed: Feed
    """What is read: those of its ids that the context has not read ahead, and what may come after them."""
    n_ahead: int
    """How many of those."""


class Reader:
    """Between one voter and its member.

    Rounds: as long as `settle` says False, read `feeds` and `take` what they return; then the voter can vote. `hear`
    tells what was chosen, to the voter or, if that still waits for something, for later.
    """

    def __init__(self, number: int, voter: Voter, known: Sequence[int] = ()) -> None:
        self.number = number
        """Which member of the ensemble it is."""
        self.voter = voter
        self._known = bool(known)
        self.coming: list[int] = list(known)
        """Choices to come: first those that others have made and the voter has not heard, then those that are guessed
        or known."""
        self.n_lag = 0
        """How many of them it has to hear."""
        self._rows: dict[int, deque[tuple[int, int, FloatArray]]] = {}
        """Of each context: position, id and logits of what it has read beyond what the voter knows."""
        self._length: dict[int, int] = {}
        self._lines: dict[int, Sequence[int]] = {}
        """The voter's contexts, by number: a number may have come to mean another context."""
        self._got: dict[int, Logits] = {}
        self._asked: list[_Asked] = []
        self._most = max(1, min(MOST, ROW_BYTES // (4 * voter.member.vocabulary.n_ids)))

    def settle(self) -> bool:
        """Hand out what has been read; whether that was enough for a vote."""
        while True:
            while self.n_lag and self.voter.can_hear:
                self.voter.hear(self.coming.pop(0))
                self.n_lag -= 1
            pending = self.voter.pending()
            if not pending:
                return True
            self._forget_dropped()
            for place, feed in enumerate(pending):
                if place not in self._got and (row := self._from_ahead(feed)) is not None:
                    self._got[place] = row
            if len(self._got) < len(pending):
                return False
            self._give(len(pending))

    def catch_up(self) -> tuple[int, int]:
        """Read, one forward a round, until the voter can vote; how many forwards and tokens that took."""
        n_forwards = n_read = 0
        while not self.settle():
            feeds = self.feeds()
            self.take(self.voter.member.forward(feeds))
            n_forwards += 1
            n_read += sum(len(feed.ids) for feed in feeds)
        return n_forwards, n_read

    def _from_ahead(self, feed: Feed) -> Logits | None:
        rows = self._rows.get(feed.context)
        n = self._n_held(feed)
        if not rows or n < len(feed.ids):
            return None
        for _ in range(n - 1):
            rows.popleft()
        return rows.popleft()[2][None]

    def _n_held(self, feed: Feed) -> int:
        """How many of the feed's first ids its context has read ahead."""
        rows = self._rows.get(feed.context, ())
        n = 0
        for (at, i, _), wanted in zip(rows, feed.ids, strict=False):
            if (at, i) != (feed.at + n, wanted):
                break
            n += 1
        return n if feed.rows == 1 else 0

    def feeds(self) -> list[Feed]:
        """What to read in the next forward, after `settle` has said False."""
        plans = self._plans()
        self._asked = []
        for place, (feed, plan) in enumerate(zip(self.voter.pending(), plans, strict=True)):
            if place not in self._got:
                skipped = min(self._n_held(feed), len(feed.ids) - 1)
                longer = Feed(
                    feed.context, feed.at + skipped, [*feed.ids[skipped:], *plan], max(feed.rows, 1) + len(plan)
                )
                self._asked.append(_Asked(place, longer, len(plan)))
        return [asked.feed for asked in self._asked]

    def _plans(self) -> list[list[int]]:
        """What each pending feed reads beyond."""
        pending = self.voter.pending()
        if not self.coming:
            return [[]] * len(pending)
        if not self._known:  # what was missed, or a guess: all of it for the likeliest branch
            plans = self.voter.ahead(self.coming, self._most, whole=True)
            best = self.voter.heaviest_pending
            if self.n_lag:
                return [plan if place == best else plan[:FIRST] for place, plan in enumerate(plans)]
            # The length of a draft is chosen by what a forward of so many tokens costs, whatever branches they are of.
            beside = sum(len(feed.ids) for place, feed in enumerate(pending) if place != best)
            return [plan[: max(len(plan) - beside, 1)] if place == best else [] for place, plan in enumerate(plans)]
        plans = self.voter.ahead(self.coming, self._most, whole=False)
        out = []
        for feed, plan in zip(pending, plans, strict=True):
            before = self._length.get(feed.context, 0)
            used_up = feed.context in self._rows and not self._rows[feed.context]
            n = min(2 * before, self._most) if used_up and before else FIRST
            if len(feed.ids) > 1 or feed.rows > 1:  # a prompt, not a branch that may soon die
                n = self._most
            out.append(plan[:n])
            self._length[feed.context] = len(out[-1])
        return out

    def take(self, logits: Sequence[Logits]) -> None:
        """What `feeds` asked for; the arrays are not kept. Raises BadLogits."""
        for asked, rows in zip(self._asked, logits, strict=True):
            feed = asked.feed
            n_own = len(feed.ids) - asked.n_ahead
            n_rows = feed.rows - asked.n_ahead
            ahead = zip(feed.ids[n_own:], rows[n_rows:], strict=True)
            self._rows[feed.context] = deque((feed.at + n_own + k, i, row.copy()) for k, (i, row) in enumerate(ahead))
            self._got[asked.place] = rows[:n_rows]
        self._asked = []
        self._give(len(self.voter.pending()))

    def _give(self, n: int) -> None:
        rows = [self._got[place] for place in range(n)]
        self._got = {}
        self.voter.read(rows)

    def _forget_dropped(self) -> None:
        before, self._lines = self._lines, dict(self.voter.lines)
        for context, ids in before.items():
            if self._lines.get(context) is not ids:
                self._rows.pop(context, None)
                self._length.pop(context, None)

    def put_ahead(self, context: int, at: int, i: int, row: FloatArray) -> None:
        """Keep a row (copied) that a draft has read in one of the voter's contexts."""
        self._rows.setdefault(context, deque()).append((at, i, row.copy()))

    def clear_ahead(self, context: int) -> None:
        """Forget what that context has read ahead."""
        self._rows.pop(context, None)

    def guess(self, choices: Sequence[int]) -> None:
        """What will probably be chosen after all that has been heard and is to be heard."""
        self.coming[self.n_lag :] = choices

    @property
    def n_guessed(self) -> int:
        """How many choices are guessed."""
        return len(self.coming) - self.n_lag

    def hear(self, choice: int) -> None:
        """What was chosen."""
        if not self.n_lag and self.voter.can_hear:
            self.voter.hear(choice)
            if self.coming and self.coming[0] == choice:
                del self.coming[0]
            else:
                self.coming = []
        else:
            if self.n_lag == len(self.coming) or self.coming[self.n_lag] != choice:
                self.coming[self.n_lag :] = [choice]
            self.n_lag += 1
