"""What every member promises. The contract test in tests/contract runs over each backend."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from unisono.arrays import Logits
from unisono.errors import CacheFull, ConfigError
from unisono.vocabulary import Vocabulary


@dataclass(frozen=True)
class Feed:
    """Ids for one context to read."""

    context: int
    """Which line of tokens."""
    at: int
    """Position of the first id; whatever the context holds from there on is dropped."""
    ids: Sequence[int]
    rows: int = 1
    """How many trailing positions want their logits (0: only read)."""


@dataclass(frozen=True)
class ChatTemplate:
    """A model's own way to write a conversation."""

    source: str
    """jinja2."""
    tokens: Mapping[str, str]
    """What the template may refer to, such as bos_token and eos_token, spelled out."""


class Member(Protocol):
    """One model with its tokenizer and its contexts. It speaks its own ids and knows nothing of the others."""

    @property
    def name(self) -> str:
        """What people call it; differs from the other members' names."""

    @property
    def vocabulary(self) -> Vocabulary:
        """Every id's piece and kind."""

    @property
    def n_ctx(self) -> int:
        """How many tokens one context can hold."""

    @property
    def n_contexts(self) -> int:
        """How many contexts can live at the same time."""

    @property
    def device(self) -> str:
        """Where it runs: members of the same device run in turn, others at the same time."""

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The model's own chat template, or None where it has none."""

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The text as ids, as if it went on from other text: no BOS, no dummy space.

        With `special`, the spelling of a control token becomes that token; without, it stays text.
        """

    def new(self) -> int:
        """An empty context. Raises CacheFull if the member has no more."""

    def forward(self, feeds: Sequence[Feed]) -> list[Logits]:
        """Read ids into contexts, each from its own position on; float[rows, n_ids] for each feed.

        What a context held from `feed.at` on is dropped first, so going on, going back and catching up are one
        verb. A context may stand in one feed of a call only; `feed.at` is at most what it holds; `feed.ids` is
        not empty. Either every feed is read, or the call raises (CacheFull, BackendError) and no context has
        changed. The arrays may be views that the next forward overwrites: reduce or copy them before.
        """

    def fork(self, context: int, at: int) -> int:
        """A new context that shares the first `at` tokens of another. Raises CacheFull if there are no more."""

    def release(self, context: int) -> None:
        """Give back what the context takes of the cache. It still stands for its tokens: the next forward or fork reads
        them again."""

    def drop(self, context: int) -> None:
        """Forget a context; its number may be used again. Harmless once the member is closed."""

    def close(self) -> None:
        """Free the model. The member cannot be used afterwards; closing twice is harmless."""


def check_feed(feed: Feed, n_held: int, member: Member) -> None:
    """Refuse a feed that its context, which holds so many tokens, has no room for. Raises CacheFull."""
    assert feed.ids and 0 <= feed.rows <= len(feed.ids) and 0 <= feed.at <= n_held, feed
    if feed.at + len(feed.ids) > member.n_ctx:
        raise CacheFull(
            f"{member.name}'s context holds {member.n_ctx:,} tokens and is full. Give it a longer one with --n-ctx."
        )


def free_number(used: Container[int], member: Member) -> int:
    """The lowest number that none of the member's contexts has. Raises CacheFull."""
    for number in range(member.n_contexts):
        if number not in used:
            return number
    raise CacheFull(f"{member.name} has no free context: all {member.n_contexts} are in use. Give it more n_contexts.")


def with_given_ends(vocabulary: Vocabulary, ends: Sequence[int], name: str) -> Vocabulary:
    """The vocabulary with exactly the ends that a user names. Raises ConfigError."""
    try:
        return vocabulary.with_ends(ends)
    except IndexError as exc:
        raise ConfigError(f"ends: {name} has no token {exc}; its tokens are 0 to {vocabulary.n_ids - 1:,}.") from exc
