"""One interface for both units of voting, so that the engine's loop knows neither."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from unisono.arrays import Logits, LogProbs
from unisono.members.base import Feed, Member


@dataclass(frozen=True)
class MemberPrompt:
    """What one member reads before the first step."""

    ids: Sequence[int]
    """Its own tokens, BOS included; not empty."""


class Voter(Protocol):
    """One member's part in one sequence. Its rounds: pending, read, vote, hear."""

    member: Member

    @property
    def n_tokens(self) -> int:
        """How many tokens the member's context will hold once everything heard is read."""

    def pending(self) -> list[Feed]:
        """The forwards that the next vote needs; empty if it needs none."""

    def read(self, logits: Sequence[Logits]) -> None:
        """Take what those forwards returned, in the order of `pending`. Raises BadLogits."""

    def vote(self) -> LogProbs:
        """float[n_choices]: the member's distribution for this step. The caller may not write to it."""

    def hear(self, choice: int) -> None:
        """What was chosen; never END."""

    def close(self) -> None:
        """Let go of the contexts. Closing twice is harmless."""


class Unit(Protocol):
    """What is voted on, for a given set of members."""

    members: Sequence[Member]
    end: int
    """The choice that ends the text."""

    def spelled(self, choice: int) -> bytes:
        """What a choice adds to the text; b"" for the end."""

    def voter(self, member: int, prompt: MemberPrompt) -> Voter:
        """A voter that holds the prompt. Raises CacheFull."""
