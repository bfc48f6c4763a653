"""The rule that a user names, with the options that it has, checked in one place."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from unisono.arrays import Weights
from unisono.config import weights_of
from unisono.errors import ConfigError
from unisono.pooling import PLAUSIBILITY, Rule, contrastive
from unisono.registry import find_rule

CONTRASTIVE, UNITE = "contrastive", "unite"


def rule_of(name: str, vote: str, plausibility: float | None = None, top_union: int | None = None) -> Rule:
    """The rule of that name for a unit of voting; options that are None were not given.

    Raises:
        UnknownName: no such rule.
        PluginError: a plugin's rule that does not work.
        ConfigError: an option that the rule does not have or that is out of range, or a unit that it cannot pool.
    """
    rule = find_rule(name)
    if name == UNITE and vote != "pieces":
        raise ConfigError(f"The rule unite is for voting on pieces, and cannot pool {vote}: choose vote pieces.")
    for option, value, owner in (("plausibility", plausibility, CONTRASTIVE), ("top_union", top_union, UNITE)):
        if value is not None and name != owner:
            raise ConfigError(f"{option} is for the rule {owner}, and {name} has no use for it: leave it out.")
    if plausibility is not None and not 0 <= plausibility <= 1:
        raise ConfigError(f"plausibility is {plausibility}: give a number from 0 to 1.")
    if top_union is not None and top_union < 1:
        raise ConfigError(f"top_union is {top_union}: give at least 1.")
    if name == CONTRASTIVE:
        return partial(contrastive, plausibility=PLAUSIBILITY if plausibility is None else plausibility)
    return rule


def weights_for(rule: str, given: Sequence[float | None], names: Sequence[str]) -> Weights:
    """Weights as that rule takes them. Raises ConfigError."""
    return weights_of(given, names, signed=rule == CONTRASTIVE)
