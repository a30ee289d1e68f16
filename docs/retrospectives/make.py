"""Runs the pilots of this folder, where they are not there yet, and writes their retrospectives and the index.

python docs/retrospectives/make.py --runs runs
"""

import argparse
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from nested_rl import Run
from nested_rl.report import digest
from nested_rl.retro import write_retro
from nested_rl.rundir import RunDir

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PILOTS = {
    "pilot": "the pilot as it is",
    "on-policy": "nothing off-policy: K = 0",
    "uplift-only": "paid for the uplift and nothing else",
    "large-updates": "updates far too large; it fails",
}
TEXT = """# Retrospectives

What `nested-rl retro` wrote of pilots that were run on one computer, failures included. Each is one run with one seed: read them for what a
run looks like and what its records tell, not for what a setting is worth (the scripts in `benchmarks/` run several seeds).

{table}

Run on {machine}, each with the version of the package that the table names, while other programs used the same cores: the times are longer
than those of a computer at rest. `python docs/retrospectives/make.py` runs what is missing in `runs/` and writes these pages again.

Each against the pilot, by `nested-rl report runs/pilot runs/NAME`:

{compared}
"""


def command(name: str) -> list[str]:
    """What a reader types to get the same run."""
    return ["nested-rl", "pilot"] if name == "pilot" else ["nested-rl", "run", f"docs/retrospectives/{name}.toml"]


def row(name: str, run: RunDir) -> str:
    """One line of the table, from the run's records."""
    found = digest.read(run)
    held = [f"{pair.other_reward:.2f} → {pair.reward:.2f}" for pair in found.held_out]
    cells = (
        f"[{name}]({name}.md)",
        PILOTS[name],
        f"`{' '.join(command(name))}`",
        datetime.fromtimestamp(found.started_at or 0.0, UTC).strftime("%Y-%m-%d"),
        str(found.spec["nested_rl"]),
        f"{found.start().value:.2f} → {found.end().value:.2f}",
        " ".join(held) or "the untrained version stayed the best",
    )
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Everything, in the order of the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs")
    runs = parser.parse_args().runs
    rows = [
        "| run | what | command | begun | version | reward | triage |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    compared = []
    for name in PILOTS:
        place = runs / name
        if not (place / "run.toml").is_file() or not RunDir.open(place).finished:
            program = [sys.executable, "-m", "nested_rl", *command(name)[1:], "--out", str(place)]
            subprocess.run(program, cwd=ROOT, check=True)
        write_retro(RunDir.open(place), HERE / f"{name}.md")
        rows.append(row(name, RunDir.open(place)))
        if name != "pilot":
            compared.append(f"* {Run(place).compare(Run(runs / 'pilot'))}")
    cores = len(os.sched_getaffinity(0))
    machine = f"{platform.machine()}, {cores} cores, Python {platform.python_version()}"
    (HERE / "index.md").write_text(
        TEXT.format(table="\n".join(rows), machine=machine, compared="\n".join(compared)), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
