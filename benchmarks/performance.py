"""Write docs/performance.md from the results in benchmarks/results/.

    python benchmarks/performance.py [--check]

Tables and verdicts come from the files; what limits a thing next is told in `pages/`. `--check` changes nothing and
exits with 1 when the page is not what the results say.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from pages import SECTIONS
from pages.section import Section

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
RESULTS = Path(__file__).parent / "results"

HEAD = """\
# Performance

What this package costs in time, measured. Every figure is written here by `benchmarks/performance.py` from a file that one of the
scripts beside it has made; `make bench` runs them all, says what moved by more than 10 %, and writes this page anew. Things that
are compared took turns in one run, so a busy moment hits all of them; a ratio is the median over the rounds. No test asserts a speed.
"""


def told(section: Section, results: Path = RESULTS) -> str:
    """One section, or nothing when it was not measured."""
    path = results / f"{section.source}.json"
    if not path.exists():
        return ""
    found = json.loads(path.read_text(encoding="utf-8"))
    versions = ", ".join(f"{name} {number}" for name, number in found.get("versions", {}).items())
    where = f"Measured {found['date']} on {found['machine']}{', ' + versions if versions else ''}: `{section.command}`."
    limit = section.limit if isinstance(section.limit, str) else section.limit(found)
    parts = [f"## {section.title}", section.what, *section.tables(found), section.verdict(found), limit, where]
    return "\n\n".join(part for part in parts if part)


def page(results: Path = RESULTS) -> str:
    """The whole page."""
    return "\n\n".join([HEAD.rstrip("\n"), *(text for section in SECTIONS if (text := told(section, results)))]) + "\n"


def main() -> int:
    """Write, or check."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    text = page()
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    print(f"{PAGE.name}: {'is not what the results say' if asked.check else 'rewritten'}")
    if not asked.check:
        PAGE.write_text(text, encoding="utf-8")
    return int(asked.check)


if __name__ == "__main__":
    sys.exit(main())
