"""The slow, obvious versions of what the package does fast: plain loops, dicts and float64, nothing remembered."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from unisono.arrays import FloatArray
from unisono.members.base import Feed, Member
from unisono.vocabulary import Kind, Vocabulary

END = b""
"""In a vote, the end of the text."""

Vote = Mapping[bytes, float]
"""Piece -> probability."""


# Vocabularies


def is_text(vocabulary: Vocabulary, i: int) -> bool:
    return vocabulary.kinds[i] in (Kind.TEXT, Kind.BYTE)


def text_pieces(vocabulary: Vocabulary) -> set[bytes]:
    return {piece for i, piece in enumerate(vocabulary.pieces) if is_text(vocabulary, i)}


def usual_id(vocabulary: Vocabulary, piece: bytes) -> int:
    """The first id of that piece, byte fallbacks last."""
    ids = [i for i, other in enumerate(vocabulary.pieces) if other == piece and is_text(vocabulary, i)]
    return min(ids, key=lambda i: (vocabulary.kinds[i], i))


def starting_with(vocabulary: Vocabulary, prefix: bytes) -> set[int]:
    return {i for i, piece in enumerate(vocabulary.pieces) if is_text(vocabulary, i) and piece.startswith(prefix)}


def longest_match(vocabulary: Vocabulary, data: bytes) -> list[int] | None:
    """The longest piece that the rest can still be spelled after; None if there is no way."""
    known = text_pieces(vocabulary)

    def split(rest: bytes) -> list[bytes] | None:
        if not rest:
            return []
        for length in range(len(rest), 0, -1):
            if rest[:length] in known and (after := split(rest[length:])) is not None:
                return [rest[:length], *after]
        return None

    split_up = split(data)
    return None if split_up is None else [usual_id(vocabulary, piece) for piece in split_up]


# The union and votes over it


def union_pieces(vocabularies: Sequence[Vocabulary]) -> list[bytes]:
    """END, and every piece of any vocabulary that all can spell: those of the vocabulary with the most text ids in the
    order of its usual ids, then what each smaller one adds."""
    out = [END]
    for v in sorted(vocabularies, key=lambda v: -sum(is_text(v, i) for i in range(len(v.pieces)))):
        for piece in sorted(text_pieces(v), key=lambda piece: usual_id(v, piece)):
            if piece not in out and all(longest_match(other, piece) is not None for other in vocabularies):
                out.append(piece)
    return out


def vote(vocabulary: Vocabulary, union: Sequence[bytes], logits: FloatArray) -> dict[bytes, float]:
    """Softmax over the ids that may be chosen, summed by piece; END is every end."""
    allowed = {}
    for i, piece in enumerate(vocabulary.pieces):
        if vocabulary.kinds[i] == Kind.END:
            allowed[i] = END
        elif is_text(vocabulary, i) and piece in union:
            allowed[i] = piece
    top = max(float(logits[i]) for i in allowed)
    total = math.fsum(math.exp(float(logits[i]) - top) for i in allowed)
    out = dict.fromkeys(union, 0.0)
    for i, piece in allowed.items():
        out[piece] += math.exp(float(logits[i]) - top) / total
    return out


def linear(votes: Sequence[Vote], weights: Sequence[float]) -> dict[bytes, float]:
    """Weighted mean of the probabilities."""
    return {p: math.fsum(w * v[p] for v, w in zip(votes, weights, strict=True)) for p in votes[0]}


def log_linear(votes: Sequence[Vote], weights: Sequence[float]) -> dict[bytes, float]:
    """Weighted geometric mean, made to sum to 1 again."""
    raw = {p: math.prod(v[p] ** w for v, w in zip(votes, weights, strict=True)) for p in votes[0]}
    total = math.fsum(raw.values())
    return {p: q / total for p, q in raw.items()}


FLOOR = 1e-6
"""What an amateur is taken to give at least."""

CERTAIN = 0.01
"""Added to every entropy."""


def contrastive(votes: Sequence[Vote], weights: Sequence[float], plausibility: float = 0.1) -> dict[bytes, float]:
    """Powers multiplied, amateurs' in the denominator, over the choices that the experts find plausible."""
    logs: dict[bytes, float] = {}
    for p, liked in plausible(votes, weights, plausibility).items():
        if liked:
            lifted = [v[p] if w > 0 else max(v[p], FLOOR) for v, w in zip(votes, weights, strict=True)]
            logs[p] = math.fsum(w * math.log(x) for x, w in zip(lifted, weights, strict=True))
    raw = {p: math.exp(logs[p] - max(logs.values())) if p in logs else 0.0 for p in votes[0]}
    total = math.fsum(raw.values())
    return {p: q / total for p, q in raw.items()}


