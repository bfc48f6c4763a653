from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import byte_vocabulary, constant
from strategies import members
from unisono import drafting
from unisono.arrays import Logits
from unisono.drafting import LEARNING, Costs
from unisono.ensemble import Ensemble, Generation
from unisono.errors import BackendError, CacheFull, ConfigError, EnsembleError
from unisono.members.base import Feed
from unisono.members.fake import TableMember
from unisono.policy import Threshold
from unisono.vocabulary import Kind, Vocabulary
from unisono.voting.pieces import PieceVoter

VOTES = ("bytes", "pieces")

V = Vocabulary.build([b"a", b"b", b" ", b"ab", b" a", b"bab", b"</s>"], {6: Kind.END})


class TightMember(TableMember):
    """A member whose cache holds so many tokens in all; a released context takes none until it is read again."""

    def __init__(self, name: str, vocabulary: Vocabulary, seed: int, n_cells: int, n_contexts: int = 64) -> None:
        source = TableMember.random(name, vocabulary, seed)
        super().__init__(name, vocabulary, source._answer, n_contexts=n_contexts)
        self.n_cells = n_cells
        self.released: set[int] = set()
        self.n_released = 0
        self.batches: list[int] = []

    def forward(self, feeds: Sequence[Feed]) -> list[Logits]:
        fed = {feed.context: feed.at + len(feed.ids) for feed in feeds}
        held = {c: len(ids) for c, ids in self._contexts.items() if c not in self.released}
        if sum({**held, **fed}.values()) > self.n_cells:
            raise CacheFull(f"{self.name} is full")
        self.released -= set(fed)
        self.batches.append(len(feeds))
        return super().forward(feeds)

    def release(self, context: int) -> None:
        self.released.add(context)
        self.n_released += 1

    def drop(self, context: int) -> None:
        self.released.discard(context)
        super().drop(context)


def outcome(generation: Generation) -> str:
    """The text, and what it failed with if it did."""
    try:
        return generation.run()
    except EnsembleError as exc:
        return f"{generation.text}, then {exc}"


def interleaved(generations: Sequence[Generation], order: Sequence[int]) -> list[str]:
    """Take steps in this order, then the rest of each."""
    failed: dict[int, str] = {}
    for n in order:
        try:
            next(generations[n % len(generations)], None)
        except EnsembleError as exc:
            failed[n % len(generations)] = f", then {exc}"
    return [outcome(generation) + failed.get(n, "") for n, generation in enumerate(generations)]


@given(st.data(), st.sampled_from(VOTES))
def test_texts_side_by_side_are_what_each_is_alone(data: st.DataObject, vote: str) -> None:
    drawn = data.draw(members())
    prompts = data.draw(st.lists(st.sampled_from(["a", "aa", "aaa", "aaaa"]), min_size=2, max_size=6))
    lengths = [data.draw(st.integers(1, 12)) for _ in prompts]
    order = data.draw(st.lists(st.integers(0, 5), max_size=20))
    alone = [
        outcome(Ensemble(drawn, vote=vote).generate(prompt, max_tokens=n))
        for prompt, n in zip(prompts, lengths, strict=True)
    ]
    ensemble = Ensemble(drawn, vote=vote)
    generations = [ensemble.generate(prompt, max_tokens=n) for prompt, n in zip(prompts, lengths, strict=True)]
    assert interleaved(generations, order) == alone
    assert ensemble.engine.n_texts == 0
    assert not any(member._contexts for member in drawn)


def test_all_texts_that_wait_are_read_in_one_forward() -> None:
    member = TightMember("m", V, 1, n_cells=1000)
    ensemble = Ensemble([member], vote="pieces")
    generations = [ensemble.generate(prompt, max_tokens=5) for prompt in ("ab", "ba", " a", "bb")]
    for generation in generations:
        ensemble.engine.join(generation._of)
        generation._joined = True
    ensemble.engine.round()
    assert member.batches == [4]


