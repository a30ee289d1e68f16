"""A run directory that is only on paper: what a simulated run writes is kept in memory, or nowhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from nested_rl.rundir import Baselines, Log, RunDir
from nested_rl.types import JSON, Episode, Score


class PaperLog(Log):
    """Rows in a list."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._rows: list[dict[str, JSON]] = []

    def append(self, row: Mapping[str, JSON], *, sync: bool = False) -> None:  # noqa: ARG002  the seam's signature
        self._rows.append(dict(row))

    def rows(self) -> Iterator[dict[str, JSON]]:
        return iter(self._rows)


class PaperRun(RunDir):
    """`path` is any folder that exists: its disk is asked for room, and nothing is written there. Episodes are counted, not kept."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.journal, self.costs_log, self.metrics_log = (PaperLog(path / name) for name in ("j", "c", "m"))
        self.episodes_written = 0
        self.job_s: dict[int, dict[str, float]] = defaultdict(dict)
        """Seconds of the jobs of each group that was trained or dropped, by their keys: two episodes may have handed in the same."""
        self._evals: dict[str, dict[str, JSON]] = {}

    @property
    def salt(self) -> str:
        return "plan"

    def rewrite_metrics(self, rows: list[dict[str, float]]) -> None:
        assert not rows, "a plan begins at the first step"

    def baselines(self) -> dict[str, dict[str, dict[str, Score]]]:
        return {}

    def write_baselines(self, baselines: Baselines) -> None:
        """They are in memory."""

    def eval_digests(self) -> dict[str, dict[str, str]]:
        return {}

    def write_eval_digests(self, digests: Mapping[str, Mapping[str, str]]) -> None:
        """They are in memory."""

    def write_episode(
        self,
        episode: Episode,
        *,
        files: Mapping[int, Mapping[str, str]],  # noqa: ARG002  the seam's signature
        under: str = "episodes",
    ) -> None:
        self.episodes_written += 1
        if under == "episodes" and episode.result is not None and not episode.masked:
            self.job_s[episode.group][episode.job_key] = episode.result.seconds

    def read_episode(self, group: int, member: int, *, under: str = "episodes") -> Episode | None:  # noqa: ARG002
        return None

    def evals(self) -> dict[str, dict[str, JSON]]:
        return self._evals

    def write_eval(self, name: str, report: Mapping[str, JSON]) -> None:
        self._evals[name] = dict(report)
