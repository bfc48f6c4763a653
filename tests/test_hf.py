"""The Hugging Face member, beyond what the contract test asks of all members."""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comparing import STRICT, TEXT, assert_same, distance, line, read, read_anew
from hf_models import N_IDS, write_model
from prompts import PROMPTS
from reference import log_softmax
from unisono.config import MemberConfig
from unisono.ensemble import Ensemble
from unisono.errors import (
    BackendError,
    BadLogits,
    CacheFull,
    ConfigError,
    EnsembleError,
    MissingBackend,
    ModelFileError,
    UnsupportedModel,
)
from unisono.members.base import Feed
from unisono.members.hf import HFMember, _differ, open_hf
from unisono.members.llamacpp import LlamaCppMember
from unisono.registry import open_member

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

ATTENDING = ["llama", "qwen3", "gemma3", "gemma2", "gpt2", "gpt_oss"]
"""Models that attend through us."""

OTHERS = ["mamba", "bloom", "lfm2"]
"""Models that read everything anew."""

Load = Callable[..., HFMember]


@pytest.fixture(scope="module")
def load(hf_model: Callable[[str], Path]) -> Iterator[Load]:
    """Opens a tiny model on the CPU; the same model with the same options is opened once."""
    opened: dict[str, HFMember] = {}

    def load_it(name: str, **options: Any) -> HFMember:
        key = f"{name} {sorted(options.items())}"
        if key not in opened:
            sizes = {"n_ctx": 256, "n_batch": 48, "n_contexts": 8, "device": "cpu"}
            opened[key] = HFMember(str(hf_model(name)), name, **{**sizes, **options})
        return opened[key]

    yield load_it
    for member in opened.values():
        member.close()


@pytest.fixture
def member(load: Load) -> Iterator[HFMember]:
    """One that keeps no context from test to test."""
    member = load("gemma3")
    yield member
    for context in list(member._contexts):
        member.drop(context)


# Attention


@pytest.mark.parametrize("name", [*ATTENDING, *OTHERS])
def test_reading_on_equals_the_models_own_attention_over_the_whole_text(load: Load, name: str) -> None:
    ours, own = load(name), load(name, attention="eager")
    assert (ours._n_layers is not None) == (name in ATTENDING)
    ids = line(ours, 60)
    context, other = ours.new(), own.new()
    parts = [read(ours, context, at, ids[at : at + n], rows=n) for at, n in [(0, 17), (17, 1), (18, 25), (43, 1)]]
    assert_same(np.concatenate(parts), read(own, other, 0, ids[:44], rows=44), STRICT)
    fork = ours.fork(context, 11)
    assert_same(read(ours, fork, 11, ids[11:], 49), read(own, other, 0, ids, rows=60)[11:], STRICT)
    for each in (context, fork):
        ours.drop(each)
    own.drop(other)


def test_what_a_model_does_with_its_scores_matters_in_these_tests(load: Load, hf_model: Callable[[str], Path]) -> None:
    for name, key, value in (
        ("gemma2", "attn_logit_softcapping", 1000.0),
        ("gemma3", "sliding_window", 1000),
        ("gpt_oss", "sliding_window", 1000),
    ):
        folder = shutil.copytree(hf_model(name), hf_model(name).with_name(f"{name}-{key}"))
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, key: value}))
        changed = HFMember(str(folder), name, device="cpu", n_ctx=256)
        member = load(name)
        ids = line(member, 40)
        context = member.new()
        rows = read(member, context, 0, ids, rows=40)
        member.drop(context)
        assert distance(rows, read(changed, changed.new(), 0, ids, rows=40)) > 0.1