def plausible(votes: Sequence[Vote], weights: Sequence[float], plausibility: float) -> dict[bytes, bool]:
    """Whether no expert vetoes a choice, and it comes near to the best such choice."""
    mean = experts_mean(votes, weights)
    common = {p for p in mean if all(v[p] > 0 for v, w in zip(votes, weights, strict=True) if w > 0)}
    best = max(mean[p] for p in common)
    return {p: p in common and mean[p] >= plausibility * best for p in mean}


def experts_mean(votes: Sequence[Vote], weights: Sequence[float]) -> dict[bytes, float]:
    experts = [(v, w) for v, w in zip(votes, weights, strict=True) if w > 0]
    total = math.fsum(w for _, w in experts)
    return linear([v for v, _ in experts], [w / total for _, w in experts])


def adaptive(votes: Sequence[Vote], weights: Sequence[float]) -> dict[bytes, float]:
    """Weighted mean; the weights are divided by the entropies first."""
    raw = [w / (entropy(v) + CERTAIN) for v, w in zip(votes, weights, strict=True)]
    return linear(votes, [w / math.fsum(raw) for w in raw])


def entropy(vote: Vote) -> float:
    return math.fsum(-x * math.log(x) for x in vote.values() if x > 0)


def unite(votes: Sequence[Vote], weights: Sequence[float]) -> dict[bytes, float]:
    """Weighted mean of votes that are made to sum to 1 first."""
    totals = [math.fsum(v.values()) for v in votes]
    return linear([{p: x / total for p, x in v.items()} for v, total in zip(votes, totals, strict=True)], weights)


def top_votes(vocabularies: Sequence[Vocabulary], votes: Sequence[Vote], n_top: int) -> list[dict[bytes, float]]:
    """The votes over the union of the members' likeliest pieces; a member that lacks one gives it what it gives the
    first piece of its own spelling."""
    choices: set[bytes] = set()
    for v in votes:
        choices.update(sorted((p for p in v if v[p] > 0), key=lambda p: -v[p])[:n_top])
    out = []
    for vocabulary, v in zip(vocabularies, votes, strict=True):
        own = text_pieces(vocabulary) | {END}
        spelled = {p: p if p in own else vocabulary.pieces[(longest_match(vocabulary, p) or [])[0]] for p in choices}
        out.append({p: v.get(spelled[p], 0.0) for p in votes[0] if p in choices})
    return out


RULES: dict[str, Callable[[Sequence[Vote], Sequence[float]], dict[bytes, float]]] = {
    "linear": linear,
    "log-linear": log_linear,
    "contrastive": contrastive,
    "adaptive": adaptive,
    "unite": unite,
}


# Members without a cache


def log_softmax(logits: FloatArray) -> FloatArray:
    """Over the last axis, in float64."""
    wide = logits.astype(np.float64)
    wide = wide - wide.max(axis=-1, keepdims=True)
    out: FloatArray = wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return out


def read_anew(member: Member, ids: Sequence[int]) -> FloatArray:
    """float64[n_ids]: the log-probabilities after these ids, read into a context of their own in one go."""
    context = member.new()
    try:
        [rows] = member.forward([Feed(context, at=0, ids=list(ids))])
        return log_softmax(rows[-1])
    finally:
        member.drop(context)


