"""A run as a script sees it: its curves, its episodes, its report."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from nested_rl.errors import MissingExtra
from nested_rl.interfaces import RewardFn
from nested_rl.rundir import RunDir
from nested_rl.types import Episode

if TYPE_CHECKING:
    import pandas as pd

    from nested_rl.replay import ReplayReport
    from nested_rl.report.compare import Comparison


class Run:
    """A run directory, to read. `print(run)` says in a paragraph what happened.

    >>> run = Run("runs/pilot")                                    # doctest: +SKIP
    >>> [row["reward/mean"] for row in run.metrics]                # doctest: +SKIP
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._dir = RunDir.open(self.path)

    @property
    def metrics(self) -> list[dict[str, float]]:
        """One row a step; the keys are listed in docs/run-directory.md."""
        return self._dir.metrics()

    @property
    def episodes(self) -> Iterator[Episode]:
        """Every finished episode, by group and member, read one by one."""
        return self._dir.episodes()

    @property
    def finished(self) -> bool:
        """Whether every step that was asked for is done."""
        return self._dir.finished

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the families that it was trained on."""
        return tuple(self._dir.spec.get("tasks", ()))

    @property
    def report(self) -> Path:
        """The report page, written now if it is not there."""
        from nested_rl.report.page import write_report

        path = self.path / "report.html"
        return path if path.exists() else write_report(self._dir)

    def to_pandas(self) -> pd.DataFrame:
        """One row an episode, with flat columns (docs/guides/data.md names each). Raises MissingExtra without pandas."""
        from nested_rl.export import rows

        try:
            import pandas as pd
        except ImportError as error:
            raise MissingExtra("Run.to_pandas", "pandas") from error
        return pd.DataFrame(list(rows(self._dir)))

    def replay(self, reward: RewardFn) -> ReplayReport:
        """What another reward would have paid for the recorded outcomes, beside what was paid; nothing is run.

        Raises RewardError when `reward` raises or gives anything but finite numbers.
        """
        from nested_rl.replay import replay

        return replay(self._dir, reward)

    def compare(self, other: Run) -> Comparison:
        """This run against `other`: differences with intervals, settings, cost; `.write()` makes a page of it.

        Raises SettingsError where one of them has no step yet.
        """
        from nested_rl.report.compare import compare

        return compare(other._dir, self._dir)

    def __str__(self) -> str:
        from nested_rl.report.page import summary

        return summary(self._dir)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, steps={len(self.metrics)})"
