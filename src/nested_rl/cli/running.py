"""`pilot` and `run`: train, evaluate on what was held out, write the report."""
# ruff: noqa: T201  printing is what a command is for

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nested_rl import wrapping
from nested_rl.errors import SettingsError

if TYPE_CHECKING:
    from nested_rl.experiment import Experiment

HELD_OUT = ("triage",)
HELD_OUT_TASKS = 48


def pilot(
    *, out: Path = Path("runs/pilot"), steps: int = 25, fresh: bool = False, seed: int = 0, quiet: bool = False
) -> None:
    """Run the whole nested loop on this computer, in a few minutes.

    Real models and real RL on the CPU; no account, no download. 25 steps of 4 groups of 8 episodes on calc_chain, string_pipeline and dispatch; then the best and the untrained agent
    are compared on triage, a family that training never sees. The same command again resumes, or shows a finished run.

    Args:
        out: Run directory.
        steps: Outer updates.
        fresh: Delete what is in the run directory and start over.
        seed: Of everything that is drawn, but for the hidden evaluation, which each run draws for itself.
        quiet: Show nothing but errors.
    """
    from nested_rl.experiment import Experiment

    if fresh:
        start_over(out)
    experiment = Experiment()
    _train(experiment, steps=steps, seed=seed, out=out, quiet=quiet)
    held_out(experiment, out, HELD_OUT, n=HELD_OUT_TASKS, quiet=quiet)


def run(
    file: Path, /, *, out: Path | None = None, fresh: bool = False, quiet: bool = False, yes: bool = False
) -> int | None:
    """Run the experiment in a TOML file.

    The file has `families`, `reward`, `out`, a table [run] with the arguments of Experiment.run, a table for each part
    ([trainer], [inner], [harness], [compute], [queue], [scorer], any number of [[trackers]]) with its `name` and settings, [budget], and [evaluate]. The same command again resumes.

    Args:
        file: The run file.
        out: Run directory, instead of the file's `out` (default runs/NAME-OF-THE-FILE).
        fresh: Delete what is in the run directory and start over.
        quiet: Show nothing but errors.
        yes: Spend money without asking. Otherwise a run that costs some shows its plan first, and asks.
    """
    from nested_rl import tasks
    from nested_rl.cli import planning, runfile

    asked = runfile.read(file)
    place = out or Path(asked.out or Path("runs") / file.stem)
    experiment = runfile.experiment(asked, beside=file.parent)
    if asked.evaluate is not None:
        tasks.load(*asked.evaluate.families)  # a name that does not exist is told now, not after the training
    if not yes and not planning.agreed(experiment, asked, None if fresh else place, quiet=quiet):
        print("nothing was started")
        return 1
    if fresh:
        start_over(place)
    _train(experiment, **asked.run.arguments(), out=place, quiet=quiet)
    if asked.evaluate is not None:
        held_out(experiment, place, asked.evaluate.families, n=asked.evaluate.n, seed=asked.evaluate.seed, quiet=quiet)
    return None


def _train(experiment: Experiment, **arguments: Any) -> None:
    """Run it to its end, whether or not anybody still reads what it prints."""
    try:
        experiment.run(**arguments)
    except BrokenPipeError:
        from nested_rl.report.live import nobody_reads

        nobody_reads()
        experiment.run(**arguments)  # goes on with what is there; most often that is all


def held_out(experiment: Experiment, out: Path, families: Sequence[str], *, n: int, seed: int = 0, quiet: bool) -> None:
    """Compare the best version with the untrained one, and write the report again with what came out."""
    from nested_rl import tasks
    from nested_rl.report.page import write_report
    from nested_rl.report.phrases import count
    from nested_rl.rundir import RunDir

    if not quiet:
        _tell(f"evaluating the best and the untrained agent on {', '.join(families)}: {count(n, 'task')} each")
    chosen = tasks.load(*families)
    best = experiment.evaluate(chosen, policy="RUN@best", n=n, seed=seed, out=out, quiet=quiet)
    initial = experiment.evaluate(chosen, policy="RUN@initial", n=n, seed=seed, out=out, quiet=quiet)
    report = write_report(RunDir.open(out))
    if not quiet:
        _tell(best, initial, f"best minus untrained: {best.compare(initial)}", f"Report: {report}")


def _tell(*lines: object) -> None:
    """Print; a reader who went away (`| head`) does not keep the run from going on to its end."""
    from nested_rl.report.live import nobody_reads

    try:
        print(*(wrapping.fitted(str(line)) for line in lines), sep="\n", flush=True)
    except BrokenPipeError:
        nobody_reads()


def start_over(out: Path) -> None:
    """Delete a run directory. Refuses a folder that is not one, or that another process works in."""
    from nested_rl.rundir import RunDir

    if not out.exists():
        return
    if not (out / "run.toml").is_file():
        if any(out.iterdir()):
            raise SettingsError(f"{out} is not a run directory, so it is not deleted; choose another `--out`")
        return
    directory = RunDir.open(out)
    directory.own()
    with contextlib.closing(directory):
        shutil.rmtree(out)