@pytest.mark.parametrize(("vote", "n_cells"), [("pieces", 13), ("pieces", 17), ("bytes", 26), ("bytes", 30)])
def test_a_text_that_was_put_back_is_read_again_and_not_lost(vote: str, n_cells: int) -> None:
    prompts = ["ab", "ba", "bab", "a b", "bb", "a"]
    alone = [
        Ensemble([TightMember("m", V, 3, 10_000)], vote=vote, epsilon=0.2).generate(p, max_tokens=9).run()
        for p in prompts
    ]
    member = TightMember("m", V, 3, n_cells)
    ensemble = Ensemble([member], vote=vote, epsilon=0.2)
    generations = [ensemble.generate(prompt, max_tokens=9) for prompt in prompts]
    assert interleaved(generations, range(60)) == alone
    assert member.n_released > 0
    assert not member._contexts


def test_a_text_that_does_not_fit_an_empty_cache_fails_and_says_so() -> None:
    member = TightMember("m", V, 3, 12)
    ensemble = Ensemble([member], vote="pieces")
    long, short = ensemble.generate("ab" * 20, max_tokens=9), ensemble.generate("a", max_tokens=4)
    alone = Ensemble([TightMember("m", V, 3, 100)], vote="pieces").generate("a", max_tokens=4).run()
    ensemble.engine.join(long._of)
    long._joined = True
    assert short.run() == alone
    with pytest.raises(CacheFull, match="m is full"):
        long.run()
    assert list(long) == []
    assert not member._contexts


@pytest.mark.parametrize("vote", VOTES)
def test_more_texts_than_contexts_take_turns(vote: str) -> None:
    member = TightMember("m", V, 5, 10_000, n_contexts=2 if vote == "pieces" else 32)
    ensemble = Ensemble([member], vote=vote)
    prompts = ["ab", "ba", "bab", "a b", "bb", "a"]
    generations = [ensemble.generate(prompt, max_tokens=6) for prompt in prompts]
    found = interleaved(generations, range(30))
    alone = Ensemble([TightMember("m", V, 5, 10_000)], vote=vote)
    assert found == [alone.generate(prompt, max_tokens=6).run() for prompt in prompts]


class FailsOn(TableMember):
    """Fails in every forward that reads a given id."""

    bad = 1

    def forward(self, feeds: Sequence[Feed]) -> list[Logits]:
        if any(self.bad in feed.ids for feed in feeds):
            raise BackendError(f"{self.name} cannot stand {self.bad}")
        return super().forward(feeds)


@pytest.mark.parametrize("vote", VOTES)
def test_a_text_that_fails_fails_alone(vote: str) -> None:
    v = byte_vocabulary({})
    member = FailsOn("m", v, lambda ids: np.eye(256)[ord("c")] * 9)
    member.bad = ord("x")
    ensemble = Ensemble([member], vote=vote)
    good, bad = ensemble.generate("aaa", max_tokens=5), ensemble.generate("axa", max_tokens=5)
    ensemble.engine.join(bad._of)
    bad._joined = True
    assert good.run() == "ccccc"
    with pytest.raises(BackendError, match="cannot stand"):
        next(bad)
    assert not member._contexts


@pytest.mark.parametrize("vote", VOTES)
def test_a_prompt_that_begins_as_another_is_forked_and_not_read_again(vote: str) -> None:
    v = byte_vocabulary({})
    member = TableMember("m", v, lambda ids: np.eye(256)[ord("c")] * 9)
    shared = "The same beginning of every prompt, "
    ensemble = Ensemble([member], vote=vote)
    generations = [ensemble.generate(shared + end, max_tokens=3) for end in ("one", "two", "three")]
    for generation in generations:
        ensemble.engine.join(generation._of)
        generation._joined = True
    assert [generation.run() for generation in generations] == ["ccc"] * 3
    assert member.n_read < 2 * len(shared)


def test_a_text_that_nobody_reads_stands_still_before_it_fills_the_memory() -> None:
    ensemble = Ensemble([constant(V, {0: 1.0}, n_ctx=1 << 20)], vote="pieces")
    idle, read = ensemble.generate("a", max_tokens=5000), ensemble.generate("a", max_tokens=2000)
    next(idle)
    read.run()
    assert len(idle._of.steps) <= 513
    assert len(idle.run()) == 5000


