"""Evaluation of a policy on fixed tasks, and the paired comparison of two.

Both sides get the same tasks and the same seeds, so the difference is taken task by task; its interval is a bootstrap over
tasks.
"""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from attrs import asdict, evolve, field, frozen

from nested_rl import rewards
from nested_rl.baselines import Baselines
from nested_rl.episode import Parts, Place, derived, run_episode
from nested_rl.errors import RunDirError, SettingsError, SupervisionError
from nested_rl.interfaces import Policy, TaskFamily
from nested_rl.metrics import strongest
from nested_rl.rundir import RunDir, write_atomic
from nested_rl.types import JSON, Episode, Metrics, Split, Task
from nested_rl.waiting import together

T = TypeVar("T")


@frozen(kw_only=True)
class EvalRow:
    """One task of an evaluation. `quality` is that of `UpliftReward`, whatever the reward is (0 when the job was not valid)."""

    task: str
    family: str
    reward: float
    valid: bool
    first_try: bool
    quality: float
    strongest: bool
    own_family: bool
    advanced: bool
    asked_baselines: bool
    parts: Metrics = field(factory=dict)
    """The named parts of the reward."""


@frozen(kw_only=True)
class Interval:
    """A mean with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "unknown (one side has no valid job)"
        return f"{self.value:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


@frozen(kw_only=True)
class Comparison:
    """This minus the other, on the tasks both have. Read `str(comparison)`."""

    n: int
    reward: Interval
    valid: Interval
    quality_given_valid: Interval
    own_family_given_valid: Interval
    left_out: int = 0
    """Tasks that count on one side only: masked on the other, or never asked there."""

    def __str__(self) -> str:
        alone = f"; {self.left_out} that only one side has are left out" if self.left_out else ""
        return (
            f"reward {self.reward} (n={self.n}, paired{alone}) · valid {self.valid} · quality given valid "
            f"{self.quality_given_valid} · own family given valid {self.own_family_given_valid}"
        )


@frozen(kw_only=True)
class EvalReport:
    """How one policy did. Masked episodes are left out of `rows` and counted."""

    policy: str
    version: int
    split: str
    seed: int
    masked: int = 0
    conditions: str = ""
    """A digest of parts and tasks of one's own; reports made under different ones are not compared."""
    grader: str = ""
    """A digest of the code that graded; empty in reports of an earlier version."""
    rows: tuple[EvalRow, ...] = field(default=(), repr=False)

    @property
    def reward(self) -> float:
        """Mean reward."""
        return _mean([r.reward for r in self.rows])

    @property
    def valid(self) -> float:
        """Share of episodes with a valid job."""
        return _mean([float(r.valid) for r in self.rows])

    @property
    def interval(self) -> Interval:
        """Mean reward with its 95 % bootstrap interval over tasks."""
        return _bootstrap(self.rows, lambda rows: _mean([r.reward for r in rows]))

    @property
    def means(self) -> dict[str, float]:
        """What a table of evaluations shows: parts of the reward over all rows, choices over the rows with a valid job."""
        parts = sorted({name for row in self.rows for name in row.parts})
        return {
            **{part: _mean([row.parts.get(part, 0.0) for row in self.rows]) for part in parts},
            "valid": self.valid,
            "strongest base": self.given_valid("strongest"),
            "own family": self.given_valid("own_family"),
            "advanced": self.given_valid("advanced"),
        }

    def given_valid(self, name: str) -> float:
        """Mean of a field of the rows whose job was valid; NaN when there is none."""
        return _mean([float(getattr(r, name)) for r in self.rows if r.valid])

    def compare(self, other: EvalReport) -> Comparison:
        """Paired difference to another report on the same tasks and seeds."""
        theirs = {r.task: r for r in other.rows}
        pairs = [(r, theirs[r.task]) for r in self.rows if r.task in theirs]
        if not pairs or self.seed != other.seed or self.split != other.split:
            raise SettingsError("these evaluations share no tasks: evaluate both with the same families, n and seed")
        if self.conditions != other.conditions:
            raise SettingsError(
                "these evaluations had different parts (reward, harness, …): evaluate both with the same"
            )
        if self.grader and other.grader and self.grader != other.grader:
            raise SettingsError(
                "these evaluations were graded by different code (the families' or the scorer's): evaluate both with the same"
            )
        return Comparison(
            n=len(pairs),
            left_out=len(self.rows) + len(other.rows) - 2 * len(pairs),
            reward=_difference(pairs, lambda rows: _mean([r.reward for r in rows])),
            valid=_difference(pairs, lambda rows: _mean([float(r.valid) for r in rows])),
            quality_given_valid=_difference(pairs, lambda rows: _mean([r.quality for r in rows if r.valid])),
            own_family_given_valid=_difference(
                pairs, lambda rows: _mean([float(r.own_family) for r in rows if r.valid])
            ),
        )

    def __str__(self) -> str:
        if not self.rows:
            return f"{self.policy}: no episode counted ({self.masked} masked)"
        told = f"{self.policy}: reward {self.reward:.3f}, valid {self.valid:.2f}"
        if self.valid > 0:
            told += f", quality given valid {self.given_valid('quality'):.3f}"
            told += f", own family {self.given_valid('own_family'):.2f}"
        return f"{told} (n={len(self.rows)}{f', {self.masked} masked' if self.masked else ''})"

    def to_json(self) -> dict[str, JSON]:
        """Plain data, with the means a reader looks for first."""
        means = {"reward": self.reward, "valid": self.valid} if self.rows else {"reward": None, "valid": None}
        return {**means, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, JSON]) -> EvalReport:
        """What `to_json` wrote."""
        rows = tuple(EvalRow(**row) for row in data["rows"])
        names = ("policy", "version", "split", "seed", "masked", "conditions")
        return cls(rows=rows, grader=data.get("grader", ""), **{name: data[name] for name in names})


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _difference(pairs: Sequence[tuple[EvalRow, EvalRow]], statistic: Callable[[Sequence[EvalRow]], float]) -> Interval:
    """Of a statistic, first side minus second; the same tasks are drawn for both."""
    return _bootstrap(pairs, lambda drawn: statistic([a for a, _ in drawn]) - statistic([b for _, b in drawn]))


