"""`evaluate`: a policy of a run on test tasks, held-out families welcome."""
# ruff: noqa: T201  printing is what a command is for

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from nested_rl.errors import SettingsError

if TYPE_CHECKING:
    from nested_rl.evaluation import EvalReport
    from nested_rl.experiment import Experiment


def evaluate(
    run: Path,
    /,
    *,
    policy: str = "best",
    against: str | None = None,
    family: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = ("triage",),
    n: int = 96,
    seed: int = 0,
    using: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
) -> None:
    """Evaluate a policy of a run on test tasks.

    The result is kept in RUN/evals/ and not computed twice.

    Args:
        run: Run directory.
        policy: best, initial, last or a step number, or openai:MODEL@URL for a model behind a server.
        against: Another one, compared on the same tasks and seeds, with a 95 % interval.
        family: One or more families.
        n: How many tasks.
        seed: Which tasks.
        using: The run file the run was made from, if it had parts of its own.
        as_json: Print JSON.
    """
    from nested_rl import tasks
    from nested_rl.report.page import write_report
    from nested_rl.rundir import RunDir

    experiment = _experiment(run, using)
    families = tasks.load(*family)
    named, opposed = _of_run(run, policy), _of_run(run, against) if against else None
    ours = experiment.evaluate(families, policy=named, n=n, seed=seed, out=run)
    other = experiment.evaluate(families, policy=opposed, n=n, seed=seed, out=run) if opposed else None
    write_report(RunDir.open(run))
    comparison = ours.compare(other) if other else None
    if as_json:
        from attrs import asdict

        found = {"policy": _means(ours), "against": _means(other) if other else None}
        print(json.dumps(_known(found | {"difference": asdict(comparison) if comparison else None}), allow_nan=False))
        return
    print(ours)
    if other:
        print(other)
        print(f"difference: {comparison}")


def _means(report: EvalReport) -> dict[str, Any]:
    return {key: value for key, value in report.to_json().items() if key != "rows"}


def _known(value: Any) -> Any:
    """JSON has no NaN: what is not known (a mean of nothing) is null."""
    if isinstance(value, dict):
        return {key: _known(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
