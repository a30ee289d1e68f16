"""Does what the pilot learnt carry over to the held-out family? Trained minus untrained on triage, paired.

    python benchmarks/triage_transfer.py [RUN ...] [-n 256]        (default: runs/pilot)

Splits the difference into validity and quality given valid, and shows the share of valid jobs that use the triage data.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
from pathlib import Path

import nested_rl as nrl

RESULTS = Path(__file__).parent / "results" / "triage_transfer.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("runs", nargs="*", default=["runs/pilot"])
    parser.add_argument("-n", type=int, default=256)
    asked = parser.parse_args()
    exp, triage, rows = nrl.Experiment(), nrl.tasks.load("triage"), []
    for run in asked.runs:
        untrained = exp.evaluate(triage, policy=f"{run}@initial", n=asked.n)
        trained = exp.evaluate(triage, policy=f"{run}@best", n=asked.n)
        difference = trained.compare(untrained)
        print(untrained, trained, f"difference: {difference}", sep="\n", flush=True)
        sides = {"untrained": untrained, "trained": trained}
        rows.append(
            {"run": Path(run).name, "version": trained.version, "n": difference.n}
            | {
                name: {
                    "reward": side.reward,
                    "valid": side.valid,
                    "quality_given_valid": side.given_valid("quality"),
                    "own_family_given_valid": side.given_valid("own_family"),
                }
                for name, side in sides.items()
            }
            | {"difference": str(difference)}
        )
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    told = {"date": dt.date.today().isoformat(), "machine": machine, "rows": rows}  # noqa: DTZ011
    RESULTS.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
