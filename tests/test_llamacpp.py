"""What llama.cpp's member promises besides the contract: its books on cells, its errors, and llama.cpp's own texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from comparing import LOOSE, assert_same, line, read, read_anew, tolerance
from conftest import N_THREADS
from gguf_files import CONTROL, NORMAL, gguf, tokenizer
from prompts import PROMPTS
from reference import log_softmax
from unisono.ensemble import Ensemble
from unisono.errors import BackendError, CacheFull, ConfigError, ModelFileError, UnsupportedModel
from unisono.members.base import Feed
from unisono.members.llamacpp import LlamaCppMember

pytestmark = pytest.mark.models

DEMOS = ["smollm2-135m", "gemma3-270m"]

Load = Callable[..., LlamaCppMember]


# The books on cells: 256 of them, four contexts, batches of 16


@pytest.fixture(scope="module", params=DEMOS)
def small(request: pytest.FixtureRequest, load_model: Load) -> Iterator[tuple[LlamaCppMember, float]]:
    model = load_model(request.param, n_ctx=256, n_batch=16, n_contexts=4, n_cells=256)
    yield model, tolerance(model)
    model.close()


@pytest.fixture
def model(small: tuple[LlamaCppMember, float]) -> Iterator[LlamaCppMember]:
    yield small[0]
    for context in list(small[0]._contexts):
        small[0].drop(context)
    assert small[0].n_cells_used == 0


@pytest.fixture
def same(small: tuple[LlamaCppMember, float]) -> Callable[..., None]:
    return lambda a, b: assert_same(a, b, small[1])


def fill(model: LlamaCppMember, context: int) -> None:
    """Use up every cell that the books say is free: llama.cpp must agree that it is."""
    held, free = len(model._contexts[context].ids), 256 - model.n_cells_used
    read(model, context, held, line(model, 256)[:free], rows=0)
    assert model.n_cells_used == 256


def test_cells_are_shared_by_forks_and_come_back(model: LlamaCppMember) -> None:
    ids, others = line(model, 60), line(model, 20, start=100)
    context = model.new()
    read(model, context, 0, ids)
    assert model.n_cells_used == 60
    fork = model.fork(context, 50)
    assert model.n_cells_used == 60
    read(model, fork, 50, others)
    assert model.n_cells_used == 80
    read(model, context, 40, others)  # lets go of 20, of which the fork holds 10, and takes 20
    assert model.n_cells_used == 90
    model.drop(context)
    assert model.n_cells_used == 70
    model.drop(fork)
    assert model.n_cells_used == 0


def test_a_full_cache_raises_and_nothing_has_changed(model: LlamaCppMember, same: Callable[..., None]) -> None:
    ids, others = line(model, 180), line(model, 70, start=100)
    one, other = model.new(), model.new()
    model.forward([Feed(one, 0, ids), Feed(other, 0, others[:40])])
    for feeds in (
        [Feed(other, 40, ids[:37])],
        [Feed(one, 170, others[:30]), Feed(other, 30, ids[:27])],
        [Feed(model.fork(one, 100), 100, others[:37])],
    ):
        with pytest.raises(CacheFull, match="holds 256 tokens for all contexts together, 220 are taken"):
            model.forward(feeds)
        assert model.n_cells_used == 220
    last = read(model, other, 40, others[40:])
    model.drop(one)
    same(last, read_anew(model, others))


def test_what_a_batch_lets_go_of_makes_room_for_it(model: LlamaCppMember, same: Callable[..., None]) -> None:
    ids = line(model, 256)
    context = model.new()
    first = read(model, context, 0, ids)
    again = read(model, context, 0, ids)
    assert model.n_cells_used == 256
    same(first, again)


def test_a_cache_filled_emptied_and_filled_again_stays_right(model: LlamaCppMember) -> None:
    ids = line(model, 150)
    for n in (100, 30):
        one, other = model.new(), model.new()
        model.forward([Feed(one, 0, ids[:n]), Feed(other, 0, ids[5:25])])
        fork = model.fork(one, n - 7)
        read(model, fork, n - 7, ids[130:140])
        model.drop(other)
        fill(model, one)
        model.drop(one)
        assert model.n_cells_used == n - 7 + 10
        out = read(model, fork, n + 3, ids[140:144])
        expected = read_anew(model, [*ids[: n - 7], *ids[130:144]])
        assert_same(out, expected, LOOSE)  # its cells lie in another order, and so they are summed
        model.drop(fork)


class Failing:
    """In the place of a member's `_decode`: raises at the given call, before or after llama.cpp has done it."""

    def __init__(self, model: LlamaCppMember, fail_at: int, error: BaseException, done: bool = False) -> None:
        self.decode, self.n_left, self.error, self.done = model._decode, fail_at, error, done

    def __call__(self, chunk: Sequence[tuple[int, int, int, int, bool]]) -> None:
        if self.n_left > 0 or self.done:
            self.decode(chunk)
        if self.n_left == 0:
            raise self.error
        self.n_left -= 1


