"""What the first two commands of README.md print: runs them, and writes their output to benchmarks/results/.

    python benchmarks/first_commands.py [--only pilot|test]

The pilot is run in a temporary folder, so that no run of yours is touched; both are what the Makefile runs.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "first_commands.json"


def made_by(goal: str) -> str:
    """The last command that the Makefile has for a goal."""
    planned = subprocess.run(["make", "-n", goal], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return planned.strip().splitlines()[-1].replace(".venv/", f"{ROOT}/.venv/")


def output(command: str, folder: str | Path) -> dict[str, object]:
    """Run it; what it said on its standard output, shown meanwhile, and how long it took."""
    start_s, lines = time.monotonic(), []
    with subprocess.Popen(command, shell=True, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line.rstrip())
    if process.returncode:
        sys.exit(f"{command} ended with {process.returncode}")
    return {"lines": lines, "wall_s": round(time.monotonic() - start_s)}


def main() -> None:
    """Run and record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", choices=("pilot", "test"))
    asked = parser.parse_args()
    told = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    for goal in ("pilot", "test"):
        if asked.only in (None, goal):
            with tempfile.TemporaryDirectory() as folder:
                found = output(made_by(goal), folder if goal == "pilot" else ROOT)
            told[goal] = {"date": dt.date.today().isoformat(), "machine": machine, **found}  # noqa: DTZ011
    RESULTS.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
