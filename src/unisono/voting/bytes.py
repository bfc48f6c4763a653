"""Voting on bytes: exact across tokenizers.

For one member and the text x so far, the next byte is distributed as

    P(b | x)  ∝  Σ over branches (t_1..t_m, s) of  w · Σ over tokens t whose piece starts with s + b of  p(t | t_1..t_m)

A branch is one way to have tokenised x: the tokens t_1..t_m spell the beginning of x, the open bytes s the rest, and w
is the product of the tokens' probabilities. (Phan et al., arXiv 2410.09303; Hayase et al., arXiv 2506.14123; Vieira et
al., arXiv 2412.03719.) A member is asked for a forward only where the open bytes of a branch are themselves a token.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from unisono.arrays import BoolArray, FloatArray, IntArray, Logits, Probs, Votes, Weights
from unisono.errors import BadLogits, ConfigError, NoCommonChoice
from unisono.members.base import Feed, Member
from unisono.pooling import Rule
from unisono.sampling import Tilt, greedy
from unisono.text import END_OF_TEXT, Utf8, split_characters
from unisono.vocabulary import Kind
from unisono.voting.base import Lines, MemberPrompt, Opinion, Sure, Voter, begin_context, n_common
from unisono.voting.rows import Row, SortedRow

N_CHOICES = 257
"""256 bytes, and END_OF_TEXT."""

SMALLEST = 1e-290
"""A mass below this is none: its inverse is still a number."""

MOST_BRANCHES = 8
"""How many branches a member keeps at most, unless the user says otherwise: with those merged that end alike, there
are hardly ever more than 4. Where none is merged it is twice as many, and where none is dropped either, 8 times."""

MOST_DORMANT = 64
"""How many dropped branches are remembered, the heaviest; twice as many until they are counted."""

MOST_MASKS = 256
"""How many sets of masks are remembered before it begins again."""

EPSILON = 0.01
"""The share of a member's branches below which one is dropped, unless the user says otherwise."""


MERGE = 4
"""Branches whose last tokens, so many, are the same count as one, unless the user says otherwise or epsilon is 0."""


def merged_tokens(epsilon: float, merge: int | None) -> int:
    """How many last tokens branches have to share to count as one, with these settings; 0: they never do."""
    return merge if merge is not None else MERGE if epsilon > 0 else 0


def most_branches(epsilon: float, merge: int | None = None) -> int:
    """How many branches a member keeps at most with these settings, unless it is said."""
    if epsilon == 0:
        return 8 * MOST_BRANCHES
    return MOST_BRANCHES if merged_tokens(epsilon, merge) else 2 * MOST_BRANCHES


