"""The local pilot on several seeds: what `make pilot` promises, measured. Prints a table, writes benchmarks/results/.

    python benchmarks/pilot_seeds.py [--seeds 5] [--staleness 1] [--jobs-dir /tmp/pilot-seeds]

A pilot is 25 steps × 4 groups × 8 episodes on calc_chain, string_pipeline and dispatch, with validation every 5 versions.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import tempfile
import time
from pathlib import Path

import nested_rl as nrl
from nested_rl.loop import best_version
from nested_rl.rundir import RunDir

RESULTS = Path(__file__).parent / "results" / "pilot_seeds.json"


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def one(seed: int, staleness: int, out: Path) -> dict[str, float]:
    """One pilot from scratch."""
    start_s = time.monotonic()
    run = nrl.Experiment().run(steps=25, seed=seed, max_steps_off_policy=staleness, eval_every=5, out=out, quiet=True)
    rows = run.metrics
    return {
        "seed": seed,
        "staleness": staleness,
        "reward_first": rows[0]["reward/mean"],
        "reward_last3": mean([r["reward/mean"] for r in rows[-3:]]),
        "first_try_start": mean([r["validation/first_try"] for r in rows[:3]]),
        "first_try_end": mean([r["validation/first_try"] for r in rows[-3:]]),
        "quality_start": mean([r["reward/quality"] for r in rows[:3]]),
        "quality_end": mean([r["reward/quality"] for r in rows[-3:]]),
        "asked_start": mean([r["tools/baselines"] for r in rows[:3]]),
        "asked_end": mean([r["tools/baselines"] for r in rows[-3:]]),
        "strongest_start": mean([r["base/share_strongest"] for r in rows[:3]]),
        "strongest_end": mean([r["base/share_strongest"] for r in rows[-3:]]),
        "best_version": best_version(RunDir.open(run.path)),
        "jobs_run": sum(r["jobs/run"] for r in rows),
        "jobs_reused": sum(r["jobs/reused"] for r in rows),
        "wall_s": time.monotonic() - start_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--staleness", type=int, nargs="*", default=[1])
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    folder = asked.out or Path(tempfile.mkdtemp(prefix="pilot-seeds-"))
    rows = []
    print("K  seed  reward 1  last 3   valid 1st   quality     asked       strongest   best  jobs (reused)  wall")
    for staleness in asked.staleness:
        for seed in range(asked.seeds):
            row = one(seed, staleness, folder / f"k{staleness}-s{seed}")
            rows.append(row)
            print(
                f"{staleness}  {seed:>4}  {row['reward_first']:>8.3f}  {row['reward_last3']:.3f}"
                f"   {row['first_try_start']:.2f}→{row['first_try_end']:.2f}"
                f"   {row['quality_start']:.2f}→{row['quality_end']:.2f}"
                f"   {row['asked_start']:.2f}→{row['asked_end']:.2f}"
                f"   {row['strongest_start']:.2f}→{row['strongest_end']:.2f}"
                f"   {row['best_version']:>4}  {row['jobs_run']:.0f} ({row['jobs_reused']:.0f})  {row['wall_s']:>8.0f} s",
                flush=True,
            )
        last = [r["reward_last3"] for r in rows if r["staleness"] == staleness]
        print(f"K = {staleness}: last three steps, mean over seeds {mean(last):.3f}, lowest {min(last):.3f}")
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    RESULTS.parent.mkdir(exist_ok=True)
    told = {"date": dt.date.today().isoformat(), "machine": machine, "rows": rows}  # noqa: DTZ011
    RESULTS.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
