"""How well the scheduler fills machines, what staleness buys, and what the controller itself takes, all on simulated machines.

    python benchmarks/schedule.py [--seeds 5] [--steps 54] [--only makespan compared published scale]

The loop, the workers, the queue in memory and, where pods are rented, the pool are the real ones, on a virtual clock; durations are
drawn. Prints tables and writes benchmarks/results/schedule.json, of which --only rewrites a part. About five minutes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import record

from nested_rl.compute.provider import Candidate
from nested_rl.loop import Schedule
from nested_rl.plan import Assumptions, Guess, Rents, Setting
from nested_rl.plan.simulate import Simulated, simulate

MACHINES, GROUPS, GROUP = 16, 5, 8
USUAL_S, SIGMA = 1200.0, 0.5
STRAGGLERS = 20
"""One job in so many takes four times as long."""
SIZES = ((16, 40), (64, 160), (256, 640), (1000, 2504))
"""Machines, and jobs a step."""
A40 = Candidate(gpu="NVIDIA A40", gpu_memory_gib=48)


def fixed(value: float, unit: str = "s") -> Guess:
    return Guess.of(value, unit, "this benchmark")


def jobs_alone() -> Assumptions:
    """Nothing takes time but jobs: log-normal, with stragglers. A job's base, drawn evenly, tells which it is."""
    return Assumptions.stated("nano").with_values(
        job_s={("usual", "*"): fixed(USUAL_S), ("straggler", "*"): fixed(4 * USUAL_S)},
        job_spread=SIGMA,
        baseline_s=0.0,
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


def over_bound(found: Simulated) -> float:
    """Makespan by its lower bound, the work by the machines: the longest job is far shorter than that."""
    return found.wall_clock_s / (found.machine_s["busy"] / MACHINES)


def makespan(seeds: int, steps: int) -> dict[str, Any]:
    told, rows = jobs_alone(), []
    for k in (0, 1, 2, 3):
        runs = [simulate(setting(k=k, steps=steps), told, seed=seed) for seed in range(seeds)]
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
    told, rows = jobs_alone(), []
    ways: Sequence[tuple[str, int, Literal["keep", "drop"]]] = (
        ("synchronous", 0, "keep"),
        ("pacing", 2, "keep"),
        ("dropping what is stale", 2, "drop"),
    )
    runs = {
        name: [simulate(setting(k=k, steps=steps, stale=stale), told, seed=seed) for seed in range(seeds)]
        for name, k, stale in ways
    }
    for name, found in runs.items():
        wall = [one.wall_clock_s / base.wall_clock_s for one, base in zip(found, runs["synchronous"], strict=True)]
        trained = steps * GROUPS * GROUP
        rows.append(
            {
                "name": name,
                "wall_clock_by_synchronous": record.median(wall),
                "trained_by_paid_jobs": record.median([trained / one.jobs for one in found]),
                "trained_job_s_by_all": record.median([one.trained_job_s / one.job_s for one in found]),
                "staleness_max": max(max(one.staleness) for one in found),
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
                f"{r['staleness_max']:.1f}",
            )
            for r in rows
        ],
    )
    return {"steps": steps, "seeds": seeds, "rows": rows}


def rented(machines: int, groups: int, steps: int) -> tuple[Setting, Assumptions]:
    """Pods of one kind under stated assumptions, with boots, refusals and losses."""
    schedule = Schedule(
        steps=steps, groups_per_step=groups, group_size=GROUP, max_steps_off_policy=2, order="ready", eval_every=0
    )
    bases = ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B")
    asked = Setting(
        schedule=schedule,
        families=("a", "b", "c", "d", "e"),
        bases=bases,
        scale="full",
        machines=machines,
        rents=Rents(candidates=(A40,)),
        job_timeout_s=5400.0,
    )
    return asked, Assumptions.stated("full").with_values(usd_per_hour={A40.name: fixed(0.44, "$/h")})


