"""Composed string transformations. Nano scale: four letters a-h, then operations: `sabcdRN?` → `dcba>edcb.`

R reverses, L moves the first letter to the end, X swaps the first and last, N replaces every letter by the next one.
Full scale has longer words and two more: D doubles the last letter, V removes the vowels.
"""

from __future__ import annotations

import random
import re

from nested_rl.tasks import ChainFamily, Program
from nested_rl.wordings import Wording

NANO = re.compile(r"s([a-h]{4})([RLXN]{1,12})\??")
CLOSING = "Reply with the resulting word alone on the last line."
WORDINGS = (
    Wording(
        'Take the word "{start}". {steps} Which word do you have now?',
        {
            "steps": {
                "R": "Reverse it.",
                "L": "Move its first letter to the end.",
                "X": "Swap its first and last letters.",
                "N": "Replace every letter by the next one in the alphabet (z becomes a).",
                "D": "Double its last letter.",
                "V": "Remove its vowels (a, e, i, o, u).",
            }
        },
        closing=CLOSING,
    ),
    Wording(
        "Apply these operations in order to {start}: {steps} done. What comes out?",
        {
            "steps": {
                "R": "reverse;",
                "L": "rotate left by one;",
                "X": "exchange first and last letter;",
                "N": "shift every letter forward by one (z to a);",
                "D": "write the last letter twice;",
                "V": "drop the vowels a, e, i, o, u;",
            }
        },
        closing=CLOSING,
    ),
    Wording(
        "{start} goes through a pipeline: {steps} output. What is the output?",
        {
            "steps": {
                "R": "mirror ->",
                "L": "first letter to the back ->",
                "X": "swap both ends ->",
                "N": "next letter of the alphabet for each (z wraps to a) ->",
                "D": "double the last letter ->",
                "V": "delete a, e, i, o and u ->",
            }
        },
        closing=CLOSING,
    ),
)


class Family(ChainFamily):
    """Program: a word, then operation letters."""

    def sample(self, rng: random.Random, k: int) -> Program:
        if self.scale == "nano":
            return Program("".join(rng.choices("abcdefgh", k=4)), tuple(rng.choices("RLXN", k=k)))
        # The first letter stays a consonant so that removing vowels never empties the word.
        word = rng.choice("bcdfghklmnprst") + "".join(rng.choices("abcdefghiklmnoprstuz", k=rng.randint(4, 6)))
        ops = rng.choices("RLXND", k=k)
        if rng.random() < 0.5:
            ops[rng.randrange(k)] = "V"
        return Program(word, tuple(ops))

    def step(self, program: Program, i: int, state: str) -> str:
        top = "h" if self.scale == "nano" else "z"
        match program.ops[i]:
            case "R":
                return state[::-1]
            case "L":
                return state[1:] + state[:1]
            case "X":
                return state[-1:] + state[1:-1] + state[:1] if len(state) > 1 else state
            case "D":
                return state + state[-1:]
            case "V":
                return "".join(c for c in state if c not in "aeiou")
            case _:
                return "".join("a" if c == top else chr(ord(c) + 1) for c in state)

    def answer(self, program: Program, state: str) -> str:
        return state

    def show(self, program: Program, i: int, state: str) -> str:
        return state if i < len(program.ops) - 1 else ""

    def garble(self, state: str, rng: random.Random, rate: float) -> str:
        return "".join(rng.choice("abcdefgh") if rng.random() < rate else c for c in state)

    def canonical(self, text: str) -> str:
        found = re.findall(r"[a-z]+", text.lower())
        return found[0] if len(found) == 1 else ""

    def spell(self, program: Program) -> str:
        head, gap = ("s", "") if self.scale == "nano" else ("", "|")
        return f"{head}{program.start}{gap}{''.join(program.ops)}"

    def question(self, program: Program, rng: random.Random) -> str:
        if self.scale == "nano":
            return self.spell(program) + "?"
        return rng.choice(WORDINGS).write(start=program.start, steps=[(op, {}) for op in program.ops])

    def read(self, text: str) -> Program | None:
        if self.scale == "nano":
            found = NANO.fullmatch(text.strip())
            return found and Program(found[1], tuple(found[2]))
        for wording in WORDINGS:
            if (parts := wording.read(text)) is not None:
                word = parts[0]["start"].lower()
                return Program(word, tuple(op for op, _ in parts[1]["steps"])) if re.fullmatch("[a-z]+", word) else None
        return None
