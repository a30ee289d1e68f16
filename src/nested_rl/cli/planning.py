"""`plan`: what a run would take, before anything is spent; and the question before a run that costs money."""
# ruff: noqa: T201  printing is what a command is for

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from nested_rl.errors import SettingsError

if TYPE_CHECKING:
    from nested_rl.cli.runfile import RunFile
    from nested_rl.experiment import Experiment
    from nested_rl.plan import Plan


def plan(
    file: Path,
    /,
    *,
    steps: int | None = None,
    like: Path | None = None,
    matrix: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
) -> None:
    """Show what the run in a TOML file would take; nothing is spent.

    The run is simulated by its own scheduling code: jobs, wall-clock, machine hours, dollars with a range, what holds it up, what one
    change would do, which keys and packages are missing. Figures that were not measured are stated assumptions, each shown with what it rests on; the file's table
    [plan] changes them by name.

    Args:
        file: The run file.
        steps: Outer updates, instead of the file's.
        like: A past run, whose times and tokens are taken.
        matrix: A table of `nested-rl bench-gpus`, whose job times are taken.
        as_json: Print JSON.
    """
    from nested_rl.cli import runfile

    asked = runfile.read(file)
    made = of(runfile.experiment(asked, beside=file.parent), asked, steps=steps, like=like, matrix=matrix)
    if as_json:
        print(json.dumps(made.as_json()))
    else:
        made.show()


def of(
    experiment: Experiment,
    asked: RunFile,
    *,
    steps: int | None = None,
    like: Path | None = None,
    matrix: Path | None = None,
) -> Plan:
    """The plan of a run file."""
    arguments = asked.run.arguments() | ({"steps": steps} if steps is not None else {})
    return experiment.plan(**arguments, assumptions=asked.plan, like=like, matrix=matrix)


def agreed(experiment: Experiment, asked: RunFile, place: Path | None, *, quiet: bool) -> bool:
    """Whether a run may begin: one that costs money shows its plan and asks first, unless what is in `place` is finished.

    Raises SettingsError where nobody can be asked, and when something is missing.
    """
    from nested_rl.plan import spends

    done = place is not None and _done(place, steps=asked.run.steps or 25)
    if done or not spends(experiment):
        return True
    made = of(experiment, asked)
    if not quiet:
        made.show()
    if made.missing:
        raise SettingsError("missing: " + "; ".join(f"{one.name} ({one.hint})" for one in made.missing))
    return made.ask()


def _done(place: Path, *, steps: int) -> bool:
    """Whether the run there has as many steps as are asked for now, which may be more than before."""
    from nested_rl.rundir import RunDir

    return (place / "run.toml").is_file() and len(RunDir.open(place).metrics()) >= steps
