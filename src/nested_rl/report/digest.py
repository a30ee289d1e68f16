"""One pass over a run: everything the page and the summary say, and no more than that in memory."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, field, frozen

from nested_rl.report import intervals
from nested_rl.report.intervals import Interval
from nested_rl.rundir import RunDir
from nested_rl.types import Episode

GAP = 0.5
"""A job whose own reward ends this far above its hidden score has taught something else than the task."""
LAST_STEPS = 3
"""The end of a run is the mean of its last three steps: one step of a few dozen episodes is noisy."""


ENDS: Mapping[str, tuple[str, str]] = {
    "stop": ("gave up", "The agent stopped before a job of its was accepted."),
    "turns": ("out of turns", "The agent used all its turns and no job was accepted."),
    "tokens": ("out of tokens", "The agent used all its tokens and no job was accepted."),
    "malformed": ("malformed call", "The agent wrote something that is not a call of a tool."),
    "deadline": ("out of time", "The episode's deadline passed before a job was accepted."),
}
"""Ends of a transcript that are failures, as (kind, in words)."""


@frozen
class Point:
    """One scored job: the untrained score of its base, its own score, and the best untrained score of the task."""

    pre: float
    post: float
    best: float
    base: str


@define(kw_only=True)
class Failure:
    """One kind of thing that went wrong. `count` counts episodes; the example is the newest."""

    kind: str
    fault: str
    count: int = 0
    where: str = ""
    message: str = ""
    hint: str = ""
    place: str = ""


@define(kw_only=True)
class AlarmSpan:
    """One alarm from when it was raised to when it was over. Steps are counted from 1; None: it stands."""

    name: str
    message: str
    since: int
    until: int | None = None


@define(kw_only=True)
class StepSums:
    """Per-episode numbers of one step, for intervals."""

    rewards: list[float] = field(factory=list)
    parts: dict[str, list[float]] = field(factory=dict)
    first_try: list[float] = field(factory=list)
    valid: list[float] = field(factory=list)
    quality_given_valid: list[float] = field(factory=list)


@frozen(kw_only=True)
class HeldOut:
    """One policy against another on the same held-out tasks."""

    families: tuple[str, ...]
    policy: str
    other: str
    reward: float
    other_reward: float
    valid: float
    other_valid: float
    difference: Interval


@define(kw_only=True)
class Digest:
    """What `read` found. Steps are counted from 1; lists by step are in order."""

    name: str
    spec: Mapping[str, Any]
    rows: Sequence[Mapping[str, float]]
    steps_asked: int
    started_at: float | None = None
    ended_at: float | None = None
    sums: dict[int, StepSums] = field(factory=dict)
    episodes: int = 0
    masked: int = 0
    points: dict[str, list[Point]] = field(factory=dict)
    failures: dict[tuple[str, str], Failure] = field(factory=dict)
    alarms: list[AlarmSpan] = field(factory=list)
    sandbox: str = ""
    answers: int = 0
    cut_off: int = 0
    """Answers of trained models, and how many of them hit the length limit."""
    scored: int = 0
    own_above: int = 0
    """Scored jobs, and those whose own reward ended far above the hidden score."""
    ends: Counter[str] = field(factory=Counter)
    best: Episode | None = None
    worst: Episode | None = None
    instructive: Episode | None = None
    baselines: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(factory=dict)
    usd_by_kind: dict[str, float] = field(factory=dict)
    validation: list[tuple[int, Interval]] = field(factory=list)
    held_out: list[HeldOut] = field(factory=list)

    @property
    def done(self) -> int:
        """Steps done."""
        return len(self.rows)

    @property
    def finished(self) -> bool:
        """Whether every step that was asked for is done."""
        return self.done >= self.steps_asked

    @property
    def usd(self) -> float:
        """All dollars in the ledger."""
        return sum(self.usd_by_kind.values())

    @property
    def seconds(self) -> float:
        """Time the steps took."""
        return self.total("time/step_s")

    def total(self, key: str) -> float:
        """A metric, added up over all steps."""
        return sum(row.get(key, 0.0) for row in self.rows)

    def column(self, key: str) -> list[float]:
        """A metric by step; NaN where a row lacks it."""
        return [float(row.get(key, math.nan)) for row in self.rows]

    @property
    def reward_parts(self) -> list[str]:
        """The reward's named parts, in the order in which the reward function names them."""
        names = dict.fromkeys(key for row in self.rows for key in row if key.startswith("reward/"))
        return [name.removeprefix("reward/") for name in names if name != "reward/mean"]

    def start(self, key: str = "reward/mean") -> Interval:
        """A metric at the first step; the reward with its interval over episodes."""
        return self._around(key, [1])

    def end(self, key: str = "reward/mean") -> Interval:
        """A metric over the last steps; the reward with its interval over episodes."""
        return self._around(key, list(range(max(1, self.done - LAST_STEPS + 1), self.done + 1)))

    def _around(self, key: str, steps: Sequence[int]) -> Interval:
        steps = [step for step in steps if step <= self.done]
        values = [self.rows[step - 1].get(key, math.nan) for step in steps]
        if key == "reward/mean":
            found = intervals.of([r for step in steps if step in self.sums for r in self.sums[step].rewards])
            if found.n:
                half = found.high - found.value
                mean = sum(values) / len(values)
                return Interval(mean, mean - half, mean + half, found.n)
        return Interval(sum(values) / len(values) if values else math.nan, math.nan, math.nan, len(values))


