"""What got faster or slower: results as they were before against those in benchmarks/results/ now.

    python benchmarks/moved.py BEFORE [--by 0.1]

BEFORE is a folder with the earlier files. Seconds are compared as multiples of the calibration loop that ran between them,
so that another machine, or a busy one, does not count as a change of the code; ratios are compared as they are. Prints what
moved by more than `--by`; how much of that is chance, a second run tells. It never fails: a speed is no test.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import record

Results = Mapping[str, Any]


def measures(found: Results) -> dict[str, float]:
    """Everything in a result file that can be compared."""
    if "calibration_s" not in found:
        return {}
    relative = {
        f"{name} [calibrations]": seconds / found["calibration_s"] for name, seconds in found["seconds"].items()
    }
    return relative | dict(found["ratios"])


def moved(before: Results, after: Results, *, by: float) -> Iterator[tuple[str, float, float]]:
    """Name, before and after of what differs by more than `by` of its size before."""
    old, new = measures(before), measures(after)
    for name in old.keys() & new.keys():
        if abs(new[name] - old[name]) > by * abs(old[name]):
            yield name, old[name], new[name]


def main() -> None:
    """Compare all files that both folders have."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("--by", type=float, default=0.1)
    asked = parser.parse_args()
    rows, compared = [], 0
    for path in sorted(record.RESULTS.glob("*.json")):
        earlier = asked.before / path.name
        if not earlier.exists():
            continue
        before, after = (json.loads(file.read_text(encoding="utf-8")) for file in (earlier, path))
        compared += len(measures(before).keys() & measures(after).keys())
        for name, was, now in sorted(moved(before, after, by=asked.by)):
            rows.append((f"{path.stem}: {name}", f"{was:.3g}", f"{now:.3g}", f"{now / was - 1:+.0%}"))
    if rows:
        record.show(f"Moved by more than {asked.by:.0%}", ("what", "before", "now", "change"), rows)
    elif not compared:
        sys.exit(f"{asked.before} has no results that could be compared")
    else:
        print(f"Nothing of {compared} measures moved by more than {asked.by:.0%}.")


if __name__ == "__main__":
    main()
