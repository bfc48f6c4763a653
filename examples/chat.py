"""A conversation. Each member reads it through its own chat template; one that has none reads plain lines."""

from unisono import Ensemble

messages = [
    {"role": "system", "content": "You are a friendly cook. Answer in one sentence."},
    {"role": "user", "content": "What goes well with tomatoes?"},
]

with Ensemble.load(["demo:smollm2-135m", "demo:gemma3-270m"], weights=[0.8, 0.2]) as ensemble:
    reply = ensemble.generate(messages=messages, max_tokens=48, stop=["\nUser:"])
    for note in reply.notes:
        print(f"Note: {note}")
    print(reply.run().strip())
    print(f"({reply.stats.n_steps} steps, finished by: {reply.finish})")
