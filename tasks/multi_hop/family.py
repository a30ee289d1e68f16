"""Dependent look-ups. Nano scale has one fixed world of 16 people a-p and 8 relations q-x: `mcqvs?` → `ah>k.`

At full scale every question brings its own small world as a list of facts.
"""

from __future__ import annotations

import random
import re
from typing import Any

from nested_rl.tasks import ChainFamily, Program
from nested_rl.wordings import Wording

NANO = re.compile(r"m([a-p])([q-x]{1,12})\??")
PEOPLE = 16
_world = random.Random("multi_hop: the nano world")
WORLD = tuple(tuple(_world.sample(range(PEOPLE), PEOPLE)) for _ in range(8))
"""WORLD[relation][person] is a person; every relation is a permutation."""

NAMES = (
    "Ada Ben Cleo Dan Eva Finn Gwen Hugo Iris Jack Kira Liam Mona Nils Olga Pete Quinn Rosa Sven Tara Uma Vera Will Xena Yann Zoe "
    "Alma Boris Cora Dora Emil Freya Gus Hana Igor Jude"
).split()
RELATIONS = "mentor neighbour manager doctor landlord coach tutor cousin".split()
CLOSING = "Reply with the name alone on the last line."
WORDINGS = (
    Wording(
        "Facts: {facts} Question: who is {steps} {start}?",
        {"facts": {"fact": "{a}'s {relation} is {b}."}, "steps": {"hop": "the {relation} of"}},
        closing=CLOSING,
    ),
    Wording(
        "Here is what is known. {facts} Name {steps} {start}.",
        {"facts": {"fact": "The {relation} of {a} is {b}."}, "steps": {"hop": "the {relation} of"}},
        closing=CLOSING,
    ),
    Wording(
        "Address book: {facts} End of the address book. Find {steps} {start}.",
        {"facts": {"fact": "{a}, {relation}: {b};"}, "steps": {"hop": "the {relation} of"}},
        closing=CLOSING,
    ),
)


class Family(ChainFamily):
    """Program: a person, then relations to follow; at full scale `given` maps (relation, person) to a person."""

    def sample(self, rng: random.Random, k: int) -> Program:
        if self.scale == "nano":
            return Program(rng.randrange(PEOPLE), tuple(rng.randrange(8) for _ in range(k)))
        people, relations = rng.sample(NAMES, 6 + k), rng.sample(RELATIONS, 4)
        world = {(r, p): q for r in relations for p, q in zip(people, rng.sample(people, len(people)), strict=True)}
        program = Program(rng.choice(people), tuple(rng.choice(relations) for _ in range(k)), world)
        hops = zip(program.ops, [program.start, *self.states(program)], strict=False)
        needed = dict.fromkeys(hops)
        others = [fact for fact in world if fact not in needed]
        shown = [*needed, *rng.sample(others, min(len(others), 12))]
        return Program(program.start, program.ops, {fact: world[fact] for fact in sorted(shown)})

    def step(self, program: Program, i: int, state: Any) -> Any:
        return WORLD[program.ops[i]][state] if self.scale == "nano" else program.given[program.ops[i], state]

    def answer(self, program: Program, state: Any) -> str:
        return chr(ord("a") + state) if self.scale == "nano" else state

    def show(self, program: Program, i: int, state: int) -> str:
        return self.answer(program, state) if i < len(program.ops) - 1 else ""

    def garble(self, state: int, rng: random.Random, rate: float) -> int:
        return rng.randrange(PEOPLE) if rng.random() < rate else state

    def spell(self, program: Program) -> str:
        if self.scale == "nano":
            return f"m{chr(ord('a') + program.start)}{''.join('qrstuvwx'[r] for r in program.ops)}"
        facts = ",".join(f"{p}.{r}={q}" for (r, p), q in program.given.items())
        return f"{program.start}.{'.'.join(program.ops)}|{facts}"

    def question(self, program: Program, rng: random.Random) -> str:
        if self.scale == "nano":
            return self.spell(program) + "?"
        facts = [("fact", {"a": p, "relation": r, "b": q}) for (r, p), q in program.given.items()]
        rng.shuffle(facts)
        steps = [("hop", {"relation": r}) for r in reversed(program.ops)]
        return rng.choice(WORDINGS).write(facts=facts, steps=steps, start=program.start)

    def read(self, text: str) -> Program | None:
        if self.scale == "nano":
            found = NANO.fullmatch(text.strip())
            return found and Program(ord(found[1]) - ord("a"), tuple(ord(r) - ord("q") for r in found[2]))
        for wording in WORDINGS:
            if (parts := wording.read(text)) is not None:
                return self._program(*parts)
        return None

    def _program(self, fields: dict[str, str], pieces: dict[str, Any]) -> Program | None:
        facts = {(f["relation"].lower(), f["a"].title()): f["b"].title() for _, f in pieces["facts"]}
        ops = tuple(f["relation"].lower() for _, f in reversed(pieces["steps"]))
        program = Program(fields["start"].title(), ops, dict(sorted(facts.items())))
        try:
            self.states(program)
        except KeyError:  # the facts do not lead anywhere
            return None
        return program
