"""One member alone, greedy: where does voting on bytes write something else than the member's own likeliest tokens, and
why? There are two reasons, and no third:

sum      At the first byte that differs, the tokens that begin with the byte written have more probability together than
         those that begin as the likeliest token does: the likeliest token stands alone, and the others agree.
branch   The likeliest token's byte leads among the tokens that go on from the usual tokens, but not when the other ways
         to have tokenised the text so far are counted in.

    python benchmarks/one_member.py
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from common import arguments, load, print_table

from unisono import Ensemble
from unisono.chat import raw_prompt
from unisono.members.base import Feed, Member
from unisono.voting.rows import SortedRow

PROMPTS = [
    "Once upon a time", "The capital of France is", "Water boils at", "My favourite season is autumn, because",
    "The three states of matter are", "In 1969, the first human", "To make a good cup of tea, you need",
    "The best way to learn a language is", "Il était une fois", "La tour Eiffel se trouve", "Le petit chat",
    "从前有一座山", "北京是", "学习编程的第一步是", "I love pizza 🍕 and", "Happy birthday 🎉🎂", "def factorial(n):\n",
    "import numpy as np\n\n", "for i in range(10):\n", "SELECT name FROM users WHERE",
]  # fmt: skip


def token_greedy(
    member: Member, ids: list[int], max_tokens: int
) -> tuple[list[int], list[np.ndarray[tuple[int], np.dtype[np.float32]]]]:
    """The member's likeliest tokens, and the sorted probabilities that each was chosen from."""
    context, row = member.new(), SortedRow(member.vocabulary)
    out: list[int] = []
    rows = []
    unread = list(ids)
    for _ in range(max_tokens):
        [logits] = member.forward([Feed(context, len(ids) + len(out) - len(unread), unread)])
        masses, end, _, _ = row.read(logits[-1])
        best = int(masses.argmax())
        if end > masses[best]:
            break
        rows.append(masses)
        unread = [int(member.vocabulary.order[best])]
        out += unread
    member.drop(context)
    return out, rows


def reason(
    member: Member, tokens: list[int], rows: list[np.ndarray[tuple[int], np.dtype[np.float32]]], written: bytes
) -> str:
    """Why the bytes written leave those of the tokens."""
    start = 0
    for token, masses in zip(tokens, rows, strict=True):
        piece = member.vocabulary.pieces[token]
        if not written.startswith(piece, start):
            n = next((n for n in range(len(piece)) if written[start + n : start + n + 1] != piece[n : n + 1]), 0)
            other = written[start : start + n + 1]
            theirs, own = member.vocabulary.find(other), member.vocabulary.find(piece[: n + 1])
            return "sum" if masses[theirs.start : theirs.stop].sum() > masses[own.start : own.stop].sum() else "branch"
        start += len(piece)
    return "end"


def main() -> None:
    args = arguments(__doc__ or "", max_tokens=48)
    rows: list[list[object]] = []
    with load(args) as ensemble:
        for member in ensemble.members:
            alone = Ensemble([member])
            counts: Counter[str] = Counter()
            for prompt in PROMPTS:
                ids = list(raw_prompt(member, prompt).ids)
                tokens, masses = token_greedy(member, ids, args.max_tokens)
                expected = member.vocabulary.join(tokens)
                steps = alone.generate(prompt, max_tokens=args.max_tokens, heal=False)
                written = b"".join(step.piece for step in steps)
                n = min(len(expected), len(written))
                if expected[:n] == written[:n]:
                    counts["same"] += 1
                    continue
                at = next(k for k in range(n) if expected[k] != written[k])
                why = reason(member, tokens, masses, written)
                counts[why] += 1
                before = expected[max(at - 20, 0) : at].decode(errors="replace")
                after = [text[at : at + 12].decode(errors="replace") for text in (expected, written)]
                print(
                    f"{member.name}, {prompt!r}, after {before!r}: {after[0]!r} by tokens, {after[1]!r} by bytes: {why}"
                )
            rows.append([member.name, *(counts[key] for key in ("same", "sum", "branch", "end"))])
    print_table(
        f"{len(PROMPTS)} prompts, greedy, tokens against bytes", ["member", "same", "sum", "branch", "end"], rows
    )


if __name__ == "__main__":
    main()
