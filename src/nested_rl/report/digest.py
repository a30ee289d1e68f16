"""One pass over a run: everything the page and the summary say, and no more than that in memory."""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import define, field, frozen

from nested_rl.errors import RunDirError
from nested_rl.metrics import strongest
from nested_rl.report import intervals, notable, timeline
from nested_rl.report.intervals import Interval
from nested_rl.report.notable import Notable
from nested_rl.report.timeline import Timeline
from nested_rl.rundir import RunDir
from nested_rl.types import Episode

LAST_STEPS = 3
"""The end of a run is the mean of its last three steps: one step of a few dozen episodes is noisy."""


ENDS: Mapping[str, tuple[str, str]] = {
    "stop": ("gave up", "The agent stopped before any of its jobs was accepted."),
    "turns": ("out of turns", "The agent used all its turns and no job was accepted."),
    "tokens": ("out of tokens", "The agent used all its tokens and no job was accepted."),
    "malformed": ("malformed call", "The agent wrote something that is not a call of a tool."),
    "deadline": ("out of time", "The episode's deadline passed before a job was accepted."),
}
"""Ends of a transcript that are failures, as (kind, in words)."""
OF_VALID = ("base/share_strongest", "job/share_advanced", "job/share_own_family")
"""Metrics that are shares of the step's valid jobs; a row has 0 where there is none."""
ENDINGS = ("run.started", "run.stopped", "run.failed", "run.finished")
"""Events of the journal by which a process takes a run over and leaves it."""


@frozen
class Point:
    """One scored job: the untrained score of its base, its own score, and the best untrained score of the task."""

    pre: float
    post: float
    best: float
    base: str


@define(kw_only=True)
class Failure:
    """One kind of thing that went wrong. `count` counts episodes; the example is the newest, sampled at `version`."""

    kind: str
    fault: str
    count: int = 0
    where: str = ""
    message: str = ""
    hint: str = ""
    place: str = ""
    version: int = 0


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
    uplift: list[float] = field(factory=list)
    """Of every episode; 0 where no job was scored."""
    families: dict[str, list[float]] = field(factory=dict)
    """Rewards by family."""
    strongest: dict[str, list[float]] = field(factory=dict)
    """By family, for each valid job whether its base is the strongest untrained one."""


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


@frozen
class Entry:
    """One episode in a line. `reward` is None when it is masked."""

    group: int
    member: int
    version: int
    family: str
    reward: float | None
    valid: bool


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
    notable: Notable = field(factory=Notable)
    timeline: Timeline = field(factory=Timeline)
    endings: list[tuple[float, str, str]] = field(factory=list)
    """How processes that worked on the run began and ended: (when, event, error)."""
    baselines: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(factory=dict)
    usd_by_kind: dict[str, float] = field(factory=dict)
    validation: list[tuple[int, Interval]] = field(factory=list)
    held_out: list[HeldOut] = field(factory=list)
    left_out: dict[str, str] = field(factory=dict)
    """Episodes whose files cannot be read, by name, and why: nothing of them is in any figure."""
    index: list[Entry] = field(factory=list)
    """Every episode that was read, in a line."""
    episode_of_job: dict[str, str] = field(factory=dict)
    """Key of a job → name of the first episode that handed it in."""

    @property
    def failure(self) -> str:
        """The error that ended the run; empty while a process works on it and where it was ended otherwise."""
        _, event, error = self.endings[-1] if self.endings else (0.0, "", "")
        return (error or "of an unknown kind") if event == "run.failed" else ""

    @property
    def stopped(self) -> bool:
        """Whether somebody stopped the process that worked on it last, before it was done."""
        return not self.finished and bool(self.endings) and self.endings[-1][1] == "run.stopped"

    @property
    def families(self) -> list[str]:
        """Every family that was trained on, by name."""
        return sorted({name for sums in self.sums.values() for name in sums.families})

    @property
    def last_steps(self) -> list[int]:
        """The steps that are the end of the run so far."""
        return list(range(max(1, self.done - LAST_STEPS + 1), self.done + 1))

    def rewards(self, steps: Sequence[int], family: str | None = None) -> list[float]:
        """The rewards of every trained episode of some steps, of one family or of all."""
        sums = [self.sums[step] for step in steps if step in self.sums]
        return [r for one in sums for r in (one.rewards if family is None else one.families.get(family, []))]

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
        """A metric by step; NaN where a row lacks it, and where a share of valid jobs is a share of none."""
        of_none = [key in OF_VALID and row.get("validation/valid") == 0 for row in self.rows]
        return [
            math.nan if none else float(row.get(key, math.nan)) for row, none in zip(self.rows, of_none, strict=True)
        ]

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
        return self._around(key, self.last_steps)

    def _around(self, key: str, steps: Sequence[int]) -> Interval:
        steps = [step for step in steps if step <= self.done]
        column = self.column(key)
        values = [column[step - 1] for step in steps]
        if key == "reward/mean":
            found = intervals.of(self.rewards(steps))
            if found.n:
                half = found.high - found.value
                mean = sum(values) / len(values)
                return Interval(mean, mean - half, mean + half, found.n)
        known = [v for v in values if math.isfinite(v)]
        return Interval(sum(known) / len(known) if known else math.nan, math.nan, math.nan, len(known))


def read(run: RunDir) -> Digest:
    """Everything, streamed: a run of any length fits. Unfinished runs are read as far as they are."""
    return Growing(run).whole()


