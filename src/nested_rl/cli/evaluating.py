"""`evaluate`: policies of a run on test tasks, held-out families welcome."""
# ruff: noqa: T201  printing is what a command is for

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from nested_rl.errors import SettingsError

if TYPE_CHECKING:
    from nested_rl.evaluation import EvalReport
    from nested_rl.experiment import Experiment


def evaluate(
    run: Path | None = None,
    /,
    *,
    policy: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = ("best",),
    against: str | None = None,
    family: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = ("triage",),
    n: int = 96,
    seed: int = 0,
    using: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
) -> None:
    """Evaluate policies of a run on test tasks, all on the same ones.

    Results are kept in RUN/evals/ and not computed twice; only what failed for reasons that are not the agent's is tried again.

    Args:
        run: Run directory. May be left out when a policy names it, as in --policy runs/pilot@best.
        policy: best, initial, last or a step number; every:N for each N-th step and the last, of those whose checkpoints the run
            still has; or openai:MODEL@URL for a model behind a server. May be given several times.
        against: The one policy that the others are compared with, task by task, with a 95 % interval. Of several policies
            without this option it is the initial one, or else the last.
        family: One or more families, which take turns.
        n: How many tasks, of all families together.
        seed: Which tasks, and the agent's dice.
        using: The run file the run was made from, if it had parts of its own.
        as_json: Print JSON.
    """
    from nested_rl import tasks
    from nested_rl.report.page import write_report
    from nested_rl.rundir import RunDir

    run = run if run is not None else _run_of(policy)
    experiment = _experiment(run, using)
    families = tasks.load(*family)
    named = [one for given in policy for one in _policies(run, given)]
    opposed = _one(run, against) if against else _reference(named)
    named = [name for name in dict.fromkeys([*named, *opposed]) if name not in opposed]
    reports = [experiment.evaluate(families, policy=name, n=n, seed=seed, out=run) for name in [*named, *opposed]]
    write_report(RunDir.open(run))
    _tell(reports[: len(named)], reports[len(named) :], as_json=as_json)


def _tell(ours: Sequence[EvalReport], others: Sequence[EvalReport], *, as_json: bool) -> None:
    """Each policy, then each one's difference to the one they are compared with (`others`, which is one or none)."""
    from attrs import asdict

    compared = [(one, one.compare(other)) for other in others for one in ours]
    if as_json:
        told = {
            "policies": [_means(report) for report in (*ours, *others)],
            "differences": [
                {"policy": one.policy, "against": others[0].policy, **asdict(found)} for one, found in compared
            ],
        }
        print(json.dumps(_known(told), allow_nan=False))
        return
    for report in (*ours, *others):
        print(report)
    if others:
        _table([*ours, *others])
    for one, found in compared:
        print(f"{one.policy} minus {others[0].policy}: {found}")


def _table(reports: Sequence[EvalReport]) -> None:
    """Rewards with intervals and what they are made of, one row a policy."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    columns = list(dict.fromkeys(name for report in reports for name in report.means))
    table = Table("policy", "n", "masked", "reward", *columns, box=SIMPLE)
    for report in reports:
        mean, counts = report.interval, (str(len(report.rows)), str(report.masked))
        shown = [_cell(report.means.get(name, math.nan)) for name in columns]
        table.add_row(report.policy, *counts, f"{mean.value:.3f} [{mean.low:.3f}, {mean.high:.3f}]", *shown)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _cell(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"


def _means(report: EvalReport) -> dict[str, Any]:
    from attrs import asdict

    told = {key: value for key, value in report.to_json().items() if key != "rows"}
    return {**told, "n": len(report.rows), "interval": asdict(report.interval), "means": report.means}


def _known(value: Any) -> Any:
    """JSON has no NaN: what is not known (a mean of nothing) is null."""
    if isinstance(value, dict):
        return {key: _known(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_known(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _run_of(policies: Sequence[str]) -> Path:
    """The run directory that the policies name; `_of_run` refuses those of another."""
    places = [name if Path(name).is_dir() else name.rpartition("@")[0] for name in policies]
    named = [place for place in places if place and place != "RUN" and not place.startswith("openai:")]
    if not named:
        raise SettingsError("which run? `nested-rl evaluate RUN`, or a policy that names it, such as --policy RUN@best")
    return Path(named[0])


def _policies(run: Path, given: str) -> list[str]:
    """The policies that were meant: one, or every N-th version and the last, of those that the run still has."""
    from nested_rl import retention
    from nested_rl.rundir import RunDir

    name = _of_run(run, given)
    which = name.removeprefix("RUN@")
    if not which.startswith("every:"):
        return [name]
    if not re.fullmatch(r"every:[1-9]\d*", which):
        raise SettingsError(f"{given!r}: after every: comes a number of steps, such as every:5")
    step = int(which.removeprefix("every:"))
    opened = RunDir.open(run)
    made = sorted({int(event["version"]) for event in opened.events("checkpoint", "step.done")})
    if not made:
        raise SettingsError(f"{run} has no saved version yet")
    kept = retention.refs(opened)
    meant = [version for version in made if version % step == 0 or version == made[-1]]
    if gone := [version for version in meant if version not in kept]:
        print(
            f"{run}: of every:{step} the checkpoints of {retention.known(dict.fromkeys(gone, ''))} are gone, so the curve lacks them; "
            "a run that is made with keep_checkpoints=None keeps all",
            file=sys.stderr,
        )
    return [f"RUN@{version}" for version in meant if version in kept]


def _one(run: Path, against: str) -> list[str]:
    """The policy that the others are compared with."""
    if "every:" in against and not against.startswith("openai:"):
        raise SettingsError(
            f"--against {against}: the others are compared with one policy, such as initial or a step number"
        )
    return [_of_run(run, against)]


def _reference(named: Sequence[str]) -> list[str]:
    """What several policies are compared with: the initial one if it is among them, else the last."""
    if len(named) < 2:
        return []
    initial = [name for name in named if name in ("RUN@initial", "RUN@0")]
    return [initial[0] if initial else named[-1]]


def _of_run(run: Path, policy: str) -> str:
    """`best`, `RUN@best` and `runs/pilot@best` all name the same policy of this run; `openai:MODEL@URL` is one of its own."""
    if policy.startswith("openai:"):
        return policy
    place, at, which = policy.rpartition("@")
    if not at and _same(run, Path(policy)):
        which = "last"
    elif place not in ("", "RUN") and not _same(run, Path(place)):
        raise SettingsError(
            f"{policy} is a policy of another run than {run}; write `nested-rl evaluate {place} --policy {which or 'last'}`"
        )
    return "RUN" if which in ("", "RUN", "last") else f"RUN@{which}"


def _same(run: Path, other: Path) -> bool:
    return run.resolve() == other.resolve()


def _experiment(run: Path, using: Path | None) -> Experiment:
    """The parts the run was made with, or a sentence that says where to get them."""
    from nested_rl.cli import runfile
    from nested_rl.experiment import Experiment
    from nested_rl.rundir import RunDir

    if using is not None:
        return runfile.experiment(runfile.read(using), beside=using.parent)
    own = RunDir.open(run).spec.get("parts", {})
    if own:
        raise SettingsError(
            f"{run} was made with parts of its own ({', '.join(sorted(own))}): give its run file with --using FILE.toml, "
            "or call Experiment.evaluate in the script that made it"
        )
    return Experiment()