def read(run: RunDir) -> Digest:
    """Everything, streamed: a run of any length fits. Unfinished runs are read as far as they are."""
    rows = run.metrics()
    digest = Digest(
        name=run.path.resolve().name,
        spec=run.spec,
        rows=rows,
        steps_asked=int(run.spec.get("steps", len(rows))),
        baselines=run.baselines(),
    )
    step_of_group = _read_journal(digest, run)
    for row in run.costs():
        kind = str(row.get("kind", "other"))
        digest.usd_by_kind[kind] = digest.usd_by_kind.get(kind, 0.0) + float(row.get("usd", 0.0))
    for episode in run.episodes():
        _add(digest, episode, step_of_group.get(episode.group))
    _read_evals(digest, run.evals())
    return digest


def _read_journal(digest: Digest, run: RunDir) -> dict[int, int]:
    """When it happened, and the step that each group was trained in."""
    step_of_group: dict[int, int] = {}
    step, standing = 1, dict[str, AlarmSpan]()
    for event in run.events():
        time = float(event["t"])
        digest.started_at = time if digest.started_at is None else digest.started_at
        digest.ended_at = time
        if event["event"] == "step.done":
            step = int(event["step"]) + 2  # the one that begins
            step_of_group.update(dict.fromkeys(event["groups"], step - 1))
        elif event["event"] == "sandbox":
            digest.sandbox = str(event["level"])
        elif event["event"] == "alarm":
            standing[event["name"]] = AlarmSpan(name=event["name"], message=event["message"], since=step)
            digest.alarms.append(standing[event["name"]])
        elif event["event"] in ("alarm.over", "run.started"):  # another process judges anew
            ended = [event["name"]] if event["event"] == "alarm.over" else list(standing)
            for span in (standing.pop(name) for name in ended if name in standing):
                span.until = step
    return step_of_group


def _add(digest: Digest, episode: Episode, step: int | None) -> None:
    outcome = episode.outcome
    digest.episodes += 1
    digest.masked += episode.masked
    digest.ends[episode.transcript.end] += 1
    _note_failures(digest, episode)
    best = outcome.best_baseline
    if outcome.post is not None:
        digest.answers += outcome.post.n
        digest.cut_off += outcome.post.truncated
        digest.scored += 1
        curve = episode.result.curve if episode.result else ()
        digest.own_above += bool(curve) and curve[-1] >= outcome.post.value + GAP
    if outcome.post is not None and best is not None:
        points = digest.points.setdefault(episode.task.family, [])
        before = outcome.baselines.get(outcome.base or "", best)
        points.append(Point(before.value, outcome.post.value, best.value, outcome.base or ""))
    if episode.masked:
        return
    _pick(digest, episode)
    if step is not None:
        sums = digest.sums.setdefault(step, StepSums())
        sums.rewards.append(episode.reward)
        sums.first_try.append(float(outcome.valid and outcome.attempts == 1))
        sums.valid.append(float(outcome.valid))
        for part, value in episode.parts.items():
            sums.parts.setdefault(part, []).append(value)
        if outcome.valid and "quality" in episode.parts:
            sums.quality_given_valid.append(episode.parts["quality"])


