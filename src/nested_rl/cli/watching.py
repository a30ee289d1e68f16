"""`watch`: the live view of a run from another terminal. Reads the run's files and never takes its lock."""
# ruff: noqa: T201  printing is what a command is for

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self, TypeAlias

from attrs import asdict, frozen
from cyclopts import Parameter

from nested_rl import redact
from nested_rl.errors import RunDirError
from nested_rl.types import JSON

if TYPE_CHECKING:
    from rich.console import Console

    from nested_rl.report.live import Live, Mode
    from nested_rl.rundir import RunDir

State: TypeAlias = Literal["running", "stopped", "failed", "finished"]

POLL_S = 0.5
SILENT_S = 600.0
"""Where the system does not tell whether the lock is held, a run that wrote nothing for so long counts as stopped."""


def watch(run: Path, /, *, once: bool = False, as_json: Annotated[bool, Parameter(name="--json")] = False) -> int:
    """Show a run that works in another terminal, until it ends.

    Reads only: it can be started and left at any time, and as often as you like.

    Args:
        run: Run directory.
        once: Print one line on how it stands, and leave.
        as_json: The same line as JSON.
    """
    from nested_rl.report.live import Screen
    from nested_rl.rundir import RunDir

    directory = RunDir.open(run)
    if once or as_json:
        status = Watched(directory).status()
        print(json.dumps(asdict(status), allow_nan=False) if as_json else status)
        return 0
    try:
        follow(directory, Screen())
    except KeyboardInterrupt:
        return 130  # the watcher left; the run goes on
    return 0


@frozen(kw_only=True)
class Status:
    """How a run stands. None is not known; `usd` is the whole ledger, jobs under way excepted; `error` is what a failed run ended by."""

    state: State
    step: int
    steps: int
    reward: float | None
    valid: float | None
    running: int
    queued: int
    usd: float
    left_s: float | None
    error: str | None = None

    def __str__(self) -> str:
        from nested_rl.report.phrases import duration, money, number, percent

        facts = [
            f"step {self.step}/{self.steps}",
            f"reward {number(self.reward)}",
            f"valid {percent(self.valid)}",
            f"jobs {self.running} running {self.queued} queued",
            f"cost {money(self.usd)}",
        ]
        if self.state == "running":
            facts.append(f"left {duration(self.left_s)}")
        return "  ".join([*facts, f"{self.state}: {self.error}" if self.error else self.state])


def follow(
    run: RunDir, console: Console, *, sleep: Callable[[float], None] = time.sleep, now: Callable[[], float] = time.time
) -> None:
    """Draw the run's own view until the run is finished or stopped."""
    table = console.is_terminal and not console.is_dumb_terminal
    watched = Watched(run, console=console, mode="table" if table else "lines", now=now)
    before = status = watched.status()
    if not table:
        _print(console, before)
    with watched:
        while status.state == "running":
            sleep(POLL_S)
            watched.catch_up()
            status = watched.status()
        if status.state in ("stopped", "failed"):
            why = f"failed: {status.error}" if status.error else status.state
            watched.view.note(f"{why}; the command that started it resumes it")
    if not table and status != before:
        _print(console, status)


def _print(console: Console, status: Status) -> None:
    console.print(str(status), soft_wrap=True, highlight=False, markup=False)


