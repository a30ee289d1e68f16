"""How well the scheduler fills machines, what staleness buys, and what the controller itself takes, all on simulated machines.

    python benchmarks/schedule.py [--seeds 5] [--steps 54] [--only makespan compared published scale] [--write]

The loop, the workers, the queue in memory and, where pods are rented, the pool are the real ones, on a virtual clock; durations are
drawn. Prints tables and writes benchmarks/results/schedule.json; with --only and --write the other parts stay as they are there.
About two minutes.
"""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import record
from schedule_scale import GROUP, fixed, rented, scale

from nested_rl.loop import Schedule
from nested_rl.plan import Assumptions, Setting
from nested_rl.plan.simulate import Simulated, simulate

MACHINES, GROUPS = 16, 5
USUAL_S, SIGMA = 1200.0, 0.5
STRAGGLERS = 20
"""One job in so many takes four times as long."""


def jobs_alone() -> Assumptions:
    """Nothing takes time but jobs: log-normal, with stragglers. A job's base, drawn evenly, tells which it is."""
    return Assumptions.stated("nano").with_values(
        job_s={("usual", "*"): fixed(USUAL_S), ("straggler", "*"): fixed(4 * USUAL_S)},
        job_spread=SIGMA,
        baseline_s=0.0,
        tries=1.0,
        valid=1.0,
        distinct=1.0,
        probe_s=0.0,
        turns=0.0,
        turn_s=0.0,
        update_s=0.0,
    )


def setting(*, k: int, steps: int, stale: Literal["keep", "drop"] = "keep") -> Setting:
    schedule = Schedule(
        steps=steps,
        groups_per_step=GROUPS,
        group_size=GROUP,
        max_steps_off_policy=k,
        order="ready",
        stale=stale,
        eval_every=0,
    )
    bases = ("usual",) * (STRAGGLERS - 1) + ("straggler",)
    return Setting(schedule=schedule, families=("a",), bases=bases, machines=MACHINES, job_timeout_s=1e6)


@functools.cache
def alone(k: int, stale: Literal["keep", "drop"], steps: int, seed: int) -> Simulated:
    """One run of jobs alone; two of the tables show some of the same."""
    return simulate(setting(k=k, steps=steps, stale=stale), jobs_alone(), seed=seed)


def over_bound(found: Simulated) -> float:
    """Makespan by its lower bound, the work by the machines: the longest job is far shorter than that."""
    return found.wall_clock_s / (found.machine_s["busy"] / MACHINES)


def makespan(seeds: int, steps: int) -> dict[str, Any]:
    rows = []
    for k in (0, 1, 2, 3):
        runs = [alone(k, "keep", steps, seed) for seed in range(seeds)]
        ratios = [over_bound(one) for one in runs]
        rows.append(
            {
                "k": k,
                "ratio": record.median(ratios),
                "lowest": min(ratios),
                "highest": max(ratios),
                "staleness_mean": statistics.fmean(statistics.fmean(one.staleness) for one in runs),
            }
        )
    record.show(
        f"Makespan by its lower bound: {MACHINES} machines, {GROUPS * GROUP} jobs a step, {steps} steps, {seeds} seeds",
        ("steps off-policy", "ratio, median", "lowest", "highest", "staleness"),
        [
            (r["k"], f"{r['ratio']:.3f}", f"{r['lowest']:.3f}", f"{r['highest']:.3f}", f"{r['staleness_mean']:.2f}")
            for r in rows
        ],
    )
    return {"machines": MACHINES, "jobs_a_step": GROUPS * GROUP, "steps": steps, "seeds": seeds, "rows": rows}


