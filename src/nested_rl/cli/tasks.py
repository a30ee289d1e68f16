"""`tasks`: the families, and what a task of one looks like."""
# ruff: noqa: T201  printing is what a command is for

from __future__ import annotations

import random
import textwrap
from collections.abc import Sequence
from typing import Any

from cyclopts import App

from nested_rl.errors import SettingsError
from nested_rl.types import Scale

app = App(name="tasks", help="The task families.")


@app.default
def listed() -> None:
    """List the task families."""
    from nested_rl import tasks

    families = tasks.load(scale="nano")
    width = max(len(family.name) for family in families)
    for family in families:
        card = getattr(family, "card", None)
        use = "held out" if family.held_out else "training"
        print(f"{family.name:{width}}  {use}  {card.summary if card else ''}".rstrip())
    print("\nnested-rl tasks show NAME: its prompt and some questions")


@app.command
def show(name: str, /, *, scale: Scale = "nano", n: int = 5, seed: int = 0) -> None:
    """Show a family: what the agent is told, and N questions that a job may train on.

    Only questions of the training split are shown; those of evaluations stay unseen.

    Args:
        name: The family, or the path of its folder.
        scale: nano or full.
        n: How many questions.
        seed: Which questions.
    """
    from nested_rl import soundness, tasks

    family = soundness.tried(tasks.load(name, scale=scale)[0])
    task = next(family.tasks("train", seed=seed))
    print(f"{family.name}, scale {scale}, difficulty {task.difficulty}{', held out' if family.held_out else ''}\n")
    print(textwrap.indent(task.brief if scale == "nano" else task.prompt, "    "))
    print()
    for item in _examples(family, n, seed):
        print(f"{item.prompt}\n    -> {item.answer}" if "\n" in item.prompt else f"{item.prompt}  ->  {item.answer}")


def _examples(family: Any, n: int, seed: int) -> Sequence[Any]:
    """Training questions of the built-in kind of family."""
    make = getattr(family, "examples", None)
    if make is None:
        raise SettingsError(f"{family.name} does not say how to make questions: it has no method `examples(rng, n)`")
    found: Sequence[Any] = make(random.Random(seed), n)
    return found
