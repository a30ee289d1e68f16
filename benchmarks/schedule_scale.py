"""A part of schedule.py: CPU and memory of the controller by the number of its machines, which are simulated pods.

    python benchmarks/schedule_scale.py MACHINES JOBS

is one run of one size, as JSON: schedule.py starts it for each.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import record

from nested_rl.compute.pool import PodPool
from nested_rl.compute.provider import Candidate
from nested_rl.loop import Schedule
from nested_rl.plan import Assumptions, Guess, Rents, Setting
from nested_rl.plan.simulate import simulate

GROUP = 8
SIZES = ((16, 40), (64, 160), (256, 640), (1000, 2504))
"""Machines, and jobs a step."""
STEPS, RUNS = 3, 3
A40 = Candidate(gpu="NVIDIA A40", gpu_memory_gib=48)


def fixed(value: float, unit: str = "s") -> Guess:
    return Guess.of(value, unit, "this benchmark")


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


def one_size(machines: int, jobs: int) -> dict[str, float]:
    """Of this very process, which should have done nothing before but to load the program, with a run of one step."""
    simulate(*rented(1, 1, steps=1))
    asked, told = rented(machines, jobs // GROUP, steps=STEPS)
    choosing_s = choosing()
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
        "choosing_ms_a_job": 1000 * sum(choosing_s) / found.jobs,
        "peak_mb": peak_mb,
        "kb_a_job": 1000 * (peak_mb - before_mb) / found.jobs,
    }


def choosing() -> list[float]:
    """CPU-seconds of every time that the pool, because something changed, hands out pods and asks for more; from now on."""
    taken: list[float] = []
    changed = PodPool._changed  # noqa: SLF001  measured where it is done

    def timed(pool: PodPool) -> None:
        start_s = time.process_time()
        changed(pool)
        taken.append(time.process_time() - start_s)

    PodPool._changed = timed  # type: ignore[method-assign]  # noqa: SLF001
    return taken


def scale(_seeds: int, _steps: int) -> dict[str, Any]:
    """Each run of each size in a process of its own, for its memory; the sizes take turns. The same seed, so the same jobs."""
    runs: dict[int, list[dict[str, float]]] = {machines: [] for machines, _ in SIZES}
    for _ in range(RUNS):
        for machines, jobs in SIZES:
            command = [sys.executable, __file__, str(machines), str(jobs)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            runs[machines].append(json.loads(done.stdout))
    rows = [{key: record.median([run[key] for run in of]) for key in of[0]} for of in runs.values()]
    first, last = runs[SIZES[0][0]], runs[SIZES[-1][0]]
    most_by_least = {
        key: record.ratio([run[key] for run in last], [run[key] for run in first])
        for key in ("cpu_ms_a_job", "kb_a_job")
    }
    record.show(
        f"The controller: loop, workers, queue in memory and pool, with the simulated provider's own share; {STEPS} steps, "
        f"medians of {RUNS} runs",
        ("machines", "jobs a step", "CPU ms a job", "of it choosing pods", "KB a job", "cores", "peak MB"),
        [
            (
                f"{r['machines']:.0f}",
                f"{r['jobs_a_step']:.0f}",
                f"{r['cpu_ms_a_job']:.2f}",
                f"{r['choosing_ms_a_job']:.2f}",
                f"{r['kb_a_job']:.1f}",
                f"{r['cores']:.5f}",
                f"{r['peak_mb']:.0f}",
            )
            for r in rows
        ],
    )
    return {"steps": STEPS, "runs": RUNS, "rows": rows, "most_by_least": most_by_least}


def _peak_mb() -> float:
    """Of this program alone: what getrusage tells begins with its parent's."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


if __name__ == "__main__":
    print(json.dumps(one_size(int(sys.argv[1]), int(sys.argv[2]))))
