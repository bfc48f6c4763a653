"""Eleven beginnings of Python functions, continued greedily: how many come out as valid Python, voting on bytes and
voting on pieces? Fibonacci is run as well: fibonacci(10) must be 55. Generated code runs in a process of its own, with
a time limit.

    python benchmarks/code_prompts.py
"""

from __future__ import annotations

import ast
import subprocess
import sys

from common import arguments, load, print_table

PROMPTS = {
    "fibonacci": 'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n',
    "factorial": 'def factorial(n):\n    """Return n!, the product of the integers from 1 to n."""\n',
    "is_prime": 'def is_prime(n):\n    """Return True if n is a prime number."""\n',
    "gcd": 'def gcd(a, b):\n    """Return the greatest common divisor of a and b."""\n',
    "reverse": 'def reverse(text):\n    """Return the text from its last character to its first."""\n',
    "count_vowels": 'def count_vowels(text):\n    """Return how many vowels the text has."""\n',
    "is_palindrome": 'def is_palindrome(text):\n    """Return True if the text reads the same backwards."""\n',
    "mean": 'def mean(values):\n    """Return the arithmetic mean of a list of numbers."""\n',
    "flatten": 'def flatten(lists):\n    """Return one list with the elements of all the lists."""\n',
    "largest": 'def largest(values):\n    """Return the largest number of the list."""\n',
    "to_celsius": 'def to_celsius(fahrenheit):\n    """Convert degrees Fahrenheit to degrees Celsius."""\n',
}


def function_only(prompt: str, text: str) -> str:
    """The first function: up to the next line that is not indented; a last line that was cut off is left out."""
    lines = [*prompt.splitlines(), *text.splitlines()[: None if text.endswith("\n") else -1]]
    end = next((n for n, line in enumerate(lines[1:], 1) if line.strip() and line[0] not in " \t"), len(lines))
    return "\n".join(lines[:end]) + "\n"


def is_valid(source: str) -> bool:
    """Python that parses, with a body beyond the docstring."""
    try:
        [function, *_] = ast.parse(source).body
    except (SyntaxError, ValueError):
        return False
    return isinstance(function, ast.FunctionDef) and len(function.body) > 1


def runs(source: str, check: str) -> bool:
    """Whether the check holds after the source."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", f"{source}\nassert {check}"], timeout=10, capture_output=True
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def main() -> None:
    args = arguments(__doc__ or "", max_tokens=80)
    columns: dict[str, dict[str, bool]] = {}
    for vote in ("bytes", "pieces"):
        with load(args, vote=vote) as ensemble:
            columns[vote] = {}
            for name, prompt in PROMPTS.items():
                text = ensemble.generate(prompt, max_tokens=args.max_tokens).run()
                source = function_only(prompt, text)
                columns[vote][name] = is_valid(source)
                print(f"--- {name}, voting on {vote}: {'valid' if columns[vote][name] else 'not valid'}\n{source}")
                if name == "fibonacci":
                    columns[vote]["fibonacci(10) == 55"] = runs(source, "fibonacci(10) == 55")
    rows = [[name, *("yes" if columns[v][name] else "no" for v in columns)] for name in columns["bytes"]]
    counts = [f"{sum(columns[v][n] for n in PROMPTS)} of {len(PROMPTS)}" for v in columns]
    print_table("Valid Python from " + " + ".join(args.model), ["prompt", *columns], [*rows, ["valid", *counts]])


if __name__ == "__main__":
    main()
