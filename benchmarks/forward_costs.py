"""What a forward of several tokens takes each member, as a multiple of one that reads one token, with the logits of all
of them: looking ahead and catching up on a lag live from it.

    python benchmarks/forward_costs.py -m demo:smollm2-135m -m demo:gemma3-270m
"""

from __future__ import annotations

from statistics import median
from time import perf_counter

from common import arguments, load, print_table

from unisono.members.base import Feed, Member

LENGTHS = (1, 2, 3, 4, 5, 8, 16)
BEFORE = 64
"""Tokens that the context holds before."""


def seconds(member: Member, context: int, ids: list[int]) -> float:
    """How long one forward of these takes."""
    begun = perf_counter()
    member.forward([Feed(context, BEFORE, ids, len(ids))])
    return perf_counter() - begun


def main() -> None:
    args = arguments(__doc__ or "", repeat=25)
    rows: list[list[object]] = []
    with load(args) as ensemble:
        for member in ensemble.members:
            ids = [i for i in member.vocabulary.order.tolist() if i not in member.vocabulary.begin]
            context = member.new()
            member.forward([Feed(context, 0, ids[:BEFORE])])
            times: dict[int, list[float]] = {n: [] for n in LENGTHS}
            for k in range(args.repeat):  # in turns, so that whatever slows the machine slows all lengths
                for n in LENGTHS:
                    times[n].append(seconds(member, context, ids[16 * k : 16 * k + n]))
            member.drop(context)
            ones = times[1]
            ratios = [median(t / one for t, one in zip(times[n], ones, strict=True)) for n in LENGTHS[1:]]
            rows.append([member.name, 1000 * median(ones), *ratios])
    columns = ["member", "ms for 1 token", *(f"{n} tokens" for n in LENGTHS[1:])]
    print_table(f"Forwards of several tokens, in times one: medians of {args.repeat}", columns, rows)


if __name__ == "__main__":
    main()
