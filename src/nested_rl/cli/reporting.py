"""`report`: the page of a run, finished or not."""
# ruff: noqa: T201  printing is what a command is for

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def report(run: Path, /, *, open_it: Annotated[bool, Parameter(name="--open")] = False) -> None:
    """Write RUN/report.html and print what happened in a paragraph.

    Works while the run is still going.

    Args:
        run: Run directory.
        open_it: Show the page in a browser.
    """
    import webbrowser

    from nested_rl.report.page import summary, write_report
    from nested_rl.rundir import RunDir

    directory = RunDir.open(run)
    path = write_report(directory)
    print(summary(directory))
    if open_it:
        webbrowser.open(path.resolve().as_uri())
