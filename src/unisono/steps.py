"""What comes out of writing: steps, what they cost, and what ends them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Finish = Literal["end", "stop", "length", "interrupted"]
"""Why a text is over: the ensemble ended it; a stop string came; max_tokens or a context's end was reached;
the reader stopped reading."""


@dataclass(frozen=True)
class MemberVote:
    """What one member thought of one step."""

    favourite: bytes
    """The choice it liked best; b"" is the end of the text."""
    favourite_logprob: float
    """Natural log of the probability it gave that."""
    chosen_logprob: float
    """Natural log of the probability it gave what was chosen; -inf if none."""


@dataclass(frozen=True)
class Step:
    """One choice."""

    piece: bytes
    """What was chosen; b"" is the end of the text, or, with no votes, that there was no room for a choice."""
    logprob: float
    """Natural log of its pooled probability."""
    votes: tuple[MemberVote, ...]
    """One a member, in the ensemble's order; empty where one member decided alone."""
    text: str
    """What can be shown now: whole characters, nothing that may turn out to be a stop string."""
    finish: Finish | None = None
    """Set on the last step."""
    top: tuple[tuple[bytes, float], ...] = ()
    """The likeliest choices and the natural logs of their pooled probabilities, as many as were asked for."""
    n_tokens: int = 0
    """How many whole tokens have been written with it, as max_tokens counts them."""


@dataclass
class Stats:
    """What a text has cost so far."""

    members: Sequence[str]
    n_prompt: list[int]
    """Tokens of the prompt, one count a member."""
    n_steps: int = 0
    """Choices made, END included."""
    n_votes: int = 0
    """Those of them in which all members voted."""
    n_tokens: int = 0
    """Tokens written, as max_tokens counts them: pieces, or in voting on bytes whole tokens of the first member (of
    the gate, in threshold mode)."""
    n_bytes: int = 0
    """Bytes written."""
    n_forwards: list[int] = field(default_factory=list)
    """Forwards, one count a member."""
    n_read: list[int] = field(default_factory=list)
    """Tokens read by those, the prompt included."""
    forward_s: list[float] = field(default_factory=list)
    """Seconds inside the members' forwards."""
    first_s: float = 0.0
    """Seconds until the first step, reading the prompt included."""
    first_tokens: int = 0
    """Tokens that the first step wrote."""
    first_forward_s: float = 0.0
    """How many of those were inside the members' forwards."""
    wall_s: float = 0.0
    """Seconds in all, without the time that the reader of the steps took between two of them."""

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second after the first step, or nan where there are none."""
        written = self.n_tokens - self.first_tokens
        return written / (self.wall_s - self.first_s) if self.n_steps > 1 else float("nan")

    @property
    def overhead(self) -> float:
        """Time outside the members' forwards as a share of the time inside them, over all steps but the first."""
        inside = sum(self.forward_s) - self.first_forward_s
        return (self.wall_s - self.first_s) / inside - 1 if inside > 0 else float("nan")


def logprob(probability: float) -> float:
    """Natural log; -inf of 0."""
    return math.log(probability) if probability > 0 else -math.inf
