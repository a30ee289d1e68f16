"""Bookkeeping. Nano scale: the account asked about, two balances, then entries, all modulo 10: `lb03t1b3?` → `9497>7.`

`a3` adds 3 to account a, `b3` to account b, `t3` moves 3 from a to b; the working spells both balances after every entry.
"""

from __future__ import annotations

import random
import re
from typing import Any

from nested_rl import answers
from nested_rl.tasks import ChainFamily, Program
from nested_rl.wordings import Wording

NANO = re.compile(r"l([ab])(\d)(\d)((?:[abt]\d){1,12})\??")
NAMES = "Ada Ben Cleo Dan Eva Finn Gwen Hugo Iris Jack Kira Liam Mona Nils Olga Pete Rosa Sven Tara Uma Vera Will Yann Zoe".split()
CLOSING = "Reply with the number alone on the last line."
WORDINGS = (
    Wording(
        "{accounts} {steps} How many coins does {ask} have now?",
        {
            "accounts": {"has": "{name} has {x} coins."},
            "steps": {"+": "{a} earns {x}.", "-": "{a} spends {x}.", "t": "{a} pays {x} to {b}."},
        },
        closing=CLOSING,
    ),
    Wording(
        "Opening balances: {accounts} Entries: {steps} Closing balance of {ask}?",
        {
            "accounts": {"has": "{name} {x};"},
            "steps": {
                "+": "deposit {x} to {a};",
                "-": "withdrawal {x} from {a};",
                "t": "transfer {x} from {a} to {b};",
            },
        },
        closing=CLOSING,
    ),
    Wording(
        "In the book, {accounts} then {steps} and the day ends. What does the account of {ask} hold?",
        {
            "accounts": {"has": "{name} holds {x},"},
            "steps": {"+": "{a} gains {x},", "-": "{a} loses {x},", "t": "{x} moves from {a} to {b},"},
        },
        closing=CLOSING,
    ),
)


class Family(ChainFamily):
    """Program: balances by account, then (kind, account, account or "", amount) entries; `given` is the account asked about."""

    def sample(self, rng: random.Random, k: int) -> Program:
        nano = self.scale == "nano"
        accounts = ["a", "b"] if nano else rng.sample(NAMES, 3)
        ops = []
        for _ in range(k):
            x = rng.randint(1, 5) if nano else rng.randint(11, 99)
            if nano:
                ops.append(rng.choice([("+", "a", "", x), ("+", "b", "", x), ("t", "a", "b", x)]))
            else:
                kind = rng.choice("+-tt")
                a, b = rng.sample(accounts, 2)
                ops.append((kind, a, b if kind == "t" else "", x))
        start = {name: rng.randint(0, 9) if nano else rng.randint(100, 999) for name in accounts}
        return Program(start, tuple(ops), rng.choice(accounts))

    def step(self, program: Program, i: int, state: dict[str, int]) -> dict[str, int]:
        kind, a, b, x = program.ops[i]
        after = dict(state)
        after[a] += x if kind == "+" else -x
        if kind == "t":
            after[b] += x
        return {name: v % 10 for name, v in after.items()} if self.scale == "nano" else after

    def answer(self, program: Program, state: dict[str, int]) -> str:
        return str(state[program.given])

    def show(self, program: Program, i: int, state: dict[str, int]) -> str:
        return "".join(map(str, state.values()))

    def garble(self, state: dict[str, int], rng: random.Random, rate: float) -> dict[str, int]:
        return {name: rng.randrange(10) if rng.random() < rate else v for name, v in state.items()}

    def lazy(self, program: Program) -> dict[str, int]:
        """The opening balances: after one entry, an untouched account would be right too often."""
        return dict(program.start)

    def canonical(self, text: str) -> str:
        return answers.number(text)

    def spell(self, program: Program) -> str:
        if self.scale == "nano":
            entries = "".join(f"{'t' if kind == 't' else a}{x}" for kind, a, _, x in program.ops)
            return f"l{program.given}{''.join(map(str, program.start.values()))}{entries}"
        balances = ",".join(f"{name}={x}" for name, x in sorted(program.start.items()))
        return f"{program.given}?{balances}|" + ",".join(f"{a}{kind}{x}{b}" for kind, a, b, x in program.ops)

    def question(self, program: Program, rng: random.Random) -> str:
        if self.scale == "nano":
            return self.spell(program) + "?"
        accounts = [("has", {"name": name, "x": x}) for name, x in program.start.items()]
        steps = [(kind, {"a": a, "b": b, "x": x}) for kind, a, b, x in program.ops]
        return rng.choice(WORDINGS).write(accounts=accounts, steps=steps, ask=program.given)

    def read(self, text: str) -> Program | None:
        if self.scale == "nano":
            found = NANO.fullmatch(text.strip())
            return found and Program(
                {"a": int(found[2]), "b": int(found[3])},
                tuple(
                    ("t", "a", "b", int(x)) if op == "t" else ("+", op, "", int(x))
                    for op, x in re.findall(r"(.)(\d)", found[4])
                ),
                found[1],
            )
        for wording in WORDINGS:
            if (parts := wording.read(text)) is not None:
                return _program(*parts)
        return None


def _program(fields: dict[str, str], pieces: dict[str, Any]) -> Program | None:
    rows = [f for slot in ("accounts", "steps") for _, f in pieces[slot]]
    if not all(f["x"].isdecimal() and len(f["x"]) < 10 for f in rows):
        return None
    start = {f["name"].title(): int(f["x"]) for _, f in pieces["accounts"]}
    ops = tuple((kind, f["a"].title(), f.get("b", "").title(), int(f["x"])) for kind, f in pieces["steps"])
    ask = fields["ask"].title()
    named = {ask, *(name for _, a, b, _ in ops for name in (a, b) if name)}
    return Program(start, ops, ask) if named <= start.keys() else None
