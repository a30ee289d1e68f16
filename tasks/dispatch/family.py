"""Conditional routing. Nano scale has one fixed table over 8 desks a-h: `dg108860?` → `|b|e|>d.`

Each pair of digits is compared; the working spells `<` or `|` for smaller or not, then the desk reached.
At full scale every question brings its own table.
"""

from __future__ import annotations

import random
import re
from typing import Any

from nested_rl.tasks import ChainFamily, Program
from nested_rl.wordings import Wording

NANO = re.compile(r"d([a-h])((?:\d\d){1,12})\??")
_world = random.Random("dispatch: the nano table")
_below, _otherwise = (_world.sample("abcdefgh", 8) for _ in "<|")
TABLE = dict(zip("abcdefgh", zip(_below, _otherwise, strict=True), strict=True))
"""TABLE[desk] is (next desk if smaller, next desk if not)."""

DESKS = "Amber Birch Cedar Delta Ember Flint Grove Haven Ivory Jade Kelp Lotus Maple North Onyx Pearl Quartz Ridge Slate Topaz".split()
CLOSING = "Reply with the name of the desk alone on the last line."
WORDINGS = (
    Wording(
        "Routing table: {routes} A parcel starts at {start}. {steps} At which desk does it end?",
        {
            "routes": {"row": "From {a} go to {b} if the first number is smaller, otherwise to {c}."},
            "steps": {"pair": "The next two numbers are {x} and {y}."},
        },
        closing=CLOSING,
    ),
    Wording(
        "Desks pass a file on by comparing two numbers, left and right. {routes} The file is at {start}. {steps} Where is it now?",
        {
            "routes": {"row": "{a}: left below right, {b}; else {c}."},
            "steps": {"pair": "Compare {x} with {y}."},
        },
        closing=CLOSING,
    ),
    Wording(
        "Rules: {routes} end of rules. Start at {start} and read the pairs {steps} in order. Which desk do you reach?",
        {
            "routes": {"row": "{a} -> {b} when first < second, {a2} -> {c} when not;"},
            "steps": {"pair": "({x}, {y})"},
        },
        closing=CLOSING,
    ),
)


class Family(ChainFamily):
    """Program: a desk, then pairs of numbers; `given` is the table."""

    def sample(self, rng: random.Random, k: int) -> Program:
        if self.scale == "nano":
            desks, high, table = list("abcdefgh"), 9, TABLE
        else:
            desks, high = sorted(rng.sample(DESKS, 6)), 999
            pairs = ((a, rng.sample([d for d in desks if d != a], 2)) for a in desks)
            table = {a: (b, c) for a, (b, c) in pairs}
        return Program(rng.choice(desks), tuple((rng.randint(0, high), rng.randint(0, high)) for _ in range(k)), table)

    def step(self, program: Program, i: int, state: str) -> str:
        x, y = program.ops[i]
        table: dict[str, tuple[str, str]] = program.given
        return table[state][0 if x < y else 1]

    def answer(self, program: Program, state: str) -> str:
        return state

    def mark(self, program: Program, i: int) -> str:
        x, y = program.ops[i]
        return "<" if x < y else "|"

    def show(self, program: Program, i: int, state: str) -> str:
        return state if i < len(program.ops) - 1 else ""

    def garble(self, state: str, rng: random.Random, rate: float) -> str:
        return rng.choice("abcdefgh") if rng.random() < rate else state

    def spell(self, program: Program) -> str:
        if self.scale == "nano":
            return f"d{program.start}{''.join(f'{x}{y}' for x, y in program.ops)}"
        table = ",".join(f"{a}={b}/{c}" for a, (b, c) in program.given.items())
        return f"{program.start}:{','.join(f'{x}/{y}' for x, y in program.ops)}|{table}"

    def question(self, program: Program, rng: random.Random) -> str:
        if self.scale == "nano":
            return self.spell(program) + "?"
        routes = [("row", {"a": a, "a2": a, "b": b, "c": c}) for a, (b, c) in program.given.items()]
        rng.shuffle(routes)
        steps = [("pair", {"x": x, "y": y}) for x, y in program.ops]
        return rng.choice(WORDINGS).write(routes=routes, start=program.start, steps=steps)

    def read(self, text: str) -> Program | None:
        if self.scale == "nano":
            found = NANO.fullmatch(text.strip())
            return found and Program(
                found[1], tuple((int(x), int(y)) for x, y in re.findall(r"(\d)(\d)", found[2])), TABLE
            )
        for wording in WORDINGS:
            if (parts := wording.read(text)) is not None:
                return self._program(*parts)
        return None

    def _program(self, fields: dict[str, str], pieces: dict[str, Any]) -> Program | None:
        pairs = [(f["x"], f["y"]) for _, f in pieces["steps"]]
        if not all(n.isdecimal() and len(n) < 10 for pair in pairs for n in pair):
            return None
        table = {f["a"].title(): (f["b"].title(), f["c"].title()) for _, f in pieces["routes"]}
        program = Program(
            fields["start"].title(), tuple((int(x), int(y)) for x, y in pairs), dict(sorted(table.items()))
        )
        try:
            self.states(program)
        except KeyError:  # the table does not lead on
            return None
        return program
