"""What each member reads for a token, over questions of the evaluation sets, and with --modes all whether the text
stays the same in other ways of writing it: looking ahead, a threshold of 1.

    python benchmarks/dev_prompts.py --prompts 50 --max-tokens 32
"""

from __future__ import annotations

import numpy as np
from common import arguments, dev_prompts, load, print_table

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
        ways = {
            "looking ahead": Ensemble(members, weights, vote=args.vote, drafter=members[0].name),
            "threshold 1": Ensemble(members, weights, vote=args.vote, threshold=1.0),
        }
        compared: list[list[object]] = []
        for name, other in ways.items():
            found, _ = texts(other, prompts, args.max_tokens)
            same = sum(a == b for a, b in zip(plain, found, strict=True))
            compared.append([name, f"{same} of {len(prompts)}"])
        print_table("Texts that are the same as at every step, one token a forward", ["way", "same"], compared)


if __name__ == "__main__":
    main()