@pytest.mark.parametrize("name", ["gemma3", "gpt2"])
def test_a_context_may_be_filled_to_its_end_and_begun_again(load: Load, name: str) -> None:
    member, own = load(name, n_ctx=100), load(name, attention="eager")
    ids, others = line(member, 100), line(member, 100, start=100)
    context, other = member.new(), own.new()
    read(member, context, 0, ids[:60], rows=0)
    rows = [read(member, context, at, [i]) for at, i in enumerate(ids[60:], 60)]
    assert_same(np.concatenate(rows), read(own, other, 0, ids, rows=40), STRICT)
    with pytest.raises(CacheFull, match="holds 100 tokens and is full"):
        read(member, context, 100, [5])
    assert_same(read(member, context, 2, others[2:], 98), read(own, other, 0, [*ids[:2], *others[2:]], 98), STRICT)
    member.drop(context)
    own.drop(other)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("new")),
        st.tuples(st.just("fork"), st.integers(0, 7), st.floats(0, 1)),
        st.tuples(st.just("release"), st.integers(0, 7)),
        st.tuples(st.just("drop"), st.integers(0, 7)),
        st.tuples(
            st.sampled_from(["read", "read", "read", "fail"]),
            st.lists(
                st.tuples(st.integers(0, 7), st.sampled_from([0.0, 0.5, 0.9, 1.0, 1.0]), st.integers(1, 12)),
                min_size=1,
                max_size=4,
            ),
        ),
    ),
    max_size=14,
)


@pytest.mark.parametrize("name", ["gemma3", "gpt2"])
@given(operations=OPERATIONS, seed=st.integers(0, 99))
def test_whatever_is_forked_released_dropped_and_failed_every_read_equals_a_fresh_one(
    load: Load, name: str, operations: list[Any], seed: int
) -> None:
    member, own = load(name, n_batch=9), load(name, attention="eager", n_contexts=1)
    random = np.random.default_rng(seed)
    fresh = own.new()
    texts: dict[int, list[int]] = {}
    try:
        for kind, *what in operations:
            held = sorted(texts)
            if kind == "new" and len(held) < member.n_contexts:
                texts[member.new()] = []
            elif kind == "fork" and held and len(held) < member.n_contexts:
                source = held[what[0] % len(held)]
                at = round(what[1] * len(texts[source]))
                texts[member.fork(source, at)] = texts[source][:at]
            elif kind == "release" and held:
                member.release(held[what[0] % len(held)])
            elif kind == "drop" and held:
                member.drop(context := held[what[0] % len(held)])
                del texts[context]
            elif kind in ("read", "fail") and held:
                feeds = {}
                for which, share, n in what[0]:
                    context = held[which % len(held)]
                    at = round(share * len(texts[context]))
                    ids = random.integers(0, N_IDS, n).tolist()
                    feeds[context] = Feed(context, at, ids, rows=min(n, 2))
                if kind == "fail":
                    fails(member, list(feeds.values()), fail_at=int(random.integers(0, 3)))
                    for context, feed in feeds.items():  # it may have had fewer rows to read than that
                        assert member._contexts[context].ids in (
                            whole := texts[context],
                            [*whole[: feed.at], *feed.ids],
                        )
                        texts[context] = list(member._contexts[context].ids)
                    continue
                outs = member.forward(list(feeds.values()))
                for feed, out in zip(feeds.values(), outs, strict=True):
                    texts[feed.context][feed.at :] = feed.ids
                    expected = read(own, fresh, 0, texts[feed.context], rows=feed.rows)
                    assert_same(log_softmax(out), expected, STRICT)
    finally:
        own.drop(fresh)
        for context in texts:
            member.drop(context)
    assert member.n_cells_used == 0


def fails(member: HFMember, feeds: list[Feed], fail_at: int) -> None:
    """Lets a forward be interrupted after so many of its rows."""
    forward, n_left = member._forward, fail_at

    def interrupted(*given: Any) -> Any:
        nonlocal n_left
        out = forward(*given)
        if n_left == 0:
            raise KeyboardInterrupt
        n_left -= 1
        return out

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(member, "_forward", interrupted)
        member.forward(feeds)


# What is kept


