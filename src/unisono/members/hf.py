"""Models from Hugging Face, through transformers and torch.

All feeds of a call go through the model as one row of tokens, and `hf_attention` lets each attend to what its own
context holds. A fork shares its keys and values until one of both writes where the other still reads. A model that
does not attend by transformers' common interface reads its whole text anew each time: slow, and right.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from unisono.arrays import Logits
from unisono.config import MemberConfig
from unisono.errors import BackendError, CacheFull, ConfigError, EnsembleError, UnsupportedModel
from unisono.gguf import remembered_vocabulary
from unisono.members import hf_attention
from unisono.members.base import Feed, check_feed, free_number, with_given_ends
from unisono.members.hf_attention import Line, Reading, Segment, Tensor
from unisono.members.hf_loading import MEND_MEMORY, Wish, calm, load, packages
from unisono.members.hf_tokenizer import HFTokenizer

MANY = 1 << 20
"""How long a context may be where a model names no bound."""

PROBE, BRANCH = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8), (3, 1, 4, 1, 5, 9, 2, 7, 1, 8, 2)
"""Two lines of ids, the same up to SHARED, to find out with how a model reads."""

SHARED = 7

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Context:
    """One line of tokens: those it should hold, and how many of them have their keys and values kept."""

    ids: list[int]
    n_kept: int
    kept: _Kept


@dataclass(eq=False)
class _Kept:
    """Keys and values, and the contexts that stand on their beginning."""

    line: Line
    holders: set[_Context] = field(default_factory=set)

    @property
    def n(self) -> int:
        return max((held.n_kept for held in self.holders), default=0)


class _Todo(NamedTuple):
    """One feed: where its context goes on from, and all that it is to read."""

    feed: Feed
    held: _Context
    start: int
    ids: list[int]


class HFMember:
    """A causal language model from a folder, the model hub or a GGUF file.

    Args:
        where: A folder, REPOSITORY or REPOSITORY@REVISION on the hub, or a file that ends in .gguf. A GGUF file is
            written once as an ordinary model, in float32, into the cache folder.
        name: What people call the member.
        revision: Branch, tag or commit on the hub.
        dtype: auto, float32, bfloat16 or float16. auto is float32 on a CPU, which computes best in it, and elsewhere
            what the model is stored in.
        device: cpu, cuda, cuda:1, mps, ...; None takes the first GPU, or the CPU where there is none.
        device_map: Spread it over devices: auto, balanced, sequential, or a device for each part.
        max_memory: With device_map, which it makes auto where none is given: how much of each device to take.
        quantization: none, 8bit or 4bit, through bitsandbytes.
        trust_remote_code: Run the code that some models bring along.
        attention: The model's own implementation of that name (eager, sdpa, flash_attention_2) instead of ours. It
            knows nothing of contexts, so that each step reads the whole text anew: slow, for comparisons.
        n_threads: Threads for this member, set before each forward and put back after it; None leaves torch's.
        n_ctx: Tokens that one context can hold; at most what the model was trained on.
        n_batch: Tokens that go through the model at once; a longer prompt is read in chunks.
        n_contexts: How many contexts can live at the same time.
        n_cells: Tokens whose keys and values are kept, of all contexts together; None sets no bound. Forks count once
            until they go their own ways.
        ends: Ids to take as ends instead of those that the model names.

    Raises:
        MissingBackend, ConfigError, ModelFileError, UnsupportedModel, BackendError: as `hf_loading.load`; a model that
            looks ahead in the text is an UnsupportedModel too.
    """

    def __init__(
        self,
        where: str,
        name: str,
        *,
        revision: str | None = None,
        dtype: str = "auto",
        device: str | None = None,
        device_map: str | Mapping[str, int | str] | None = None,
        max_memory: Mapping[int | str, int | str] | None = None,
        quantization: str = "none",
        trust_remote_code: bool = False,
        attention: str | None = None,
        n_threads: int | None = None,
        n_ctx: int = 4096,
        n_batch: int = 512,
        n_contexts: int = 64,
        n_cells: int | None = None,
        ends: Sequence[int] | None = None,
    ) -> None:
        wish = Wish(where, revision, dtype, device, device_map, max_memory, quantization, trust_remote_code, attention)
        if attention == hf_attention.NAME:
            raise ConfigError(f"attention: {attention!r} is ours, taken unless you name another: leave it out.")
        loaded = load(wish)
        self._torch, _ = packages()
        self.name, self.path, self.commit, self._model = name, loaded.path, loaded.commit, loaded.model
        self.device, self._inputs_on = _devices(loaded.model)
        self._n_threads, self._n_cells = n_threads, n_cells
        parameters = inspect.signature(loaded.model.forward).parameters
        self._parameters = frozenset(parameters)
        self._takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        self.n_ctx_trained = _trained_length(loaded.model.config)
        self.n_ctx = min(n_ctx, self.n_ctx_trained or MANY)
        self._n_batch, self.n_contexts = min(n_batch, self.n_ctx), n_contexts
        self._contexts: dict[int, _Context] = {}
        self._n_layers: int | None = None
        """How many times the model attends in a forward; None if it reads everything anew."""
        with calm(), self._running():
            n_ids = self._prepare(own_attention=attention is not None)
        tokenizer = HFTokenizer(loaded.tokenizer, n_ids=n_ids, ends=loaded.ends, where=where)
        self._encode, self.chat_template, self.vocabulary = (
            tokenizer.encode,
            tokenizer.chat_template,
            tokenizer.vocabulary,
        )
        if (
            loaded.path is not None and loaded.path.is_file()
        ):  # the file itself knows better which of its tokens are no text
            self.vocabulary = remembered_vocabulary(loaded.path).with_ends(self.vocabulary.ends.tolist())
        if ends is not None:
            self.vocabulary = with_given_ends(self.vocabulary, ends, name)

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The text as ids, as if it went on from other text: no BOS, no dummy space."""
        return self._encode(text, special=special)

    # Contexts

    def new(self) -> int:
        held = _Context([], 0, _Kept(Line(self.n_ctx)))
        return self._add(held)

    def _add(self, context: _Context) -> int:
        number = free_number(self._contexts, self)
        self._contexts[number] = context
        context.kept.holders.add(context)
        return number

    def fork(self, context: int, at: int) -> int:
        source = self._contexts[context]
        assert 0 <= at <= len(source.ids)
        return self._add(_Context(source.ids[:at], min(at, source.n_kept), source.kept))

    def release(self, context: int) -> None:
        held = self._contexts[context]
        self._move(held, _Kept(Line(self.n_ctx)), 0)

    def drop(self, context: int) -> None:
        if self._model is None:  # closed
            return
        held = self._contexts.pop(context)
        held.kept.holders.remove(held)

    @staticmethod
    def _move(held: _Context, kept: _Kept, n_kept: int) -> None:
        """Let a context stand on other keys and values."""
        held.kept.holders.discard(held)
        kept.holders.add(held)
        held.kept, held.n_kept = kept, n_kept

    @property
    def n_cells_used(self) -> int:
        """Of how many tokens keys and values are kept."""
        return sum(kept.n for kept in {held.kept for held in self._contexts.values()})

    # Reading

    def forward(self, feeds: Sequence[Feed]) -> list[Logits]:
        if self._model is None:
            raise BackendError(f"{self.name} has been closed: open it again.")
        todo = []
        for feed in feeds:
            held = self._contexts[feed.context]
            check_feed(feed, len(held.ids), self)
            start = min(feed.at, held.n_kept)
            todo.append(_Todo(feed, held, start, [*held.ids[start : feed.at], *feed.ids]))
        assert len({feed.context for feed in feeds}) == len(feeds), "a context may stand in one feed of a call only"
        with self._running():
            out = self._read_on(todo) if self._n_layers is not None else self._read_anew(todo)
        for each in todo:
            each.held.ids[each.feed.at :] = each.feed.ids
        return out

    def _read_on(self, todo: Sequence[_Todo]) -> list[Logits]:
        """Read into the contexts, which keep it. What was there is not lost before there is room for what comes."""
        before = [(each.held, each.held.kept, each.held.n_kept) for each in todo]
        try:
            copies = self._make_room(todo)
        except CacheFull:
            for held, kept, n_kept in before:
                self._move(held, kept, n_kept)
            raise
        try:
            for each, source in copies:
                each.held.kept.line.begin_like(source.line, each.start)
            return self._read_chunks(todo)
        except BaseException:  # also Ctrl-C: what was to be overwritten is read again when it is next needed
            for each, (held, kept, _) in zip(todo, before, strict=True):
                self._move(held, kept, each.start)
            raise

    def _make_room(self, todo: Sequence[_Todo]) -> list[tuple[_Todo, _Kept]]:
        """Give each context keys and values that it may write to; which of them begin as copies, and of what.

        Raises CacheFull.
        """
        copies = []
        for each in todo:
            each.held.n_kept = each.start
        for each in todo:
            held, shared = each.held, each.held.kept
            if any(other.n_kept > each.start for other in shared.holders if other is not held):
                self._move(held, _Kept(Line(self.n_ctx)), each.start)
                copies.append((each, shared))
            held.n_kept = each.start + len(each.ids)
        if self._n_cells is not None and self.n_cells_used > self._n_cells:
            raise CacheFull(
                f"{self.name}'s cache holds {self._n_cells:,} tokens for all contexts together, and"
                f" {self.n_cells_used:,} would be needed. Give it more with n_cells."
            )
        return copies

    def _read_chunks(self, todo: Sequence[_Todo]) -> list[Logits]:
        """Read in rows of at most n_batch tokens."""
        tokens = (
            (slot, each.start + k, i, k >= len(each.ids) - each.feed.rows)
            for slot, each in enumerate(todo)
            for k, i in enumerate(each.ids)
        )
        parts: list[list[Logits]] = [[] for _ in todo]
        while chunk := list(islice(tokens, self._n_batch)):
            segments, slots = [], [slot for slot, _, _, _ in chunk]
            for slot in dict.fromkeys(slots):
                start = chunk[slots.index(slot)][1]
                segments.append(Segment(todo[slot].held.kept.line, start, slots.count(slot)))
            wanted = [k for k, (_, _, _, want) in enumerate(chunk) if want]
            rows = self._forward(Reading(segments), [i for _, _, i, _ in chunk], [at for _, at, _, _ in chunk], wanted)
            if wanted:
                found = _numpy(rows)
                owners = [slots[k] for k in wanted]
                for slot in dict.fromkeys(owners):
                    first = owners.index(slot)
                    parts[slot].append(found[first : first + owners.count(slot)])
        return [self._joined(part) for part in parts]

    def _forward(self, reading: Reading, ids: Sequence[int], positions: Sequence[int], wanted: Sequence[int]) -> Tensor:
        """One row of tokens through the model: [n_wanted, n_ids]."""
        both = self._torch.tensor([ids, positions], device=self._inputs_on)
        with hf_attention.under_way(reading):
            out = self._ask(wanted, input_ids=both[:1], position_ids=both[1:])
        if self._n_layers is not None and reading.n_layers != self._n_layers:
            raise BackendError(f"{self.name} attended {reading.n_layers} times instead of {self._n_layers}.")
        return out

    def _read_anew(self, todo: Sequence[_Todo]) -> list[Logits]:
        """Read the whole line of every feed, by the model's own attention, and keep nothing."""
        out = []
        for each in todo:
            ids, rows = each.ids, each.feed.rows  # nothing is kept, so these are all of the line
            out.append(_numpy(self._own(ids, range(len(ids) - rows, len(ids)))) if rows else self._joined([]))
        return out

    def _own(self, ids: Sequence[int], wanted: Sequence[int], **more: Any) -> Tensor:
        """One line of tokens through the model as it is: [n_wanted, n_ids]."""
        row = self._torch.tensor([list(ids)], device=self._inputs_on)
        return self._ask(wanted, input_ids=row, attention_mask=self._torch.ones_like(row), **more)

    def _ask(self, wanted: Sequence[int], **inputs: Any) -> Tensor:
        """[n_wanted, n_ids]: the logits at these places of the one row that goes through the model."""
        torch = self._torch
        inputs["use_cache"] = False
        if keeps := "logits_to_keep" in self._parameters:
            inputs["logits_to_keep"] = list(wanted)  # a tensor would have to lie where the last layer does
        known = {key: value for key, value in inputs.items() if self._takes_all or key in self._parameters}
        try:
            logits = self._model(**known).logits[0]
        except (EnsembleError, hf_attention.Unsuitable):
            raise
        except (torch.OutOfMemoryError, MemoryError) as exc:
            raise BackendError(
                f"{self.name} has run out of memory: give it a smaller n_ctx, n_batch or n_contexts, or {MEND_MEMORY}"
            ) from exc
        except Exception as exc:  # models bring code of their own
            raise BackendError(f"{self.name} could not read ({type(exc).__name__}): {exc}") from exc
        return logits if keeps else logits[list(wanted)]

    def _joined(self, parts: Sequence[Logits]) -> Logits:
        if not parts:
            return np.empty((0, self.vocabulary.n_ids), dtype=np.float32)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Within, torch keeps no gradients and uses this member's threads. Their number is torch's alone, not ours."""
        torch = self._torch
        before = torch.get_num_threads()
        n_threads = self._n_threads or before
        if n_threads != before:
            torch.set_num_threads(n_threads)
        try:
            with torch.inference_mode():
                yield
        finally:
            if n_threads != before:
                torch.set_num_threads(before)

    # Finding out how a model reads

    def _prepare(self, own_attention: bool) -> int:
        """Find out whether the model can read on from what is kept; the width of a row of logits.

        Raises:
            UnsupportedModel: what it says of a token depends on those that follow.
            BackendError: it cannot read at all.
        """
        model, own = self._model, self._model.config._attn_implementation
        lines = [[*line[: self.n_ctx]] for line in (PROBE, BRANCH)]
        if not own_attention:
            model.set_attn_implementation("eager")  # what all others are to equal; not all do, with capped scores
        expected = [self._own(line, range(len(line))) for line in lines]
        if _differ(expected[0][:SHARED], expected[1][:SHARED]):
            raise UnsupportedModel(
                f"{self.name} ({type(model).__name__}) looks ahead in its text, and cannot write one from left to"
                " right. Take a causal language model."
            )
        why = "its own attention was asked for" if own_attention else self._try_ours(lines, expected)
        if why is not None:
            self._n_layers = None
            model.set_attn_implementation(own)
            log.warning(
                "%s (%s) reads its whole text anew for every token, which is slow: %s.",
                self.name,
                type(model).__name__,
                why,
            )
        return int(expected[0].shape[-1])

    def _try_ours(self, lines: Sequence[list[int]], expected: Sequence[Tensor]) -> str | None:
        """Let the model attend by `hf_attention`, if that comes to the same; else why it may not."""
        if "position_ids" not in self._parameters:
            return "it takes no positions"
        model, line = self._model, lines[0]
        hf_attention.register()
        try:
            model.set_attn_implementation(hf_attention.CHECKED)
            reading = Reading([Segment(Line(self.n_ctx), 0, len(line))], full=self.n_ctx)
            with hf_attention.under_way(reading):
                self._own(line, [0], position_ids=self._torch.arange(len(line), device=self._inputs_on)[None])
            if not reading.n_layers:
                return "it does not attend through transformers' interface"
            self._n_layers = reading.n_layers
            model.set_attn_implementation(hf_attention.NAME)
            if _differ(self._read_in_pieces(lines), self._torch.cat(list(expected))):
                return "read in pieces, a text is another to it"
        except (hf_attention.Unsuitable, BackendError, ValueError, KeyError) as exc:
            return str(exc)
        return None

    def _read_in_pieces(self, lines: Sequence[list[int]]) -> Tensor:
        """The same two lines, begun, forked and gone on with side by side."""
        one, other = (Line(self.n_ctx) for _ in lines)
        n, rows = 4, []

        def read(*parts: tuple[Line, list[int], int, int]) -> Tensor:
            segments = [Segment(line, start, stop - start) for line, _, start, stop in parts]
            ids = [i for _, line, start, stop in parts for i in line[start:stop]]
            positions = [at for _, _, start, stop in parts for at in range(start, stop)]
            return self._forward(Reading(segments), ids, positions, range(len(ids)))

        rows.append(read((one, lines[0], 0, n)))
        other.begin_like(one, n)
        both = read((one, lines[0], n, SHARED), (other, lines[1], n, len(lines[1])))
        rows.append(both[: SHARED - n])
        rows.append(read((one, lines[0], SHARED, len(lines[0]))))
        rows.append(rows[0])
        rows.append(both[SHARED - n :])
        return self._torch.cat(rows)

    def close(self) -> None:
        self._model = None
        self._contexts.clear()


def open_hf(where: str, name: str, config: MemberConfig) -> HFMember:
    """The member that an `hf:WHERE` spec stands for."""
    return HFMember(
        where,
        name,
        revision=config.revision,
        dtype=config.dtype,
        device=config.device,
        device_map=config.device_map,
        max_memory=config.max_memory,
        quantization=config.quantization,
        trust_remote_code=config.trust_remote_code,
        attention=config.attention,
        n_threads=config.threads,
        n_ctx=config.n_ctx,
        n_batch=config.n_batch,
        n_contexts=config.n_contexts,
        n_cells=config.n_cells,
        ends=config.ends,
    )


def _devices(model: Any) -> tuple[str, Any]:
    """The names of the devices that a model lies on, joined, and the one that takes its inputs."""
    devices = list(dict.fromkeys(p.device for p in model.parameters() if p.device.type != "meta"))
    names = sorted({"cpu" if device.type == "cpu" else str(device) for device in devices})
    return "+".join(names), devices[0]


def _trained_length(config: Any) -> int | None:
    """How many tokens a text may have. Where a model would turn its positions in another way for longer ones, all
    that was read before would have to be read again, so that such a text is as long as the first way goes."""
    text = config.get_text_config()
    length = getattr(text, "max_position_embeddings", None)
    turning = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    kinds = turning.values() if turning and all(isinstance(v, Mapping) for v in turning.values()) else [turning]
    for kind in kinds:
        if kind.get("rope_type", kind.get("type")) in ("dynamic", "longrope", "su", "yarn-dynamic"):
            first = kind.get("original_max_position_embeddings") or getattr(
                text, "original_max_position_embeddings", None
            )
            length = first or length
    return length if isinstance(length, int) and length > 0 else None


def _numpy(rows: Tensor) -> Logits:
    out: Logits = rows.float().cpu().numpy()
    return out


def _differ(a: Tensor, b: Tensor) -> bool:
    """Whether rows of logits are further apart than rounding explains; NaN differs from nothing.

    float32 and float64 are compared where they are furthest apart. In 2 bytes single logits of a sound reading may be
    apart by half of how much they spread (bfloat16 has 8 bits of precision), but those of a row together are not.
    """
    precise = a.dtype.itemsize >= 4
    a, b = a.float(), b.float()
    apart = (a - b).abs().max() if precise else (a - b).square().mean(dim=-1).sqrt().max()
    return bool(apart > (1e-3 if precise else 0.25) * b.std().clamp(min=1e-3))
