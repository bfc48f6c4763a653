"""Twenty beginnings of texts in several languages and scripts, for comparing whole texts."""

from __future__ import annotations

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea, there lived",
    "The three most important inventions of the nineteenth century were",
    "Q: What is 17 + 25?\nA:",
    "Dear Mr Harrison,\n\nThank you for your letter of 3 May.",
    "“It’s late,” she said – and",
    "La Révolution française a commencé en",
    "Il était une fois, dans une forêt très éloignée,",
    "Pour préparer une crème brûlée, il faut d'abord",
    "Voici les œuvres les plus célèbres de Molière :",
    "中国的首都是",
    "从前有一座山，山里有一座庙，",
    "机器学习是人工智能的一个分支，它",
    "Weather today: ☀️🌡️ Tomorrow: 🌧️☔ Next week:",
    "I love pizza 🍕🍕🍕 and my favourite toppings are",
    "👩‍💻 👨‍🍳 👩‍🚀 are emoji for",
    'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n',
    "#include <stdio.h>\n\nint main(void) {\n\t",
    "SELECT name, COUNT(*) FROM users\nWHERE",
    '<!DOCTYPE html>\n<html lang="fr">\n  <head>\n    <title>Café',
]
