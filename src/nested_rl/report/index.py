"""`transcripts/index.html`: every episode of a run in a line, with a link where it can be read. Light, whatever the length of the run."""

from __future__ import annotations

from pathlib import Path

from attrs import frozen

from nested_rl.report import transcripts
from nested_rl.report.digest import Digest
from nested_rl.report.markup import templates
from nested_rl.rundir import RunDir, write_atomic

PLACE = Path(transcripts.FOLDER) / "index.html"
"""Within the run directory."""


@frozen(kw_only=True)
class Line:
    """One episode. `page` is empty while it has none; `reward` is None when it is masked."""

    name: str
    page: str
    version: int
    family: str
    reward: float | None
    valid: bool


@frozen(kw_only=True)
class Count:
    """How many episodes there are, how many of them have a page, and whether the index itself is written."""

    episodes: int
    pages: int
    there: bool


def write_index(run: RunDir, digest: Digest) -> Path:
    """Write it, and return its path. Episodes whose pages are written later are linked when it is written again."""
    path = run.path / PLACE
    write_atomic(path, render(run, digest).encode("utf-8", "replace"))
    return path


def render(run: RunDir, digest: Digest) -> str:
    """The page as text."""
    written = _written(run)
    lines = []
    for entry in sorted(digest.index, key=lambda e: (e.group, e.member)):
        name = transcripts.name((entry.group, entry.member))
        lines.append(
            Line(
                name=name,
                page=f"{name}.html" if name in written else "",
                version=entry.version,
                family=entry.family,
                reward=entry.reward,
                valid=entry.valid,
            )
        )
    page = templates().get_template("index.html.j2")
    evaluations = sorted(path.parent.name for path in (run.path / "evals").glob("*/report.json"))
    return page.render(d=digest, lines=lines, count=count(run, digest), evaluations=evaluations)


def count(run: RunDir, digest: Digest) -> Count:
    """What the report says of it."""
    names = {transcripts.name((entry.group, entry.member)) for entry in digest.index}
    return Count(episodes=len(names), pages=len(names & _written(run)), there=(run.path / PLACE).is_file())


def _written(run: RunDir) -> set[str]:
    return {path.stem for path in (run.path / transcripts.FOLDER).glob("*-*.html")}
