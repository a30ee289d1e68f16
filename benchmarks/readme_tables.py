"""Put the measured figures into README.md and docs/: each marked section is written from a file in benchmarks/results/.

    python benchmarks/readme_tables.py [--check]

A section is what stands between `<!-- NAME -->` and `<!-- /NAME -->`. Without its results file it is left empty: no figure
is ever typed by hand. `--check` changes nothing and exits with 1 when a section is not what the results say.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"

Results = Mapping[str, Any]

SHOWN_STEPS = 3
"""So many of the first and of the last steps of the pilot are shown."""


def base_table(found: Results) -> str:
    """What the bases score, untrained and after the reference job."""
    by_family: dict[str, dict[str, Results]] = {}
    for row in found["rows"]:
        by_family.setdefault(row["family"], {})[row["base"]] = row
    lines = []
    for family, bases in by_family.items():
        best = max(bases, key=lambda base: bases[base]["untrained"])
        cells = [family]
        for name in ("nano-m", "nano-s"):
            untrained, trained = bases[name]["untrained"], statistics.fmean(bases[name]["trained"])
            text = f"{untrained:.3f} → {trained:.3f}"
            cells.append(f"**{text}**" if name == best else text)
        lines.append(cells)
    settings = found["settings"]
    seeds = len(found["rows"][0]["trained"])
    cpu_s = [row["cpu_s_per_job"] for row in found["rows"]]
    job = (
        f"{settings['steps']} steps of {settings['prompts']} prompts × {settings['group']} samples, learning rate "
        f"{settings['learning_rate']:g}, exact-answer reward"
    )
    return (
        f"Hidden accuracy untrained → after the reference job ({job}; mean of {seeds} seeds). Bold: the base that is "
        f"stronger untrained. A job takes {min(cpu_s):.1f} to {max(cpu_s):.1f} CPU-seconds. {_measured('base_table', found)}\n\n"
        + _table(("family", "`nano-m`", "`nano-s`"), lines)
    )


def pilot_seeds(found: Results) -> str:
    """The pilot, one row a staleness bound."""
    by_staleness: dict[int, list[Results]] = {}
    for row in found["rows"]:
        by_staleness.setdefault(row["staleness"], []).append(row)
    lines = []
    for staleness, rows in sorted(by_staleness.items()):
        last = [row["reward_last3"] for row in rows]
        lines.append(
            [
                str(staleness),
                str(len(rows)),
                f"{_mean(rows, 'reward_first'):.2f}",
                f"{statistics.fmean(last):.2f} ({min(last):.2f} to {max(last):.2f})",
                *(
                    f"{_mean(rows, f'{name}_start'):.2f} → {_mean(rows, f'{name}_end'):.2f}"
                    for name in ("first_try", "quality", "asked", "strongest")
                ),
            ]
        )
    headings = (
        "steps off-policy",
        "seeds",
        "reward, step 1",
        "reward, last 3 steps (lowest to highest seed)",
        "valid at first try",
        "quality",
        "asks for baselines",
        "strongest base",
    )
    return (
        "The pilot on several seeds, means over seeds; the arrows go from the first three steps to the last three. "
        f"{_measured('pilot_seeds', found)}\n\n" + _table(headings, lines)
    )


def pilot_each(found: Results) -> str:
    """The pilot, one row a run."""
    lines = [
        [
            str(row["staleness"]),
            str(row["seed"]),
            f"{row['reward_first']:.3f}",
            f"{row['reward_last3']:.3f}",
            f"{row['first_try_end']:.2f}",
            f"{row['quality_end']:.2f}",
            f"{row['jobs_run']:.0f} ({row['jobs_reused']:.0f})",
        ]
        for row in found["rows"]
    ]
    headings = (
        "steps off-policy", "seed", "reward, step 1", "reward, last 3", "valid at first try", "quality", "jobs run (reused)",
    )  # fmt: skip
    return f"Every run of the pilot. {_measured('pilot_seeds', found)}\n\n" + _table(headings, lines)


def triage_transfer(found: Results) -> str:
    """What carries over to the held-out family."""
    lines = [
        [
            row["run"],
            str(row["n"]),
            *(
                f"{row['untrained'][name]:.2f} → {row['trained'][name]:.2f}"
                for name in ("reward", "valid", "quality_given_valid", "own_family_given_valid")
            ),
            str(row["difference"]).partition(" (n=")[0].removeprefix("reward "),
        ]
        for row in found["rows"]
    ]
    headings = (
        "run", "pairs", "reward", "valid", "quality given valid", "uses triage data given valid", "difference in reward [95 %]",
    )  # fmt: skip
    return (
        "The held-out family triage, untrained agent → best version of the run, on the same tasks and seeds. "
        f"{_measured('triage_transfer', found)}\n\n" + _table(headings, lines)
    )


def pilot_output(found: Results) -> str:
    """What the pilot printed, its middle left out."""
    if "pilot" not in found:
        return ""
    lines = list(found["pilot"]["lines"])
    steps = [i for i, line in enumerate(lines) if line.startswith("step")]
    left_out = steps[SHOWN_STEPS:-SHOWN_STEPS]
    if left_out:
        lines[left_out[0] : left_out[-1] + 1] = [f"[{len(left_out)} more steps, and validations]"]
    return _said(lines, found["pilot"])


def test_output(found: Results) -> str:
    """The last line of the tests."""
    return _said(found["test"]["lines"][-1:], found["test"]) if "test" in found else ""


SECTIONS: Mapping[str, tuple[str, Callable[[Results], str]]] = {
    "base_table": ("base_table", base_table),
    "pilot_seeds": ("pilot_seeds", pilot_seeds),
    "pilot_each": ("pilot_seeds", pilot_each),
    "triage_transfer": ("triage_transfer", triage_transfer),
    "pilot_output": ("first_commands", pilot_output),
    "test_output": ("first_commands", test_output),
}
"""Name of a section → its results file and how it is told."""


def filled(text: str, results: Path = RESULTS) -> str:
    """`text` with every marked section written anew."""
    for name, (source, tell) in SECTIONS.items():
        path = results / f"{source}.json"
        body = tell(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else ""
        inside = f"<!-- {name} -->\n{body}\n<!-- /{name} -->" if body else f"<!-- {name} -->\n<!-- /{name} -->"
        text = re.sub(rf"<!-- {name} -->.*?<!-- /{name} -->", lambda _, new=inside: new, text, flags=re.DOTALL)
    return text


def pages() -> Sequence[Path]:
    """The files that may have sections."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def _measured(name: str, found: Results) -> str:
    return f"Measured {found['date']} on {found['machine']} by `benchmarks/{name}.py`."


def _said(lines: Sequence[str], found: Results) -> str:
    minutes, seconds = divmod(int(found["wall_s"]), 60)
    where = f"{found['date']} on {found['machine']}"
    took = f"Printed {where}, in {minutes} min {seconds} s, recorded by `benchmarks/first_commands.py`:"
    return "\n".join([took, "", "```text", *lines, "```"])


def _mean(rows: Sequence[Results], name: str) -> float:
    return statistics.fmean(row[name] for row in rows)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> int:
    """Rewrite, or check."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    stale = 0
    for path in pages():
        text = path.read_text(encoding="utf-8")
        if (new := filled(text)) != text:
            stale += 1
            print(f"{path.relative_to(ROOT)}: {'is not what the results say' if asked.check else 'rewritten'}")
            if not asked.check:
                path.write_text(new, encoding="utf-8")
    return int(asked.check and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