def test_a_fork_costs_nothing_until_both_go_their_own_ways(member: HFMember) -> None:
    ids = line(member, 40)
    context = member.new()
    read(member, context, 0, ids[:30])
    fork = member.fork(context, 30)
    assert member.n_cells_used == 30
    read(member, fork, 30, ids[30:33])  # the first to go on takes what is there
    assert member.n_cells_used == 33
    assert_same(read(member, context, 30, ids[30:32]), read_anew(member, ids[:32]), STRICT)
    assert member.n_cells_used == 33 + 32
    assert_same(read(member, fork, 33, ids[33:]), read_anew(member, ids), STRICT)


def test_a_fork_inherits_what_its_source_leaves(member: HFMember) -> None:
    ids = line(member, 40)
    context = member.new()
    read(member, context, 0, ids[:30])
    fork = member.fork(context, 20)
    kept = member._contexts[fork].kept
    member.drop(context)
    assert_same(read(member, fork, 20, ids[20:]), read_anew(member, ids), STRICT)
    assert member._contexts[fork].kept is kept  # and nothing has been copied


def test_released_contexts_keep_nothing(member: HFMember) -> None:
    context = member.new()
    read(member, context, 0, line(member, 40))
    member.release(context)
    assert member.n_cells_used == 0
    assert not member._contexts[context].kept.line._layers


def test_what_does_not_fit_all_contexts_together_is_refused_and_nothing_has_changed(load: Load) -> None:
    member = load("llama", n_cells=64)
    ids, others = line(member, 60), line(member, 60, start=100)
    one, other = member.new(), member.new()
    member.forward([Feed(one, 0, ids[:40]), Feed(other, 0, others[:20])])
    fork = member.fork(one, 30)
    for feeds in (
        [Feed(other, 20, others[20:25])],
        [Feed(fork, 30, ids[:1])],
        [Feed(other, 3, others[:4]), Feed(fork, 10, ids[:10]), Feed(one, 40, ids[:30])],
    ):
        with pytest.raises(CacheFull, match=r"holds 64 tokens for all contexts together, and [0-9]+ would be needed"):
            member.forward(feeds)
        assert member.n_cells_used == 60
    outs = [read(member, other, 20, others[20:24])]
    member.drop(one)
    outs += map(log_softmax, member.forward([Feed(fork, 30, ids[30:34]), Feed(other, 10, others[10:12])]))
    for context in (fork, other):
        member.drop(context)
    for out, text in zip(outs, [others[:24], ids[:34], others[:12]], strict=True):
        assert_same(out, read_anew(member, text), STRICT)


def test_running_out_of_memory_names_the_member_and_the_mend_and_leaves_the_contexts(
    member: HFMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = line(member, 30)
    context = member.new()
    read(member, context, 0, ids[:20])

    def full(**_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    monkeypatch.setattr(member._model, "forward", full)
    with pytest.raises(BackendError, match=r"gemma3 has run out of memory: .*n_ctx.*quantization: 4bit"):
        read(member, context, 20, ids[20:])
    monkeypatch.undo()
    assert_same(read(member, context, 20, ids[20:]), read_anew(member, ids), STRICT)


# Ensembles


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "gpt2", "mamba"])
def test_an_ensemble_of_one_writes_what_generate_writes(load: Load, name: str) -> None:
    member = load(name)
    ensemble = Ensemble([member], vote="pieces")
    for prompt in (TEXT[:40], TEXT[100:190], "def f(x):\n"):
        ids = [*member.vocabulary.begin, *member.encode(prompt)]
        expected = generated(member, ids, 24)
        written = b"".join(step.piece for step in ensemble.generate(prompt, max_tokens=24, heal=False))
        assert written == member.vocabulary.join(expected)


def generated(member: HFMember, ids: list[int], n: int) -> list[int]:
    """What transformers writes itself, up to the first end."""
    row = torch.tensor([ids])
    own = member._model.config._attn_implementation
    member._model.set_attn_implementation("eager")
    try:
        controls = member.vocabulary.controls.tolist()
        out = member._model.generate(
            row,
            attention_mask=torch.ones_like(row),
            generation_config=transformers.GenerationConfig(
                max_new_tokens=n,
                do_sample=False,
                eos_token_id=member.vocabulary.ends.tolist(),
                pad_token_id=0,
                suppress_tokens=controls or None,  # which we never choose
            ),
        )
    finally:
        member._model.set_attn_implementation(own)
    new: list[int] = out[0, len(ids) :].tolist()
    ends = set(member.vocabulary.ends.tolist())
    return new[:-1] if new and new[-1] in ends else new