@pytest.mark.parametrize("failure", [(1, BackendError("no")), (0, KeyboardInterrupt(), True), (2, KeyboardInterrupt())])
def test_a_read_that_fails_in_its_midst_leaves_every_context_as_it_was(
    model: LlamaCppMember,
    same: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    failure: tuple[int, BaseException],
) -> None:
    ids, others = line(model, 40), line(model, 40, start=100)
    one, other, bystander = model.new(), model.new(), model.new()
    model.forward([Feed(one, 0, ids[:20]), Feed(bystander, 0, others[:10])])
    read(model, other, 0, others[:6])
    fork = model.fork(one, 12)

    monkeypatch.setattr(model, "_decode", Failing(model, *failure))
    with pytest.raises(type(failure[1])):
        model.forward([Feed(one, 15, others[:20]), Feed(other, 6, others[6:30], rows=2), Feed(fork, 4, others[:3])])
    monkeypatch.undo()

    feeds = [
        Feed(one, 20, ids[20:24]),
        Feed(other, 6, others[6:8]),
        Feed(fork, 12, ids[12:16]),
        Feed(bystander, 10, ids[:2]),
    ]
    outs = [log_softmax(out) for out in model.forward(feeds)]
    expected = [ids[:24], others[:8], ids[:16], [*others[:10], *ids[:2]]]
    for context in (one, other, fork, bystander):
        model.drop(context)
    assert model.n_cells_used == 0
    for out, text in zip(outs, expected, strict=True):
        same(out, read_anew(model, text))
    fill(model, model.new())


def test_what_a_failed_read_has_lost_is_read_again_even_by_a_fork(
    model: LlamaCppMember, same: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = line(model, 40)
    context = model.new()
    read(model, context, 0, ids[:30])
    monkeypatch.setattr(model, "_decode", Failing(model, 0, BackendError("no")))
    with pytest.raises(BackendError):
        read(model, context, 8, ids[:4])
    monkeypatch.undo()
    out = read(model, model.fork(context, 25), 25, ids[25:])
    same(out, read_anew(model, ids))


@pytest.mark.slow
def test_a_text_longer_than_the_sliding_window_can_go_back_and_fork(open_model: Load) -> None:
    """Gemma 3's window is 512 tokens, and llama.cpp would keep some 1,280 for two contexts: what has slid out must
    still be there for who goes back. The text is a list of numbers, and what is read again is a part of it: what comes
    next can be told only from what stood before."""
    model = open_model("gemma3-270m", n_ctx=1536, n_batch=128, n_contexts=2, n_cells=3072)
    numbers = " ".join(str(n * 7919 % 10000) for n in range(1, 320))
    ids = [*model.vocabulary.begin, *model.encode(numbers)][:1400]
    assert len(ids) == 1400
    context = model.new()
    read(model, context, 0, ids)
    fork = model.fork(context, 700)
    outs = []
    for c, at in ((fork, 700), (context, 300)):
        again = ids[at - 90 : at - 60]  # as the text goes on from there, so it goes on from here
        outs.append(([*ids[:at], *again], read(model, c, at, again)))
        assert int(outs[-1][1].argmax()) == ids[at - 60]
        model.drop(c)
    for text, out in outs:
        assert_same(out, read_anew(model, text), LOOSE)


# What it says of files and options


def test_a_file_that_llama_cpp_refuses_is_named_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(gguf(tokenizer("gpt2", [("a", NORMAL), ("<end>", CONTROL)], eos_token_id=1), tensors=[4]))
    with pytest.raises(
        ModelFileError, match=r"llama.cpp refuses .*odd\.gguf \(test\): .*unknown model architecture"
    ) as caught:
        LlamaCppMember(path, "odd")
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"not a model", ModelFileError),
        (b"", ModelFileError),
        (gguf(tokenizer("bert", [("a", NORMAL)])), UnsupportedModel),
    ],
)
def test_a_file_that_is_no_model_is_refused_before_llama_cpp_sees_it(
    tmp_path: Path, content: bytes, error: type[Exception]
) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(content)
    with pytest.raises(error, match=r"odd\.gguf"):
        LlamaCppMember(path, "odd")


def test_a_model_cut_short_is_refused_by_name(model_file: Callable[[str], Path], tmp_path: Path) -> None:
    path = tmp_path / "short.gguf"
    with model_file("smollm2-135m").open("rb") as whole:
        path.write_bytes(whole.read(4 << 20))
    with pytest.raises(ModelFileError, match=r"short\.gguf is cut short: its tensors need [0-9,]+ bytes"):
        LlamaCppMember(path, "short")


