"""Incident triage. Nano scale has fixed rules for 8 services a-h and readings e, u, v, w: `tbe7u2v9?` → `11>2f.`

Every reading at or over the service's limit adds one to the severity; service and severity give the team.
At full scale every question brings its own rules.
"""

from __future__ import annotations

import random
import re
from typing import Any

from nested_rl import answers
from nested_rl.tasks import ChainFamily, Program
from nested_rl.wordings import Wording

NANO = re.compile(r"t([a-h])(e\d(?:u\d(?:v\d(?:w\d)?)?)?)\??")
_world = random.Random("triage: the nano rules")
LIMITS = {service: tuple(_world.randint(3, 7) for _ in "euvw") for service in "abcdefgh"}
TEAMS = {service: tuple(_world.choice("abcdefgh") for _ in range(5)) for service in "abcdefgh"}

SERVICES = "checkout search login billing gateway catalog mailer ledger profile uploads".split()
SIGNALS = "errors latency retries timeouts restarts queue memory disk".split()
NAMES = "network storage platform payments identity frontend data security".split()
CLOSING = "Reply with the severity and the team alone on the last line, like: 2 storage"
WORDINGS = (
    Wording(
        "Triage rules for {service}: {limits} {teams} Severity is the number of signals at or over their limit. "
        "Incident: {steps} What are its severity and team?",
        {
            "limits": {"limit": "{signal} has limit {x}."},
            "teams": {"team": "Severity {n} goes to {team}."},
            "steps": {"reading": "{signal} reads {x}."},
        },
        closing=CLOSING,
    ),
    Wording(
        "An incident hits {service}. {steps} Count the readings that reach their limit: {limits} that count is the severity. "
        "On call: {teams} State severity and team.",
        {
            "limits": {"limit": "{signal} {x},"},
            "teams": {"team": "{team} for {n};"},
            "steps": {"reading": "{signal} is at {x}."},
        },
        closing=CLOSING,
    ),
    Wording(
        "Service: {service}. Limits: {limits} Readings: {steps} One point for each reading not below its limit. "
        "Teams by points: {teams} Give the points and the team.",
        {
            "limits": {"limit": "{signal}={x};"},
            "teams": {"team": "{n}={team};"},
            "steps": {"reading": "{signal}={x};"},
        },
        closing=CLOSING,
    ),
)


class Family(ChainFamily):
    """Program: severity 0, then readings; `given` is (service, signals, limits, teams by severity)."""

    def sample(self, rng: random.Random, k: int) -> Program:
        if self.scale == "nano":
            return _nano(rng.choice("abcdefgh"), tuple(rng.randint(0, 9) for _ in range(k)))
        signals = rng.sample(SIGNALS, k)
        limits = tuple(rng.randint(20, 80) for _ in signals)
        teams = tuple(rng.choices(NAMES, k=k + 1))
        readings = tuple(max(0, limit + rng.randint(-15, 15)) for limit in limits)
        return Program(0, readings, (rng.choice(SERVICES), tuple(signals), limits, teams))

    def step(self, program: Program, i: int, state: int) -> int:
        return state + int(program.ops[i] >= program.given[2][i])

    def answer(self, program: Program, state: int) -> str:
        team = program.given[3][min(state, len(program.given[3]) - 1)]
        return f"{state}{team}" if self.scale == "nano" else f"{state} {team}"

    def show(self, program: Program, i: int, state: int) -> str:
        return str(state) if i < len(program.ops) - 1 else ""

    def garble(self, state: int, rng: random.Random, rate: float) -> int:
        return rng.randrange(5) if rng.random() < rate else state

    def canonical(self, text: str) -> str:
        if self.scale == "nano":
            return answers.words(text)
        return " ".join(
            word for word in answers.words(text).split() if word not in {"severity", "sev", "team", "points", "and"}
        )

    def spell(self, program: Program) -> str:
        service, signals, limits, teams = program.given
        if self.scale == "nano":
            return f"t{service}{''.join(f'{s}{x}' for s, x in zip(signals, program.ops, strict=True))}"
        readings = ",".join(
            f"{s}={x}/{limit}" for s, x, limit in sorted(zip(signals, program.ops, limits, strict=True))
        )
        return f"{service}|{readings}|{','.join(teams)}"

    def question(self, program: Program, rng: random.Random) -> str:
        if self.scale == "nano":
            return self.spell(program) + "?"
        service, signals, limits, teams = program.given
        return rng.choice(WORDINGS).write(
            service=service,
            limits=[("limit", {"signal": s, "x": x}) for s, x in zip(signals, limits, strict=True)],
            teams=[("team", {"n": n, "team": team}) for n, team in enumerate(teams)],
            steps=[("reading", {"signal": s, "x": x}) for s, x in zip(signals, program.ops, strict=True)],
        )

    def read(self, text: str) -> Program | None:
        if self.scale == "nano":
            found = NANO.fullmatch(text.strip())
            return found and _nano(found[1], tuple(int(x) for x in found[2][1::2]))
        for wording in WORDINGS:
            if (parts := wording.read(text)) is not None:
                return _program(*parts)
        return None


def _nano(service: str, readings: tuple[int, ...]) -> Program:
    return Program(0, readings, (service, tuple("euvw"[: len(readings)]), LIMITS[service], TEAMS[service]))


def _program(fields: dict[str, str], pieces: dict[str, Any]) -> Program | None:
    numbers = [f["x"] for slot in ("limits", "steps") for _, f in pieces[slot]] + [f["n"] for _, f in pieces["teams"]]
    if not all(n.isdecimal() and len(n) < 10 for n in numbers):
        return None
    limits = {f["signal"].lower(): int(f["x"]) for _, f in pieces["limits"]}
    readings = {f["signal"].lower(): int(f["x"]) for _, f in pieces["steps"]}
    teams = tuple(f["team"].lower() for _, f in sorted(pieces["teams"], key=lambda piece: int(piece[1]["n"])))
    if limits.keys() != readings.keys() or len(teams) != len(limits) + 1:
        return None
    signals = tuple(readings)
    return Program(
        0, tuple(readings.values()), (fields["service"].lower(), signals, tuple(limits[s] for s in signals), teams)
    )