def test_members_of_several_kinds_write_together(load: Load) -> None:
    members = [load(name) for name in ("llama", "gemma3", "gpt2", "mamba")]
    ensemble = Ensemble(members, vote="bytes")
    one, other = (ensemble.generate(TEXT[:60], max_tokens=6) for _ in range(2))
    assert b"".join(step.piece for step in one) == b"".join(step.piece for step in other) != b""


def test_two_members_may_run_in_two_threads_at_the_same_time(load: Load) -> None:
    members = [load("llama"), load("gemma3")]
    texts = [line(member, 60) for member in members]
    expected = [read_anew(member, ids) for member, ids in zip(members, texts, strict=True)]

    def one_by_one(member: HFMember, ids: list[int]) -> Any:
        context = member.new()
        rows = [read(member, context, at, [i]) for at, i in enumerate(ids)]
        member.drop(context)
        return rows[-1]

    with ThreadPoolExecutor(2) as threads:
        for _ in range(3):
            for out, row in zip(threads.map(one_by_one, members, texts), expected, strict=True):
                assert_same(out, row, STRICT)


def test_a_weight_that_is_not_a_number_is_named(hf_model: Callable[[str], Path], tmp_path: Path) -> None:
    def spoil(model: Any) -> None:
        with torch.no_grad():
            model.model.layers[1].mlp.down_proj.weight[3, 3] = float("nan")

    member = HFMember(str(write_model("llama", tmp_path, spoil)), "spoilt", n_ctx=64, device="cpu")
    for vote in ("bytes", "pieces"):
        with pytest.raises(BadLogits, match="spoilt returned NaN or infinite logits"):
            Ensemble([member], vote=vote).generate(TEXT[:20], max_tokens=2).run()


# Options


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_half_precision_reads_about_the_same_and_hands_over_float32(load: Load, name: str, dtype: str) -> None:
    half, whole = load(name, dtype=dtype), load(name)
    assert half._n_layers == whole._n_layers
    assert next(half._model.parameters()).dtype == getattr(torch, dtype)
    ids = line(half, 30)
    context, other = half.new(), whole.new()
    [out] = half.forward([Feed(context, 0, ids[:20], rows=20)])
    assert out.dtype == np.float32
    [last] = half.forward([Feed(context, 20, ids[20:])])
    [expected] = whole.forward([Feed(other, 0, ids, rows=30)])
    for ours, theirs in ((out, expected[:20]), (last, expected[29:])):
        assert np.abs(ours - theirs).max() < 0.15 * expected.std() * 4
    half.drop(context)
    whole.drop(other)


def test_auto_is_float32_on_a_cpu_whatever_the_model_is_stored_in(tmp_path: Path) -> None:
    folder = write_model("llama", tmp_path, lambda model: model.to(torch.bfloat16))
    member = HFMember(str(folder), "llama", device="cpu", n_ctx=64)
    assert next(member._model.parameters()).dtype == torch.float32


