"""A family of one's own: sums of + and *, modulo 10, at nano scale: `c8+7*2+9?` → `50>9.`

The bases read a question letter by letter and were pre-trained on a handful of skills; reinforcement learning brings out
and sharpens those, it does not teach new ones. So the form is that of the built-in `calc_chain` (the letter `c`, the
working, `>`), and only the numbers go beyond it: 6 to 9 were never added there.
"""

from __future__ import annotations

import random
import re

from nested_rl import answers
from nested_rl.tasks import ChainFamily, Program

QUESTION = re.compile(r"c(\d)((?:\+[1-9]|\*[23])+)\??")


class Family(ChainFamily):
    """A program is a start digit and (operator, number) pairs."""

    def sample(self, rng: random.Random, k: int) -> Program:
        """Draw a program. Splits, evaluations and what jobs train on are all drawn here, and told apart by `spell`."""
        ops = tuple(rng.choice((("+", rng.randint(1, 9)), ("*", rng.randint(2, 3)))) for _ in range(k))
        return Program(rng.randint(0, 9), ops)

    def step(self, program: Program, i: int, state: int) -> int:
        """What operation i does: the family's truth, from which every answer comes."""
        op, x = program.ops[i]
        value: int = state + x if op == "+" else state * x
        return value % 10

    def answer(self, program: Program, state: int) -> str:
        return str(state)

    def spell(self, program: Program) -> str:
        """One spelling a program: its hash decides for ever whether it is for training, dev or hidden."""
        return f"c{program.start}" + "".join(f"{op}{x}" for op, x in program.ops)

    def question(self, program: Program, rng: random.Random) -> str:
        return self.spell(program) + "?"

    def read(self, text: str) -> Program | None:
        """The way back: by it held-out questions are found in what a job wants to train on."""
        found = QUESTION.fullmatch(text.strip())
        return found and Program(int(found[1]), tuple((op, int(x)) for op, x in re.findall(r"(.)(\d)", found[2])))

    def show(self, program: Program, i: int, state: int) -> str:
        return str(state) if i < len(program.ops) - 1 else ""

    def canonical(self, text: str) -> str:
        """Answers are compared as numbers: `7`, `07` and `+7` are the same."""
        return answers.number(text)
