"""What each member reads for a token, over questions of the evaluation sets, and with --modes all whether the text
stays the same in other ways of writing it: looking ahead, thresholds of 1 and 0, skips.

    python benchmarks/dev_prompts.py --prompts 50 --max-tokens 32
"""

from __future__ import annotations

from typing import Any

import numpy as np
from common import arguments, dev_prompts, load, print_table

from unisono.config import TextConfig
from unisono.ensemble import Ensemble
from unisono.steps import Stats


def texts(ensemble: Ensemble, prompts: list[str], max_tokens: int) -> tuple[list[str], list[Stats]]:
    """Each prompt's text, one after the other, and what it cost."""
    out, stats = [], []
    for prompt in prompts:
        generation = ensemble.generate(prompt, max_tokens=max_tokens)
        out.append(generation.run())
        stats.append(generation.stats)
    return out, stats


def main() -> None:
    args = arguments(__doc__ or "", prompts=20, max_tokens=32, vote="bytes", modes="plain")
    prompts = dev_prompts(args.prompts)
    with load(args, vote=args.vote) as ensemble:
        members, weights = ensemble.members, ensemble.weights.tolist()
        plain, stats = texts(ensemble, prompts, args.max_tokens)
        n_tokens = sum(s.n_tokens for s in stats)
        forwards = np.array([s.n_forwards for s in stats]).sum(axis=0) - len(prompts)  # the prompt takes one
        read = np.array([s.n_read for s in stats]).sum(axis=0) - np.array([s.n_prompt for s in stats]).sum(axis=0)
        rows = [[m.name, f / n_tokens, r / n_tokens] for m, f, r in zip(members, forwards, read, strict=True)]
        title = f"{len(prompts)} questions, {n_tokens} tokens of {members[0].name}, on {args.vote}"
        print_table(title, ["member", "forwards a token", "tokens read a token"], rows)
        if args.modes == "plain":
            return
        compared: list[list[object]] = []
        gate = members[-1].name

        def compare(what: str, found: list[str], expected: list[str]) -> None:
            same = sum(a == b for a, b in zip(expected, found, strict=True))
            compared.append([what, f"{same} of {len(prompts)}"])

        def write(shares: list[float], **options: Any) -> list[str]:
            return texts(Ensemble(members, shares, vote=args.vote, **options), prompts, args.max_tokens)[0]

        compare("looking ahead, every step", write(weights, drafter=members[0].name), plain)
        compare("threshold 1, every step", write(weights, threshold=1.0), plain)
        settings = TextConfig(heal=False)
        alone = texts(Ensemble(members[-1:], vote="pieces"), prompts, args.max_tokens)[0]
        compare(f"threshold 0, {gate} alone", write(weights, threshold=0.0, gate=gate, settings=settings), alone)
        heavy = [*weights[:-1], 2 * sum(weights[:-1])]  # a gate that may outvote the others
        skips, none = (write(heavy, threshold=0.5, gate=gate, skip=skip) for skip in (True, False))
        compare("threshold 0.5 with skips, without", skips, none)
        print_table("Texts that are the same", ["ways", "same"], compared)


if __name__ == "__main__":
    main()