class ByteVoting:
    """The unit of voting is the byte; the members' vocabularies never meet.

    Args:
        members: Who votes.
        epsilon: Branches with a smaller share of a member's mass are dropped; 0 is exact as far as max_branches go.
        max_branches: How many branches a member keeps at most, the heaviest; None is 8, 16 without merging, and 64 at
            epsilon 0.
        utf8: Mask, before pooling, what cannot go on with valid UTF-8.
        canonical: Drop branches that the member's tokenizer would not write.
        merge: Take branches whose last tokens, so many, are the same for one; 0 never does. None is 4, and 0 at
            epsilon 0.
    """

    end = END_OF_TEXT

    def __init__(
        self,
        members: Sequence[Member],
        *,
        epsilon: float = EPSILON,
        max_branches: int | None = None,
        utf8: bool = True,
        canonical: bool = False,
        merge: int | None = None,
    ) -> None:
        self.members = members
        if not 0 <= epsilon < 1:
            raise ConfigError(f"epsilon is {epsilon}: give a share from 0 to below 1.")
        if max_branches is None:
            max_branches = most_branches(epsilon, merge)
        self.epsilon, self.max_branches, self.utf8, self.canonical = epsilon, max_branches, utf8, canonical
        self.merge = merged_tokens(epsilon, merge)
        self.sorted = [SortedRow(m.vocabulary) for m in members]
        self.can_write = [np.ones(N_CHOICES, dtype=bool) for _ in members]
        """bool[257] for each member: the bytes that it has tokens for, and the end."""
        for member, mask in zip(members, self.can_write, strict=True):
            mask[list(member.vocabulary.missing_bytes)] = False
        self._readable = np.logical_and.reduce(self.can_write)
        self._usual: dict[tuple[int, int, int], bool] = {}
        self._masks: dict[tuple[int, ...], tuple[list[BoolArray], BoolArray]] = {}
        """By the masks that come together again and again, those and what all of them allow."""

    def spelled(self, choice: int) -> bytes:
        return _BYTES[choice] if choice < END_OF_TEXT else b""

    @property
    def n_contexts(self) -> int:
        return self.max_branches

    tilts = False

    def choice_of(self, piece: bytes) -> int | None:
        return piece[0] if len(piece) == 1 else None

    def voter(
        self,
        member: int,
        prompt: MemberPrompt,
        held: Lines = (),
        tilt: Tilt | None = None,
    ) -> ByteVoter:
        return ByteVoter(self, member, prompt, held, tilt)

    def pool(self, voters: Sequence[Voter], rule: Rule, weights: Weights) -> PooledBytes:
        votes = self.ballot(voters)
        return PooledBytes(votes, rule(filled(votes), weights))

    def ballot(self, voters: Sequence[Voter]) -> Votes:
        """float64[n_members, 257]: the vote of each, over what can be chosen at all; all 0 for a member that wants only
        what others cannot read.

        Raises NoCommonChoice if that is nothing.
        """
        votes = np.array([voter.vote() for voter in voters])
        masks = [
            mask
            for voter, vote in zip(voters, votes, strict=True)
            if isinstance(voter, ByteVoter)
            for mask in voter.masks(vote)
        ]
        if len(voters) < len(self.members):
            masks.append(self._readable)
        votes *= self._allowed(masks)
        totals = np.add.reduce(votes, axis=1, keepdims=True)
        if not totals.all():
            if not totals.any():
                raise NoCommonChoice("No byte can follow that every member can read; leave out one of the members.")
            totals[totals == 0] = 1
        votes /= totals
        return votes

    def _allowed(self, masks: list[BoolArray]) -> BoolArray:
        """bool[257]: what all of the masks allow. They are nearly always the same few."""
        key = tuple(map(id, masks))
        known = self._masks.get(key)
        if known is None:
            if len(self._masks) >= MOST_MASKS:
                self._masks.clear()
            allowed = np.ones(N_CHOICES, dtype=bool)
            for mask in masks:
                allowed &= mask
            known = self._masks[key] = masks, allowed  # holding them, so that no other mask gets their ids
        return known[1]

    def alone(self, voter: Voter) -> tuple[int, float]:
        """What one member likes best, and at least what its probability is once what others cannot take is masked; 0
        where that may be the choice itself."""
        assert isinstance(voter, ByteVoter)
        vote = voter.vote().copy()
        for mask in voter.masks(vote):
            vote *= mask
        choice, total = greedy(vote), float(vote.sum())
        return choice, float(vote[choice]) / total if total > 0 and self._readable[choice] else 0.0

    def all_can_read(self, choices: Sequence[int]) -> bool:
        """Whether every member has a token for each of these bytes."""
        return bool(self._readable[list(choices)].all())

    def n_tokens(self, voters: Sequence[Voter], n_steps: int) -> int:
        """Whole tokens of the first member."""
        return voters[0].n_written

    def usual_pair(self, member: int, first: int, second: int) -> bool:
        """Whether the member's tokenizer writes these two tokens' text as these two tokens; remembered."""
        key = member, first, second
        if key not in self._usual:
            m = self.members[member]
            try:
                text = m.vocabulary.join((first, second)).decode()
                self._usual[key] = list(m.encode(text)) == [first, second]
            except ValueError:  # half a character: the tokenizer cannot say
                self._usual[key] = True
        return self._usual[key]