def test_threads_are_this_members_own_and_put_back(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    member, before = load("llama", n_threads=3), torch.get_num_threads()
    forward, seen = member._forward, []

    def seeing(*given: Any) -> Any:
        seen.append(torch.get_num_threads())
        return forward(*given)

    monkeypatch.setattr(member, "_forward", seeing)
    context = member.new()
    read(member, context, 0, [5, 6])
    member.drop(context)
    assert (seen, torch.get_num_threads()) == ([3], before)


def test_a_context_is_no_longer_than_what_the_model_was_trained_on(load: Load) -> None:
    assert load("gpt2", n_ctx=4096).n_ctx == 512
    assert load("mamba", n_ctx=4096).n_ctx == 4096


def test_a_context_ends_where_the_model_would_turn_its_positions_in_another_way(load: Load) -> None:
    member = load("llama_dynamic", n_ctx=4096)
    assert member.n_ctx == 64
    assert member._n_layers is not None


def test_every_end_that_a_configuration_names_is_one(tmp_path: Path) -> None:
    def name_ends(model: Any) -> None:
        model.generation_config.eos_token_id = [1, 17]

    member = HFMember(str(write_model("llama", tmp_path, name_ends)), "llama", n_ctx=64, device="cpu")
    assert {1, 17} <= set(member.vocabulary.ends.tolist())


def test_the_users_ends_replace_the_models_and_must_exist(hf_model: Callable[[str], Path]) -> None:
    where = str(hf_model("llama"))
    assert HFMember(where, "llama", ends=[30], n_ctx=64, device="cpu").vocabulary.ends.tolist() == [30]
    with pytest.raises(ConfigError, match=rf"llama has no token 9000; its tokens are 0 to {N_IDS + 7}"):
        HFMember(where, "llama", ends=[9000], n_ctx=64, device="cpu")


def test_every_option_reaches_the_member(hf_model: Callable[[str], Path]) -> None:
    config = MemberConfig(
        model="hf:x",
        dtype="bfloat16",
        device="cpu",
        attention="sdpa",
        threads=1,
        n_ctx=60,
        n_batch=7,
        n_contexts=3,
        n_cells=50,
        ends=[9],
    )
    member = open_hf(str(hf_model("llama")), "m", config)
    assert (member.n_ctx, member._n_batch, member.n_contexts, member._n_cells) == (60, 7, 3, 50)
    assert member._model.config._attn_implementation == "sdpa"
    assert member._n_layers is None
    assert (member.device, member._n_threads, member.vocabulary.ends.tolist()) == ("cpu", 1, [9])


def test_what_is_slow_is_said_once_and_why(hf_model: Callable[[str], Path], caplog: pytest.LogCaptureFixture) -> None:
    member = HFMember(str(hf_model("bloom")), "b", n_ctx=64, device="cpu")
    read_anew(member, line(member, 12))
    [record] = [record for record in caplog.records if record.name.startswith("unisono")]
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("b (BloomForCausalLM) reads its whole text anew for every token")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda:99"}, "device: torch cannot use 'cuda:99'"),
        ({"device": "abacus"}, "device: torch cannot use 'abacus'"),
        ({"device": "cpu", "device_map": "auto"}, "device: 'cpu' and device_map or max_memory"),
        ({"revision": "main"}, "revision: .* is a folder"),
        ({"attention": "hearsay"}, "attention: .*hearsay"),
        ({"attention": "unisono"}, "attention: 'unisono' is ours"),
        ({"device": "meta"}, "has nowhere to lie"),
        ({"max_memory": {"cpu": "1KB"}}, "has nowhere to lie"),
        (
            {"device_map": {"": "cpu", "modle": "cpu"}},
            "device_map: .* has no part named 'modle'. Its outermost are model,",
        ),
    ],
)
def test_an_option_that_cannot_be_honoured_is_refused_by_name(
    hf_model: Callable[[str], Path], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        HFMember(str(hf_model("llama")), "m", **options)


def test_a_model_may_be_spread_by_a_map(load: Load) -> None:
    member = load("llama", device=None, device_map={"": "cpu"})
    assert member.device == "cpu"
    ids = line(member, 20)
    assert_same(read_anew(member, ids), read_anew(load("llama"), ids), STRICT)


# What can be wrong with a model


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingBackend, match=r"needs torch and transformers: .* pip install -e '.\[hf\]'"):
        open_member(MemberConfig(model="hf:somewhere/some-model"), "m")


def test_without_bitsandbytes_quantization_says_what_to_install(
    hf_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(MissingBackend, match=r"needs bitsandbytes: .* pip install -e '.\[hf-quant\]'"):
        HFMember(str(hf_model("llama")), "m", quantization="4bit")


def _nothing(folder: Path) -> None:
    shutil.rmtree(folder)


def _empty(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


def _no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _short_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:5000])


def _no_tokenizer(folder: Path) -> None:
    for file in folder.glob("*token*"):
        file.unlink()


