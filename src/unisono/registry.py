"""Names to the things they stand for, imported on first use. Plugins come in by the same door: an entry point in the
group `unisono.members` names a function like those in BACKENDS, and one in `unisono.rules` a rule."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import numpy as np

from unisono.arrays import Probs, Votes, Weights
from unisono.config import MemberConfig
from unisono.errors import ConfigError, EnsembleError, PluginError, UnknownName
from unisono.members.base import Member
from unisono.pooling import RULES, Rule

BACKENDS: dict[str, str] = {
    "gguf": "unisono.members.llamacpp:open_gguf",
    "demo": "unisono.demo:open_demo",
    "hf": "unisono.members.hf:open_hf",
}
"""Prefix of a spec -> the function (where, name, config) that opens the member."""

FOR_ALL = frozenset(
    {"model", "weight", "name", "threads", "n_ctx", "n_cells", "n_batch", "n_contexts", "ends", "chat_template_kwargs"}
)
"""The keys of a member that every backend takes."""

TAKEN: dict[str, frozenset[str]] = {
    "gguf": frozenset({"n_gpu_layers"}),
    "demo": frozenset({"n_gpu_layers"}),
    "hf": frozenset(
        {
            "revision",
            "dtype",
            "device",
            "device_map",
            "max_memory",
            "quantization",
            "trust_remote_code",
            "attention",
        }
    ),
}
"""And those that each takes besides. Plugins refuse for themselves what they do not take."""


def open_member(config: MemberConfig, name: str) -> Member:
    """The member that a spec stands for.

    Raises:
        UnknownName: no such backend.
        ConfigError: a key that this backend has no use for.
        PluginError: a plugin names it that cannot be imported.
        EnsembleError: whatever the backend has to say.
    """
    backend, where = split_spec(config.model)
    if backend in TAKEN:
        for key in sorted(config.model_fields_set - FOR_ALL - TAKEN[backend]):
            others = " and ".join(f"{other}:" for other, keys in TAKEN.items() if key in keys)
            raise ConfigError(f"{key} is for {others} members, and {config.model} is none of them: leave it out there.")
    opener: Callable[[str, str, MemberConfig], Member] = _find(backend)
    return opener(where, name, config)


def takes(spec: str, key: str) -> bool:
    """Whether this key of a member means something to the backend of a spec; a plugin says so only when it opens.

    >>> takes("a.gguf", "n_gpu_layers"), takes("hf:a/b", "n_gpu_layers"), takes("hf:a/b", "n_ctx")
    (True, False, True)

    Raises UnknownName.
    """
    backend, _ = split_spec(spec)
    return key in FOR_ALL or backend not in TAKEN or key in TAKEN[backend]


def shared_out(members: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:
    """Members as keys and values, with these in the place of theirs: each option for those that have a use for it, or,
    where nobody has, for all, so that it is refused when they open. What is no mapping stays as it is.

    >>> shared_out([{"model": "a.gguf"}, {"model": "hf:a/b"}], {"dtype": "float16"})
    [{'model': 'a.gguf'}, {'model': 'hf:a/b', 'dtype': 'float16'}]
    """
    takers = {key: [_may_take(member, key) for member in members] for key in options}
    out = []
    for n, member in enumerate(members):
        own = {key: value for key, value in options.items() if takers[key][n] or not any(takers[key])}
        out.append({**member, **own} if isinstance(member, dict) else member)
    return out


def _may_take(member: Any, key: str) -> bool:
    spec = member.get("model") if isinstance(member, dict) else None
    try:
        return isinstance(spec, str) and takes(spec, key)
    except EnsembleError:  # an unknown spec, which is told when it is opened
        return True


def n_gpus() -> int:
    """How many GPUs there are for Hugging Face models; 0 without torch."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return 0
    return int(torch.cuda.device_count())


def split_spec(spec: str) -> tuple[str, str]:
    """Backend and what it is to open.

    >>> split_spec("demo:smollm2-135m"), split_spec("models/a.gguf")
    (('demo', 'smollm2-135m'), ('gguf', 'models/a.gguf'))
    """
    backend, colon, where = spec.partition(":")
    if colon and (backend in BACKENDS or not spec.endswith(".gguf")):
        return backend, where
    if spec.endswith(".gguf") or os.path.isfile(spec):
        return "gguf", spec
    raise UnknownName(
        "model",
        spec,
        BACKENDS,
        "Write gguf:PATH, a path that ends in .gguf, hf:FOLDER, hf:OWNER/NAME of the model hub, or demo:NAME.",
    ) from None


def short_name(spec: str) -> str:
    """What people call a member of whom they gave only the spec.

    >>> short_name("demo:smollm2-135m"), short_name("gguf:models/Qwen2.5-0.5B.Q4_K_M.gguf"), short_name("hf:a/b@main")
    ('smollm2-135m', 'Qwen2.5-0.5B.Q4_K_M', 'b')
    """
    backend, where = split_spec(spec)
    if backend == "hf" and not os.path.exists(where):
        where = where.partition("@")[0]
    return Path(where).name.removesuffix(".gguf") or where


def _find(backend: str) -> Any:
    if backend in BACKENDS:
        module, _, attribute = BACKENDS[backend].partition(":")
        return getattr(importlib.import_module(module), attribute)
    plugins = _plugins("unisono.members")
    if backend in plugins:
        return _load("backend", plugins[backend])
    raise UnknownName("backend", backend, [*BACKENDS, *plugins])


def find_rule(name: str) -> Rule:
    """The rule of that name: one of ours, or else a plugin's, which gets weights that are positive and sum to 1.

    Raises:
        UnknownName: no such rule.
        PluginError: a plugin names it that cannot be imported or is no function.
    """
    if name in RULES:
        return RULES[name]
    plugins = _plugins("unisono.rules")
    if name not in plugins:
        raise UnknownName("rule", name, [*RULES, *plugins])
    found = _load("rule", plugins[name])
    if not callable(found):
        raise PluginError("rule", name, plugins[name].value, f"it is {type(found).__name__}, and no function")

    def rule(votes: Votes, weights: Weights) -> Probs:
        pooled: Probs = np.asarray(found(votes, weights), dtype=votes.dtype)
        if pooled.shape != votes.shape[1:] or not (np.isfinite(pooled) & (pooled >= 0)).all():
            fault = f"it must return {votes.shape[1]} probabilities, one for each choice, and did not"
            raise PluginError("rule", name, plugins[name].value, fault)
        return pooled

    return rule


def _plugins(group: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=group)}


def _load(what: str, point: EntryPoint) -> Any:
    try:
        return point.load()
    except EnsembleError:  # it knows better what to do
        raise
    except Exception as exc:  # whatever a stranger's module does when it is imported
        raise PluginError(what, point.name, point.value, f"{type(exc).__name__}: {exc}") from exc
