"""Many texts at once: each runs on what it has until it needs a forward; when all wait, each member does one forward
for all of them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import count
from typing import TypeAlias

from unisono.drafting import Costs, Drafter
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
        self._lock, self._door = threading.RLock(), threading.RLock()
        self._own = threading.local()
        self._queued: deque[Text] = deque()
        self._active: list[Text] = []
        """In the order of their age, oldest first."""
        self._given_up: deque[Text] = deque()
        """Those that nobody will read any more; they leave in the next turn."""
        self._parked: list[Text] = []
        """Those whose cells were taken; oldest first. They go on when others have left."""
        self._room_made = False
        self._closed = False
        most = min(member.n_contexts for member in self._members) // unit.n_contexts
        self._most_active = max(most, 1)
        devices = list(dict.fromkeys(member.device for member in self._members))
        self._by_device = [[n for n, m in enumerate(self._members) if m.device == device] for device in devices]
        self._threads = ThreadPoolExecutor(len(devices), "member") if len(devices) > 1 else None
        self.costs = Costs(len(self._members))
        """What forwards for one context have taken so far."""

    @property
    def n_texts(self) -> int:
        """How many texts are under way."""
        return len(self._queued) + len(self._active) + len(self._parked)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """One thread at a time; who waits comes before the thread that drives all texts, which takes the lock again as
        soon as it has let go of it."""
        if getattr(self._own, "inside", False):
            with self._lock:
                yield
            return
        self._own.inside = True
        try:
            with self._door:  # who drives comes to it behind whoever waits here
                self._lock.acquire()
            try:
                self._sweep()
                yield
            finally:
                self._lock.release()
        finally:
            self._own.inside = False

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else uses the members meanwhile. Raises EnsembleError after `close`."""
        with self._turn():
            if self._closed:
                raise EnsembleError("The ensemble has been closed, and its models are gone: make another one.")
            yield

    def join(self, text: Text) -> None:
        """Take a text in; it is begun in one of the next rounds. One that has been given up already is left out.

        Raises EnsembleError after `close`.
        """
        with self.alone():
            if not text.done:
                self._queued.append(text)

    def leave(self, text: Text) -> None:
        """Let go of a text and its contexts, whatever it was doing. Harmless when it has left already."""
        with self._turn():
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

    def give_up(self, text: Text) -> None:
        """Let go of a text, now or in the next turn. Waits for nobody: garbage is collected in any thread, also in one
        that a round waits for, and in the midst of anything."""
        self._given_up.append(text)
        if not getattr(self._own, "inside", False) and self._lock.acquire(blocking=False):
            self._own.inside = True
            try:
                self._sweep()
            finally:
                self._own.inside = False
                self._lock.release()

    def _sweep(self) -> None:
        while self._given_up:
            self.leave(self._given_up.popleft())

    def close(self) -> None:
        """Let go of all texts, and close the members."""
        with self._turn():
            self._closed = True
            for text in [*self._queued, *self._active, *self._parked]:
                self.leave(text)
            if self._threads:
                self._threads.shutdown()
            for member in self._members:
                member.close()

    def advance(self, text: Text) -> None:
        """Drive all texts until this one has a step to take, is done, or has failed."""
        while not text.steps and not text.done:
            with self._turn():
                if not text.steps and not text.done:
                    self.round()

    def round(self) -> None:
        """Let every text run until it waits, then do one forward a member for all of them."""
        with self._turn():
            self._begin_queued()
            running = [text for text in self._active if len(text.steps) < MOST_UNREAD]
            for text in running:
                assert text.writing is not None
                text.writing.begin_clock()
            for text in running:
                self._run(text)
            self._forward_all([(text, late) for text in running if text.writing for late in text.writing.waits])
            for text in running:
                if text.writing is not None:
                    text.writing.stop_clock()

    # How texts come and go.

    def _begin_queued(self) -> None:
        if self._parked and (self._room_made or not self._active):
            self._room_made = False
            self._active.append(self._parked.pop(0))
            self._active.sort(key=_age)
        begun: list[Text] = []
        while self._queued and len(self._active) + len(self._parked) < self._most_active:
            text = self._queued[0]
            if any(n_common(text.prompts[0].ids, other.prompts[0].ids) >= WORTH_WAITING for other in begun):
                return  # the other is about to read the same beginning: next round it can be forked
            self._queued.popleft()
            voters: list[Voter] = []
            try:
                for number, prompt in enumerate(text.prompts):
                    held = [line for t in self._active if t.writing for line in t.writing.voters[number].lines]
                    voters.append(self.unit.voter(number, prompt, held, text.tilt))
                text.writing = text.begin(voters)
                text.work = text.writing.steps()
            except Exception as exc:
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
                self._queued.appendleft(text)  # Ctrl-C, perhaps in a thread that waits for another text
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
        except BaseException:  # what the thread that drives was told, in the midst of a text that may be another's
            self._fail(text, EnsembleError("The text was interrupted, with another that was written beside it."))
            raise

    def _fail(self, text: Text, error: Exception) -> None:
        """A text that fails fails alone."""
        text.error = error
        if text.writing:
            text.writing.stop_clock()
        self.leave(text)

    def _park(self, text: Text) -> None:
        """Take the cells of a text's contexts; they are read again when it goes on."""
        assert text.writing is not None
        self._active.remove(text)
        self._parked.append(text)
        self._parked.sort(key=_age)
        text.writing.stop_clock()
        for voter in text.writing.voters:
            for context, _ in voter.lines:
                voter.member.release(context)

    # Forwards.

    def _forward_all(self, waiting: Sequence[_Waiting]) -> None:
        """One forward a member for all that wait for it; members of different devices at the same time. What went wrong
        is put right afterwards, since that may touch any member."""
        if self._threads:
            jobs = [self._threads.submit(self._forward_device, numbers, waiting) for numbers in self._by_device]
            try:
                troubles = deque(trouble for job in jobs for trouble in job.result())
            finally:
                wait(jobs)  # after Ctrl-C, too: nobody may touch a member in the midst of its forward
        else:
            troubles = deque(self._forward_device(self._by_device[0], waiting))
        while troubles:
            number, pairs, error = troubles.popleft()
            if isinstance(error, CacheFull) and len(self._active) > 1:
                self._park(max(self._active, key=_age))  # and again, with what is left
                troubles += self._forward(number, [pair for pair in pairs if pair[0] in self._active])
            elif not pairs[0][0].done:  # another member may have failed it already
                self._fail(pairs[0][0], error)

    def _forward_device(self, numbers: Sequence[int], waiting: Sequence[_Waiting]) -> list[_Trouble]:
        """Members that share a device run in turn."""
        found: list[_Trouble] = []
        for number in numbers:
            found += self._forward(number, [pair for pair in waiting if pair[1].number == number])
        return found

    def _forward(self, number: int, pairs: Sequence[_Waiting]) -> list[_Trouble]:
        """One forward of a member for all these, and what went wrong. Touches nothing but that member, and these texts'
        voters of it."""
        if not pairs:
            return []
        asked = [late.feeds() for _, late in pairs]
        feeds: list[Feed] = [feed for each in asked for feed in each]
        before = time.perf_counter()
        try:
            logits = self._members[number].forward(feeds)
        except Exception as exc:
            if isinstance(exc, CacheFull) or len(pairs) == 1:
                return [(number, pairs, exc)]
            return [trouble for pair in pairs for trouble in self._forward(number, [pair])]  # whose fault is it?
        seconds = time.perf_counter() - before
        if len(feeds) == 1 and len(feeds[0].ids) == feeds[0].rows:
            self.costs.learn(number, feeds[0].rows, seconds)
        n_all = sum(len(feed.ids) for feed in feeds)
        found: list[_Trouble] = []
        at = 0
        for (text, late), own in zip(pairs, asked, strict=True):
            assert text.writing is not None
            n_read = sum(len(feed.ids) for feed in own)
            stats = text.writing.stats
            stats.n_forwards[number] += 1
            stats.n_read[number] += n_read
            stats.forward_s[number] += seconds * n_read / n_all
            try:
                late.take(logits[at : at + len(own)])
            except Exception as exc:
                found.append((number, [(text, late)], exc))
            at += len(own)
        return found


_Waiting: TypeAlias = tuple[Text, Reader | Drafter]
"""A text, and what it waits for."""
_Trouble: TypeAlias = tuple[int, Sequence[_Waiting], Exception]
"""Which member could not read, for whom, and why."""


def _age(text: Text) -> int:
    return text.number