def _config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def _no_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (_nothing, ModelFileError),
        (_empty, ModelFileError),
        (_no_weights, ModelFileError),
        (_short_weights, ModelFileError),
        (_no_tokenizer, ModelFileError),
        (_no_json, ModelFileError),
        (_config(model_type="perpetuum"), ModelFileError),
        (_config(num_hidden_layers=5), ModelFileError),
        (_config(vocab_size=100), ModelFileError),
        (_config(model_type="gpt2"), ModelFileError),
        (_config(model_type="own", auto_map={"AutoConfig": "own.Config"}), ModelFileError),
        (_config(model_type="t5"), UnsupportedModel),
        (_config(model_type="vit"), UnsupportedModel),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_wrong_with_a_folder_is_an_error_of_ours_that_names_it(
    hf_model: Callable[[str], Path], tmp_path: Path, change: Callable[[Path], None], error: type[EnsembleError]
) -> None:
    folder = shutil.copytree(hf_model("llama"), tmp_path / "broken")
    change(folder)
    with pytest.raises(error, match="broken"):
        HFMember(str(folder), "m", device="cpu")


def test_a_weight_that_is_missing_or_of_another_shape_is_named(
    hf_model: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    more, wide, fewer = (shutil.copytree(hf_model("llama"), tmp_path / name) for name in ("more", "wide", "fewer"))
    _config(num_hidden_layers=5)(more)
    with pytest.raises(ModelFileError, match=r"lacks 18 of its weights, model\.layers\.3\."):
        HFMember(str(more), "m", device="cpu")
    _config(intermediate_size=50)(wide)
    with pytest.raises(ModelFileError, match=r"holds model\.layers\.0\.mlp\.\w+\.weight (as|in) .*config"):
        HFMember(str(wide), "m", device="cpu")
    _config(num_hidden_layers=1)(fewer)
    HFMember(str(fewer), "m", device="cpu").close()
    assert "holds 18 weights that its config.json has no place for" in caplog.text


def test_a_folder_has_no_revision(hf_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = hf_model("llama")
    monkeypatch.chdir(folder.parent)
    with pytest.raises(ConfigError, match="folders have no revision: leave @v2 out"):
        HFMember(f"{folder.name}@v2", "m")
    with pytest.raises(ConfigError, match="hf: names no model"):
        HFMember("", "m")


OWN_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM


class OwnConfig(LlamaConfig):
    model_type = "own"


class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


def test_a_models_own_code_runs_only_where_it_is_trusted(
    load: Load, hf_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(tmp_path / "modules")
    folder = shutil.copytree(hf_model("llama"), tmp_path / "own")
    (folder / "own.py").write_text(OWN_CODE)
    names = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
    _config(model_type="own", architectures=["OwnForCausalLM"], auto_map=names)(folder)
    with pytest.raises(ModelFileError, match=r"code of its own.*trust_remote_code: true"):
        HFMember(str(folder), "own", device="cpu", n_ctx=64)
    member = HFMember(str(folder), "own", device="cpu", n_ctx=64, trust_remote_code=True)
    assert type(member._model).__name__ == "OwnForCausalLM"
    ids = line(member, 20)
    assert_same(read_anew(member, ids), read_anew(load("llama"), ids), STRICT)


def test_a_model_that_looks_ahead_is_refused(hf_model: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"bert \(BertLMHeadModel\) looks ahead in its text"):
        HFMember(str(write_model("bert", tmp_path)), "bert", device="cpu")


def test_a_model_that_the_hub_does_not_give_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelFileError, match=r"no-one/no-model cannot be opened .*Nor is there a folder"):
        HFMember("no-one/no-model", "m", device="cpu")


@pytest.mark.parametrize("where", ["./no/such/folder", "/no/such", "a/b/c", "no/such/file.gguf"])
def test_a_path_that_leads_nowhere_is_named(where: str) -> None:
    with pytest.raises(ModelFileError, match="No such"):
        HFMember(where, "m")


def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    for name, message in (("model.safetensors", "is a file. Give the folder"), ("model.gguf", "is no GGUF file")):
        path = tmp_path / name
        path.write_bytes(b"no model")
        with pytest.raises(ModelFileError, match=message):
            HFMember(str(path), "m")


def test_rounding_is_no_difference_and_one_wrong_row_is() -> None:
    rows = torch.randn(23, 500, generator=torch.Generator().manual_seed(0))
    rounded = rows + 0.1 * torch.randn(23, 500, generator=torch.Generator().manual_seed(1))
    wrong = rows.clone()
    wrong[7] = rows[8]
    for dtype in (torch.bfloat16, torch.float16):
        assert not _differ(rows.to(dtype), rounded.to(dtype))
        assert _differ(rows.to(dtype), wrong.to(dtype))
    assert _differ(rows, rounded) and not _differ(rows, rows + 1e-5)


# Real models

REAL = [pytest.param(name, marks=[pytest.mark.models, pytest.mark.slow]) for name in ("smollm2-135m", "gemma3-270m")]
MAX_TOKENS = 16


@pytest.mark.parametrize("name", REAL)
def test_an_ensemble_of_one_real_model_writes_what_generate_writes(load: Load, name: str) -> None:
    member = load(name, n_ctx=512, n_batch=512)
    ensemble = Ensemble([member], vote="pieces")
    for prompt in PROMPTS:
        ids = [*member.vocabulary.begin, *member.encode(prompt)]
        expected = generated(member, ids, MAX_TOKENS)
        written = b"".join(step.piece for step in ensemble.generate(prompt, max_tokens=MAX_TOKENS, heal=False))
        assert written == member.vocabulary.join(expected), prompt


@pytest.mark.models
@pytest.mark.slow
def test_a_gguf_file_is_unpacked_once(
    hf_model: Callable[[str], Path], load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    load("smollm2-135m", n_ctx=512, n_batch=512)
    monkeypatch.setitem(sys.modules, "gguf", None)  # which it would need
    member = HFMember(str(hf_model("smollm2-135m")), "again", n_ctx=64, device="cpu")
    assert member.path == hf_model("smollm2-135m")
    member.close()


@pytest.mark.models
@pytest.mark.slow
def test_one_model_through_llama_cpp_and_through_transformers_agree_and_write_together(
    load: Load, load_model: Callable[..., LlamaCppMember]
) -> None:
    hf, gguf = load("smollm2-135m", n_ctx=512, n_batch=512), load_model("smollm2-135m")
    try:
        assert hf.vocabulary.pieces == gguf.vocabulary.pieces
        ids = line(hf, 60)
        assert ids == line(gguf, 60)
        assert distance(read_anew(hf, ids), read_anew(gguf, ids)) < 0.15
        text = Ensemble([hf, gguf]).generate("The capital of France is", max_tokens=6).run()
        assert "Paris" in text
    finally:
        gguf.close()


@pytest.mark.models
@pytest.mark.slow
def test_where_llama_cpp_has_the_weights_in_float32_too_both_find_the_same_tokens_likeliest(
    load: Load, model_file: Callable[[str], Path], tmp_path: Path
) -> None:
    from llama_cpp import llama_cpp

    hf = load("smollm2-135m", n_ctx=512, n_batch=512)
    path = tmp_path / "float32.gguf"
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = llama_cpp.LLAMA_FTYPE_ALL_F32, True
    source = str(model_file("smollm2-135m")).encode()
    assert llama_cpp.llama_model_quantize(source, str(path).encode(), ctypes.byref(params)) == 0
    gguf = LlamaCppMember(path, "float32", n_threads=1, n_ctx=512, n_contexts=2)
    try:
        ids = line(hf, 400)
        ours, theirs = (read(m, m.new(), 0, ids, len(ids)).argmax(axis=1) for m in (hf, gguf))
        assert np.mean(ours == theirs) > 0.98
        prompt = "The capital of France is"
        texts = [Ensemble([member]).generate(prompt, max_tokens=12).run() for member in (hf, gguf)]
        assert texts[0] == texts[1]
    finally:
        gguf.close()
