"""Who voted for what: every step's choice, and what each member would rather have written.

Here the members vote on whole pieces; on bytes, the default, most steps are only the rest of a word.
`unisono run --show-votes` puts those together.
"""

from math import exp

from unisono import Ensemble

with Ensemble.load(["demo:smollm2-135m", "demo:gemma3-270m"], vote="pieces") as ensemble:
    generation = ensemble.generate("The capital of France is", max_tokens=12)
    for step in generation:
        print(f"{step.piece!r}, with {exp(step.logprob):.0%} of the pooled vote")
        for name, vote in zip(ensemble.names, step.votes, strict=True):
            if vote.favourite == step.piece:
                print(f"    {name} liked it best: {exp(vote.favourite_logprob):.0%}")
            else:
                print(
                    f"    {name} liked {vote.favourite!r} better:"
                    f" {exp(vote.favourite_logprob):.0%} against {exp(vote.chosen_logprob):.0%}"
                )
    print(generation.text)
