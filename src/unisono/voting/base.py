"""One interface for both units of voting, so that the engine's loop knows neither."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from unisono.arrays import Logits, Probs, Weights
from unisono.members.base import Feed, Member
from unisono.pooling import Rule


@dataclass(frozen=True)
class MemberPrompt:
    """What one member reads before the first step."""

    ids: Sequence[int]
    """Its own tokens, BOS included; not empty."""
    tail: bytes = b""
    """What follows them of the text: the beginning of a character whose other bytes have not come."""
    heal: bool = False
    """The last token may be the beginning of a longer one: the prompt ends where the user stopped, not where a token
    of the training text would."""


class Voter(Protocol):
    """One member's part in one sequence. Its rounds: pending, read, vote, hear."""

    member: Member

    @property
    def n_tokens(self) -> int:
        """How many tokens the member's context will hold once everything heard is read."""

    @property
    def n_written(self) -> int:
        """How many whole tokens of the member what it has heard so far takes."""

    def pending(self) -> list[Feed]:
        """The forwards that the next vote needs; empty if it needs none."""

    def read(self, logits: Sequence[Logits]) -> None:
        """Take what those forwards returned, in the order of `pending`. Raises BadLogits."""

    def vote(self) -> Probs:
        """float[n_choices]: the member's distribution for this step. The caller may not write to it."""

    def hear(self, choice: int) -> None:
        """What was chosen; never END."""

    def close(self) -> None:
        """Let go of the contexts. Closing twice is harmless."""


class Pooled(Protocol):
    """What the members think together, and what each of them thinks; good until they read again."""

    @property
    def probs(self) -> Probs:
        """float[n_choices]."""

    def best(self) -> tuple[int, float]:
        """The likeliest choice, ties to the lowest, and its probability."""

    def opinions(self, choice: int) -> list[Opinion]:
        """What each member thinks of a choice, and what it would rather have."""


class Opinion(NamedTuple):
    """What one member thinks of a choice."""

    favourite: int
    """The choice it likes best."""
    favourite_prob: float
    """How likely that is to it."""
    prob: float
    """How likely the given choice is to it."""


class Unit(Protocol):
    """What is voted on, for a given set of members."""

    members: Sequence[Member]
    end: int
    """The choice that ends the text."""

    def pool(self, voters: Sequence[Voter], rule: Rule, weights: Weights) -> Pooled:
        """The votes of all, over what can be chosen at all, pooled.

        Raises NoCommonChoice if that is nothing.
        """

    def n_tokens(self, voters: Sequence[Voter], n_steps: int) -> int:
        """How many tokens have been written, as `max_tokens` counts them."""

    def spelled(self, choice: int) -> bytes:
        """What a choice adds to the text; b"" for the end."""

    def voter(self, member: int, prompt: MemberPrompt) -> Voter:
        """A voter that holds the prompt. Raises CacheFull."""