def test_texts_may_be_read_from_several_threads() -> None:
    ensemble = Ensemble([TableMember.random("m", V, 7), TableMember.random("n", V, 8)])
    prompts = ["ab", "ba", "bab", "a b"] * 3
    alone = [ensemble.generate(prompt, max_tokens=20).run() for prompt in prompts]
    found: dict[int, str] = {}

    def work(n: int) -> None:
        found[n] = ensemble.generate(prompts[n], max_tokens=20).run()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[n] for n in range(len(prompts))] == alone


class Slow(TableMember):
    """Takes its time, in which other threads may come."""

    def forward(self, feeds: Sequence[Feed]) -> list[Logits]:
        time.sleep(0.001)
        return super().forward(feeds)


@pytest.mark.parametrize("vote", VOTES)
def test_who_comes_while_another_thread_writes_need_not_wait_until_it_is_done(vote: str) -> None:
    ensemble = Ensemble([Slow.random("slow", V, 1)], vote=vote)
    long = ensemble.generate("a", max_tokens=4000, ignore_end=True)
    thread = threading.Thread(target=long.run)
    thread.start()
    while not long.stats.n_tokens:
        time.sleep(0.001)
    assert ensemble.generate("ab", max_tokens=3, ignore_end=True).run()
    assert thread.is_alive()
    ensemble.close()  # nor does who closes it
    thread.join()
    assert 0 < long.stats.n_tokens < 4000


@pytest.mark.parametrize("vote", VOTES)
def test_a_closed_ensemble_says_so(vote: str) -> None:
    ensemble = Ensemble([TableMember.random("one", V, 1)], vote=vote)
    begun, waiting = (ensemble.generate("a", max_tokens=9, ignore_end=True) for _ in range(2))
    next(begun)
    ensemble.close()
    assert list(begun) == []
    with pytest.raises(EnsembleError, match="has been closed"):
        next(waiting)
    assert list(waiting) == []
    with pytest.raises(EnsembleError, match="has been closed"):
        ensemble.generate("a")
    ensemble.close()


def test_a_text_that_is_given_up_as_it_joins_is_left_out() -> None:
    ensemble = Ensemble([TableMember.random("one", V, 1)])
    text = ensemble.generate("a")._of
    ensemble.engine.leave(text)  # from another thread, say
    ensemble.engine.join(text)
    assert ensemble.engine.n_texts == 0


