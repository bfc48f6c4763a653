"""What looking ahead and threshold mode bring, beside a vote at every step, in one run.

python benchmarks/modes.py --vote pieces
python benchmarks/modes.py --vote pieces --long 512     # and whether threshold mode slows down
"""

from __future__ import annotations

from statistics import median
from time import perf_counter

from common import arguments, dev_prompts, load, print_table

from unisono.ensemble import Ensemble
from unisono.steps import Stats


def timed(ensemble: Ensemble, prompt: str, n: int) -> tuple[float, Stats]:
    """Milliseconds a token after the first step, and what it cost."""
    generation = ensemble.generate(prompt, max_tokens=n, ignore_end=True)
    generation.run()
    stats = generation.stats
    return 1000 * (stats.wall_s - stats.first_s) / (stats.n_tokens - stats.first_tokens), stats


def parts(ensemble: Ensemble, prompt: str, n: int) -> tuple[float, float]:
    """Milliseconds a token over the first 64 and the last 64 of so many tokens, after the first step."""
    at = [0.0] * (n + 1)
    for step in ensemble.generate(prompt, max_tokens=n, ignore_end=True):
        at[min(step.n_tokens, n)] = perf_counter()
    for k in range(1, n + 1):  # a step may have written several
        at[k] = at[k] or at[k - 1]
    return 1000 * (at[64] - at[1]) / 63, 1000 * (at[n] - at[n - 64]) / 64


def main() -> None:
    args = arguments(__doc__ or "", max_tokens=64, repeat=3, vote="bytes", threshold=0.5, gate="gemma3-270m", long=0)
    prompts = dev_prompts(args.repeat)
    with load(args, vote=args.vote) as plain:
        members, weights = plain.members, plain.weights.tolist()
        names = [member.name for member in members]
        gate = names.index(args.gate)
        ahead = Ensemble(members, weights, vote=args.vote, drafter=names[0])
        gated = Ensemble(members, weights, vote=args.vote, threshold=args.threshold, gate=args.gate)
        alone = Ensemble(members, weights, vote=args.vote, threshold=0.0, gate=args.gate)
        ways = {"every step": plain, "looking ahead": ahead, "gate alone": alone, "threshold": gated}
        times: dict[str, list[float]] = {name: [] for name in ways}
        stats: dict[str, list[Stats]] = {name: [] for name in ways}
        for ensemble in ways.values():
            timed(ensemble, prompts[0], 8)
        for prompt in prompts[: args.repeat]:
            for name, ensemble in ways.items():
                ms, cost = timed(ensemble, prompt, args.max_tokens)
                times[name].append(ms)
                stats[name].append(cost)
        rows: list[list[object]] = []
        for name in ways:
            n_tokens = sum(s.n_tokens for s in stats[name])
            lag = 1000 * sum(s.forward_s[n] for s in stats[name] for n in range(len(names)) if n != gate) / n_tokens
            voted = sum(s.n_votes for s in stats[name]) / sum(s.n_steps for s in stats[name])
            ratios = [a / b for a, b in zip(times["every step"], times[name], strict=True)]
            rows.append([name, median(times[name]), median(ratios), voted, lag])
        columns = ["way", "ms/token", "times as fast", "steps voted", "ms/token of others than the gate"]
        print_table(f"On {args.vote}: medians over {args.repeat} texts; the gate is {args.gate}", columns, rows)
        if args.long:
            early, late = parts(gated, prompts[0], args.long)
            print_table(
                "Threshold mode over a long text: the gate's and the others' time a token must not grow with it",
                ["tokens", "ms/token", "times the first"],
                [["1 to 64", early, 1.0], [f"{args.long - 63} to {args.long}", late, late / early]],
            )


if __name__ == "__main__":
    main()
