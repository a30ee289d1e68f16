"""`report`: the page of a run, finished or not, and of two runs side by side."""
# ruff: noqa: T201  printing is what a command is for

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from nested_rl.errors import RunDirError, SettingsError


def report(
    run: Path,
    other: Path | None = None,
    /,
    *,
    transcripts: tuple[str, ...] = (),
    out: Path | None = None,
    open_it: Annotated[bool, Parameter(name="--open")] = False,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
) -> None:
    """Write RUN/report.html and print what happened in a paragraph; with OTHER, compare two runs on one page.

    Works while a run is still going.

    Args:
        run: Run directory.
        other: A second one, to compare with the first: RUN/comparison-OTHER.html.
        transcripts: Write pages of these episodes too, into RUN/transcripts: GROUP, GROUP-MEMBER or all. May be given several times.
        out: Where the page goes instead. Then nothing is written into the run, except for --transcripts.
        open_it: Show the page in a browser.
        as_json: Print the differences of two runs as JSON.
    """
    import webbrowser

    path = (
        _one(run, transcripts, out, as_json=as_json) if other is None else _two(run, other, transcripts, out, as_json)
    )
    if open_it:
        webbrowser.open(path.resolve().as_uri())


def _one(run: Path, asked: tuple[str, ...], out: Path | None, *, as_json: bool) -> Path:
    from nested_rl.report import digest
    from nested_rl.report.page import said, write_digest, write_elsewhere
    from nested_rl.report.transcripts import select, write_transcripts
    from nested_rl.rundir import RunDir

    if as_json:
        raise SettingsError("--json is for two runs: nested-rl report RUN OTHER")
    directory = RunDir.open(run)
    found = digest.read(directory)
    try:
        pages = write_transcripts(directory, select(directory, asked)) if asked else []
        path = write_digest(directory, found) if out is None else write_elsewhere(directory, found, out)
    except RunDirError as error:
        print(said(found, None), flush=True)  # what it says is no less true where the page cannot be written
        if out is not None:
            raise
        raise RunDirError(f"{error}; --out FILE puts the page elsewhere, and writes nothing into the run") from error
    print(said(found, path))
    if pages:
        print(f"Transcripts: {len(pages)}, the first {pages[0]}")
    return path


def _two(run: Path, other: Path, asked: tuple[str, ...], out: Path | None, as_json: bool) -> Path:  # noqa: FBT001
    from nested_rl.report.compare import compare, of_json
    from nested_rl.rundir import RunDir

    if asked:
        raise SettingsError("--transcripts is for one run: nested-rl report RUN --transcripts GROUP-MEMBER")
    found = compare(RunDir.open(run), RunDir.open(other))
    path = found.write(out)
    print(of_json(found) if as_json else f"{found} Page: {path}")
    return path
