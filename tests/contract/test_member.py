"""Every backend keeps the promises of members/base.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reference
from comparing import LOOSE, N_BATCH, STRICT, assert_same, distance, line, read, read_anew, tolerance
from reference import log_softmax
from unisono.errors import CacheFull
from unisono.members.base import Feed, Member
from unisono.members.fake import TableMember
from unisono.members.hf import HFMember
from unisono.members.llamacpp import LlamaCppMember
from unisono.vocabulary import Vocabulary


@dataclass
class Backend:
    """One kind of member and what there is to know about testing it."""

    load: Callable[..., Member]
    member: Member
    tolerance: float

    def line(self, n: int, start: int = 0) -> list[int]:
        return line(self.member, n, start)


def _table(n_ctx: int = 512, n_batch: int = N_BATCH, n_contexts: int = 6) -> Member:
    v = Vocabulary.build([bytes([b]) for b in range(256)])
    return TableMember("table", v, TableMember.random("table", v)._answer, n_ctx, n_contexts)


@pytest.fixture(
    scope="module",
    params=[
        "table",
        pytest.param("smollm2-135m", marks=pytest.mark.models),
        pytest.param("gemma3-270m", marks=pytest.mark.models),
        "hf:llama",
        "hf:qwen3",
        "hf:gemma3",
        "hf:gpt2",
        pytest.param("hf:llama on cuda", marks=pytest.mark.gpu),
        pytest.param("hf:gemma3 on cuda", marks=pytest.mark.gpu),
        pytest.param("hf:smollm2-135m", marks=[pytest.mark.models, pytest.mark.slow]),
        pytest.param("hf:gemma3-270m", marks=[pytest.mark.models, pytest.mark.slow]),
        pytest.param("hf:qwen", marks=[pytest.mark.models, pytest.mark.slow]),
    ],
)
def backend(
    request: pytest.FixtureRequest, load_model: Callable[..., LlamaCppMember], hf_model: Callable[[str], Path]
) -> Iterator[Backend]:
    backend, _, rest = str(request.param).rpartition(":")
    name, _, device = rest.partition(" on ")
    if device == "cuda" and not pytest.importorskip("torch").cuda.is_available():
        pytest.skip("no CUDA device")

    def load(**sizes: Any) -> Member:
        if name == "table":
            return _table(**sizes)
        if backend == "hf":
            return HFMember(str(hf_model(name)), name, device=device or "cpu", dtype="float32", **sizes)
        return load_model(name, **sizes)

    member = load(n_ctx=512, n_batch=N_BATCH, n_contexts=6)
    yield Backend(load, member, tolerance(member))
    member.close()


@pytest.fixture
def member(backend: Backend) -> Iterator[Member]:
    """One that several tests use; all its contexts are dropped between them."""
    yield backend.member
    for context in contexts(backend.member):
        backend.member.drop(context)


@pytest.fixture
def load(backend: Backend) -> Iterator[Callable[..., Member]]:
    """Loads another one, of other sizes."""
    loaded: list[Member] = []

    def load_it(**sizes: int) -> Member:
        loaded.append(backend.load(**sizes))
        return loaded[-1]

    yield load_it
    for one in loaded:
        one.close()


def contexts(member: Member) -> list[int]:
    assert isinstance(member, TableMember | LlamaCppMember | HFMember)
    return list(member._contexts)


def n_cells(member: Member) -> int:
    return member.n_cells_used if isinstance(member, LlamaCppMember | HFMember) else 0


# Reading


def test_the_tolerance_tells_a_text_from_one_with_another_word_in_it(member: Member) -> None:
    begin = member.vocabulary.begin
    right = [*begin, *member.encode("cat dog horse cow; cat dog horse cow; cat dog")]
    wrong = [*begin, *member.encode("cat dog mouse cow; cat dog mouse cow; cat dog")]
    assert distance(read_anew(member, right), read_anew(member, wrong)) > 2 * LOOSE


def test_several_ids_at_once_equal_one_at_a_time(backend: Backend, member: Member) -> None:
    ids = backend.line(24)
    at_once = read(member, member.new(), 0, ids, rows=len(ids))
    context = member.new()
    one_by_one = np.concatenate([read(member, context, at, [i]) for at, i in enumerate(ids)])
    assert_same(at_once, one_by_one, backend.tolerance)


def test_only_as_many_rows_as_asked_for_come_back_and_they_are_the_last(backend: Backend, member: Member) -> None:
    ids = backend.line(12)
    every = read(member, member.new(), 0, ids, rows=12)
    for rows in (0, 1, 5):
        assert_same(read(member, member.new(), 0, ids, rows=rows), every[12 - rows :], backend.tolerance)


def test_reading_without_rows_is_reading_all_the_same(backend: Backend, member: Member) -> None:
    ids = backend.line(20)
    context = member.new()
    read(member, context, 0, ids[:10], rows=0)
    assert_same(read(member, context, 10, ids[10:]), read(member, member.new(), 0, ids), backend.tolerance)


def test_going_back_equals_a_fresh_read(backend: Backend, member: Member) -> None:
    ids, others = backend.line(24), backend.line(12, start=100)
    context = member.new()
    read(member, context, 0, ids)
    for at in (15, 23, 1, 0):
        again = read(member, context, at, others)
        assert_same(again, read(member, member.new(), 0, [*ids[:at], *others]), backend.tolerance)
        read(member, context, at, ids[at:])
        member.drop(max(contexts(member)))


def test_a_released_context_goes_on_goes_back_and_forks_as_before(backend: Backend, member: Member) -> None:
    ids, others = backend.line(24), backend.line(12, start=100)
    context = member.new()
    read(member, context, 0, ids[:20])
    member.release(context)
    fork = member.fork(context, 15)
    assert_same(read(member, fork, 15, others), read_anew(member, [*ids[:15], *others]), backend.tolerance)
    assert_same(read(member, context, 20, ids[20:]), read_anew(member, ids), backend.tolerance)
    member.release(context)
    assert_same(read(member, context, 10, others), read_anew(member, [*ids[:10], *others]), backend.tolerance)


def test_a_batch_of_contexts_equals_one_by_one(backend: Backend, member: Member) -> None:
    lines = [backend.line(n, start) for n, start in [(9, 0), (17, 40), (5, 90), (12, 150)]]
    begun = [member.new() for _ in lines]
    member.forward([Feed(c, 0, ids[:4], rows=0) for c, ids in zip(begun, lines, strict=True)])
    rows = [3, 1, 1, 0]
    feeds = [Feed(c, 4, ids[4:], n) for c, ids, n in zip(begun, lines, rows, strict=True)]
    batch = [log_softmax(out) for out in member.forward(feeds)]
    for out, ids, n in zip(batch, lines, rows, strict=True):
        alone = member.new()
        assert_same(out, read(member, alone, 0, ids, rows=n), backend.tolerance)
        member.drop(alone)


def test_going_on_going_back_and_beginning_may_stand_in_one_batch(backend: Backend, member: Member) -> None:
    ids, others = backend.line(16), backend.line(16, start=100)
    on, back, new = member.new(), member.new(), member.new()
    member.forward([Feed(on, 0, ids[:10]), Feed(back, 0, ids)])
    outs = member.forward([Feed(back, 6, others), Feed(new, 0, others), Feed(on, 10, ids[10:])])
    for out, text in zip([log_softmax(o) for o in outs], [[*ids[:6], *others], others, ids], strict=True):
        assert_same(out, read_anew(member, text), backend.tolerance)


def test_a_prompt_longer_than_a_batch_equals_one_read_at_once(
    backend: Backend, member: Member, load: Callable[..., Member]
) -> None:
    small = load(n_ctx=512, n_batch=16, n_contexts=2)
    ids, others = backend.line(N_BATCH), backend.line(40, start=100)
    one, other = small.new(), small.new()
    outs = [log_softmax(out) for out in small.forward([Feed(one, 0, ids, rows=40), Feed(other, 0, others, rows=3)])]
    assert_same(outs[0], read(member, member.new(), 0, ids, rows=40), backend.tolerance)
    assert_same(outs[1], read(member, member.new(), 0, others, rows=3), backend.tolerance)


def test_writing_with_a_cache_and_in_a_batch_equals_reading_everything_again_each_time(
    backend: Backend, member: Member
) -> None:
    prompts = [backend.line(12), backend.line(7, start=120)]
    slow = [reference.greedy_ids(member, prompt, 8) for prompt in prompts]
    held = [member.new() for _ in prompts]
    lags = [list(prompt) for prompt in prompts]
    texts = [list(prompt) for prompt in prompts]
    written: list[list[int]] = [[], []]
    for step in range(8):
        feeds = [Feed(c, len(t) - len(lag), lag) for c, t, lag in zip(held, texts, lags, strict=True)]
        for n, out in enumerate(member.forward(feeds)):
            row = log_softmax(out)
            assert_same(row, read_anew(member, texts[n]), backend.tolerance)
            written[n].append(int(row[-1].argmax()))
            lags[n] = [slow[n][step]]
            texts[n].append(slow[n][step])
    if backend.tolerance == STRICT:  # else a near tie may fall either way
        assert written == slow


def test_an_encoded_text_joins_to_itself_and_a_control_token_is_read_only_where_asked_for(
    backend: Backend, member: Member
) -> None:
    v = member.vocabulary
    for text in ("", "a", " hello  world\n", "naïve 語 😀\t", "def f(x):\n        return x"):
        assert v.join(member.encode(text)) == text.encode()
    for i, mark in list(v.marks.items())[:8]:
        plain = member.encode(mark.decode())
        assert v.join(plain) == mark
        assert member.encode(mark.decode(), special=True) == [i]


# Forks


def test_a_fork_equals_a_fresh_read(backend: Backend, member: Member) -> None:
    ids, others = backend.line(20), backend.line(8, start=100)
    context = member.new()
    read(member, context, 0, ids)
    for at in (20, 11, 0):
        fork = member.fork(context, at)
        fresh = member.new()
        assert_same(
            read(member, fork, at, others, rows=4),
            read(member, fresh, 0, [*ids[:at], *others], rows=4),
            backend.tolerance,
        )
        member.drop(fork)
        member.drop(fresh)


def test_forks_go_their_own_ways(backend: Backend, member: Member) -> None:
    ids, left, right = backend.line(16), backend.line(10, start=100), backend.line(7, start=200)
    context = member.new()
    read(member, context, 0, ids)
    one, other = member.fork(context, 12), member.fork(context, 12)
    again = member.fork(one, 5)
    outs = member.forward([Feed(one, 12, left), Feed(other, 12, right), Feed(again, 5, right)])
    outs = [log_softmax(out) for out in outs]
    assert_same(read(member, context, 16, left), read_anew(member, [*ids, *left]), backend.tolerance)
    for out, text in zip(outs, [[*ids[:12], *left], [*ids[:12], *right], [*ids[:5], *right]], strict=True):
        assert_same(out, read_anew(member, text), backend.tolerance)


def test_a_fork_outlives_what_it_was_forked_from(backend: Backend, member: Member) -> None:
    ids, others = backend.line(16), backend.line(8, start=100)
    context = member.new()
    read(member, context, 0, ids)
    fork = member.fork(context, 10)
    member.drop(context)
    reused = member.new()
    read(member, reused, 0, others)
    assert_same(read(member, fork, 10, others), read_anew(member, [*ids[:10], *others]), backend.tolerance)


def test_what_a_context_drops_stays_with_its_fork(backend: Backend, member: Member) -> None:
    ids, others = backend.line(16), backend.line(8, start=100)
    context = member.new()
    read(member, context, 0, ids)
    fork = member.fork(context, 16)
    read(member, context, 2, others)
    assert_same(read(member, fork, 16, others), read_anew(member, [*ids, *others]), backend.tolerance)
    assert_same(read(member, context, 10, ids[:4]), read_anew(member, [*ids[:2], *others, *ids[:4]]), backend.tolerance)


# Room


def test_a_dropped_contexts_number_is_used_again_and_starts_empty(backend: Backend, member: Member) -> None:
    ids, others = backend.line(16), backend.line(8, start=100)
    first = member.new()
    read(member, first, 0, ids)
    member.drop(first)
    assert member.new() == first
    assert_same(read(member, first, 0, others), read_anew(member, others), backend.tolerance)


def test_there_are_only_so_many_contexts(backend: Backend, member: Member) -> None:
    held = [member.new() for _ in range(6)]
    read(member, held[0], 0, backend.line(3))
    for more in (member.new, lambda: member.fork(held[0], 2)):
        with pytest.raises(CacheFull, match=r"no free context: all 6 are in use"):
            more()
    member.drop(held[3])
    assert member.fork(held[0], 2) == held[3]


def test_a_full_context_raises_and_nothing_has_changed(backend: Backend, load: Callable[..., Member]) -> None:
    small = load(n_ctx=32, n_batch=32, n_contexts=4)
    assert small.n_ctx == 32
    ids = backend.line(33)
    full, other = small.new(), small.new()
    small.forward([Feed(full, 0, ids[:30]), Feed(other, 0, ids[:10])])
    before = n_cells(small)
    for feeds in (
        [Feed(full, 30, ids[30:])],
        [Feed(other, 4, ids[10:14]), Feed(full, 28, ids[:5])],
        [Feed(full, 0, ids)],
    ):
        with pytest.raises(CacheFull, match="holds 32 tokens and is full"):
            small.forward(feeds)
    assert n_cells(small) == before
    last = read(small, full, 30, ids[30:32])
    fresh = small.new()
    small.drop(other)
    assert_same(last, read(small, fresh, 0, ids[:32]), backend.tolerance)


def test_dropping_a_context_after_the_end_of_the_member_is_harmless(load: Callable[..., Member]) -> None:
    small = load(n_ctx=32, n_batch=32, n_contexts=2)
    context = small.new()
    read(small, context, 0, [5, 6, 7])
    small.close()
    small.drop(context)
    small.close()
