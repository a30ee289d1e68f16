"""Chains of additions, subtractions and multiplications, a little shorter and longer than those of the task."""

import re

END = "Reply with the number alone on the last line."
WORDS = (
    (
        "Start with {start}. {steps} What is the result?",
        {"+": "Add {x}.", "-": "Subtract {x}.", "*": "Multiply by {x}."},
    ),
    (
        "A counter shows {start}. In this order, it is {steps} in the end. What does it show?",
        {"+": "raised by {x},", "-": "lowered by {x},", "*": "multiplied by {x},"},
    ),
    (
        "Work strictly from left to right, ignoring precedence: {start} {steps} = ?",
        {"+": "+ {x}", "-": "- {x}", "*": "* {x}"},
    ),
)


def examples(rng, n):
    return [question(rng, rng.choice((3, 4, 4, 5))) for _ in range(n)]


def question(rng, k):
    frame, words = rng.choice(WORDS)
    start = value = rng.randint(11, 99)
    steps = []
    for _ in range(k):
        op = rng.choice("+-*")
        x = rng.randint(2, 9) if op == "*" else rng.randint(11, 99)
        value = value + x if op == "+" else value - x if op == "-" else value * x
        steps.append(words[op].format(x=x))
    text = frame.format(start=start, steps=" ".join(steps))
    return {"prompt": f"{text} {END}", "answer": str(value)}


def reward(prompt, completion, answer):
    lines = [line for line in completion.splitlines() if line.strip()]
    last = lines[-1].replace(",", "").replace("\N{MINUS SIGN}", "-").strip(" .*`$") if lines else ""
    if last == answer:
        return 1.0
    # A number alone on the last line is worth something: it is what the first steps have to learn.
    return 0.1 if re.fullmatch(r"-?[0-9]{1,12}", last) else 0.0