def filled(votes: Votes) -> Votes:
    """The votes with the mean of the others in the place of those that are all 0: such a member has no say, and neither
    adds nor vetoes anything.

    >>> filled(np.array([[0.25, 0.75], [0.0, 0.0]])).tolist()
    [[0.25, 0.75], [0.25, 0.75]]
    """
    some = votes.any(axis=1)
    if some.all():
        return votes
    silent = ~some
    out: Votes = votes.copy()
    out[silent] = votes[~silent].mean(axis=0)
    return out


@dataclass(frozen=True)
class PooledBytes:
    """The votes and what a rule made of them."""

    votes: Votes
    probs: Probs

    def best(self) -> tuple[int, float]:
        choice = greedy(self.probs)
        return choice, float(self.probs[choice])

    def opinions(self, choice: int) -> list[Opinion]:
        best = self.votes.argmax(axis=1).tolist()
        return [Opinion(k, float(row[k]), float(row[choice])) for k, row in zip(best, self.votes, strict=True)]


@dataclass(eq=False)
class Line:
    """One of the member's contexts, which branches share."""

    context: int
    ids: list[int] = field(default_factory=list)
    """What has been read into it."""
    branches: list[Branch] = field(default_factory=list)
    """Those that stand on it."""


@dataclass(eq=False)
class Branch:
    """One way to have tokenised the text."""

    line: Line
    n: int
    """How many tokens of the line are this branch's."""
    weight: float
    """Product of the tokens' probabilities, over the sum of all branches' shares."""
    unread: list[int] = field(default_factory=list)
    """Tokens that follow those and are still to be read; what follows is not known until then."""
    behind: bytes = b""
    """What the voter has heard and this branch takes up once it has read those."""
    prefix: bytes = b""
    """The open bytes."""
    pinned: bool = False
    """Not to be dropped before the next byte, since it was taken up again for it."""
    row: Row | None = None
    """The next token's masses; None until the branch has been read."""
    next_bytes: IntArray | None = None
    """int[k]: the bytes that can follow."""
    sums: FloatArray | None = None
    """float64[k]: the probability of the tokens behind each of those."""
    left: float = 0.0
    """The sum of those."""

    @property
    def n_whole(self) -> int:
        """How many tokens, those still to be read included."""
        return self.n + len(self.unread)


@dataclass(frozen=True)
class Dormant:
    """A branch that was dropped, as it was then."""

    read: list[int]
    """Its tokens but those; may be shared with others."""
    unread: list[int]
    """The tokens that it had still to read."""
    prefix: bytes
    """Its open bytes; its children up to there went their own ways."""
    log_weight: float
    """Log of its weight, before the scaling of the voter's weights."""
    log_share: float
    """Log of its share, likewise."""
    born: int
    """How many bytes of the text its tokens and open bytes spell."""

    @property
    def ids(self) -> list[int]:
        """All its tokens."""
        return self.read + self.unread


