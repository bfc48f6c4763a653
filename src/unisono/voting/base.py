"""One interface for both units of voting, so that the engine's loop knows neither."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from unisono.arrays import FloatArray, Logits, Probs, Weights
from unisono.members.base import Feed, Member
from unisono.pooling import Rule
from unisono.sampling import Tilt

Lines: TypeAlias = Sequence[tuple[int, Sequence[int]]]
"""Contexts of one member, and what each of them has read."""


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


@dataclass(frozen=True)
class Sure:
    """A token that a member is sure of."""

    choices: Sequence[int]
    """The choices that it stands for; END alone for the end of the text."""
    prob: float
    """Its probability with that member."""
    ids: Sequence[int]
    """What the member reads for it."""


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

    @property
    def heaviest_pending(self) -> int:
        """Which of those is for the likeliest branch."""

    def ahead(self, coming: Sequence[int], most: int, *, whole: bool) -> list[list[int]]:
        """For each of the pending forwards, the tokens that the member would read after it, at most so many, if these
        choices came; without `whole` the last is left out where it may depend on what comes then."""

    @property
    def can_hear(self) -> bool:
        """Whether it can hear now, or has to read first."""

    @property
    def lines(self) -> Lines:
        """Its contexts, and what each of them has read."""

    def read(self, logits: Sequence[Logits]) -> None:
        """Take what those forwards returned, in the order of `pending`. Raises BadLogits."""

    @property
    def captive(self) -> bool:
        """Whether it is inside a piece that it has to go on with, since it holds a byte that it cannot write else."""

    @property
    def at_boundary(self) -> bool:
        """Whether the member is not inside one of its tokens, as far as it can tell."""

    def begins_token(self, piece: bytes) -> bool:
        """Whether the member's tokenizer would begin a token with this piece, after what there is of the word."""

    def sure(self, threshold: float) -> Sure | None:
        """The member's own next token, where that is likelier than the threshold and can be taken by itself."""

    def adopt(self, token: Sure) -> None:
        """Take that token as heard: all its choices, and the token itself for its only way to have read them."""

    def draft(self) -> tuple[int, int, list[int], list[int]] | None:
        """The token that the member itself likes best next: the context and position that it goes to, the choices that
        it stands for, and its ids; None where that is the end, or where it cannot say. It can hear now."""

    def draft_after(self, row: FloatArray) -> tuple[list[int], list[int]] | None:
        """The same after a drafted token, from its logits float[n_ids]: choices and ids."""

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
    tilts: bool
    """Whether penalties and biases are for its choices, and not for each member's tokens."""

    def pool(self, voters: Sequence[Voter], rule: Rule, weights: Weights) -> Pooled:
        """The votes of all, over what can be chosen at all, pooled.

        Raises NoCommonChoice if that is nothing.
        """

    def n_tokens(self, voters: Sequence[Voter], n_steps: int) -> int:
        """How many tokens have been written, as `max_tokens` counts them."""

    def alone(self, voter: Voter) -> tuple[int, float]:
        """What one member likes best of what all can read, and its probability with that member."""

    def spelled(self, choice: int) -> bytes:
        """What a choice adds to the text; b"" for the end."""

    @property
    def n_contexts(self) -> int:
        """How many contexts of a member one text may need."""

    def choice_of(self, piece: bytes) -> int | None:
        """The choice that is exactly this piece; None where there is none."""

    def voter(
        self,
        member: int,
        prompt: MemberPrompt,
        held: Lines = (),
        tilt: Tilt | None = None,
    ) -> Voter:
        """A voter that holds the prompt. `held` are contexts of the member and what they have read: what a prompt has
        in common with one of them is not read again. `tilt` changes the votes where choices are no pieces.

        Raises CacheFull.
        """


def begin_context(member: Member, ids: Sequence[int], held: Lines) -> tuple[int, list[int]]:
    """A context that has read as much of the ids as one of those held has, but for the last two, and what it has read.

    Raises CacheFull.
    """
    context, read = max(held, key=lambda line: n_common(line[1], ids), default=(0, ()))
    n = min(n_common(read, ids), len(ids) - 2)
    return (member.fork(context, n), list(ids[:n])) if n > 0 else (member.new(), [])


def n_common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many ids two lines have in common from the beginning."""
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
