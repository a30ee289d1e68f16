"""A tracker that appends rows to a file anybody can read."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from nested_rl.errors import RunDirError
from nested_rl.interfaces import Tracker
from nested_rl.types import Episode, Metrics


class JsonlTracker(Tracker):
    """One JSON object a line: `{"kind": "metrics", "step": 3, ...}` and `{"kind": "episode", "step": 3, ...}`.

    Every row is flushed as it is written. A line that an earlier, killed process left unfinished is closed first, so
    that every complete row stays readable. Numbers that are not finite are written as null: the file is strict JSON.
    """

    def __init__(self, path: str | os.PathLike[str], *, episodes: bool = True) -> None:
        self.path = Path(path)
        self._episodes = episodes
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            torn = _ends_torn(self.path)
            self._file = self.path.open("a", encoding="utf-8")
        except OSError as error:
            raise RunDirError(
                f"cannot write the tracker's file {self.path}: {error.strerror or error}; choose a folder you may write to"
            ) from error
        if torn:
            self._file.write("\n")

    def metrics(self, step: int, values: Metrics) -> None:
        self._write({"kind": "metrics", "step": step, **{k: v for k, v in values.items() if k != "step"}})

    def episode(self, step: int, episode: Episode) -> None:
        if self._episodes:
            self._write({"kind": "episode", "step": step, **row_of(episode)})

    def close(self) -> None:
        self._file.close()

    def _write(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps({key: _finite(value) for key, value in row.items()}, allow_nan=False) + "\n")
        self._file.flush()


def row_of(episode: Episode) -> dict[str, Any]:
    """The flat facts of an episode, without its transcript and files."""
    outcome = episode.outcome
    best = outcome.best_baseline
    return {
        "group": episode.group,
        "member": episode.member,
        "task": episode.task.id,
        "family": episode.task.family,
        "version": episode.version,
        "reward": episode.reward,
        **{f"reward/{part}": value for part, value in episode.parts.items()},
        "masked": episode.masked,
        "valid": outcome.valid,
        "attempts": outcome.attempts,
        "base": outcome.base,
        "asked_baselines": outcome.asked_baselines,
        "pre": None if best is None else best.value,
        "post": None if outcome.post is None else outcome.post.value,
        "usd": outcome.usd + episode.agent_usd,
        "seconds": outcome.seconds,
        "fault": outcome.fault,
        "error": outcome.error,
    }


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _ends_torn(path: Path) -> bool:
    """Whether the file's last line has no end."""
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
