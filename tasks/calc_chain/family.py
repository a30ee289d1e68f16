"""Chained arithmetic, strictly from left to right. Nano scale counts modulo 10: `c8-1+5+4?` → `72>6.`"""

from __future__ import annotations

import random
import re
from typing import Any

from nested_rl import answers
from nested_rl.tasks import ChainFamily, Program
from nested_rl.wordings import Wording

NANO = re.compile(r"c(\d)((?:[+*-]\d){1,12})\??")
CLOSING = "Reply with the number alone on the last line."
WORDINGS = (
    Wording(
        "Start with {start}. {steps} What is the result?",
        {"steps": {"+": "Add {x}.", "-": "Subtract {x}.", "*": "Multiply by {x}."}},
        closing=CLOSING,
    ),
    Wording(
        "A counter shows {start}. In this order, it is {steps} in the end. What does it show?",
        {"steps": {"+": "raised by {x},", "-": "lowered by {x},", "*": "multiplied by {x},"}},
        closing=CLOSING,
    ),
    Wording(
        "Work strictly from left to right, ignoring precedence: {start} {steps} = ?",
        {"steps": {"+": "+ {x}", "-": "- {x}", "*": "* {x}"}},
        closing=CLOSING,
    ),
)


class Family(ChainFamily):
    """Program: a number, then (operator, number) pairs."""

    def sample(self, rng: random.Random, k: int) -> Program:
        nano = self.scale == "nano"
        ops = []
        for _ in range(k):
            op = rng.choice("+-*")
            if op == "*":
                x = rng.randint(2, 3) if nano else rng.randint(2, 9)
            else:
                x = rng.randint(1, 5) if nano else rng.randint(11, 99)
            ops.append((op, x))
        return Program(rng.randint(0, 9) if nano else rng.randint(11, 99), tuple(ops))

    def step(self, program: Program, i: int, state: int) -> int:
        op, x = program.ops[i]
        value: int = state + x if op == "+" else state - x if op == "-" else state * x
        return value % 10 if self.scale == "nano" else value

    def answer(self, program: Program, state: int) -> str:
        return str(state)

    def show(self, program: Program, i: int, state: int) -> str:
        return str(state) if i < len(program.ops) - 1 else ""

    def garble(self, state: int, rng: random.Random, rate: float) -> int:
        return rng.randrange(10) if rng.random() < rate else state

    def canonical(self, text: str) -> str:
        return answers.number(text)

    def spell(self, program: Program) -> str:
        head = "c" if self.scale == "nano" else ""
        return head + str(program.start) + "".join(f"{op}{x}" for op, x in program.ops)

    def question(self, program: Program, rng: random.Random) -> str:
        if self.scale == "nano":
            return self.spell(program) + "?"
        return rng.choice(WORDINGS).write(start=program.start, steps=[(op, {"x": x}) for op, x in program.ops])

    def read(self, text: str) -> Program | None:
        if self.scale == "nano":
            found = NANO.fullmatch(text.strip())
            return found and Program(int(found[1]), tuple((op, int(x)) for op, x in re.findall(r"(.)(\d)", found[2])))
        for wording in WORDINGS:
            if (parts := wording.read(text)) is not None:
                return _program(*parts)
        return None


def _program(fields: dict[str, str], pieces: dict[str, Any]) -> Program | None:
    numbers = [fields["start"], *(f["x"] for _, f in pieces["steps"])]
    if not all(n.isdecimal() and len(n) < 10 for n in numbers):
        return None
    start, *rest = map(int, numbers)
    return Program(start, tuple((op, x) for (op, _), x in zip(pieces["steps"], rest, strict=True)))