class Watched:
    """A run's journal, read as it grows, and told to a live view as the run itself would tell it."""

    def __init__(
        self,
        run: RunDir,
        *,
        console: Console | None = None,
        mode: Mode = "quiet",
        now: Callable[[], float] = time.time,
    ) -> None:
        self._run, self._console, self._mode, self._now = run, console, mode, now
        self._steps = int(run.spec.get("steps", 0))
        self._offset = 0
        self._at: float | None = None  # the view's clock stands here while the past is read
        self._newest = -math.inf
        self._step_began: float | None = None
        self._rows: list[Mapping[str, float]] = []
        self._jobs = {"running": 0, "queued": 0}
        self._finished = self._drawn = False
        self._error: str | None = None  # by which the process before this moment ended
        self.view = self._new_view()
        self.catch_up()

    def __enter__(self) -> Self:
        """Begin to draw. What is past is in the table; as lines it is not told again."""
        self._drawn = True
        if self._mode == "lines":
            now, self._at = self._at, self._step_began  # the step under way counts as a whole
            self.view = self._new_view()
            self._at = now
        self.view.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.view.stop()

    def catch_up(self) -> None:
        """Read what the run wrote since the last time. A torn last line waits until it is whole."""
        for event in self._news():
            if not self._finished or event["event"] == "run.started":  # evaluations come after the end
                self._at = self._newest = float(event["t"])
                self._take(event)
        self._at = None if self._state() == "running" else self._newest

    def status(self) -> Status:
        """How it stands now."""
        state = self._state()
        if state != "running":  # its last words came before it let go of the lock
            self.catch_up()
            state = self._state()
        row = self._rows[-1] if self._rows else {}
        jobs = self._jobs if state == "running" else {"running": 0, "queued": 0}
        return Status(
            state=state,
            step=len(self._rows),
            steps=self._steps,
            reward=row.get("reward/mean"),
            valid=row.get("validation/valid"),
            usd=math.fsum(float(cost["usd"]) for cost in self._run.costs()),
            left_s=self.view.left_s if state == "running" else None,
            error=self._error if state == "failed" else None,
            **jobs,
        )

    def _state(self) -> State:
        if self._finished and len(self._rows) >= self._steps:
            return "finished"
        held = _held(self._run.path / "lock")
        if held is None:
            held = self._now() - self._newest < SILENT_S
        if held:
            return "running"
        return "stopped" if self._error is None else "failed"

    def _take(self, event: Mapping[str, JSON]) -> None:
        name = str(event["event"])
        if name in ("run.started", "step.done"):
            self._step_began = self._newest
        if name == "run.started":
            self._begin()
            return
        self._finished = name == "run.finished"
        if name == "run.failed":
            from nested_rl.report.showcase import inert

            self._error = inert(redact.text(str(event.get("error") or "of an unknown kind")))
        self._jobs |= {key: int(event[key]) for key in self._jobs if key in event}
        self.view.on_event(name, event)
        if name == "step.done":
            self._rows.append(event["row"])
            self.view.on_metrics(event["row"])

    def _begin(self) -> None:
        """A process begins: pace and time are counted from here, as it does itself, and it may go for more steps."""
        self._steps = int(self._run.spec.get("steps", 0))
        self._finished, self._error = False, None
        self._jobs = {"running": 0, "queued": 0}
        self.view.stop()
        self.view = self._new_view()
        if self._drawn:
            self.view.start()

    def _new_view(self) -> Live:
        from nested_rl.report.live import Live

        past = self._mode == "lines" and not self._drawn
        return Live(
            self._steps,
            mode="quiet" if past else self._mode,
            console=self._console,
            done_steps=tuple(self._rows),
            monotonic=lambda: self._now() if self._at is None else self._at,
        )

    def _news(self) -> list[dict[str, JSON]]:
        path = self._run.journal.path
        try:
            with path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._offset:
                    raise RunDirError(f"{self._run.path} was started over; watch it again")
                file.seek(self._offset)
                whole, newline, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            if self._offset:
                raise RunDirError(f"{self._run.path} was deleted") from None
            return []  # it has a run.toml, and is about to begin
        self._offset += len(whole) + len(newline)
        try:
            return [json.loads(line) for line in whole.splitlines()]
        except ValueError as error:
            raise RunDirError(f"{path}: a line is not JSON ({error})") from error


def _held(lock: Path) -> bool | None:
    """Whether a process works in the run, without touching its lock; None where the system has no list of locks."""
    try:
        inode = str(lock.stat().st_ino)
        rows = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return any("FLOCK" in row and row.split()[5].rpartition(":")[2] == inode for row in rows if "->" not in row)
