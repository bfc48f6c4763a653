"""What dropping and merging branches costs and saves: for several ε, the mean total variation distance of a member's
byte votes to those at ε = 1e-6 without merging, over positions of real text, and the tokens read for each of the text.

    python benchmarks/epsilon.py
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from common import DATA, arguments, load, print_table

from unisono.arrays import FloatArray
from unisono.chat import raw_prompt
from unisono.members.base import Member
from unisono.reading import Reader
from unisono.voting.bytes import MERGE, ByteVoting

EXACT = 1e-6
TEXT = (
    "The lighthouse keeper wrote three letters before the storm. In 1912, nobody in the village could read them, and"
    " the postman, who was deaf, carried them to the wrong island. def area(radius): return 3.14159 * radius ** 2"
)


def votes_along(
    member: Member, text: bytes, epsilon: float, merge: int = 0, canonical: bool = False
) -> tuple[FloatArray, int, float]:
    """float64[n_bytes, 257] votes along a known text, the tokens read for its bytes, and the bits per byte."""
    unit = ByteVoting([member], epsilon=epsilon, max_branches=64, merge=merge, canonical=canonical)
    start = text.index(b" ") + 1
    voter = unit.voter(0, raw_prompt(member, text[:start]))
    reader = Reader(0, voter, text[start:])
    rows, bits, n_branches = [], 0.0, 0
    for byte in text[start:]:
        reader.catch_up()
        [vote] = unit.ballot([voter])
        while not vote[byte] > 0 and voter.revive():
            reader.catch_up()
            [vote] = unit.ballot([voter])
        rows.append(vote)
        bits -= float(np.log2(vote[byte])) if vote[byte] > 0 else -np.inf
        reader.hear(byte)
        n_branches += sum(1 for _ in voter.pending())
    voter.close()
    return np.array(rows), n_branches, bits / len(rows)


def main() -> None:
    args = arguments(__doc__ or "", positions=200, texts=4)
    texts = [path.read_bytes() for path in sorted(DATA.glob("text-*-dev.txt"))[: args.texts]] or [TEXT.encode()]
    texts = [text[: args.positions + 20].decode(errors="ignore").encode() for text in texts]
    settings = [(epsilon, merge, False) for epsilon in (0.0001, 0.001, 0.01, 0.1) for merge in (0, MERGE)]
    settings.append((0.01, 0, True))
    rows: list[list[object]] = []
    with load(args, n_contexts=256, n_cells=8192) as ensemble:
        for member in ensemble.members:
            n_tokens = sum(len(member.encode(text.decode())) for text in texts)
            exact = [votes_along(member, text, EXACT) for text in texts]
            rows.append([member.name, f"{EXACT:g}", 0, 0.0, *_means([(n, bits) for _, n, bits in exact], n_tokens)])
            for epsilon, merge, canonical in settings:
                found = [votes_along(member, text, epsilon, merge, canonical) for text in texts]
                pairs = zip(found, exact, strict=True)
                distance = np.mean([0.5 * np.abs(a - b).sum(axis=1).mean() for (a, *_), (b, *_) in pairs])
                costs = _means([(n, bits) for _, n, bits in found], n_tokens)
                label = f"{epsilon:g}" + (", usual pairs only" if canonical else "")
                rows.append([member.name, label, merge, float(distance), *costs])
    columns = ["member", "ε", "merge", "mean TV distance", "tokens read a token", "bits per byte"]
    title = f"Dropping and merging branches, over {sum(map(len, texts))} bytes of {len(texts)} texts"
    print_table(title, columns, rows)


def _means(costs: Sequence[tuple[int, float]], n_tokens: int) -> tuple[float, float]:
    """Tokens read a token of the texts, and bits per byte."""
    return sum(n for n, _ in costs) / n_tokens, float(np.mean([bits for _, bits in costs]))


if __name__ == "__main__":
    main()
