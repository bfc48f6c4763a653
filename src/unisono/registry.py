"""Names to the things they stand for, imported on first use. Plugins come in by the same door: an entry point in the
group `unisono.members` names a function like those in BACKENDS."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from unisono.config import MemberConfig
from unisono.errors import UnknownName
from unisono.members.base import Member

BACKENDS: dict[str, str] = {
    "gguf": "unisono.members.llamacpp:open_gguf",
    "demo": "unisono.demo:open_demo",
}
"""Prefix of a spec -> the function (where, name, config) that opens the member."""


def open_member(config: MemberConfig, name: str) -> Member:
    """The member that a spec stands for.

    Raises:
        UnknownName: no such backend.
        EnsembleError: whatever the backend has to say.
    """
    backend, where = split_spec(config.model)
    opener: Callable[[str, str, MemberConfig], Member] = _find(backend)
    return opener(where, name, config)


def split_spec(spec: str) -> tuple[str, str]:
    """Backend and what it is to open.

    >>> split_spec("demo:smollm2-135m"), split_spec("models/a.gguf")
    (('demo', 'smollm2-135m'), ('gguf', 'models/a.gguf'))
    """
    backend, colon, where = spec.partition(":")
    if colon and (backend in BACKENDS or not spec.endswith(".gguf")):
        return backend, where
    if spec.endswith(".gguf") or Path(spec).is_file():
        return "gguf", spec
    raise UnknownName("model", spec, BACKENDS, "Write gguf:PATH, a path that ends in .gguf, or demo:NAME.") from None


def short_name(spec: str) -> str:
    """What people call a member of whom they gave only the spec.

    >>> short_name("demo:smollm2-135m"), short_name("gguf:models/Qwen2.5-0.5B.Q4_K_M.gguf")
    ('smollm2-135m', 'Qwen2.5-0.5B.Q4_K_M')
    """
    _, where = split_spec(spec)
    return Path(where).name.removesuffix(".gguf") or where


def _find(backend: str) -> Any:
    if backend in BACKENDS:
        module, _, attribute = BACKENDS[backend].partition(":")
        return getattr(importlib.import_module(module), attribute)
    plugins = {point.name: point for point in entry_points(group="unisono.members")}
    if backend in plugins:
        return plugins[backend].load()
    raise UnknownName("backend", backend, [*BACKENDS, *plugins])
