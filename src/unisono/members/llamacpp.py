"""GGUF models through llama.cpp, on llama-cpp-python's low-level interface.

All contexts of a member share one key-value cache. A cell of it holds one token for every context that has that token
there, so a fork costs no cell until it goes its own way; this file keeps the books on cells, so that a batch that
does not fit is refused before anything has changed.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from unisono.arrays import Logits
from unisono.config import MemberConfig
from unisono.errors import BackendError, CacheFull, ConfigError, MissingBackend, ModelFileError
from unisono.gguf import GGUFHeader, remembered_vocabulary
from unisono.members.base import ChatTemplate, Feed, check_feed, free_number, with_given_ends
from unisono.vocabulary import Kind, Vocabulary

MAX_CONTEXTS = 256
"""llama.cpp's own bound on sequences in one cache."""


@dataclass
class _Context:
    """One line of tokens: those it should hold, and how many of them lie in the cache."""

    ids: list[int] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)
    """One number a cached token; forks share them. ids[len(cells):] was lost to a failed forward and is read again."""


class LlamaCppMember:
    """A GGUF model.

    Args:
        path: The GGUF file.
        name: What people call the member.
        n_threads: Threads for reading and writing; None lets llama.cpp use all physical cores.
        n_ctx: Tokens that one context can hold; at most what the model was trained on.
        n_cells: Tokens that all contexts can hold together, shared ones counted once; None is n_ctx + n_batch.
        n_gpu_layers: How many layers lie on the GPU, where llama.cpp was built for one; -1 is all.
        n_batch: Tokens that go through the model at once; a longer prompt is read in chunks.
        n_contexts: How many contexts can live at the same time.
        ends: Ids to take as ends instead of those that the file names.

    Raises:
        MissingBackend: llama-cpp-python is not installed.
        ConfigError: layers for a GPU, and llama.cpp finds none.
        ModelFileError, UnsupportedModel: as GGUFHeader.read; or llama.cpp refuses the file.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        *,
        n_threads: int | None = None,
        n_ctx: int = 4096,
        n_cells: int | None = None,
        n_gpu_layers: int = 0,
        n_batch: int = 512,
        n_contexts: int = 64,
        ends: Sequence[int] | None = None,
    ) -> None:
        header = GGUFHeader.read(path)
        vocabulary = remembered_vocabulary(path)  # before the model, so that a kind that cannot take part is named
        self._lib = lib = _library()
        if n_gpu_layers and not lib.llama_supports_gpu_offload():
            raise ConfigError(
                f"n_gpu_layers is {n_gpu_layers}, but llama.cpp finds no GPU: leave it out, or compile llama-cpp-python"
                " for yours (CMAKE_ARGS=-DGGML_CUDA=on, say; the README has the command)."
            )
        self.name, self.path = name, path
        self.device = "gpu" if n_gpu_layers else "cpu"
        self._model = self._ctx = self._batch = None
        self.chat_template = _chat_template(header)

        params = lib.llama_model_default_params()
        params.n_gpu_layers = n_gpu_layers if n_gpu_layers >= 0 else 1 << 20
        # The tokenizer's dummy space is put by whoever begins a text (Vocabulary.space_prefix), never in its midst.
        overrides = (lib.llama_model_kv_override * 2)()
        overrides[0].tag, overrides[0].key = lib.LLAMA_KV_OVERRIDE_TYPE_BOOL, b"tokenizer.ggml.add_space_prefix"
        overrides[0].value.val_bool = False
        params.kv_overrides = overrides
        self._model = lib.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise ModelFileError(
                f"llama.cpp refuses {path} ({header.metadata.get('general.architecture', 'unknown')}):"
                f" {_last_error() or 'it gave no reason'}."
            )
        self._vocab = lib.llama_model_get_vocab(self._model)
        try:
            self.vocabulary = self._complete(vocabulary, ends)
        except BaseException:
            self.close()
            raise

        marks = self.vocabulary.marks
        names = [marks[i].decode(errors="ignore") for i in header.user_defined().tolist() if i in marks]
        self._inside_marks = _inside([name for name in names if name])

        trained = int(lib.llama_model_n_ctx_train(self._model))
        self.n_ctx_trained = trained if trained > 0 else None
        self.n_ctx = min(n_ctx, trained) if trained > 0 else n_ctx
        self._n_batch = min(n_batch, self.n_ctx)
        self._n_cells = n_cells if n_cells is not None else self.n_ctx + self._n_batch
        self.n_contexts = min(n_contexts, MAX_CONTEXTS)
        params = lib.llama_context_default_params()
        params.n_ctx = self._n_cells
        params.n_batch = params.n_ubatch = self._n_batch
        params.n_seq_max = self.n_contexts
        params.n_outputs_max = params.n_outputs_max_per_seq = max(self._n_batch, self.n_contexts)  # or it aborts
        params.kv_unified = True
        params.swa_full = True  # sliding-window layers keep all cells, or going back and forking would lose some
        params.no_perf = True
        if n_threads is not None:
            params.n_threads = params.n_threads_batch = n_threads
        self._ctx = lib.llama_init_from_model(self._model, params)
        if not self._ctx:
            self.close()
            raise BackendError(
                f"llama.cpp has no room for {name}'s cache of {self._n_cells:,} tokens: give a smaller"
                f" {'--n-ctx' if n_cells is None else 'n_cells'}."
                f" ({_last_error() or 'it gave no reason'})"
            )
        self._memory = lib.llama_get_memory(self._ctx)
        self._batch = lib.llama_batch_init(self._n_batch, 0, 1)
        self._contexts: dict[int, _Context] = {}
        self._sharers: dict[int, int] = {}
        self._next_cell = 0

    def _complete(self, vocabulary: Vocabulary, ends: Sequence[int] | None) -> Vocabulary:
        """The file's tables with the ends that llama.cpp knows besides, by the names of turn marks."""
        if ends is not None:
            return with_given_ends(vocabulary, ends, self.name)
        n_ids = self._lib.llama_vocab_n_tokens(self._vocab)
        assert n_ids == vocabulary.n_ids, f"{self.path}: {n_ids} tokens in llama.cpp, {vocabulary.n_ids} in the file"
        unused = np.flatnonzero(vocabulary.kinds >= Kind.END).tolist()
        found = [i for i in unused if self._lib.llama_vocab_is_eog(self._vocab, i)]
        known = set(vocabulary.ends.tolist())
        return vocabulary if known.issuperset(found) else vocabulary.with_ends(sorted(known.union(found)))

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The text as ids, as if it went on from other text: no BOS, no dummy space."""
        self._check_open()
        if special or self._inside_marks is None:
            return self._tokenize(text, special)
        return [i for part in self._inside_marks.split(text) for i in self._tokenize(part, special)]

    def _tokenize(self, text: str, special: bool) -> list[int]:
        data = text.encode()
        room = len(data) + 8
        ids = (ctypes.c_int32 * room)()
        n = self._lib.llama_tokenize(self._vocab, data, len(data), ids, room, False, special)
        if n < 0:
            ids = (ctypes.c_int32 * -n)()
            n = self._lib.llama_tokenize(self._vocab, data, len(data), ids, -n, False, special)
        return list(ids[:n])

    def _check_open(self) -> None:
        if self._ctx is None:
            raise BackendError(f"{self.name} has been closed: open it again.")

    def new(self) -> int:
        self._check_open()
        return self._add(_Context())

    def _add(self, context: _Context) -> int:
        number = free_number(self._contexts, self)
        self._contexts[number] = context
        for cell in context.cells:
            self._sharers[cell] += 1
        return number

    def fork(self, context: int, at: int) -> int:
        self._check_open()
        source = self._contexts[context]
        assert 0 <= at <= len(source.ids)
        copy = self._add(_Context(source.ids[:at], source.cells[:at]))
        self._lib.llama_memory_seq_cp(self._memory, context, copy, 0, len(self._contexts[copy].cells))
        return copy

    def release(self, context: int) -> None:
        if self._ctx is None:  # closed, as below
            return
        self._cut(self._contexts[context], context, 0)

    def drop(self, context: int) -> None:
        if self._ctx is None:  # closed; llama.cpp has freed it
            return
        self._cut(self._contexts[context], context, 0)
        del self._contexts[context]

    @property
    def n_cells_used(self) -> int:
        """How many cells of the cache hold a token."""
        return len(self._sharers)

    def _cut(self, held: _Context, number: int, at: int) -> None:
        """Let go of the cells from position `at` on."""
        if at < len(held.cells):
            self._lib.llama_memory_seq_rm(self._memory, number, at, -1)
            for cell in held.cells[at:]:
                self._sharers[cell] -= 1
                if not self._sharers[cell]:
                    del self._sharers[cell]
            del held.cells[at:]

    def _freed(self, held: _Context, at: int) -> int:
        return sum(self._sharers[cell] == 1 for cell in held.cells[at:])

    def forward(self, feeds: Sequence[Feed]) -> list[Logits]:
        self._check_open()
        todo = []
        needed = 0
        for feed in feeds:
            held = self._contexts[feed.context]
            check_feed(feed, len(held.ids), self)
            start = min(feed.at, len(held.cells))
            ids = [*held.ids[start : feed.at], *feed.ids]
            todo.append((feed, held, start, ids))
            needed += len(ids) - self._freed(held, start)
        assert len({feed.context for feed in feeds}) == len(feeds), "a context may stand in one feed of a call only"
        if needed > self._n_cells - len(self._sharers):
            raise CacheFull(
                f"{self.name}'s cache holds {self._n_cells:,} tokens for all contexts together, {len(self._sharers):,}"
                f" are taken, and {needed:,} more are needed. Give it more with n_cells."
            )
        for feed, held, start, _ in todo:
            self._cut(held, feed.context, start)
        try:
            out = self._read(todo)
        except BaseException:  # also Ctrl-C: what was cut is read again when it is next needed
            for feed, held, start, _ in todo:
                self._cut(held, feed.context, start)
                self._lib.llama_memory_seq_rm(self._memory, feed.context, start, -1)
            raise
        for feed, held, _, _ in todo:
            held.ids[feed.at :] = feed.ids
        return out

    def _read(self, todo: Sequence[tuple[Feed, _Context, int, list[int]]]) -> list[Logits]:
        """Decode in batches of at most n_batch tokens; rows stay where llama.cpp put them if one batch was enough."""
        tokens = (
            (slot, feed.context, start + k, i, k >= len(ids) - feed.rows)
            for slot, (feed, _, start, ids) in enumerate(todo)
            for k, i in enumerate(ids)
        )
        parts: list[list[Logits]] = [[] for _ in todo]
        while chunk := list(islice(tokens, self._n_batch)):
            if any(parts):  # the rows of the batch before are about to be overwritten
                parts = [[rows.copy() if rows.base is not None else rows for rows in part] for part in parts]
            self._decode(chunk)
            for slot, _, _, _, _ in chunk:
                held = todo[slot][1]
                held.cells.append(self._next_cell)
                self._sharers[self._next_cell] = 1
                self._next_cell += 1
            wanted = [slot for slot, _, _, _, want in chunk if want]
            if not wanted:
                continue
            n_ids = self.vocabulary.n_ids
            pointer = self._lib.llama_get_logits(self._ctx)
            rows = np.ctypeslib.as_array(pointer, shape=(len(wanted), n_ids))
            for slot in dict.fromkeys(wanted):
                first = wanted.index(slot)
                parts[slot].append(rows[first : first + wanted.count(slot)])
        empty = np.empty((0, self.vocabulary.n_ids), dtype=np.float32)
        return [part[0] if len(part) == 1 else np.concatenate(part) if part else empty for part in parts]

    def _decode(self, chunk: Sequence[tuple[int, int, int, int, bool]]) -> None:
        assert self._batch is not None
        batch = self._batch
        batch.n_tokens = len(chunk)
        for k, (_, context, position, i, want) in enumerate(chunk):
            batch.token[k] = i
            batch.pos[k] = position
            batch.n_seq_id[k] = 1
            batch.seq_id[k][0] = context
            batch.logits[k] = want
        status = self._lib.llama_decode(self._ctx, batch)
        if status != 0:
            raise BackendError(
                f"llama.cpp could not read for {self.name} (status {status}): {_last_error() or 'no reason given'}."
            )

    def close(self) -> None:
        lib = self._lib
        if self._batch is not None:
            lib.llama_batch_free(self._batch)
        if self._ctx:
            lib.llama_free(self._ctx)
        if self._model:
            lib.llama_model_free(self._model)
        self._batch = self._ctx = self._model = None


def open_gguf(where: str, name: str, config: MemberConfig) -> LlamaCppMember:
    """The member that a `gguf:PATH` spec stands for."""
    return LlamaCppMember(
        Path(where).expanduser(),
        name,
        n_threads=config.threads,
        n_ctx=config.n_ctx,
        n_cells=config.n_cells,
        n_gpu_layers=config.n_gpu_layers,
        n_batch=config.n_batch,
        n_contexts=config.n_contexts,
        ends=config.ends,
    )


def _inside(marks: Sequence[str]) -> re.Pattern[str] | None:
    """Where to part a text so that it stays text although it spells one of these: behind their first characters."""
    return re.compile("|".join(f"(?<={re.escape(m[0])})(?={re.escape(m[1:])})" for m in marks)) if marks else None


def _chat_template(header: GGUFHeader) -> ChatTemplate | None:
    meta = header.metadata
    source = meta.get("tokenizer.chat_template")
    if not source:
        return None
    tokens = {}
    for kind in ("bos", "eos", "unknown", "padding"):
        i = meta.get(f"tokenizer.ggml.{kind}_token_id")
        if i is not None and 0 <= i < len(meta["tokenizer.ggml.tokens"]):
            key = {"unknown": "unk", "padding": "pad"}.get(kind, kind)
            tokens[f"{key}_token"] = meta["tokenizer.ggml.tokens"][i].decode(errors="replace")
    return ChatTemplate(source, tokens)


_messages: list[str] = []
_logger: Any = None


def _library() -> Any:
    """llama_cpp's low-level module, quiet: its warnings and errors are kept for our own messages."""
    global _logger
    try:
        from llama_cpp import llama_cpp as lib
    except ImportError as exc:
        raise MissingBackend("llama.cpp", "llama-cpp-python", "llamacpp") from exc
    if _logger is None:

        @lib.llama_log_callback  # type: ignore[untyped-decorator]
        def keep(level: int, text: bytes, _: Any) -> None:
            if level == 4:  # GGML_LOG_LEVEL_ERROR
                _messages.append(text.decode(errors="replace").strip())
                del _messages[:-3]

        _logger = keep
        lib.llama_backend_init()
    lib.llama_log_set(_logger, ctypes.c_void_p(0))
    return lib


def _last_error() -> str:
    """What llama.cpp last complained about; reading it forgets it."""
    said = "; ".join(m for m in _messages if m)
    _messages.clear()
    return said
