"""What dropping branches costs and saves: for several ε, the mean total variation distance of a member's byte votes to
those at ε = 1e-6, over positions of real text, and the tokens read for each token of the text.

    python benchmarks/epsilon.py
"""

from __future__ import annotations

import numpy as np
from common import DATA, arguments, load, print_table

from unisono.arrays import FloatArray
from unisono.chat import raw_prompt
from unisono.members.base import Member
from unisono.score import Foresight
from unisono.voting.bytes import ByteVoting

EXACT = 1e-6
TEXT = (
    "The lighthouse keeper wrote three letters before the storm. In 1912, nobody in the village could read them, and"
    " the postman, who was deaf, carried them to the wrong island. def area(radius): return 3.14159 * radius ** 2"
)


def votes_along(member: Member, text: bytes, epsilon: float, canonical: bool = False) -> tuple[FloatArray, int, float]:
    """float64[n_bytes, 257] votes along a known text, the tokens read for its bytes, and the bits per byte."""
    unit = ByteVoting([member], epsilon=epsilon, max_branches=64, canonical=canonical)
    start = text.index(b" ") + 1
    voter = unit.voter(0, raw_prompt(member, text[:start]))
    reader = Foresight(voter, text[start:])
    rows, bits, n_branches = [], 0.0, 0
    for at, byte in enumerate(text[start:]):
        reader.read(at)
        [vote] = unit.ballot([voter])
        while not vote[byte] > 0 and voter.revive():
            reader.read(at)
            [vote] = unit.ballot([voter])
        rows.append(vote)
        bits -= float(np.log2(vote[byte])) if vote[byte] > 0 else np.inf
        voter.hear(byte)
        n_branches += sum(1 for _ in voter.pending())
    voter.close()
    return np.array(rows), n_branches, bits / len(rows)


def main() -> None:
    args = arguments(__doc__ or "", positions=200)
    path = DATA / "text-english-dev.txt"
    text = (path.read_bytes() if path.exists() else TEXT.encode())[: args.positions + 20]
    text = text.decode(errors="ignore").encode()
    rows: list[list[object]] = []
    with load(args, n_contexts=256, n_cells=8192) as ensemble:
        for member in ensemble.members:
            n_tokens = len(member.encode(text.decode()))
            exact, n_exact, bits = votes_along(member, text, EXACT)
            rows.append([member.name, f"{EXACT:g}", 0.0, n_exact / n_tokens, bits])
            for epsilon in (0.0001, 0.001, 0.01, 0.03, 0.1):
                votes, n_read, bits = votes_along(member, text, epsilon)
                distance = float(0.5 * np.abs(votes - exact).sum(axis=1).mean())
                rows.append([member.name, f"{epsilon:g}", distance, n_read / n_tokens, bits])
            votes, n_read, bits = votes_along(member, text, 0.01, canonical=True)
            distance = float(0.5 * np.abs(votes - exact).sum(axis=1).mean())
            rows.append([member.name, "0.01, usual pairs only", distance, n_read / n_tokens, bits])
    columns = ["member", "ε", "mean TV distance", "forwards a token", "bits per byte"]
    print_table(f"Dropping branches, over {len(text)} bytes of text", columns, rows)


if __name__ == "__main__":
    main()