def _bootstrap(drawn: Sequence[T], statistic: Callable[[Sequence[T]], float], *, draws: int = 2000) -> Interval:
    import numpy as np

    if not drawn:
        return Interval(value=math.nan, low=math.nan, high=math.nan)
    picks = np.random.default_rng(0).integers(0, len(drawn), (draws, len(drawn)))
    found = [statistic([drawn[i] for i in row]) for row in picks]
    kept = [x for x in found if not math.isnan(x)]
    low, high = (float(x) for x in np.percentile(kept, [2.5, 97.5])) if kept else (math.nan, math.nan)
    return Interval(value=statistic(drawn), low=low, high=high)


def eval_tasks(families: Sequence[TaskFamily], split: Split, *, n: int, seed: int) -> list[Task]:
    """`n` tasks, the families in turn; always the same for the same arguments."""
    streams = [family.tasks(split, seed=seed) for family in families]
    return [next(stream) for stream in itertools.islice(itertools.cycle(streams), n)]


async def evaluate(
    families: Sequence[TaskFamily],
    policy: Policy,
    *,
    name: str,
    label: str,
    split: Split,
    n: int,
    seed: int,
    run: RunDir,
    parts: Parts,
    baselines: Baselines,
    deadline_s: float,
    conditions: str = "",
    tell: Callable[[int, int], None] = lambda done, of: None,  # noqa: ARG005
) -> EvalReport:
    """One episode a task, all at once; recorded under evals/<name>/. What is there already and counts is kept.

    So a masked episode is tried again when the same is asked again, alone, and an evaluation that was stopped goes on. `tell` hears how
    many episodes are there, of how many. Raises SupervisionError when every episode failed for reasons not the agent's.
    """
    done = run.evals().get(name)
    grader = baselines.grader(*(f.name for f in families))
    if done is not None and not done["masked"] and done.get("grader", grader) == grader:
        return evolve(EvalReport.from_json(done), policy=label)  # what was the best version may be so no longer
    tasks = eval_tasks(families, split, n=n, seed=seed)
    lockstep = getattr(policy, "seats", None)
    # Batches in step round as a whole: of a stopped evaluation everything is said again, and the jobs are in the queue.
    fresh = done is None and lockstep is not None
    episodes = dict(_counted(run, name, tasks, version=policy.version, grader=grader, done=done, fresh=fresh))
    missing = [index for index in range(len(tasks)) if index not in episodes]
    seats: Sequence[Policy] = lockstep(len(missing)) if lockstep else [policy] * len(missing)
    scores = {index: await baselines.of(tasks[index]) for index in missing}
    tell(len(episodes), len(tasks))

    async def one(index: int, seat: Policy) -> None:
        place = Place(group=index, member=0, version=policy.version, seed=derived("eval", seed, tasks[index].id, index))
        hidden, dev = (scores[index][split] for split in ("hidden", "dev"))
        leave = getattr(seat, "close", lambda: None)
        told = await run_episode(
            tasks[index], seat, place, parts, hidden=hidden, dev=dev, deadline_s=deadline_s, leave=leave
        )
        run.write_episode(told.episode, files=told.files, under=_episodes_of(name))
        episodes[index] = told.episode
        tell(len(episodes), len(tasks))

    await together([one(index, seat) for index, seat in zip(missing, seats, strict=True)])
    rows = _rows([episodes[index] for index in range(len(tasks))], name)
    report = EvalReport(
        policy=label,
        version=policy.version,
        split=split,
        seed=seed,
        masked=len(tasks) - len(rows),
        conditions=conditions,
        grader=grader,
        rows=rows,
    )
    run.write_eval(name, report.to_json())
    return report