@pytest.mark.parametrize("at", ["begin", "take"])
def test_what_nobody_expected_in_a_text_ends_that_alone(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ensemble = Ensemble([TableMember.random("one", V, 1)], vote="pieces")
    good, bad = (ensemble.generate("ab", max_tokens=5, ignore_end=True, logit_bias={"a": x}) for x in (1.0, 2.0))

    def fails(*_: Any) -> None:
        raise ZeroDivisionError("a mistake of ours")

    if at == "begin":
        monkeypatch.setattr(bad._of, "begin", fails)
    else:
        taken = PieceVoter.read

        def read(voter: PieceVoter, logits: Sequence[Logits]) -> None:
            if bad._of.writing and voter in bad._of.writing.voters:
                fails()
            taken(voter, logits)

        monkeypatch.setattr(PieceVoter, "read", read)
    ensemble.engine.join(bad._of)
    bad._joined = True
    assert len(good.run()) > 0
    with pytest.raises(ZeroDivisionError):
        bad.run()
    assert ensemble.engine.n_texts == 0


@pytest.mark.parametrize("vote", VOTES)
def test_members_of_different_devices_run_at_the_same_time(vote: str) -> None:
    meeting = threading.Barrier(2, timeout=20)

    class Meets(TableMember):
        def forward(self, feeds: Sequence[Feed]) -> list[Logits]:
            meeting.wait()
            return super().forward(feeds)

    one, two = (Meets(name, V, TableMember.random(name, V, 1)._answer) for name in ("one", "two"))
    two.device = "gpu"
    found = Ensemble([one, two], vote=vote, epsilon=0).generate("ab", max_tokens=1, heal=False).run()
    plain = [TableMember.random("one", V, 1), TableMember.random("two", V, 1)]
    assert found == Ensemble(plain, vote=vote, epsilon=0).generate("ab", max_tokens=1, heal=False).run()


@given(st.data(), st.sampled_from(VOTES), st.sampled_from([0.0, 0.01, 0.3]))
def test_looking_ahead_never_changes_the_text(data: st.DataObject, vote: str, epsilon: float) -> None:
    drawn = data.draw(members())
    prompts = data.draw(st.lists(st.sampled_from(["a", "aa", "aaa"]), min_size=1, max_size=3))
    plain = Ensemble(drawn, vote=vote, epsilon=epsilon)
    alone = [outcome(plain.generate(prompt, max_tokens=12)) for prompt in prompts]
    drafter = data.draw(st.sampled_from([m.name for m in drawn] + ["auto"]))
    ensemble = Ensemble(drawn, vote=vote, epsilon=epsilon, drafter=drafter)
    generations = [ensemble.generate(prompt, max_tokens=12) for prompt in prompts]
    assert interleaved(generations, [0, 1, 2, 0, 1]) == alone
    assert not any(member._contexts for member in drawn)


@pytest.mark.parametrize("seed", range(40))
def test_drafts_of_any_lengths_never_change_the_text(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = random.Random(seed)
    monkeypatch.setattr(Costs, "learn", lambda *_: None)
    monkeypatch.setattr(drafting, "LEARNING", 0)
    monkeypatch.setattr(drafting, "REST", 1)
    monkeypatch.setattr(drafting, "best_length", lambda *_: lengths.choice([0, 1, 1, 2, 3, 8]))
    drawn = [TableMember.random("x", V, 244 + seed // 5, spread=4), TableMember.random("y", V, 335, spread=4)]
    written: dict[str, Any] = {"max_tokens": 30, "ignore_end": True, "seed": 86, "temperature": 1}
    plain = Ensemble(drawn).generate("ab", **written).run()
    assert Ensemble(drawn, drafter="x").generate("ab", **written).run() == plain


def interrupted(_: Any) -> Any:
    raise KeyboardInterrupt


def test_ctrl_c_while_another_text_is_written_ends_that_or_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ensemble = Ensemble([TableMember.random("m", V, 7)], vote="pieces")
    alone = ensemble.generate("ba", max_tokens=9, ignore_end=True).run()
    for at in ("begin", "run"):
        ours, other = (ensemble.generate(prompt, max_tokens=9, ignore_end=True) for prompt in ("ab", "ba"))
        for generation in (other, ours):
            ensemble.engine.join(generation._of)
            generation._joined = True
        with monkeypatch.context() as patch:
            if at == "run":
                next(ours)
                patch.setattr(other._of, "work", map(interrupted, [None]))
            else:
                patch.setattr(other._of, "begin", interrupted)
            with pytest.raises(KeyboardInterrupt):
                ours.run()
        if at == "begin":
            assert other.run() == alone
        else:
            with pytest.raises(EnsembleError, match="interrupted"):
                other.run()
        assert ensemble.engine.n_texts == 0


@pytest.mark.parametrize("vote", VOTES)
def test_looking_ahead_reads_several_tokens_in_one_forward_where_members_agree(
    vote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Costs, "learn", lambda *_: None)  # what these members take is noise, and lengths depend on it
    logits = 9 * np.eye(256)[[ord(c) for c in "abcdefgh"]]
    one, two = (TableMember(n, byte_vocabulary({}), lambda ids: logits[len(ids) % 8].copy()) for n in ("one", "two"))
    plain = Ensemble([one, two], vote=vote).generate("aa", max_tokens=64)
    ahead = Ensemble([one, two], vote=vote, drafter="one").generate("aa", max_tokens=64)
    assert ahead.run() == plain.run()
    assert plain.stats.n_forwards == [64, 64]
    assert ahead.stats.n_forwards[0] <= 64 + 12 and ahead.stats.n_forwards[1] <= LEARNING + 12


def first_steps(generation: Generation, n: int) -> tuple[list[bytes], str]:
    """What the first steps chose, and the error that ended them."""
    pieces: list[bytes] = []
    try:
        for step, _ in zip(generation, range(n), strict=False):
            pieces.append(step.piece)
    except EnsembleError as exc:
        return pieces, str(exc)
    finally:
        generation.close()
    return pieces, ""


@given(st.data(), st.sampled_from(VOTES), st.booleans())
def test_a_threshold_of_1_is_a_vote_at_every_step(data: st.DataObject, vote: str, skip: bool) -> None:
    drawn = data.draw(members())
    weights = [data.draw(st.sampled_from([1.0, 4.0])) for _ in drawn]
    gate = data.draw(st.sampled_from([m.name for m in drawn]))
    plain = Ensemble(drawn, weights, vote=vote).generate("aa", max_tokens=None)
    gated = Ensemble(drawn, weights, vote=vote, threshold=1, gate=gate, skip=skip).generate("aa", max_tokens=None)
    assert first_steps(gated, 14) == first_steps(plain, 14)


W = Vocabulary.build([b"a", b"b", b" ", b"ba", b"</s>", b"bb", b" b"], {4: Kind.END})


@pytest.mark.parametrize("vote", VOTES)
@pytest.mark.parametrize("seed", range(20))
def test_a_threshold_of_0_is_the_gate_alone(vote: str, seed: int) -> None:
    one, two = TableMember.random("one", V, seed), TableMember.random("two", W, seed + 100)
    alone = Ensemble([two], vote="pieces").generate("ab", max_tokens=12)
    gated = Ensemble([one, two], vote=vote, threshold=0, gate="two").generate("ab", max_tokens=12, heal=False)
    assert gated.run() == alone.run()
    assert gated.finish == alone.finish
    assert gated.stats.n_votes == 0 and gated.stats.n_forwards[0] == 0
    assert gated.stats.n_forwards[1] == alone.stats.n_forwards[0]


@given(st.data(), st.sampled_from(VOTES), st.sampled_from([0.2, 0.4, 0.7, 1.0]))
def test_skipping_never_changes_the_text(data: st.DataObject, vote: str, threshold: float) -> None:
    drawn = data.draw(members())
    weights = [5.0] + [data.draw(st.sampled_from([1.0, 2.0])) for _ in drawn[1:]]
    found = []
    for skip in (True, False):
        ensemble = Ensemble(drawn, weights, vote=vote, threshold=threshold, skip=skip)
        found.append(first_steps(ensemble.generate("aa", max_tokens=None), 14))
    assert found[0] == found[1]


def last_word(text: bytes) -> bytes:
    """From where white space last begins after something else."""
    begins = [at for at in range(1, len(text)) if text[at : at + 1].isspace() and not text[at - 1 : at].isspace()]
    return text[begins[-1] :] if begins else text


def begins_a_token(member: TableMember, text: bytes, piece: bytes) -> bool:
    """Whether the member's tokenizer, given the last word and the piece, begins a token with the piece."""
    word = last_word(text)
    ids = member.vocabulary.longest_match(word + piece) or []
    return len(word) in [len(member.vocabulary.join(ids[:n])) for n in range(len(ids))]


@pytest.mark.parametrize("gate", ["one", "two"])
@pytest.mark.parametrize("seed", range(20))
def test_with_boundaries_all_vote_exactly_where_the_gates_piece_begins_a_token_for_the_others(
    gate: str, seed: int
) -> None:
    one, two = TableMember.random("one", V, seed), TableMember.random("two", W, seed + 100)
    other = two if gate == "one" else one
    ensemble = Ensemble([one, two], vote="pieces", gate=gate, boundaries=True, skip=False)
    generation = ensemble.generate("ab", max_tokens=30, ignore_end=True)
    text, n_voted = b"ab", 0
    for step in generation:
        wanted = step.votes[ensemble.names.index(gate)].favourite if step.votes else step.piece
        assert bool(step.votes) == (not wanted or begins_a_token(other, text, wanted))
        n_voted += bool(step.votes)
        text += step.piece
    assert generation.stats.n_votes == n_voted


@pytest.mark.parametrize("temperature", [0.0, 0.01])
def test_with_boundaries_nobody_is_asked_inside_of_what_it_writes_as_one_token(temperature: float) -> None:
    follows = {2: 0, 0: 1, 1: 2, 3: 2}
    gate = TableMember("gate", SYLLABLES, lambda ids: np.log(0.9 * np.eye(4)[follows[ids[-1]]] + 0.1 / 4))

    def lost(ids: tuple[int, ...]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Wants the whole name, and where it has been begun by letters only nonsense."""
        at_home = WHOLE.pieces[ids[-1]] in (b" ", b"Sofia")
        wanted, sure = (b"Sofia", 0.6) if at_home else (b"x", 0.99)
        logits = np.full(8, np.log((1 - sure) / 7))
        logits[WHOLE.canonical[wanted]] = np.log(sure)
        return logits

    other = TableMember("other", WHOLE, lost)
    plain = Ensemble([gate, other], vote="pieces").generate("x ", max_tokens=2)
    assert plain.run() == "Sox"
    ensemble = Ensemble([gate, other], vote="pieces", boundaries=True)
    assert ensemble.generate("x ", max_tokens=2, temperature=temperature, seed=1).run() == "Sofia"


SYLLABLES = Vocabulary.build([b"So", b"fia", b" ", b"x"])
WHOLE = Vocabulary.build([b"Sofia", b"S", b"o", b"f", b"i", b"a", b" ", b"x"])


def test_boundaries_are_for_pieces_and_know_a_gate_without_a_threshold() -> None:
    members = [TableMember.random("one", V, 1), TableMember.random("two", W, 2)]
    with pytest.raises(ConfigError, match="boundaries are for voting on pieces"):
        Ensemble(members, boundaries=True)
    assert Ensemble(members, vote="pieces", boundaries=True, gate="two").policy == Threshold(1, 1.0, True, True)


@pytest.mark.parametrize("vote", VOTES)
def test_a_member_that_lags_reads_all_it_missed_in_one_forward(vote: str) -> None:
    text = "abcdefghij" * 3
    v = byte_vocabulary({})

    def sure_but_every_tenth(ids: tuple[int, ...]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        n = len(ids) - 1
        logits = np.zeros(256)
        logits[ord(text[n % 30])] = 20.0 if n % 10 else 1.0
        return logits

    gate, other = (TableMember(name, v, sure_but_every_tenth) for name in ("gate", "other"))
    ensemble = Ensemble([gate, other], vote=vote, threshold=0.9, epsilon=0)
    generation = ensemble.generate("x", max_tokens=30, heal=False)
    assert generation.run() == text
    assert generation.stats.n_votes == 3
    assert generation.stats.n_forwards == [30, 3]
    assert generation.stats.n_read == [30, 21]


@pytest.mark.parametrize("vote", VOTES)
def test_five_hundred_requests_with_random_ways_and_cancellations_leave_nothing_behind(vote: str) -> None:
    draw = np.random.default_rng(1)
    n_cells = 70 if vote == "pieces" else 130
    member, other = TightMember("m", V, 3, n_cells, n_contexts=64), TableMember.random("other", W, 9)
    ways: list[dict[str, Any]] = [{}, {"drafter": "m"}, {"threshold": 0.4, "gate": "other"}]
    ensembles = [Ensemble([member, other], vote=vote, epsilon=0.05, **way) for way in ways]
    alive: list[Generation] = []
    n_failed = 0
    for number in range(500):
        ensemble = ensembles[number // 167]
        if number % 167 == 0:  # one engine at a time drives the members
            for generation in alive:
                generation.close()
            alive = []
        prompt = "".join(draw.choice(list("ab "), size=int(draw.integers(1, 12))))
        settings: dict[str, Any] = {"max_tokens": int(draw.integers(1, 40)), "ignore_end": bool(draw.random() < 0.7)}
        if draw.random() < 0.5:
            settings |= {"temperature": float(draw.uniform(0.2, 2)), "seed": number, "top_p": float(draw.uniform(0, 1))}
        if draw.random() < 0.3:
            settings |= {"frequency_penalty": 0.5, "stop": ["ab a"]}
        alive.append(ensemble.generate("a" + prompt, **settings))
        for _ in range(int(draw.integers(1, 8))):
            generation = alive[int(draw.integers(len(alive)))]
            try:
                next(generation, None)
            except EnsembleError:
                n_failed += 1
        if draw.random() < 0.4:
            alive.pop(int(draw.integers(len(alive)))).close()
        alive = [generation for generation in alive if generation.finish is None]
    for generation in alive:
        generation.close()
    assert member.n_released > 0 and n_failed < 25
    assert not member._contexts and not other._contexts
    assert all(ensemble.engine.n_texts == 0 for ensemble in ensembles)


@pytest.mark.parametrize("drafter", [None, "one"])
@pytest.mark.parametrize("seed", range(8))
def test_respelling_keeps_every_finished_word_in_the_members_own_tokens(seed: int, drafter: str | None) -> None:
    one = TableMember.random("one", Vocabulary.build([b"a", b"b", b" "]), seed, spread=1)
    two = TableMember.random("two", Vocabulary.build([b"a", b"b", b" ", b"ab", b" a", b" ab", b"aba"]), seed, spread=1)
    ensemble = Ensemble([one, two], vote="pieces", respell="word", drafter=drafter)
    generation = ensemble.generate("b ", max_tokens=30)
    pieces = [step.piece for _, step in zip(range(24), generation, strict=False)]
    assert generation._of.writing is not None
    voter = generation._of.writing.voters[1]
    assert isinstance(voter, PieceVoter)
    ids = [*voter._read, *voter._lag][voter._n_prompt :]
    written = b"".join(pieces).decode() + b"".join(step.piece for step in generation._of.steps).decode()
    assert two.vocabulary.join(ids).decode() == written
    finished, last = [], ""
    for piece in [*pieces, *(step.piece for step in generation._of.steps)]:
        if piece[:1] == b" " and last:
            finished.append(last)
            last = ""
        last += piece.decode()
    usual = [i for word in finished for i in two.encode(word)]
    assert ids[: len(usual)] == usual
    generation.close()
    assert not one._contexts and not two._contexts


def test_respelling_is_for_pieces() -> None:
    with pytest.raises(ConfigError, match="respell is for voting on pieces"):
        Ensemble([constant(V, {0: 1.0})], respell="word")


@pytest.mark.parametrize("vote", VOTES)
def test_a_text_fails_alone_where_members_run_at_the_same_time_too(vote: str) -> None:
    v = byte_vocabulary({})
    one, two = (FailsOn(name, v, lambda ids: np.eye(256)[ord("c")] * 9) for name in ("one", "two"))
    one.bad, two.bad, two.device = 0, ord("x"), "gpu"
    ensemble = Ensemble([one, two], vote=vote)
    good, bad = ensemble.generate("aaa", max_tokens=5), ensemble.generate("axa", max_tokens=5)
    ensemble.engine.join(bad._of)
    bad._joined = True
    assert good.run() == "ccccc"
    with pytest.raises(BackendError, match="two cannot stand"):
        next(bad)
    assert not one._contexts and not two._contexts


@pytest.mark.parametrize(("vote", "n_cells"), [("pieces", 13), ("bytes", 26)])
def test_texts_are_put_back_where_members_run_at_the_same_time_too(vote: str, n_cells: int) -> None:
    prompts = ["ab", "ba", "bab", "a b", "bb", "a"]
    plain = Ensemble([TightMember("m", V, 3, 10_000), TightMember("n", V, 4, 10_000)], vote=vote, epsilon=0.2)
    alone = [plain.generate(prompt, max_tokens=9).run() for prompt in prompts]
    one, two = TightMember("m", V, 3, n_cells), TightMember("n", V, 4, 2 * n_cells)
    two.device = "gpu"
    ensemble = Ensemble([one, two], vote=vote, epsilon=0.2)
    generations = [ensemble.generate(prompt, max_tokens=9) for prompt in prompts]
    assert interleaved(generations, range(60)) == alone
    assert one.n_released > 0
    assert not one._contexts and not two._contexts
