"""`replay`: another reward over the recorded outcomes of a run."""
# ruff: noqa: T201  printing is what a command is for

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from nested_rl.errors import SettingsError

if TYPE_CHECKING:
    from rich.table import Table

    from nested_rl.interfaces import RewardFn
    from nested_rl.replay import Change, GroupChange, ReplayReport


def replay(
    run: Path,
    /,
    *,
    reward: str | None = None,
    show: int = 5,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
) -> None:
    """Pay a run's episodes with another reward function, without running anything.

    Tells how alike the two rewards rank the episodes, in which groups the agent would learn the opposite, and which
    episodes gain and lose most.

    Args:
        run: Run directory.
        reward: FILE.py:NAME or MODULE:NAME, a function or a class; without it the default reward.
        show: How many groups and episodes to list.
        as_json: Print JSON, with every episode and group.
    """
    from nested_rl.replay import replay as again
    from nested_rl.rundir import RunDir

    if show < 0:
        raise SettingsError(f"--show must be 0 or more, not {show}")
    report = again(RunDir.open(run), _reward(reward))
    if as_json:
        print(json.dumps(report.to_json(), allow_nan=False))
    else:
        _tell(report, show)


def _reward(where: str | None) -> RewardFn:
    """The function; of a class, one with its default settings."""
    from nested_rl import parts
    from nested_rl.rewards import UpliftReward

    if where is None:
        return UpliftReward()
    found = parts.function(where, beside=Path())
    return _made(found, where) if inspect.isclass(found) else found


def _made(kind: Any, where: str) -> RewardFn:
    try:
        made: RewardFn = kind()
    except TypeError as error:
        raise SettingsError(f"{where} is a class that cannot be made without arguments: {error}") from error
    if not callable(made):
        raise SettingsError(f"{where} makes values that cannot be called; give it __call__(self, outcome)")
    return made


NARROW = 56
"""Below so many columns what is not a number of theirs is left out: it would push them off the terminal."""


def _tell(report: ReplayReport, show: int) -> None:
    from rich.console import Console

    console = Console()
    print(report)
    if not report.changes:
        return
    narrow = console.width < NARROW
    tables = [_families(report, narrow=narrow)]
    for title, changes in (("gain most", report.gainers(show)), ("lose most", report.losers(show))):
        if changes:
            tables.append(_changes(f"Episodes that {title}, by advantage", changes, narrow=narrow))
    if flipped := report.flipped[:show]:
        title = f"Groups that flip ({len(report.flipped)} of {len(report.groups)})"
        tables.append(_groups(title, flipped, narrow=narrow))
    for table in tables:
        print()
        console.print(table)
    print()
    was = sum(g.was_flat for g in report.groups)
    now = sum(g.is_flat for g in report.groups)
    print(f"Groups without signal: {was} → {now} of {len(report.groups)}. Masked episodes left out: {report.masked}.")
    if report.unfinished:
        print(f"Episodes of groups that are not whole yet, left out: {report.unfinished}.")


def _table(title: str, *columns: str) -> Table:
    from rich.table import Table

    table = Table(title=title, box=None, title_justify="left", title_style="bold", header_style="dim", pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in ("family", "episode") else "right", no_wrap=True)
    return table


def _from_to(was: float | None, now: float | None) -> str:
    from nested_rl.report.phrases import number

    return f"{number(was)} → {number(now):>5}"


def _families(report: ReplayReport, *, narrow: bool) -> Table:
    from nested_rl.report.phrases import number

    table = _table("By family", "family", *([] if narrow else ["episodes"]), "reward", "rank")
    for f in report.families:
        episodes = [] if narrow else [f"{f.episodes:,}"]
        table.add_row(f.family, *episodes, _from_to(f.was, f.now), number(f.rank_correlation))
    return table


def _changes(title: str, changes: Sequence[Change], *, narrow: bool) -> Table:
    table = _table(title, "episode", *([] if narrow else ["family"]), "reward", "advantage")
    for c in changes:
        numbers = (_from_to(c.was, c.now), _from_to(c.advantage_was, c.advantage_now))
        table.add_row(f"{c.group:05d}-{c.member}", *([] if narrow else [c.family]), *numbers)
    return table


def _groups(title: str, groups: Sequence[GroupChange], *, narrow: bool) -> Table:
    from nested_rl.report.phrases import number

    table = _table(title, "group", *([] if narrow else ["family"]), "signs", "pairs", "rank")
    for g in groups:
        flips, pairs = f"{g.flips} of {g.members}", f"{g.reversed} of {g.pairs}"
        table.add_row(f"{g.group:05d}", *([] if narrow else [g.family]), flips, pairs, number(g.rank_correlation))
    return table
