"""Coverage, branches included, of the parts that must not lose anything or let anybody in; fails when one is below the least. `make coverage`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

LEAST = 90.0
GROUPS = ("meter", "rundir", "queues", "jobs", "compute")
FLEET = ("compute/ssh", "compute/host.py")
"""Tested by `make test-fleet`, with a real sshd; left out where there is none."""


def measured() -> dict[str, dict[str, int]]:
    """Counts by file below src/nested_rl, of the combined data."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "coverage.json"
        subprocess.run([sys.executable, "-m", "coverage", "json", "--quiet", "-o", out], check=True)
        files = json.loads(out.read_text())["files"]
    found = {name.partition("nested_rl/")[2]: file["summary"] for name, file in files.items()}
    if shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin") is None:
        print(f"no sshd here: without {', '.join(FLEET)}")
        return {name: summary for name, summary in found.items() if not name.startswith(FLEET)}
    return found


def share(summaries: list[dict[str, int]]) -> float:
    """Lines and branches that were taken, of all, in per cent."""
    taken = sum(s["covered_lines"] + s["covered_branches"] for s in summaries)
    there = sum(s["num_statements"] + s["num_branches"] for s in summaries)
    return 100 * taken / there if there else 100.0


def main() -> int:
    files = measured()
    low = []
    for group in GROUPS:
        of_group = {name: s for name, s in files.items() if name == f"{group}.py" or name.startswith(f"{group}/")}
        found = share(list(of_group.values())) if of_group else 0.0
        lines, branches = (sum(s[key] for s in of_group.values()) for key in ("num_statements", "num_branches"))
        taken = sum(s["covered_branches"] for s in of_group.values())
        alone = 100 * taken / branches if branches else 100.0
        print(
            f"{group:<8} {found:5.1f} %   of {lines} lines and {branches} branches; of the branches alone {alone:.1f} %"
        )
        for name, summary in sorted(of_group.items(), key=lambda pair: share([pair[1]])):
            if len(of_group) > 1 and share([summary]) < LEAST:
                print(f"  {name:<30} {share([summary]):5.1f} %")
        low += [group] if found < LEAST else []
    if low:
        print(f"below {LEAST:g} %: {', '.join(low)}; `coverage report -m` names the lines", file=sys.stderr)
    return len(low)


if __name__ == "__main__":
    sys.exit(main())
