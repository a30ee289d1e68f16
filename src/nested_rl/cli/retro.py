"""`retro`: the retrospective of a run, from its records."""
# ruff: noqa: T201  printing is what a command is for

from __future__ import annotations

from pathlib import Path


def retro(run: Path, /, *, out: Path | None = None) -> None:
    """Write RUN/retrospective.md: what was asked, what happened, what it cost, what went wrong, what to try next.

    Every sentence comes from the run's records. Works while the run is still going.

    Args:
        run: Run directory.
        out: Another file; episodes are then named, not linked.
    """
    from nested_rl.retro import write_retro
    from nested_rl.rundir import RunDir

    print(write_retro(RunDir.open(run), out))