def _episodes_of(name: str) -> str:
    return f"evals/{name}/episodes"


def _counted(
    run: RunDir,
    name: str,
    tasks: Sequence[Task],
    *,
    version: int,
    grader: str,
    done: Mapping[str, JSON] | None,
    fresh: bool,
) -> Iterator[tuple[int, Episode]]:
    """Episodes of an earlier try that are whole, count, and were graded by the present code; others are thrown away."""
    mark, folder = run.path / "evals" / name / "grader", run.path / _episodes_of(name)
    before = mark.read_text("utf-8") if mark.is_file() else (done.get("grader", grader) if done else "")
    if fresh or before != grader:
        shutil.rmtree(folder, ignore_errors=True)
    write_atomic(mark, grader.encode(), sync=True)
    for index, task in enumerate(tasks):
        try:
            episode = run.read_episode(index, 0, under=_episodes_of(name))
        except RunDirError:  # it cannot be read: made again
            continue
        if episode is not None and not episode.masked and episode.task == task and episode.version == version:
            yield index, episode


def _rows(episodes: Sequence[Episode], name: str) -> tuple[EvalRow, ...]:
    """Of those that count; SupervisionError when none does."""
    rows = tuple(_row(i, e) for i, e in enumerate(episodes) if not e.masked)
    if not rows:
        raise SupervisionError(
            f"all {len(episodes)} episodes of {name} failed for reasons that are not the agent's; the last: "
            f"{episodes[-1].outcome.error}"
        )
    return rows


def _row(index: int, episode: Episode) -> EvalRow:
    outcome = episode.outcome
    return EvalRow(
        task=f"{index}:{episode.task.id}",
        family=episode.task.family,
        reward=episode.reward,
        valid=outcome.valid,
        first_try=outcome.valid and outcome.attempts == 1,
        quality=rewards.quality(outcome),
        strongest=outcome.valid and outcome.base == strongest(outcome),
        own_family=episode.task.family in outcome.families,
        advanced=outcome.advanced,
        asked_baselines=outcome.asked_baselines,
        parts=episode.parts,
    )