class Growing:
    """The digest of a run at work: each episode is read once, however often `catch_up` is called before `whole`."""

    def __init__(self, run: RunDir) -> None:
        spec = run.spec
        self._run = run
        self._group_size = int(spec.get("group_size", 0))
        self._read: set[str] = set()
        self.step_of_group: dict[int, int] = {}
        self.digest = Digest(name=run.path.resolve().name, spec=spec, rows=[], steps_asked=0)

    def catch_up(self, *, stop: Callable[[], bool] = lambda: False) -> Digest:
        """What the run's files say now, of trained episodes; when `stop` says so, as far as it has come."""
        self.refresh()
        for group in sorted(self.step_of_group):
            if stop():
                break
            for member in range(self._group_size):
                name = self._run.episode_dir(group, member).name
                if name not in self._read:
                    self._read.add(name)
                    self._take(name, group, member)
        return self.digest

    def whole(self) -> Digest:
        """The same with the episodes that no step was trained on."""
        self.catch_up()
        for episode in self._run.episodes(left_out=self.digest.left_out, but=self._read):
            _add(self.digest, episode, self.step_of_group.get(episode.group))
        return self.digest

    def _take(self, name: str, group: int, member: int) -> None:
        try:
            episode = self._run.read_episode(group, member)
        except RunDirError as error:
            self.digest.left_out[name] = str(error)
            return
        if episode is not None:
            _add(self.digest, episode, self.step_of_group[group])

    def refresh(self) -> None:
        """Read anew all but the episodes: some lines a step, and nothing that grows with what was said."""
        run, digest = self._run, self.digest
        digest.spec, digest.rows, digest.baselines = run.spec, _rows(run), run.baselines()
        digest.steps_asked = int(digest.spec.get("steps", len(digest.rows)))
        digest.started_at, digest.alarms, digest.endings = None, [], []
        self.step_of_group = _read_journal(digest, run)
        digest.timeline = timeline.read(run)
        digest.usd_by_kind = {}
        for row in run.costs():
            kind = str(row.get("kind", "other"))
            digest.usd_by_kind[kind] = digest.usd_by_kind.get(kind, 0.0) + float(row.get("usd", 0.0))
        digest.validation, digest.held_out = [], []
        _read_evals(digest, run.evals())


def _rows(run: RunDir) -> list[dict[str, float]]:
    """The metrics of each step: from metrics.jsonl, or from the journal where that file lacks some or cannot be read."""
    told = {int(event["step"]): event["row"] for event in run.events("step.done") if "row" in event}
    try:
        rows = run.metrics()
    except RunDirError:
        rows = []
    return rows if len(rows) >= len(told) else [told[step] for step in sorted(told)]


def _read_journal(digest: Digest, run: RunDir) -> dict[int, int]:
    """When it happened, and the step that each group was trained in."""
    step_of_group: dict[int, int] = {}
    step, standing = 1, dict[str, AlarmSpan]()
    for event in run.events():
        time = float(event["t"])
        digest.started_at = time if digest.started_at is None else digest.started_at
        digest.ended_at = time
        if event["event"] in ENDINGS:
            digest.endings.append((time, str(event["event"]), str(event.get("error", ""))))
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
    reward = None if episode.masked else episode.reward
    family = sys.intern(episode.task.family)
    digest.index.append(Entry(episode.group, episode.member, episode.version, family, reward, outcome.valid))
    digest.ends[episode.transcript.end] += 1
    for key in (episode.job_key, *(job.key for job in episode.jobs)):
        if key:
            digest.episode_of_job.setdefault(key, f"{episode.group:05d}-{episode.member}")
    _note_failures(digest, episode)
    best = outcome.best_baseline
    if outcome.post is not None:
        digest.answers += outcome.post.n
        digest.cut_off += outcome.post.truncated
        digest.scored += 1
        digest.own_above += (notable.own_gap(episode) or 0.0) >= notable.GAP
    if outcome.post is not None and best is not None:
        points = digest.points.setdefault(episode.task.family, [])
        before = outcome.baselines.get(outcome.base or "", best)
        points.append(Point(before.value, outcome.post.value, best.value, outcome.base or ""))
    if episode.masked:
        return
    digest.notable.look_at(episode)
    if step is not None:
        sums = digest.sums.setdefault(step, StepSums())
        sums.rewards.append(episode.reward)
        sums.families.setdefault(family, []).append(episode.reward)
        if outcome.valid:
            sums.strongest.setdefault(family, []).append(float(outcome.base == strongest(outcome)))
        sums.first_try.append(float(outcome.valid and outcome.attempts == 1))
        sums.valid.append(float(outcome.valid))
        sums.uplift.append(outcome.uplift)
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
        failure.version = episode.version


OF_THE_RUN = re.compile(r"@(best|initial|\d+)$")
"""Ends the name of one of the run's own versions; other policies evaluated in its directory say nothing about learning."""


def _read_evals(digest: Digest, evals: Mapping[str, Mapping[str, Any]]) -> None:
    held_out = []
    for report in evals.values():
        rewards = [float(row["reward"]) for row in report["rows"]]
        if report["split"] == "validation":
            digest.validation.append((int(report["version"]), intervals.of(rewards)))
        elif OF_THE_RUN.search(str(report["policy"])):
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


def flat(spec: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """run.toml as dotted names with their values."""
    found: list[tuple[str, str]] = []
    for key, value in spec.items():
        name = f"{prefix}{key}"
        found += flat(value, f"{name}.") if isinstance(value, dict) else [(name, _spelled(value))]
    return found


def _spelled(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)
    return text if len(text) <= 300 else f"{text[:297]}..."
