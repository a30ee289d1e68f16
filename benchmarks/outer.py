"""What the outer loop adds: a pilot's wall-clock against the CPU-seconds of what it is for, and the controller's own share.

    python benchmarks/outer.py [--steps 25] [--pilots 3] [--profile FILE]

Jobs, scoring and the forks of probes run in processes of their own, and are taken from the operating system's accounts; the
agent's sampling and updates, probes and grading are timed in the controller's threads. What the controller uses besides is
its own. Writes benchmarks/results/outer.json.
"""

from __future__ import annotations

import cProfile
import functools
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import record

import nested_rl as nrl
from nested_rl.jobs import validate
from nested_rl.nano import threads
from nested_rl.report.during import DuringRun
from nested_rl.rundir import RunDir
from nested_rl.scorers import nano as scorer
from nested_rl.trainers import nano as trainer
from nested_rl.trainers import nano_policy

TARGETS = {"wall": 1.25, "controller_s": 0.02}


class Account:
    """CPU-seconds of parts of the controller's work, by name."""

    def __init__(self) -> None:
        self.spent = {"agent": 0.0, "probes": 0.0, "grading": 0.0}
        self.own = {"report": 0.0, "writing": 0.0}

    def of(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, on the account of `part`. It runs in one thread from beginning to end."""

        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            started = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                parts = self.own if part in self.own else self.spent
                parts[part] += time.thread_time() - started

        return counted

    @contextmanager
    def open(self) -> Iterator[None]:
        """While it is open, work is put on it."""
        in_engine = threads.in_engine

        async def counted(work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
            return await in_engine(self.of("agent", work), *args, **kwargs)

        places = [
            (trainer, "in_engine", counted),
            (nano_policy, "in_engine", counted),
            (validate, "examine", self.of("probes", validate.examine)),
            (scorer, "graded", self.of("grading", scorer.graded)),
            (DuringRun, "_write", self.of("report", DuringRun._write)),  # noqa: SLF001
            (DuringRun, "last", self.of("report", DuringRun.last)),
            (RunDir, "write_episode", self.of("writing", RunDir.write_episode)),
        ]
        before = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
        for owner, name, function in places:
            setattr(owner, name, function)
        try:
            yield
        finally:
            for owner, name, function in before:
                setattr(owner, name, function)


def children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def pilot(steps: int, seed: int, profile: Path | None) -> dict[str, float]:
    """One pilot from scratch, and its bill."""
    account, profiler = Account(), cProfile.Profile(time.thread_time)
    with tempfile.TemporaryDirectory() as folder, account.open():
        before, before_children, started = time.process_time(), children_s(), time.perf_counter()
        if profile:
            profiler.enable()
        run = nrl.Experiment().run(steps=steps, seed=seed, out=Path(folder) / "run", quiet=True)
        profiler.disable()
        wall_s = time.perf_counter() - started
        controller, processes = time.process_time() - before, children_s() - before_children
        episodes = sum(1 for _ in run.path.glob("**/episodes/*/reward.json"))  # those of the validations too
    if profile:
        profiler.dump_stats(profile)
    inside = sum(account.spent.values())
    cores = os.cpu_count() or 1
    return {
        "wall_s": wall_s,
        "episodes": episodes,
        "jobs_scoring_forks_s": processes,
        **{f"{part}_s": seconds for part, seconds in account.spent.items()},
        "controller_s": controller - inside,
        **{f"{part}_s": seconds for part, seconds in account.own.items()},
        "controller_s_per_episode": (controller - inside) / episodes,
        "wall_over_work": wall_s / ((processes + inside) / cores),
        "busy_cores": (processes + controller) / wall_s,
    }


def main() -> None:
    """Print the table and write it."""
    parser = record.options(__doc__)
    parser.add_argument("--steps", type=record.count, default=25)
    parser.add_argument("--pilots", type=record.count, default=3)
    parser.add_argument(
        "--profile", type=Path, help="write a profile of the controller's main thread there, of the last pilot"
    )
    asked = parser.parse_args()
    rows, calibration = [], record.Calibration()
    for _ in range(asked.pilots):
        found = pilot(asked.steps, 0, asked.profile)
        calibration.take()
        rows.append({name: record.significant(value) for name, value in found.items()})
    middle = {name: record.significant(record.median([row[name] for row in rows])) for name in rows[0]}
    record.show(
        f"Pilots of {asked.steps} steps on {os.cpu_count()} cores",
        ("what", "median", *(f"{number}" for number in range(1, len(rows) + 1))),
        [(name, value, *(row[name] for row in rows)) for name, value in middle.items()],
    )
    if not record.usual(parser, asked):
        return
    record.write(
        "outer",
        calibration_s=calibration.seconds,
        seconds={"controller, an episode": middle["controller_s_per_episode"]},
        ratios={"wall-clock ÷ (work ÷ cores)": middle["wall_over_work"]},
        targets=TARGETS,
        settings={"steps": asked.steps, "cores": os.cpu_count()},
        rows=rows,
        median=middle,
    )


if __name__ == "__main__":
    main()
