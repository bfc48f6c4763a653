"""Many texts at once: each runs on what it has until it needs a forward; when all wait, each member does one forward
for all of them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from unisono.drafting import MOST, Drafter
from unisono.errors import CacheFull, EnsembleError
from unisono.members.base import Feed, Member
from unisono.reading import Reader
from unisono.sampling import Tilt
from unisono.steps import Step
from unisono.voting.base import MemberPrompt, Unit, Voter, n_common
from unisono.writing import Writing

MOST_UNREAD = 512
"""How many steps of a text may wait for their reader before it stands still."""

WORTH_WAITING = 16
"""So many tokens of a prompt that another text is about to read are worth a round of waiting."""


_NUMBERS = count()


class Text:
    """One text in the engine: what it has written, and what became of it."""

    def __init__(
        self,
        prompts: Sequence[MemberPrompt],
        begin: Callable[[Sequence[Voter]], Writing],
        tilt: Tilt | None = None,
    ) -> None:
        self.prompts = prompts
        self.begin = begin
        self.tilt = tilt
        self.number = next(_NUMBERS)
        """Its age: older texts have smaller ones."""
        self.steps: deque[Step] = deque()
        """Those that nobody has taken yet."""
        self.error: Exception | None = None
        """What ended it before its time."""
        self.done = False
        self.writing: Writing | None = None
        self.work: Iterator[Step | None] = iter(())


class Engine:
    """Runs the texts of one ensemble.

    Safe to use from several threads: whoever drives it drives it for all.
    """

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self._members: Sequence[Member] = unit.members
        self._lock = threading.RLock()
        self._books = threading.Lock()
        self._queued: deque[Text] = deque()
        self._active: list[Text] = []
        """In the order of their age, oldest first."""
        self._parked: list[Text] = []
        """Those whose cells were taken; oldest first. They go on when others have left."""
        self._room_made = False
        most = min(member.n_contexts for member in self._members) // unit.n_contexts
        self._most_active = max(most, 1)
        devices = list(dict.fromkeys(member.device for member in self._members))
        self._by_device = [[n for n, m in enumerate(self._members) if m.device == device] for device in devices]
        self._threads = ThreadPoolExecutor(len(devices), "member") if len(devices) > 1 else None
        self.n_forwards = [0] * len(self._members)
        """Forwards of each member so far, for all texts together."""
        self.forward_s = [0.0] * len(self._members)
        """Seconds in those."""
        self.one_more: list[float | None] = [None] * len(self._members)
        """What each further token and its row in a short forward cost, as a share of the first; None: not known."""
        self.token_s: list[float | None] = [None] * len(self._members)
        """The shortest time in which each has read one token so far; None where it has not yet."""

    @property
    def n_texts(self) -> int:
        """How many texts are under way."""
        return len(self._queued) + len(self._active) + len(self._parked)

    def join(self, text: Text) -> None:
        """Take a text in; it is begun in one of the next rounds."""
        with self._lock:
            self._queued.append(text)

    def leave(self, text: Text) -> None:
        """Let go of a text and its contexts, whatever it was doing. Harmless when it has left already."""
        with self._lock:
            text.done = True
            for place in (self._queued, self._active, self._parked):
                if text in place:
                    place.remove(text)
            if text.writing is not None:
                for voter in text.writing.voters:
                    voter.close()
                text.writing = None
                self._room_made = True
            text.work = iter(())

    def close(self) -> None:
        """Let go of all texts."""
        with self._lock:
            for text in [*self._queued, *self._active, *self._parked]:
                self.leave(text)
            if self._threads:
                self._threads.shutdown()

    def advance(self, text: Text) -> None:
        """Drive all texts until this one has a step to take, is done, or has failed."""
        while not text.steps and not text.done:
            with self._lock:
                if not text.steps and not text.done:
                    self.round()

    def round(self) -> None:
        """Let every text run until it waits, then do one forward a member for all of them."""
        with self._lock:
            self._begin_queued()
            running = [s for s in self._active if len(s.steps) < MOST_UNREAD]
            for text in running:
                assert text.writing is not None
                text.writing.begin_clock()
            for text in running:
                self._run(text)
            waiting = [s for s in running if s.writing is not None]
            tasks = [
                (numbers, [(s, r) for s in waiting for r in (s.writing.waits if s.writing else ())])
                for numbers in self._by_device
            ]
            if self._threads:
                list(self._threads.map(lambda task: self._forward_device(*task), tasks))
            else:
                for numbers, pairs in tasks:
                    self._forward_device(numbers, pairs)
            for text in running:
                if text.writing is not None:
                    text.writing.stop_clock()

    # How texts come and go.

    def _begin_queued(self) -> None:
        if self._parked and (self._room_made or not self._active):
            self._room_made = False
            self._active.append(self._parked.pop(0))
            self._active.sort(key=lambda s: s.number)
        begun: list[Text] = []
        while self._queued and len(self._active) + len(self._parked) < self._most_active:
            text = self._queued[0]
            if any(n_common(text.prompts[0].ids, other.prompts[0].ids) >= WORTH_WAITING for other in begun):
                return  # the other is about to read the same beginning: next round it can be forked
            self._queued.popleft()
            voters: list[Voter] = []
            try:
                for number, prompt in enumerate(text.prompts):
                    held = [line for s in self._active if s.writing for line in s.writing.voters[number].lines]
                    voters.append(self.unit.voter(number, prompt, held, text.tilt))
                text.writing = text.begin(voters)
                text.work = text.writing.steps()
            except EnsembleError as exc:
                for voter in voters:
                    voter.close()
                if isinstance(exc, CacheFull) and (self._active or self._parked):
                    self._queued.appendleft(text)
                    return
                self._fail(text, exc)
                continue
            except BaseException:
                for voter in voters:
                    voter.close()
                raise
            self._active.append(text)
            begun.append(text)

    def _run(self, text: Text) -> None:
        try:
            for step in text.work:
                if step is None:
                    return
                text.steps.append(step)
                if step.finish:
                    if text.writing:
                        text.writing.stop_clock()
                    self.leave(text)
                    return
        except Exception as exc:
            self._fail(text, exc)

    def _fail(self, text: Text, error: Exception) -> None:
        """A text that fails fails alone."""
        with self._books:
            text.error = error
            if text.writing:
                text.writing.stop_clock()
            self.leave(text)

    def _park(self, text: Text) -> None:
        """Take the cells of a text's contexts; they are read again when it goes on."""
        assert text.writing is not None
        with self._books:
            self._active.remove(text)
            self._parked.append(text)
            self._parked.sort(key=lambda s: s.number)
            text.writing.stop_clock()
            for voter in text.writing.voters:
                for context, _ in voter.lines:
                    voter.member.release(context)

    # Forwards.

    def _forward_device(self, numbers: Sequence[int], pairs: Sequence[tuple[Text, Reader | Drafter]]) -> None:
        """Members that share a device run in turn."""
        for number in numbers:
            self._forward(number, [(s, r) for s, r in pairs if r.number == number])

    def _forward(self, number: int, pairs: Sequence[tuple[Text, Reader | Drafter]]) -> None:
        """One forward of a member for all these. If its cache is full, the youngest text is put back."""
        member = self._members[number]
        while pairs := [(s, r) for s, r in pairs if not s.done and s not in self._parked]:
            asked = [reader.feeds() for _, reader in pairs]
            feeds: list[Feed] = [feed for each in asked for feed in each]
            before = time.perf_counter()
            try:
                logits = member.forward(feeds)
            except CacheFull as exc:
                youngest = max(self._active, key=lambda s: s.number)
                if len(self._active) > 1:
                    self._park(youngest)
                    continue
                self._fail(pairs[0][0], exc)
                return
            except EnsembleError as exc:
                if len(pairs) > 1:  # find out whose fault it is
                    for pair in pairs:
                        self._forward(number, [pair])
                else:
                    self._fail(pairs[0][0], exc)
                return
            seconds = time.perf_counter() - before
            self.n_forwards[number] += 1
            self.forward_s[number] += seconds
            known = self.token_s[number]
            if len(feeds) == len(feeds[0].ids) == 1 and (known is None or seconds < known):
                self.token_s[number] = seconds
            if known and 1 < len(feeds[0].ids) == feeds[0].rows <= MOST and len(feeds) == 1:
                more = max(seconds / known - 1, 0.0) / (len(feeds[0].ids) - 1)
                before_this = self.one_more[number]
                self.one_more[number] = more if before_this is None else 0.8 * before_this + 0.2 * more
            n_all = sum(len(feed.ids) for feed in feeds)
            at = 0
            for (text, reader), own in zip(pairs, asked, strict=True):
                assert text.writing is not None
                n_read = sum(len(feed.ids) for feed in own)
                stats = text.writing.stats
                stats.n_forwards[number] += 1
                stats.n_read[number] += n_read
                stats.forward_s[number] += seconds * n_read / n_all
                try:
                    reader.take(logits[at : at + len(own)])
                except EnsembleError as exc:
                    self._fail(text, exc)
                at += len(own)
            return