@pytest.mark.parametrize("ends", [[-1], [49152], [0, 1 << 40]])
def test_an_end_outside_the_vocabulary_is_refused(model_file: Callable[[str], Path], ends: list[int]) -> None:
    with pytest.raises(ConfigError, match=rf"no token {ends[-1]}; its tokens are 0 to 49,151"):
        LlamaCppMember(model_file("smollm2-135m"), "smollm2", ends=ends, n_ctx=64)


def test_the_users_ends_replace_the_models(model_file: Callable[[str], Path]) -> None:
    model = LlamaCppMember(model_file("smollm2-135m"), "smollm2", ends=[30], n_ctx=64, n_threads=N_THREADS)
    try:
        assert model.vocabulary.ends.tolist() == [30]
        assert {0, 2} <= set(model.vocabulary.controls.tolist())
    finally:
        model.close()


def test_a_context_is_no_longer_than_what_the_model_was_trained_on(open_model: Load) -> None:
    assert open_model("smollm2-135m", n_ctx=1 << 20, n_cells=64, n_batch=8).n_ctx == 8192


@pytest.mark.parametrize(
    ("name", "expected"),
    [("smollm2-135m", {"<|im_end|>", "<|endoftext|>"}), ("gemma3-270m", {"<eos>", "<end_of_turn>"})],
)
def test_every_way_to_stop_is_an_end(open_model: Load, name: str, expected: set[str]) -> None:
    v = open_model(name).vocabulary
    assert expected <= {v.marks[i].decode() for i in v.ends.tolist()}


@pytest.mark.parametrize("text", ["<start_of_image>", "a <end_of_image><start_of_image>, [multimodal]", "<h1>x</h1>"])
def test_a_mark_of_an_image_is_never_chosen_and_stays_text_where_a_text_spells_it(open_model: Load, text: str) -> None:
    model = open_model("gemma3-270m")
    assert {255_999, 256_000} <= set(model.vocabulary.controls.tolist())
    assert model.vocabulary.join(model.encode(text)) == text.encode()
    assert model.encode("<start_of_image>", special=True) == [255_999]


# llama.cpp's own texts

MAX_TOKENS = 64


def own_texts(path: Path) -> Iterator[tuple[list[int], bytes, str]]:
    """For every prompt, from llama-cpp-python's own program: the prompt's ids, its tokens' bytes, and its text."""
    from llama_cpp import Llama

    llm: Any = Llama(
        str(path),
        n_ctx=512,
        n_batch=512,
        n_threads=N_THREADS,
        n_threads_batch=N_THREADS,
        flash_attn=True,  # as llama.cpp itself chooses, and so do we
        swa_full=True,
        verbose=False,
    )
    generate, written = llm.generate, list[int]()

    def recorded(*given: Any, **named: Any) -> Iterator[int]:
        for i in generate(*given, **named):
            written.append(i)
            yield i

    llm.generate = recorded
    try:
        for prompt in PROMPTS:
            ids = llm.tokenize(prompt.encode(), add_bos=llm._model.add_bos_token(), special=False)
            llm.reset()  # or it would go on from what two prompts have in common, in batches of another size
            written.clear()
            [choice] = llm.create_completion(prompt, temperature=0.0, max_tokens=MAX_TOKENS)["choices"]
            ended = choice["finish_reason"] == "stop"
            yield ids, llm.detokenize(written[: -1 if ended else MAX_TOKENS], prev_tokens=ids), choice["text"]
    finally:
        llm.close()


def test_a_batch_may_be_smaller_than_the_number_of_contexts(open_model: Load) -> None:
    model = open_model("smollm2-135m", n_ctx=32, n_batch=2, n_contexts=9, n_cells=256)
    ids = line(model, 12)
    contexts = [model.new() for _ in range(8)]
    outs = model.forward([Feed(context, 0, ids) for context in contexts])
    for out in outs:
        assert_same(log_softmax(out), read_anew(model, ids), LOOSE)


@pytest.mark.slow
@pytest.mark.parametrize("name", DEMOS)
def test_an_ensemble_of_one_or_of_two_copies_writes_what_llama_cpp_writes(
    open_model: Load, model_file: Callable[[str], Path], name: str
) -> None:
    expected = list(own_texts(model_file(name)))
    copies = [open_model(name, n_ctx=512, n_batch=512, n_contexts=2) for _ in range(2)]
    for members in (copies[:1], copies):
        ensemble = Ensemble(members, vote="pieces")
        for prompt, (ids, data, text) in zip(PROMPTS, expected, strict=True):
            generation = ensemble.generate(prompt, max_tokens=MAX_TOKENS, heal=False)
            assert generation.stats.n_prompt == [len(ids)] * len(members)
            written = b"".join(step.piece for step in generation)
            assert written == data, prompt
            assert generation.text == written.decode(errors="replace")
            whole = written.decode(errors="ignore")
            if generation.text == whole:
                assert whole == text, prompt
            else:  # its program writes a character to its end, beyond the number of tokens it was given
                assert text.startswith(whole), prompt
                assert len(text) <= len(whole) + 1, prompt