def compared(seeds: int, steps: int) -> dict[str, Any]:
    """Three ways to treat stale work, on the same draws."""
    rows = []
    ways: Sequence[tuple[str, int, Literal["keep", "drop"]]] = (
        ("synchronous", 0, "keep"),
        ("pacing", 2, "keep"),
        ("dropping what is stale", 2, "drop"),
    )
    runs = {name: [alone(k, stale, steps, seed) for seed in range(seeds)] for name, k, stale in ways}
    for name, found in runs.items():
        wall = [one.wall_clock_s / base.wall_clock_s for one, base in zip(found, runs["synchronous"], strict=True)]
        rows.append(
            {
                "name": name,
                "wall_clock_by_synchronous": record.median(wall),
                "trained_by_paid_jobs": record.median([one.trained_jobs / one.jobs for one in found]),
                "trained_job_s_by_all": record.median([one.trained_job_s / one.job_s for one in found]),
                "staleness_max": max(one.staleness_max for one in found),
            }
        )
    record.show(
        f"The same random durations, {steps} steps, {seeds} seeds, medians",
        ("", "wall-clock by synchronous", "trained by paid", "seconds of trained jobs by all", "staleness at most"),
        [
            (
                r["name"],
                f"{r['wall_clock_by_synchronous']:.3f}",
                f"{r['trained_by_paid_jobs']:.3f}",
                f"{r['trained_job_s_by_all']:.3f}",
                f"{r['staleness_max']:.0f}",
            )
            for r in rows
        ],
    )
    return {"machines": MACHINES, "jobs_a_step": GROUPS * GROUP, "steps": steps, "seeds": seeds, "rows": rows}


def published(seeds: int, steps: int) -> dict[str, Any]:
    """The setting of the published run: scheduling only, under stated assumptions."""
    runs = [simulate(*rented(MACHINES, GROUPS, steps), seed=seed) for seed in range(seeds)]
    row = {
        "wall_clock_h": record.median([one.wall_clock_s / 3600 for one in runs]),
        "jobs": record.median([float(one.jobs) for one in runs]),
        "machine_hours": record.median([one.machine_hours for one in runs]),
        "utilisation": record.median([one.utilisation for one in runs]),
        "dropped": record.median([float(one.dropped) for one in runs]),
        "staleness_mean": record.median([statistics.fmean(one.staleness) for one in runs]),
        "staleness_max": max(one.staleness_max for one in runs),
    }
    record.show(
        f"The published setting ({steps} steps, {GROUPS} groups of {GROUP}, 2 steps off-policy, {MACHINES} pods), simulated",
        ("wall-clock", "jobs", "machine hours", "in use", "staleness", "at most"),
        [
            (
                f"{row['wall_clock_h']:.1f} h",
                f"{row['jobs']:.0f}",
                f"{row['machine_hours']:.0f}",
                f"{row['utilisation']:.1%}",
                f"{row['staleness_mean']:.2f}",
                f"{row['staleness_max']:.0f}",
            )
        ],
    )
    asked = {"machines": MACHINES, "groups": GROUPS, "group_size": GROUP, "steps": steps, "seeds": seeds}
    return {**asked, **row}


PARTS: Mapping[str, Callable[[int, int], dict[str, Any]]] = {
    "makespan": makespan,
    "compared": compared,
    "published": published,
    "scale": scale,
}


def _kept() -> dict[str, Any]:
    """The parts as they were written last, each with its own settings."""
    path = record.RESULTS / "schedule.json"
    told = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {name: told[name] for name in PARTS if name in told}


def _ratios(parts: Mapping[str, Any]) -> dict[str, float]:
    """What does not depend on the speed of this computer."""
    ratios = {f"makespan by bound, K = {r['k']}": r["ratio"] for r in parts.get("makespan", {}).get("rows", ())}
    for row in parts.get("compared", {}).get("rows", ()):
        ratios[f"wall-clock of {row['name']} by synchronous"] = row["wall_clock_by_synchronous"]
    if "scale" in parts:
        ratios["CPU a job, 1,000 machines by 16"] = parts["scale"]["most_by_least"]["cpu_ms_a_job"]
        ratios["memory a job, 1,000 machines by 16"] = parts["scale"]["most_by_least"]["kb_a_job"]
    return ratios


def main() -> None:
    parser = record.options(__doc__)
    parser.add_argument("--seeds", type=record.count, default=5)
    parser.add_argument("--steps", type=record.count, default=54)
    parser.add_argument("--only", nargs="*", choices=tuple(PARTS), default=tuple(PARTS))
    asked = parser.parse_args()
    made = {name: PARTS[name](asked.seeds, asked.steps) for name in asked.only}
    if not record.usual(parser, asked):
        return
    parts = {**_kept(), **made}
    taken = record.interleaved({"published setting": lambda: simulate(*rented(MACHINES, GROUPS, 8))}, rounds=3)
    record.write(
        "schedule",
        calibration_s=record.median(taken[record.CALIBRATION]),
        seconds={"8 steps of the published setting, simulated": record.median(taken["published setting"])},
        ratios=_ratios(parts),
        **parts,
    )


if __name__ == "__main__":
    main()