class ByteVoter:
    """One member's votes: its branches, and a forward where one of their tokens is whole."""

    def __init__(
        self,
        unit: ByteVoting,
        number: int,
        prompt: MemberPrompt,
        held: Lines = (),
        tilt: Tilt | None = None,
    ) -> None:
        self.member = unit.members[number]
        self._unit, self._number, self._row = unit, number, unit.sorted[number]
        self._vocabulary = self.member.vocabulary
        self._prompt = prompt
        self._tilt = tilt
        self._biased = {} if tilt is None else self._row.places(tilt.biases)
        self._text = bytearray(prompt.tail)
        self._utf8 = Utf8(prompt.tail) if unit.utf8 else None
        self._missing = frozenset(self._vocabulary.missing_bytes)
        self._missing_at = np.array(sorted(self._missing), np.int64)
        self._can_write = unit.can_write[number]
        self._captive = False
        self._branches: list[Branch] = []
        self._dormant: list[Dormant] = []
        self._log_scale = 0.0
        self._healing: int | None = None
        self._retellings = 0
        self._vote: Probs | None = None
        self.n_dropped = 0
        """How many branches were dropped for their small share."""
        self.n_merged = 0
        """How many branches were merged with others."""
        self.n_retold = 0
        """How often no branch could go on with what the others chose."""
        line = Line(*begin_context(self.member, prompt.ids, held))
        self._begin(line, list(prompt.ids), prompt.tail, prompt.heal)

    # What it tells.

    @property
    def n_tokens(self) -> int:
        return max((b.n_whole for b in self._branches), default=0)

    @property
    def n_written(self) -> int:
        """Whole tokens of the heaviest branch behind the prompt's; its open bytes do not count."""
        best = max(self._branches, key=self._share)
        return max(best.n_whole - len(self._prompt.ids), 0)

    @property
    def branches(self) -> list[tuple[bytes, float]]:
        """Open bytes and share of every branch, heaviest first."""
        found = [(b.prefix, self._share(b)) for b in self._branches]
        return sorted(found, key=lambda pair: -pair[1])

    def next_token(self) -> tuple[FloatArray, float] | None:
        """The member's next-token distribution where it has no open bytes: float[n_text] in the order of the sorted
        pieces, and the probability of the end; None where its heaviest branch is inside a token."""
        best = max(self._branches, key=self._share)
        if best.prefix or best.row is None:
            return None
        return best.row.masses / best.row.total, best.row.end / best.row.total

    def masks(self, vote: Probs) -> Iterator[BoolArray]:
        """bool[257] each: what can be chosen as far as this member is concerned is what all of them allow."""
        if self._utf8:
            yield self._utf8.allowed
        if self._captive:
            yield vote > 0
        elif self._missing:
            inside = vote.take(self._missing_at).any()  # of pieces
            yield self._can_write | (vote > 0) if inside else self._can_write

    # The rounds.

    def pending(self) -> list[Feed]:
        rows = 1 if self._healing is None else 2
        return [Feed(b.line.context, b.n, b.unread, rows) for b in self._branches if b.unread]

    @property
    def heaviest_pending(self) -> int:
        weights = [b.weight for b in self._branches if b.unread]
        return max(range(len(weights)), key=weights.__getitem__, default=0)

    @property
    def can_hear(self) -> bool:
        return not any(b.unread for b in self._branches)

    def ahead(self, coming: Sequence[int], most: int, *, whole: bool) -> list[list[int]]:
        out = []
        for b in self._branches:
            if b.unread:
                n = len(b.prefix) + len(b.behind)  # bytes heard after what this branch reads
                out.append(self._continued(bytes(self._text[len(self._text) - n :]), coming, b.n_whole, most, whole))
        return out

    def _continued(self, heard: bytes, coming: Sequence[int], position: int, most: int, whole: bool) -> list[int]:
        """The tokens that the tokenizer would write for this."""
        most = max(min(most, self.member.n_ctx - position), 0)
        span = heard + bytes(byte for byte in coming[: 8 * most + 32] if byte < END_OF_TEXT)
        at_end = len(coming) <= 8 * most + 32
        try:
            ids = list(self.member.encode(span.decode(errors="strict" if at_end else "ignore")))
        except ValueError:  # begins or ends inside a character
            return []
        spelled = self._vocabulary.join(ids)
        if spelled != span[: len(spelled)]:
            return []
        return ids[:most] if whole else ids[: max(min(most, len(ids) - 1), 0)]

    @property
    def lines(self) -> Lines:
        return [(line.context, line.ids) for line in self._lines]

    @property
    def _lines(self) -> list[Line]:
        """The contexts that its branches stand on, once each."""
        return list({id(b.line): b.line for b in self._branches}.values())

    def read(self, logits: Sequence[Logits]) -> None:
        waiting = [b for b in self._branches if b.unread]
        healing, self._healing = self._healing, None
        settled = True
        after: list[Branch] = []
        for branch, rows in zip(waiting, logits, strict=True):
            branch.line.ids[branch.n :] = branch.unread
            branch.n, branch.unread = branch.n_whole, []
            self._take(branch, rows[-1])
            family = [branch] if healing is None else self._healed(branch, rows[0], healing)
            settled = settled and len(family) == 1 and not branch.behind and not branch.prefix
            after += [late for b in family for late in self._catch_up(b)]
        if not settled:
            self._keep([*(b for b in self._branches if b not in waiting), *after])

    @property
    def captive(self) -> bool:
        return self._captive

    def begins_token(self, piece: bytes) -> bool:
        return True  # a vote inside of a token is exact here

    @property
    def at_boundary(self) -> bool:
        return not max(self._branches, key=self._share).prefix

    def sure(self, threshold: float) -> Sure | None:
        best = max(self._branches, key=self._share)
        if best.prefix or best.row is None or self._captive or (self._utf8 and not self._utf8.allowed[END_OF_TEXT]):
            return None
        masses, end, total, _ = best.row
        k = int(masses.argmax()) if len(masses) else -1
        if k < 0 or end >= masses[k]:
            return Sure([END_OF_TEXT], end / total, []) if end / total > threshold else None
        prob = min(float(masses[k]) / total, 1.0)  # of a threshold of 1 nobody is above, whatever rounding does
        choices = list(self._vocabulary.sorted_pieces[k])
        if prob <= threshold or not self._unit.all_can_read(choices):
            return None
        if self._utf8 and not _is_text(bytes(choices)):
            return None  # half a character: what follows it is voted on
        return Sure(choices, prob, [int(self._vocabulary.order[k])])

    def adopt(self, token: Sure) -> None:
        best = max(self._branches, key=self._share)
        for line in self._lines:
            if line is not best.line:
                self.member.drop(line.context)
        self._text += bytes(token.choices)
        self._begin(best.line, [*best.line.ids[: best.n], *token.ids], b"", heal=False)
        self._retellings = 0

    def draft(self) -> tuple[int, int, list[int], list[int]] | None:
        best = max(self._branches, key=self._share)
        bounds = self._vocabulary.children(best.prefix).bounds
        if best.row is None or not len(bounds) or best.n < max(b.n for b in best.line.branches):
            return None  # what it would read must not cut off what another branch has read
        longer = best.row.masses[bounds[0] : bounds[-1]]
        if not len(longer):
            return None
        k = int(bounds[0] + longer.argmax())
        if not best.prefix and best.row.end > best.row.masses[k]:
            return None
        choices = list(self._vocabulary.sorted_pieces[k][len(best.prefix) :])
        del best.line.ids[best.n :]  # of a branch that is no more; reading the draft overwrites it
        return best.line.context, best.n, choices, [int(self._vocabulary.order[k])]

    def draft_after(self, row: FloatArray) -> tuple[list[int], list[int]] | None:
        i = int(row.argmax())
        piece = self._vocabulary.pieces[i]
        return (list(piece), [i]) if piece and self._vocabulary.kinds[i] <= Kind.BYTE else None

    def vote(self) -> Probs:
        if self._vote is None:
            vote = np.zeros(N_CHOICES)
            for branch in self._branches:
                self._look_ahead(branch)
                assert branch.sums is not None and branch.row is not None
                vote[branch.next_bytes] += branch.weight * branch.sums
                if not branch.prefix:
                    vote[END_OF_TEXT] += branch.weight * branch.row.end / branch.row.total
            total = float(np.add.reduce(vote))
            if total > 0:
                vote /= total
            vote[vote < SMALLEST] = 0
            self._vote = vote
        return self._vote

    def hear(self, choice: int) -> None:
        self._text.append(choice)
        self._retellings = 0
        if self._utf8:
            self._utf8.step(choice)
        self._captive = self._captive or choice in self._missing
        for branch in self._branches:
            branch.pinned = False
        self._keep([late for b in self._branches for late in self._split(b, choice)])
        if self._captive and any(not b.prefix for b in self._branches):
            self._captive = False

    def revive(self) -> bool:
        """Take up the heaviest of the branches that were dropped and could still spell the text; whether there was one.
        A forward is pending then. For a known text, when no branch that was kept goes on with its next byte."""
        if not self._dormant:
            return False
        found = self._heaviest_dormant()
        line = max((b.line for b in self._branches), key=lambda line: n_common(line.ids, found.ids))
        ids = found.ids
        n = min(n_common(line.ids, ids), len(ids) - 1)
        # The text may have gone where the kept branches hardly went: then it is they that become small.
        lift = max(found.log_weight - self._log_scale, 0.0)
        for branch in self._branches:
            branch.weight *= math.exp(-lift)
        self._log_scale += lift
        weight = math.exp(found.log_weight - self._log_scale)
        behind = bytes(self._text[found.born :])
        own = Line(self.member.fork(line.context, n), line.ids[:n])
        revived = Branch(own, n, weight, ids[n:], behind, found.prefix, pinned=True)
        revived.line.branches.append(revived)
        self._branches.append(revived)
        self._vote = None
        return True

    def close(self) -> None:
        for line in self._lines:
            self.member.drop(line.context)
        self._branches = []

    # How branches come and go.

    def _begin(self, line: Line, ids: list[int], behind: bytes, heal: bool, prefix: bytes = b"") -> None:
        """One branch that reads these ids, as far as its line does not hold them already."""
        heal = heal and len(ids) >= 2 and bool(self._vocabulary.kinds[ids[-1]] <= Kind.BYTE)
        self._healing = ids[-1] if heal else None
        n = min(n_common(line.ids, ids), len(ids) - (2 if heal else 1))
        line.branches = [Branch(line, n, 1.0, ids[n:], behind, prefix)]
        self._branches = line.branches[:]
        self._dormant.clear()
        self._log_scale = 0.0
        self._vote = None

    def _take(self, branch: Branch, row: FloatArray) -> None:
        try:
            branch.row = self._row.read(row)
            if self._tilt is not None:
                written = Counter(branch.line.ids[len(self._prompt.ids) : branch.n])
                branch.row = self._row.tilted(branch.row, self._tilt, written, self._biased)
        except FloatingPointError as exc:
            raise BadLogits(self.member.name) from exc

    def _healed(self, child: Branch, row_before: FloatArray, last: int) -> list[Branch]:
        """Go back by the last token and take its piece as open bytes; the token itself is a child already read, and
        other ids with its piece are children too."""
        parent = Branch(child.line, child.n - 1, 1.0, behind=child.behind, prefix=self._vocabulary.pieces[last])
        self._take(parent, row_before)
        assert parent.row is not None
        family = [parent]
        for k in self._vocabulary.children(parent.prefix).exact:
            weight, i = float(parent.row.masses[k]) / parent.row.total, int(self._vocabulary.order[k])
            if i == last:
                child.weight = weight
                family.append(child)
            elif weight > 0:
                family.append(Branch(child.line, parent.n, weight, unread=[i], behind=child.behind))
        if not child.weight > 0:
            others = [b for b in family if b is not child and self._share(b) > 0]
            if others:
                return others
            child.weight = 1.0  # so unlikely that it underflows: take the token as it is
            return [child]
        return family

    def _catch_up(self, branch: Branch) -> list[Branch]:
        """What becomes of a branch as it takes up what it is behind; what has to read first comes back behind."""
        todo, done = [branch], []
        while todo:
            b = todo.pop()
            if b.unread or not b.behind:
                done.append(b)
            else:
                byte, rest = b.behind[0], b.behind[1:]
                for late in self._split(b, byte):
                    late.behind = rest
                    todo.append(late)
        return done

    def _look_ahead(self, branch: Branch) -> None:
        """Split the branch's mass by the next byte."""
        if branch.sums is None:
            assert branch.row is not None
            branch.next_bytes, branch.sums = self._row.by_next_byte(branch.row, branch.prefix)
            branch.left = float(np.add.reduce(branch.sums))

    def _share(self, branch: Branch) -> float:
        """The branch's part of the member's mass, up to a common factor."""
        if branch.unread or not branch.prefix:
            return branch.weight
        self._look_ahead(branch)
        return branch.weight * branch.left

    def _split(self, branch: Branch, byte: int) -> list[Branch]:
        """What a branch becomes with one more byte: itself, if some token goes on so, and a child for each token that
        its open bytes now are."""
        assert branch.row is not None
        branch.prefix += _BYTES[byte]
        branch.next_bytes = branch.sums = None
        children = self._vocabulary.children(branch.prefix)
        out = []
        for k in children.exact:
            weight = branch.weight * float(branch.row.masses[k]) / branch.row.total
            child = Branch(branch.line, branch.n, weight, [int(self._vocabulary.order[k])], pinned=branch.pinned)
            if weight > 0 and (not self._unit.canonical or self._usual(child)):
                out.append(child)
        if len(children.next_bytes):
            out.append(branch)
        return out

    def _keep(self, survivors: list[Branch]) -> None:
        """Drop what has too small a share, scale the weights, and give children a line to stand on. The heaviest always
        stays; if none has any share, take up a dropped one, or tokenise the text anew."""
        if self._unit.merge and len(survivors) > 1 and any(b.unread for b in survivors):
            survivors = self._merged(survivors, self._unit.merge)
        shares = [self._share(b) for b in survivors]
        total = sum(shares)
        if not total > SMALLEST:
            self._retell()
            return
        kept = survivors
        if len(survivors) > 1:
            floor = min(self._unit.epsilon * total, max(shares))
            ranked = sorted(range(len(survivors)), key=lambda k: (not survivors[k].pinned, -shares[k]))
            heavy = [k for k in ranked[: self._unit.max_branches] if shares[k] > 0]
            kept = [survivors[k] for k in heavy if shares[k] >= floor or survivors[k].pinned]
        self._remember_dropped(survivors, shares, kept)
        changed = kept != self._branches or any(b.unread for b in kept)
        if changed:
            lines = {id(b.line): b.line for b in (*self._branches, *survivors)}.values()
            for line in lines:
                line.branches = [b for b in kept if b.line is line]
                if not line.branches:
                    self.member.drop(line.context)
        self._log_scale += math.log(total)
        self._branches = kept  # before any fork, which may fail
        for branch in kept:
            branch.weight /= total
        if changed:
            for branch in kept:
                if branch.unread and branch.line.branches != [branch]:
                    self._give_line(branch)
        self._vote = None
        if self._is_barred():
            self._retell()

    def _merged(self, branches: Sequence[Branch], n: int) -> list[Branch]:
        """The branches, of those whose last n tokens and open bytes are the same only the heaviest, with the weights of
        all: how the text before those was cut into tokens hardly matters to a model."""
        alike: dict[tuple[bytes, tuple[int, ...]], list[Branch]] = {}
        out = []
        for branch in branches:
            if branch.behind or branch.pinned or branch.n_whole < n:
                out.append(branch)
            else:
                read = branch.line.ids[max(branch.n - n, 0) : branch.n]
                alike.setdefault((branch.prefix, tuple([*read, *branch.unread][-n:])), []).append(branch)
        for same in alike.values():
            heaviest = max(same, key=lambda b: b.weight)
            heaviest.weight = sum(b.weight for b in same)
            out.append(heaviest)
        self.n_merged += len(branches) - len(out)
        return out

    def _remember_dropped(self, survivors: Sequence[Branch], shares: Sequence[float], kept: Sequence[Branch]) -> None:
        """What was dropped may be all that is left when the others choose what the kept branches cannot write. Where a
        kept branch has no open bytes, it can write all but bytes that stand only inside of pieces; so only what is
        inside of such a piece, perhaps, needs to be remembered."""
        if len(survivors) == len(kept) and not self._dormant:
            return
        self.n_dropped += len(survivors) - len(kept)
        if any(not b.prefix and not b.behind for b in kept):
            span, now = self._vocabulary.longest_with_missing, len(self._text)
            self._dormant = [d for d in self._dormant if now - (d.born - len(d.prefix)) < span]
            if not span:
                return
        if len(survivors) > len(kept):
            before: dict[tuple[int, int], list[int]] = {}  # siblings share what stands before their last token
            for b, share in zip(survivors, shares, strict=True):
                if share > 0 and b not in kept:
                    read = before.setdefault((id(b.line), b.n), b.line.ids[: b.n])
                    born = len(self._text) - len(b.behind)
                    weight, log_share = (math.log(x) + self._log_scale for x in (b.weight, share))
                    self._dormant.append(Dormant(read, b.unread, b.prefix, weight, log_share, born))
            if len(self._dormant) > 2 * MOST_DORMANT:
                self._dormant = sorted(self._dormant, key=lambda d: -d.log_share)[:MOST_DORMANT]

    def _heaviest_dormant(self) -> Dormant:
        found = max(self._dormant, key=lambda d: d.log_share)
        self._dormant.remove(found)
        return found

    def _give_line(self, child: Branch) -> None:
        """The child goes on in its parent's line if no branch there needs what stands behind; else in a fork of it."""
        line = child.line
        if any(other is not child and (other.n > child.n or other.unread) for other in line.branches):
            line.branches.remove(child)
            child.line = Line(self.member.fork(line.context, child.n), line.ids[: child.n], [child])

    def _is_barred(self) -> bool:
        """Whether every branch is inside a piece that cannot go on with valid UTF-8, while the text could be tokenised
        otherwise."""
        if self._utf8 is None or any(b.unread or b.behind or not b.prefix for b in self._branches):
            return False
        allowed = self._utf8.allowed
        for branch in self._branches:
            self._look_ahead(branch)
            assert branch.sums is not None and branch.next_bytes is not None
            if len(branch.sums) and branch.sums[0] > 0 and allowed[branch.next_bytes[0]]:
                return False  # as nearly always
            if (branch.sums[allowed[branch.next_bytes]] > 0).any():
                return False
        return self._vocabulary.longest_match(bytes(self._text)) is not None

    def _retell(self) -> None:
        """No branch can go on, since the others have chosen what this member gave no chance: take up the heaviest of
        those that were dropped; or else tokenise the text anew, first all but a character under way, then all."""
        self.n_retold += not self._retellings
        heal, behind, prefix, others, log_weight = False, b"", b"", self._dormant[:], 0.0
        if self._dormant:
            found = self._heaviest_dormant()
            ids, prefix, others, log_weight = found.ids, found.prefix, self._dormant[:], found.log_weight
            behind = bytes(self._text[found.born :])
        elif self._retellings < 2:
            self._retellings = 2
            whole, behind = _whole_characters(bytes(self._text))
            ids, heal = [*self._prompt.ids, *self._spell(whole)], bool(whole)
        else:
            ids = [*self._prompt.ids, *self._spell(bytes(self._text))]
        self._retellings = max(self._retellings, 1)
        line = max((b.line for b in self._branches), key=lambda line: n_common(line.ids, ids))
        for other in self._lines:
            if other is not line:
                self.member.drop(other.context)
        self._begin(line, ids, behind, heal, prefix)
        self._dormant, self._log_scale = others, log_weight

    def _spell(self, text: bytes) -> Sequence[int]:
        try:
            ids = self.member.encode(text.decode()) if text else []
            if self._vocabulary.join(ids) == text:
                return ids
        except ValueError:  # not valid UTF-8 (with the mask turned off), or beyond the tokenizer
            pass
        # In a text that is given and not chosen there may be what it cannot write: it leaves out the end of that.
        spelled = (self._vocabulary.longest_match(text[:n]) for n in range(len(text), 0, -1))
        return next((ids for ids in spelled if ids is not None), [])

    def _usual(self, child: Branch) -> bool:
        """Whether the tokenizer would write the child's last two tokens so."""
        ids = child.line.ids
        if child.n <= len(self._prompt.ids):
            return True
        return self._unit.usual_pair(self._number, ids[child.n - 1], child.unread[0])


_BYTES = [bytes([b]) for b in range(256)]


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _whole_characters(data: bytes) -> tuple[bytes, bytes]:
    """The whole characters and the beginning of one; all of it where it is no UTF-8."""
    try:
        text, rest = split_characters(data)
    except UnicodeDecodeError:
        return data, b""
    return text.encode(), rest
