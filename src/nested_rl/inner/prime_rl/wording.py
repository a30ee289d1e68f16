"""Problems of a native environment in the words of verifiers: what is right advice for `examples` may be the very fault here."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Final

from attrs import evolve

from nested_rl.types import Problem

_ROW: Final = (
    "give tasks of your own, such as YourTask(YourData(idx=i, prompt=text, answer=right), self.config.task): "
    "YourData is a vf.TaskData with a field `answer: str`"
)
_ONE: Final = 'name one subclass of vf.Taskset in __all__, and nothing else: __all__ = ["YourTaskset"]'

HINTS: Final[Mapping[str, str]] = {
    "give as many rows as asked for": "give at least {rows} tasks",
    "take all randomness from rng, and keep nothing between calls": (
        "draw with a generator of a fixed seed, made in load(): rng = random.Random(self.config.seed); keep nothing between calls"
    ),
    "draw every row anew from rng": "draw every task anew",
    'give rows like {"prompt": "…", "answer": "…"}': _ROW,
    "look for endless loops; do less work at once": "look for endless loops, or give fewer tasks",
    "compare the answer in completions like '{form}' with answer": (
        "compare the answer in replies (trace.last_reply) like '{form}' with self.data.answer"
    ),
    "let the reward depend on its arguments alone": "let the reward depend on trace and self.data alone",
    "examples and reward need no more than plain functions": "load() and the rewards need no more than plain code",
}
"""Hints of the plain dialect that are wrong here, and what is said instead."""

_EXPORTS = re.compile(r"exports (no|\d+) Taskset subclass(?:es)? via `__all__` \((?:found )?(\[[^\]]*\])")
_FORM = re.compile(r"completions like '(.*)' with")


def worded(found: Problem, *, rows: int = 0) -> Problem:
    """The same problem in the words of this dialect; `rows` is how many tasks are asked for.

    >>> from nested_rl.jobs.problems import problem
    >>> worded(problem("examples.count", "environment.py examples", "examples(rng, 64) gave 3 rows", "")).message
    'load() gave 3 rows'
    """
    found = _raised(found)
    form = match[1] if (match := _FORM.search(found.hint)) else ""
    hint = next((there for here, there in HINTS.items() if here.replace("{form}", form) == found.hint), None)
    words = functools.partial(re.sub, r"\bexamples\b(\(rng, \d+\))?", "load()")
    message = words(found.message).replace("two calls with the same rng", "two calls")
    new = words(found.hint) if hint is None else hint.replace("{form}", form).replace("{rows}", str(rows))
    return evolve(found, where=words(found.where), message=message, hint=new)


def _raised(found: Problem) -> Problem:
    """What verifiers and pydantic raise about a module, in one line without their own vocabulary."""
    said = found.message
    if found.code == "environment.raised":
        if (match := _EXPORTS.search(said)) is not None:
            message = f"environment.py exports {match[1]} Taskset: its __all__ has {match[2]}"
            return evolve(found, message=message, hint=_ONE)
        if "validation error for EnvConfig" in said:
            message = "environment.py exports an environment of its own, which the trainer does not run"
            return evolve(found, message=message, hint=_ONE)
    if found.code == "reward.raised" and "float() argument" in said:
        return evolve(found, hint=found.hint or "return a finite number, such as 1.0 or 0.0, for every reply")
    return found
