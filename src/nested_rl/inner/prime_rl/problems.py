"""Problems that only full-scale jobs can have, made in one way, so that every code has its brief text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from nested_rl import replies
from nested_rl.jobs.problems import plain
from nested_rl.types import Problem

BRIEF: Final[Mapping[str, str]] = {
    "prime_rl.key": "unknown key {name}",
    "prime_rl.moved": "{name} is set elsewhere",
    "prime_rl.denied": "{name} is refused",
    "prime_rl.twice": "{name} is set twice",
    "prime_rl.value": "bad value {name}",
    "prime_rl.kind": "{name} is of another type",
    "prime_rl.argument": "unknown taskset setting {name}",
    "job.fit": "{name} does not fit",
    "job.memory": "too big for the machines",
    "environment.dialect": "verifiers tasksets not accepted",
}


def told(code: str, where: str, message: str, hint: str = "", *, name: str = "") -> Problem:
    """A problem whose brief comes from `BRIEF[code]`. The last part of a dotted name says enough there.

    >>> told("prime_rl.denied", "job.toml:[prime_rl] slurm", "slurm is refused: one machine", name="slurm").brief
    'slurm is refused'
    """
    brief = replies.brief(BRIEF[code].format(name=plain(name.rpartition(".")[2])))
    return Problem(code=code, where=where, message=message, hint=hint, brief=brief)
