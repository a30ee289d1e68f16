"""When each job waited, was trained and was scored, and on which machine: from the journal, and from the queue where it is a file."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from attrs import define, field, frozen

from nested_rl.rundir import RunDir

PHASES = ("queue", "boot", "train", "score", "failed")
"""Waiting for a worker; for a machine; training; scoring; on a machine, of a delivery that came to nothing."""
ENDS = ("job.done", "job.late", "job.released", "job.lost")


@frozen(kw_only=True)
class Bar:
    """One phase of a delivery, in seconds of the run's own time."""

    phase: str
    start_s: float
    end_s: float


@frozen(kw_only=True)
class Delivery:
    """One hand-out of a job to a machine. `machine` is empty where the journal does not tell it."""

    key: str
    number: int
    machine: str
    end: str
    bars: tuple[Bar, ...]

    @property
    def start_s(self) -> float:
        """When it began to wait."""
        return self.bars[0].start_s

    @property
    def end_s(self) -> float:
        """When it was over."""
        return self.bars[-1].end_s


@frozen(kw_only=True)
class Phase:
    """How long one phase took over all deliveries that had it."""

    name: str
    count: int
    median_s: float
    most_s: float
    total_s: float


@define(kw_only=True)
class Timeline:
    """Every delivery that is over, by its end. Times in which no process worked on the run are cut out."""

    deliveries: list[Delivery] = field(factory=list)
    seconds: float = 0.0
    steps_s: list[float] = field(factory=list)
    """When each step was done."""
    stops_s: list[float] = field(factory=list)
    """Where another process took over."""

    @property
    def phases(self) -> list[Phase]:
        """What took how long, the phases that occur."""
        found = []
        for name in PHASES:
            spans = [b.end_s - b.start_s for d in self.deliveries for b in d.bars if b.phase == name]
            if spans and max(spans) > 0:
                found.append(
                    Phase(name=name, count=len(spans), median_s=median(spans), most_s=max(spans), total_s=sum(spans))
                )
        return found

    @property
    def machines(self) -> list[str]:
        """Every machine that is named, busiest first."""
        busy: dict[str, float] = {}
        for delivery in self.deliveries:
            if delivery.machine:
                busy[delivery.machine] = busy.get(delivery.machine, 0.0) + _on_machine(delivery)
        return sorted(busy, key=lambda name: (-round(busy[name]), name))

    def busy_share(self, machine: str) -> float:
        """The share of the run's time in which it trained or scored."""
        busy = sum(_on_machine(d) for d in self.deliveries if d.machine == machine)
        return min(1.0, busy / self.seconds) if self.seconds else 0.0


def _on_machine(delivery: Delivery) -> float:
    return sum(b.end_s - b.start_s for b in delivery.bars if b.phase in ("train", "score", "failed"))


@define
class _Time:
    """The run's own time: pauses between two processes are left out."""

    starts: list[float] = field(factory=list)
    before: list[float] = field(factory=list)
    newest: float = 0.0

    def begin(self, t: float) -> float:
        """Another process takes over. Returns when the one before was last seen."""
        last = self.newest
        self.before.append(self.of(last) if self.starts else 0.0)
        self.starts.append(t)
        return last

    def of(self, t: float) -> float:
        """Seconds since the run began."""
        if not self.starts:
            return 0.0
        place = max(0, bisect_right(self.starts, t) - 1)
        elapsed = self.before[place] + max(0.0, t - self.starts[place])
        return min(elapsed, self.before[place + 1]) if place + 1 < len(self.before) else elapsed


def read(run: RunDir) -> Timeline:
    """One pass over the journal. Works at any moment of a run."""
    return build(run.journal.rows(), _asked(run))


def build(events: Iterable[Mapping[str, Any]], asked: Mapping[str, Mapping[str, float]]) -> Timeline:
    """From the journal's events, and for each job key `put_at`, `train_s`, `score_s` and `delivery`, where they are known."""
    line, time = Timeline(), _Time()
    open_: dict[tuple[str, int], list[float]] = {}
    for event in events:
        t, name = float(event["t"]), str(event["event"])
        if name == "run.started":
            seen = time.begin(t)
            if len(time.starts) > 1:
                line.stops_s.append(time.of(t))
            for started in open_.values():  # what a killed process left is ended by the next one
                started[1:] = [seen]
        time.newest = max(time.newest, t)
        if name == "step.done":
            line.steps_s.append(time.of(t))
        elif name == "job.started":
            open_[str(event["job"]), int(event["delivery"])] = [t]
        elif name in ENDS:
            started = open_.pop((str(event["job"]), int(event["delivery"])), [])
            if started:
                end = min(t, started[-1]) if len(started) > 1 else t
                line.deliveries.append(_delivery(event, started[0], end, time, asked.get(str(event["key"]), {})))
    line.seconds = time.of(time.newest)
    return line


