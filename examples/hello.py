"""Two models with different tokenizers write one text together."""

from unisono import Ensemble

with Ensemble.load(["demo:smollm2-135m", "demo:gemma3-270m"], weights=[0.5, 0.5]) as ensemble:
    for step in ensemble.generate("Once upon a time", max_tokens=64):
        print(step.text, end="", flush=True)
print()