def published(seeds: int, steps: int) -> dict[str, Any]:
    """The setting of the published run: scheduling only, under stated assumptions."""
    runs = [simulate(*rented(MACHINES, GROUPS, steps), seed=seed) for seed in range(seeds)]
    row = {
        "wall_clock_h": record.median([one.wall_clock_s / 3600 for one in runs]),
        "jobs": record.median([float(one.jobs) for one in runs]),
        "machine_hours": record.median([one.machine_hours for one in runs]),
        "utilisation": record.median([one.utilisation for one in runs]),
        "staleness_mean": record.median([statistics.fmean(one.staleness) for one in runs]),
    }
    record.show(
        f"The published setting ({steps} steps, {GROUPS} groups of {GROUP}, 2 steps off-policy, {MACHINES} pods), simulated",
        ("wall-clock", "jobs", "machine hours", "in use", "staleness"),
        [
            (
                f"{row['wall_clock_h']:.1f} h",
                f"{row['jobs']:.0f}",
                f"{row['machine_hours']:.0f}",
                f"{row['utilisation']:.1%}",
                f"{row['staleness_mean']:.2f}",
            )
        ],
    )
    return {"steps": steps, "seeds": seeds, **row}


def one_size(machines: int, jobs: int) -> dict[str, float]:
    """Of this very process, which should have done nothing before."""
    asked, told = rented(machines, jobs // GROUP, steps=3)
    before_mb, start_s = _peak_mb(), time.process_time()
    found = simulate(asked, told)
    cpu_s, peak_mb = time.process_time() - start_s, _peak_mb()
    return {
        "machines": machines,
        "jobs_a_step": jobs,
        "jobs": found.jobs,
        "simulated_s": found.wall_clock_s,
        "cpu_s": cpu_s,
        "cores": cpu_s / found.wall_clock_s,
        "cpu_ms_a_job": 1000 * cpu_s / found.jobs,
        "peak_mb": peak_mb,
        "kb_a_job": 1000 * (peak_mb - before_mb) / found.jobs,
    }


def scale(_seeds: int, _steps: int) -> dict[str, Any]:
    """Each size in a process of its own, for its memory."""
    rows = [
        json.loads(
            subprocess.run(
                [sys.executable, __file__, "--size", str(machines), str(jobs)],
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )
        for machines, jobs in SIZES
    ]
    record.show(
        "The controller: loop, workers, queue in memory and pool, with the simulated provider's own share; 3 steps",
        ("machines", "jobs a step", "CPU ms a job", "KB a job", "cores", "peak MB"),
        [
            (
                r["machines"],
                r["jobs_a_step"],
                f"{r['cpu_ms_a_job']:.2f}",
                f"{r['kb_a_job']:.1f}",
                f"{r['cores']:.5f}",
                f"{r['peak_mb']:.0f}",
            )
            for r in rows
        ],
    )
    return {"rows": rows}


PARTS: Mapping[str, Callable[[int, int], dict[str, Any]]] = {
    "makespan": makespan,
    "compared": compared,
    "published": published,
    "scale": scale,
}


def _peak_mb() -> float:
    """Of this program alone: what getrusage tells begins with its parent's."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def _kept() -> dict[str, Any]:
    path = record.RESULTS / "schedule.json"
    told = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {name: told[name] for name in PARTS if name in told}


def _ratios(parts: Mapping[str, Any]) -> dict[str, float]:
    """What does not depend on the speed of this computer."""
    ratios = {f"makespan by bound, K = {r['k']}": r["ratio"] for r in parts.get("makespan", {}).get("rows", ())}
    for row in parts.get("compared", {}).get("rows", ()):
        ratios[f"wall-clock of {row['name']} by synchronous"] = row["wall_clock_by_synchronous"]
    rows = parts.get("scale", {}).get("rows", ())
    if rows:
        ratios["CPU a job, 1,000 machines by 16"] = rows[-1]["cpu_ms_a_job"] / rows[0]["cpu_ms_a_job"]
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=54)
    parser.add_argument("--only", nargs="*", choices=tuple(PARTS), default=tuple(PARTS))
    parser.add_argument("--size", type=int, nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.size:
        print(json.dumps(one_size(*asked.size)))
        return
    parts = {**_kept(), **{name: PARTS[name](asked.seeds, asked.steps) for name in asked.only}}
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