def _delivery(event: Mapping[str, Any], leased: float, end: float, time: _Time, known: Mapping[str, float]) -> Delivery:
    began = max(leased, end - float(event.get("seconds", 0.0)))
    marks: list[tuple[str, float]] = []
    if event["delivery"] == 1 and known.get("put_at"):
        marks.append(("queue", min(leased, known["put_at"])))
    marks.append(("boot", leased))
    if event["event"] == "job.done" and known.get("delivery") == event["delivery"]:
        marks.append(("train", began))
        if known.get("score_s"):
            marks.append(("score", min(end, began + known.get("train_s", 0.0))))
    else:
        marks.append(("train" if event["event"] == "job.done" else "failed", began))
    ends = [at for _, at in marks[1:]] + [end]
    bars = tuple(
        Bar(phase=phase, start_s=time.of(start), end_s=max(time.of(start), time.of(stop)))
        for (phase, start), stop in zip(marks, ends, strict=True)
    )
    return Delivery(
        key=str(event["key"]),
        number=int(event["delivery"]),
        machine=str(event.get("machine", "")),
        end=str(event["event"]),
        bars=bars,
    )


def _asked(run: RunDir) -> dict[str, dict[str, float]]:
    """When each job was put into the queue and how its seconds divide, where the queue is a file of the run that can be read."""
    path = run.path / "queue.sqlite"
    found: dict[str, dict[str, float]] = {}
    if not path.is_file():
        return found
    with contextlib.suppress(sqlite3.Error, ValueError):
        # Nobody has it open where there is no log beside it; then a reader must not leave one behind either.
        alone = "" if path.with_name(f"{path.name}-wal").exists() else "&immutable=1"
        uri = f"{path.resolve().as_uri()}?mode=ro{alone}"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=1.0)) as file:
            for key, put_at, result in file.execute("SELECT key, put_at, result FROM jobs"):
                told = json.loads(result) if result else {}
                found[str(key)] = {
                    "put_at": float(put_at),
                    "train_s": float(told.get("train_s", 0.0)),
                    "score_s": float(told.get("score_s", 0.0)),
                    "delivery": float(told.get("deliveries", 0)),
                }
    return found


@frozen(kw_only=True)
class Lane:
    """One machine over the whole run: runs of columns in which one phase took most of the time."""

    machine: str
    busy_share: float
    runs: tuple[tuple[str, int, int], ...]
    """(phase, first column, width)."""


def lanes(line: Timeline, machines: Sequence[str], *, columns: int) -> list[Lane]:
    """The machines' lanes, of a size that does not depend on how many jobs there were."""
    per = {machine: [d for d in line.deliveries if d.machine == machine] for machine in machines}
    width_s = line.seconds / columns if line.seconds else 1.0
    return [
        Lane(machine=name, busy_share=line.busy_share(name), runs=_runs(several, columns, width_s))
        for name, several in per.items()
    ]


def _runs(deliveries: Sequence[Delivery], columns: int, width_s: float) -> tuple[tuple[str, int, int], ...]:
    weights: list[dict[str, float]] = [{} for _ in range(columns)]
    for bar in (b for d in deliveries for b in d.bars if b.phase != "queue"):
        first, last = int(bar.start_s / width_s), int(bar.end_s / width_s)
        for column in range(first, min(last, columns - 1) + 1):
            inside = min(bar.end_s, (column + 1) * width_s) - max(bar.start_s, column * width_s)
            weights[column][bar.phase] = weights[column].get(bar.phase, 0.0) + inside
    runs: list[tuple[str, int, int]] = []
    for column, weight in enumerate(weights):
        work = {phase: w for phase, w in weight.items() if phase != "boot"}
        idle = width_s - sum(work.values())
        phase = max(work, key=lambda name: work[name]) if work and sum(work.values()) >= idle else ""
        phase = phase or ("boot" if weight.get("boot", 0.0) >= width_s / 2 else "")
        if runs and runs[-1][0] == phase and sum(runs[-1][1:]) == column:
            runs[-1] = (phase, runs[-1][1], runs[-1][2] + 1)
        elif phase:
            runs.append((phase, column, 1))
    return tuple(runs)
