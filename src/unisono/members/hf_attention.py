"""Attention for many contexts in one row of tokens: each attends to its own keys and values, which lie here.

transformers calls `attend` wherever a model attends, under the name that `register` gives it. The tokens of all feeds
go through the model as one row; here the row falls apart into its lines again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Tensor: TypeAlias = Any
"""A torch.Tensor; torch is imported on first use, so that nobody needs it who does not use it."""

NAME = "unisono"
"""What transformers knows `attend` by."""

CHECKED = "unisono-checked"
"""The same, and models show us which mask they would have used."""

LEAST_ROOM = 64
"""Tokens that a line makes room for at first."""


class Unsuitable(Exception):
    """A model wants something of its attention that is not done here."""


class Line:
    """The keys and values of one line of tokens in every layer, with room to grow. Several contexts may stand on it."""

    def __init__(self, most: int) -> None:
        self.most = most
        """How many tokens it may ever hold."""
        self._layers: list[tuple[Tensor, Tensor]] = []
        """Keys and values, each [n_kv_heads, room, dim]."""

    def put(self, layer: int, start: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write [n_kv_heads, n, dim] from position `start` on; what the line holds up to there, as views."""
        stop = start + keys.shape[1]
        if layer == len(self._layers):
            self._layers.append((keys[:, :0], values[:, :0]))
        held = self._layers[layer]
        if stop > held[0].shape[1]:
            room = min(max(LEAST_ROOM, 1 << (stop - 1).bit_length()), self.most)
            held = self._layers[layer] = (_moved(held[0], start, room), _moved(held[1], start, room))
        held[0][:, start:stop] = keys
        held[1][:, start:stop] = values
        return held[0][:, :stop], held[1][:, :stop]

    def begin_like(self, other: Line, n: int) -> None:
        """Take a copy of another line's first n tokens."""
        room = min(max(LEAST_ROOM, 1 << n.bit_length()), self.most)
        self._layers = [(_moved(keys, n, room), _moved(values, n, room)) for keys, values in other._layers] if n else []


def _moved(old: Tensor, n: int, room: int) -> Tensor:
    new = old.new_empty((old.shape[0], room, old.shape[2]))
    new[:, :n] = old[:, :n]
    return new


@dataclass(frozen=True)
class Segment:
    """The next n tokens of the row belong to this line, from position `start` on."""

    line: Line
    start: int
    n: int


@dataclass
class Reading:
    """One row of tokens on its way through a model."""

    segments: Sequence[Segment]
    full: int | None = None
    """With CHECKED: how many tokens a full context has."""
    n_layers: int = 0
    """How many times the model has attended so far."""
    masks: dict[Any, Tensor] = field(default_factory=dict)
    """Those of this row; all layers of one kind share them."""


_reading: ContextVar[Reading] = ContextVar("reading")


@contextmanager
def under_way(reading: Reading) -> Iterator[None]:
    """Within, this thread's models attend for this row."""
    token = _reading.set(reading)
    try:
        yield
    finally:
        _reading.reset(token)


def register() -> None:
    """Make transformers know us; again is harmless."""
    from transformers import AttentionInterface, AttentionMaskInterface

    # No mask is registered under NAME, and so transformers makes none.
    AttentionInterface.register(NAME, attend)
    AttentionInterface.register(CHECKED, attend)
    AttentionMaskInterface.register(CHECKED, _shown_mask)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: [1, heads, n, dim] each -> [1, n, heads, dim]."""
    reading = _reading.get()
    layer, reading.n_layers = reading.n_layers, reading.n_layers + 1
    _check_mask(attention_mask, sliding_window, reading.full)
    (_, heads, n_tokens, dim), n_kv_heads = query.shape, key.shape[1]
    group = heads // n_kv_heads
    if scaling is None:
        scaling = dim**-0.5
    out = value.new_empty((n_tokens, heads, value.shape[3]))
    at = 0
    for segment in reading.segments:
        start, n, rows = segment.start, segment.n, slice(at, at + segment.n)
        keys, values = segment.line.put(layer, start, key[0, :, rows], value[0, :, rows])
        if sliding_window is not None and start + 1 > sliding_window:  # nobody here sees what lies before
            first = start + 1 - sliding_window
            keys, values = keys[:, first:], values[:, first:]
        mask = _mask(reading, start, n, sliding_window, group, query.device) if n > 1 else None
        # All heads that share their keys stand below each other, and keys need no repeating.
        folded = query[0, :, rows].reshape(n_kv_heads, group * n, dim)
        if softcap is None and s_aux is None:
            seen = _scaled(folded, keys, values, mask, scaling)
        else:
            sinks = None if s_aux is None else s_aux.reshape(n_kv_heads, group, 1).repeat_interleave(n, dim=1)
            seen = _spelled_out(folded, keys, values, mask, scaling, softcap, sinks)
        out[rows] = seen.reshape(heads, n, -1).transpose(0, 1)
        at += n
    return out[None], None


def _scaled(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    from torch.nn.functional import scaled_dot_product_attention

    return scaled_dot_product_attention(query[None], keys[None], values[None], attn_mask=mask, scale=scaling)[0]


def _spelled_out(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    scaling: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """The same with scores that are capped softly, and with sinks, scores [n_kv_heads, rows, 1] for looking nowhere."""
    import torch

    scores = query @ keys.transpose(1, 2) * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(scores.dtype)], dim=-1)
    shares = torch.softmax(scores, dim=-1, dtype=torch.float32).to(values.dtype)
    return shares[..., : keys.shape[1]] @ values


def _mask(reading: Reading, start: int, n: int, window: int | None, group: int, device: Any) -> Tensor:
    """bool[group * n, n_keys]: what each new token of a segment may see of the keys that are not cut off."""
    import torch

    name = (start, n, window, device)
    if name not in reading.masks:
        first = 0 if window is None else max(0, start + 1 - window)
        at = torch.arange(start, start + n, device=device)[:, None]
        keys = torch.arange(first, start + n, device=device)[None]
        reading.masks[name] = _sees(at, keys, window).repeat(group, 1)
    return reading.masks[name]


def _sees(at: Tensor, keys: Tensor, window: int | None) -> Tensor:
    """Whether a token sees another, by their positions: none that follows, and not too far back."""
    return keys <= at if window is None else (keys <= at) & (keys > at - window)


def _shown_mask(*_: Any, mask_function: Callable[..., Tensor], **__: Any) -> Tensor:
    """bool[1, 1, 2, full]: what the first and the last token of a full context see, by the model's own mask."""
    import torch

    full = _reading.get().full
    assert full is not None
    keys = torch.arange(full)
    zero = torch.tensor(0)
    rows = [mask_function(zero, zero, torch.tensor(at), keys).expand(full) for at in (0, full - 1)]
    return torch.stack(rows)[None, None]


def _check_mask(mask: Tensor | None, window: int | None, full: int | None) -> None:
    """Raises Unsuitable if the model wants a mask that is not the one made here."""
    if mask is None:
        return
    if full is None:
        raise Unsuitable("it makes a mask of its own")
    import torch

    shown = mask[0, 0].cpu()
    ours = _sees(torch.tensor([[0], [full - 1]]), torch.arange(full)[None], window)[:, : shown.shape[1]]
    if shown.dtype != torch.bool or shown.shape != ours.shape or not torch.equal(shown, ours):
        raise Unsuitable("it masks in a way of its own")
