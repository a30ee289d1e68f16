"""When a training run has gone on long enough: what its metrics and its log say, and when they last said something.

`metrics.jsonl` has two writers (trainer and orchestrator), each of which adds rows of several shapes; a value that is not finite is
left out of its row. Batches without any signal make no row at all, only a line in the orchestrator's log.
"""

from __future__ import annotations

import json
import math
import re
from collections import deque
from dataclasses import dataclass, field
from typing import Any

REWARD = re.compile(r"train/agg/effective/[^/]+/reward/mean")
TRAINABLE = re.compile(r"train/agg/all/[^/]+/is_trainable/mean")
ERRORS = re.compile(r"train/agg/all/[^/]+/has_error/mean")
LEARNING_RATE, GRADIENT = "optim/lr", "optim/grad_norm"
EMPTY_BATCH = re.compile(r"empty train batch|No admitted train payload")

_WINDOW = 5
_CURVE_STEPS = 100_000


@dataclass(frozen=True)
class Limits:
    """Seconds, counts and bytes. `start_s` until the first row, `stall_s` between rows, `deadline_s` for everything.

    `empty_batches` and `flat_rows` in a row mean that there is nothing to learn from, `broken_rows` that the weights are NaN. A run
    has collapsed when its reward falls below `collapse` times its best, which was at least `collapse_from` (means of five steps).
    `patience_s` is for killing, `gpu_s` for the driver to give memory back.
    """

    deadline_s: float
    start_s: float
    stall_s: float
    poll_s: float = 2.0
    beat_s: float = 10.0
    patience_s: float = 20.0
    gpu_s: float = 20.0
    empty_batches: int = 4
    flat_rows: int = 8
    broken_rows: int = 2
    collapse: float = 0.2
    collapse_from: float = 0.1
    job_bytes: int = 60 << 30
    spare_bytes: int = 2 << 30
    gpu_free_mib: int = 600


@dataclass
class Watchdog:
    """Fed with rows and log lines; asked for a verdict. Times are seconds of one monotonic clock."""

    limits: Limits
    started_s: float
    deadline_s: float
    rewards: dict[int, float] = field(default_factory=dict)
    rows: int = 0
    _last_row_s: float = 0.0
    _empty: int = 0
    _flat: int = 0
    _failing: int = 0
    _broken: int = 0
    _had_gradient: bool = False
    _lately: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    _best: float = -math.inf

    def row(self, text: str, now_s: float) -> None:
        """One line of metrics.jsonl. What is not a row is passed over."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            return
        if not isinstance(values, dict):
            return
        self.rows += 1
        self._last_row_s = now_s
        numbers = {
            key: float(value) for key, value in values.items() if isinstance(value, (int, float)) and _small(value)
        }
        self._broken_or_not(numbers)
        self._signal(numbers)
        self._reward(numbers)

    def line(self, text: str) -> None:
        """One line of the orchestrator's log."""
        self._empty += bool(EMPTY_BATCH.search(text))

    def verdict(self, now_s: float) -> tuple[str, str] | None:
        """(kind, reason) when the run must end."""
        limits, ran_s = self.limits, now_s - self.started_s
        if self._broken >= limits.broken_rows:
            return "nan", "gradients or losses are no longer finite numbers"
        if self._empty >= limits.empty_batches:
            return (
                "zero_signal",
                f"{self._empty} batches in a row had no two answers with different rewards{self._all_failing()}",
            )
        if self._flat >= limits.flat_rows:
            return "zero_signal", f"no answer of the last {self._flat} steps could be learned from{self._all_failing()}"
        if len(self._lately) == _WINDOW and self._best >= limits.collapse_from:
            mean = sum(self._lately) / _WINDOW
            if mean < limits.collapse * self._best:
                return "collapse", f"the reward fell from {self._best:.3g} to {mean:.3g} (means of {_WINDOW} steps)"
        if now_s > self.deadline_s:
            return "deadline", f"still running after {limits.deadline_s:g} s, its limit"
        if not self.rows and ran_s > limits.start_s:
            return "no_start", f"no step was finished in the first {limits.start_s:g} s"
        if self.rows and now_s - self._last_row_s > limits.stall_s:
            return "stalled", f"no step was finished for {limits.stall_s:g} s after step {max(self.rewards, default=0)}"
        return None

    @property
    def curve(self) -> list[float]:
        """The mean training reward, by step."""
        return [self.rewards[step] for step in sorted(self.rewards)]

    def _broken_or_not(self, numbers: dict[str, float]) -> None:
        if not all(math.isfinite(value) for value in numbers.values()):
            self._broken += 1
        elif LEARNING_RATE in numbers:
            # The trainer drops what is not finite, so a norm that is missing is one that was NaN.
            if GRADIENT in numbers:
                self._had_gradient, self._broken = True, 0
            elif self._had_gradient:
                self._broken += 1

    def _signal(self, numbers: dict[str, float]) -> None:
        shares = [value for key, value in numbers.items() if TRAINABLE.fullmatch(key)]
        if shares:
            self._empty = 0
            self._flat = 0 if max(shares) > 0 else self._flat + 1
        errors = [value for key, value in numbers.items() if ERRORS.fullmatch(key)]
        if errors:
            self._failing = self._failing + 1 if min(errors) >= 1 else 0

    def _reward(self, numbers: dict[str, float]) -> None:
        values = [value for key, value in numbers.items() if REWARD.fullmatch(key) and math.isfinite(value)]
        step = numbers.get("step", -1.0)
        if not values or not 0 <= step < _CURVE_STEPS:
            return
        self._empty = 0
        mean = sum(values) / len(values)
        self.rewards[int(step)] = mean
        self._lately.append(mean)
        if len(self._lately) == _WINDOW:
            self._best = max(self._best, sum(self._lately) / _WINDOW)

    def _all_failing(self) -> str:
        return "; every rollout ended with an error" if self._failing else ""


def _small(value: Any) -> bool:
    """Whether it is a number that a float holds (JSON's whole numbers have no bounds)."""
    return not isinstance(value, bool) and (isinstance(value, float) or abs(value) < 1 << 62)