def _note_failures(digest: Digest, episode: Episode) -> None:
    place = f"{episode.group:05d}-{episode.member}"
    outcome = episode.outcome
    seen: set[tuple[str, str]] = set()
    found: list[tuple[str, str, str, str, str]] = [
        ("agent", problem.code, problem.where, problem.message, problem.hint)
        for validation in episode.validations
        for problem in validation.problems
    ]
    if outcome.error or outcome.fault:
        kind = "job failed" if outcome.fault == "agent" else (outcome.error.partition(":")[0] or "infrastructure")
        found.append((outcome.fault or "agent", kind, "", outcome.error, ""))
    if episode.transcript.end in ENDS:
        kind, message = ENDS[episode.transcript.end]
        found.append(("agent", kind, "", message, ""))
    for fault, kind, where, message, hint in found:
        failure = digest.failures.setdefault((fault, kind), Failure(kind=kind, fault=fault))
        failure.count += (fault, kind) not in seen
        seen.add((fault, kind))
        failure.where, failure.message, failure.hint, failure.place = where, message, hint, place


def _pick(digest: Digest, episode: Episode) -> None:
    """Keep the best job, the worst accepted one, and the best of those that were refused at first."""
    outcome = episode.outcome
    if not episode.validations:
        return
    if digest.best is None or episode.reward > digest.best.reward:
        digest.best = episode
    # A refused job has no result to look at; refusals are told by kind. Of equals the newest shows what still goes wrong.
    rank = (not outcome.valid, episode.reward)
    if digest.worst is None or rank <= (not digest.worst.outcome.valid, digest.worst.reward):
        digest.worst = episode
    recovered = outcome.valid and outcome.attempts > 1
    if recovered and (digest.instructive is None or episode.reward > digest.instructive.reward):
        digest.instructive = episode


_OF_THE_RUN = re.compile(r"@(best|initial|\d+)$")
"""Ends the name of one of the run's own versions; other policies evaluated in its directory say nothing about learning."""


def _read_evals(digest: Digest, evals: Mapping[str, Mapping[str, Any]]) -> None:
    held_out = []
    for report in evals.values():
        rewards = [float(row["reward"]) for row in report["rows"]]
        if report["split"] == "validation":
            digest.validation.append((int(report["version"]), intervals.of(rewards)))
        elif _OF_THE_RUN.search(str(report["policy"])):
            held_out.append(report)
    digest.validation.sort(key=lambda pair: pair[0])
    digest.held_out = [
        pair
        for other in held_out
        for ours in held_out
        if other["version"] == 0 and ours["version"] > 0 and (pair := _pair(ours, other)) is not None
    ]


def _pair(ours: Mapping[str, Any], other: Mapping[str, Any]) -> HeldOut | None:
    """Two evaluations task by task; None when they are not of the same tasks and seeds."""
    if (ours["split"], ours["seed"]) != (other["split"], other["seed"]):
        return None
    theirs = {row["task"]: row for row in other["rows"]}
    pairs = [(row, theirs[row["task"]]) for row in ours["rows"] if row["task"] in theirs]
    if not pairs:
        return None
    mine, yours = [[float(pair[side]["reward"]) for pair in pairs] for side in (0, 1)]
    valid = [sum(bool(pair[side]["valid"]) for pair in pairs) / len(pairs) for side in (0, 1)]
    return HeldOut(
        families=tuple(sorted({row["family"] for row, _ in pairs})),
        policy=str(ours["policy"]),
        other=str(other["policy"]),
        reward=sum(mine) / len(mine),
        other_reward=sum(yours) / len(yours),
        valid=valid[0],
        other_valid=valid[1],
        difference=intervals.paired(mine, yours),
    )
