"""Unisono: several language models write one text together, whatever their tokenizers.

>>> from unisono import Ensemble
>>> with Ensemble.load(["demo:smollm2-135m", "demo:gemma3-270m"]) as ensemble:   # doctest: +SKIP
...     for step in ensemble.generate("Once upon a time", max_tokens=64):
...         print(step.text, end="")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unisono.config import Config, MemberConfig
    from unisono.ensemble import Ensemble, Generation
    from unisono.errors import EnsembleError
    from unisono.steps import MemberVote, Stats, Step

__version__ = "0.1.0"

__all__ = ["Config", "Ensemble", "EnsembleError", "Generation", "MemberConfig", "MemberVote", "Stats", "Step"]

_HOMES = {
    "Config": "config",
    "MemberConfig": "config",
    "MemberVote": "engine",
    "Stats": "engine",
    "Step": "engine",
    "Ensemble": "ensemble",
    "Generation": "ensemble",
    "EnsembleError": "errors",
}


def __getattr__(name: str) -> Any:
    """Public names are imported on first use, so that `import unisono` itself costs nothing."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"unisono.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'unisono' has no attribute {name!r}")