def greedy_ids(member: Member, prompt: Sequence[int], n: int) -> list[int]:
    """The likeliest id n times over, everything read again for each."""
    ids = list(prompt)
    for _ in range(n):
        ids.append(int(read_anew(member, ids).argmax()))
    return ids[len(prompt) :]


def gac(
    members: Sequence[Member],
    prompts: Sequence[Sequence[int]],
    weights: Sequence[float],
    rule: str = "linear",
    max_tokens: int = 8,
    top_union: int = 10,
) -> list[bytes]:
    """GaC as published, greedy, on bytes: the pieces chosen, END included; every member reads everything each time."""
    vocabularies = [m.vocabulary for m in members]
    union = union_pieces(vocabularies)
    texts = [list(p) for p in prompts]
    written: list[bytes] = []
    while len(written) < max_tokens:
        votes = [vote(m.vocabulary, union, read_anew(m, ids)) for m, ids in zip(members, texts, strict=True)]
        if rule == "unite":
            votes = top_votes(vocabularies, votes, top_union)
        pooled = RULES[rule](votes, weights)
        chosen = max(pooled, key=pooled.__getitem__)  # the first of equals
        written.append(chosen)
        if chosen == END:
            break
        for v, ids in zip(vocabularies, texts, strict=True):
            if chosen in text_pieces(v):
                ids.append(usual_id(v, chosen))
            else:
                ids.extend(longest_match(v, chosen) or [])
    return written


# Bytes to text


def text_until(data: bytes, stops: Sequence[bytes], include_stop: bool = False) -> tuple[str, bool]:
    """The text of the whole, and whether a stop string ended it: the first to be complete, the longest of several."""
    for end in range(len(data) + 1):
        complete = [s for s in stops if s and data[:end].endswith(s)]
        if complete:
            cut = end if include_stop else end - max(map(len, complete))
            return data[:cut].decode(errors="replace"), True
    return data.decode(errors="replace"), False


def text_to_show(data: bytes, stops: Sequence[bytes]) -> str:
    """What can be shown of a text that no stop string has ended: all before what may become one, whole characters."""
    cut = min((at for at in range(len(data)) if any(s.startswith(data[at:]) for s in stops)), default=len(data))
    for length in (3, 2, 1):
        if length <= cut and data[cut - length : cut] in _begun_characters():
            return data[: cut - length].decode(errors="replace")
    return data[:cut].decode(errors="replace")


@lru_cache(maxsize=1)
def _begun_characters() -> set[bytes]:
    """Every beginning of a character's UTF-8 that is not yet the character."""
    encoded = [chr(c).encode() for c in range(0x80, 0x110000, 0x40) if not 0xD800 <= c < 0xE000]
    return {whole[:n] for whole in encoded for n in range(1, len(whole))}


# GGUF


def byte_alphabet() -> dict[str, int]:
    """GPT-2's bytes_to_unicode as published (github.com/openai/gpt-2, src/encoder.py), turned round."""
    bs = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    cs = bs[:]
    n = 0
    for b in range(256):
        if b not in bs:
            bs.append(b)
            cs.append(256 + n)
            n += 1
    return {chr(c): b for b, c in zip(bs, cs, strict=True)}


def shaped(probs: Sequence[float], temperature: float, top_k: int | None, top_p: float, min_p: float) -> list[float]:
    """The distribution that is drawn from, one choice after the other in the order of their likelihood."""
    heated = [p ** (1 / temperature) for p in probs]
    total = math.fsum(heated)
    order = sorted(range(len(probs)), key=lambda k: (-heated[k] / total, k))
    kept = order if top_k is None else order[:top_k]
    of_kept = math.fsum(heated[k] for k in kept)
    nucleus: list[int] = []
    reached = 0.0
    for k in kept:
        if nucleus and reached >= top_p * (1 - 1e-12):
            break
        nucleus.append(k)
        reached += heated[k] / of_kept
    best = heated[kept[0]]
    last = [k for k in nucleus if heated[k] >= min_p * best]
    return [heated[k] / math.fsum(heated[j] for j in last) if k in last else 0.0 for k in range(len(probs))]
