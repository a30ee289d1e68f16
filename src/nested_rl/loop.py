"""The outer loop, readable in one go.

    groups start while slots are free  →  a step's worth is collected  →  one update  →  the step is journalled

Slots are groups_per_step × (max_steps_off_policy + 1): staleness is paced by what is started, never punished by throwing
away what was paid for. A group has one task and one policy version. With `order="index"` group i is sampled at version
max(0, i // groups_per_step − max_steps_off_policy) and groups are trained in index order, so two runs agree bit by bit;
with `order="ready"` finished groups are trained, oldest version first, so that one slow job never blocks a step.

The journal's `step.done` row is the commit point: an update without one is done again after a crash, from the recorded
groups; one that has it is never repeated.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from attrs import evolve, frozen

from nested_rl import alarms, repay
from nested_rl.alarms import AlarmRules, Alarms, Standing
from nested_rl.baselines import Baselines
from nested_rl.clock import Clock
from nested_rl.episode import Parts, Place, derived, run_episode
from nested_rl.errors import BudgetExceeded, NestedRLError, RunDirError, SettingsError, SupervisionError, TrainerError
from nested_rl.evaluation import EvalReport, evaluate
from nested_rl.interfaces import OuterTrainer, Policy, TaskFamily
from nested_rl.meter import Meter
from nested_rl.metrics import Counted, signal, step_row
from nested_rl.retention import KEEP_CHECKPOINTS, Checkpoints
from nested_rl.rundir import RunDir
from nested_rl.types import JSON, Episode, Group, Task, UpdateReport
from nested_rl.waiting import together

Background: TypeAlias = "asyncio.Future[Any]"

VALIDATION = "validation-"
VALIDATION_TASKS = 24
_OF_THE_PAST = ("checkpoint", "checkpoint.gone", "update.started", "step.done", "group.dropped")


@frozen(kw_only=True)
class Schedule:
    """How long, how wide, how far off-policy. The fields are those of `Experiment.run`."""

    steps: int = 25
    groups_per_step: int = 4
    group_size: int = 8
    max_steps_off_policy: int = 1
    order: Literal["index", "ready"] = "index"
    stale: Literal["keep", "drop"] = "keep"
    eval_every: int | None = None
    keep_checkpoints: int | None = KEEP_CHECKPOINTS
    seed: int = 0
    deadline_s: float = 3600.0

    def version_of(self, index: int) -> int:
        """The version at which group `index` is sampled under `order="index"`."""
        return max(0, index // self.groups_per_step - self.max_steps_off_policy)


class Loop:
    """One run. Everything it needs is handed in; `run()` does the rest."""

    def __init__(
        self,
        *,
        run: RunDir,
        families: Sequence[TaskFamily],
        trainer: OuterTrainer,
        parts: Parts,
        baselines: Baselines,
        meter: Meter,
        schedule: Schedule,
        clock: Clock,
        workers_failed: asyncio.Future[None],
        on_event: Callable[[str, Mapping[str, JSON]], None],
        on_row: Callable[[int, Mapping[str, float], Sequence[Episode]], None],
        alarms: Alarms | None = None,
    ) -> None:
        self.run_dir, self.families, self.trainer, self.parts = run, families, trainer, parts
        self.baselines, self.meter, self.schedule, self.clock = baselines, meter, schedule, clock
        self.workers_failed, self.on_event, self.on_row = workers_failed, on_event, on_row
        self.alarms = alarms or Alarms(AlarmRules(), tell=lambda event, fields: self._tell(event, **fields))
        self.started_s = clock.monotonic()
        self.step = 0
        self.rows: list[dict[str, float]] = []
        self.trained: set[int] = set()
        self.next_group = self.first_new = 0
        self.refs: dict[int, str] = {}
        self.checkpoints = Checkpoints(run, trainer, keep=schedule.keep_checkpoints, tell=self._tell)
        self.groups: dict[int, asyncio.Task[Group]] = {}
        self.evaluations: set[asyncio.Task[EvalReport]] = set()
        self.evaluated: set[int] = set()
        self.masked_in_a_row = 0
        self.dropped: dict[int, float] = {}
        self.tries: dict[int, int] = {}

    async def run(self) -> None:
        """Every step that is still to do. Cancelled or failed, it leaves nothing running and nothing half written."""
        try:
            await self._resume()
            while self.step < self.schedule.steps:
                self._start_groups(await self._policy())
                started_s = self.clock.monotonic()
                batch = await self._collect()
                await self._train(batch, started_s=started_s)
                self._evaluate(await self._policy())
            await self._wait(self.evaluations)
        except BudgetExceeded:
            await self._stop([*self.groups.values(), *self.evaluations])
            await self._drain()
            raise
        finally:
            await self._stop([*self.groups.values(), *self.evaluations])

    async def _drain(self) -> None:
        """Let the jobs finish that money was set aside for: stopped half-way they cost, and a resumed run has nothing of it."""
        counts = await self.parts.queue.counts()
        while counts["queued"] + counts["running"] and not self.workers_failed.done():
            await self.clock.sleep(1.0)
            counts = await self.parts.queue.counts()

    async def _policy(self) -> Policy:
        """The sampler of the newest weights. One that does not say so has not got them: the run would learn nothing."""
        policy = await self.trainer.policy()
        if policy.version != self.step:
            raise TrainerError(
                f"the sampler is still at version {policy.version} after update {self.step}: the trainer's new weights do "
                "not reach it"
            )
        return policy

    # -- starting

    def _start_groups(self, policy: Policy) -> None:
        """Fill the free slots with the next groups, sampled at this version."""
        slots = self.schedule.groups_per_step * (self.schedule.max_steps_off_policy + 1)
        total = self.schedule.steps * self.schedule.groups_per_step + len(self.dropped)
        while len(self.groups) < slots and self.next_group < total:
            self._start(self.next_group, policy)
            self.next_group += 1

    def _start(self, index: int, policy: Policy) -> None:
        task = self._task(index)
        self._tell("group.started", group=index, version=policy.version, task=task.id, sync=True)
        self.groups[index] = asyncio.create_task(self._group(index, task, policy), name=f"group-{index}")

    def _task(self, index: int) -> Task:
        """Families take turns; each gives its tasks in order."""
        family = self.families[index % len(self.families)]
        tasks = family.tasks("train", seed=self.schedule.seed)
        return next(itertools.islice(tasks, index // len(self.families), None))

    async def _group(self, index: int, task: Task, policy: Policy) -> Group:
        """All members of one group. Whole episodes that are on disk already are taken from there."""
        size = self.schedule.group_size
        known = [self._recorded(index, number, policy.version) for number in range(size)]
        if all(known):
            return Group(index=index, task=task, version=policy.version, episodes=tuple(e for e in known if e))
        lockstep = getattr(policy, "seats", None)
        if lockstep:
            known = [None] * size  # batches are made of whole groups: a rest would round differently
        seats: Sequence[Policy] = lockstep(size) if lockstep else [policy] * size
        scores = await self.baselines.of(task)

        async def member(number: int) -> Episode:
            place = Place(
                group=index,
                member=number,
                version=policy.version,
                seed=derived(self.schedule.seed, "episode", index, number),
            )
            leave = getattr(seats[number], "close", lambda: None)
            if (episode := known[number]) is not None:
                leave()
                return episode
            told = await run_episode(
                task,
                seats[number],
                place,
                self.parts,
                hidden=scores["hidden"],
                dev=scores["dev"],
                deadline_s=self.schedule.deadline_s,
                leave=leave,
            )
            self.run_dir.write_episode(told.episode, files=told.files)
            self._look_at(told.episode)
            return told.episode

        episodes = await together([member(number) for number in range(size)])
        return Group(index=index, task=task, version=policy.version, episodes=tuple(episodes))

    def _recorded(self, index: int, member: int, version: int) -> Episode | None:
        """An episode of an earlier process. Of a group that the journal never saw start it is of another history: made again.

        So is one that cannot be read; the results of its jobs are still in the queue.
        """
        try:
            episode = self.run_dir.read_episode(index, member) if index < self.first_new else None
        except RunDirError as error:
            self._tell("episode.damaged", group=index, member=member, error=str(error)[:300])
            return None
        return episode if episode is not None and episode.version == version and not episode.masked else None

    def _look_at(self, episode: Episode) -> None:
        self._tell(
            "episode.done",
            group=episode.group,
            member=episode.member,
            reward=episode.reward,
            masked=episode.masked,
            error=episode.outcome.error[:300],
        )
        broken = sorted({name for v in episode.validations for name in v.notes if name.startswith(alarms.UNREADABLE)})
        if broken:
            names = ", ".join(name.removeprefix(alarms.UNREADABLE) for name in broken)
            place = f"{episode.group:05d}-{episode.member}"
            self.alarms.set(alarms.FAMILY, f"key() of {names} raised on a prompt of episode {place}")
        self.masked_in_a_row = self.masked_in_a_row + 1 if episode.masked else 0
        if self.masked_in_a_row >= self.alarms.rules.stop_after_masked:
            raise SupervisionError(
                f"{self.masked_in_a_row} episodes in a row failed for reasons that are not the agent's; the last: "
                f"{episode.outcome.error}"
            )

    # -- collecting

    async def _collect(self) -> list[Group]:
        """A step's worth of finished groups: the next ones by index, or the oldest that are ready."""
        wanted = self.schedule.groups_per_step
        if self.schedule.order == "index":
            chosen = sorted(self.groups)[:wanted]
            await self._wait([self.groups[i] for i in chosen])
            return [self._take(i) for i in chosen]
        batch: list[Group] = []
        while len(batch) < wanted:
            ready = sorted((task.result().version, i) for i, task in self.groups.items() if task.done())
            for version, index in ready[: wanted - len(batch)]:
                group = self._take(index)
                if self.schedule.stale == "drop" and self.step - version > self.schedule.max_steps_off_policy:
                    self._drop(group)
                    self._start_groups(await self._policy())
                else:
                    batch.append(group)
            if len(batch) < wanted:
                await self._wait(list(self.groups.values()), first=True)
        return sorted(batch, key=lambda g: (g.version, g.index))

    def _take(self, index: int) -> Group:
        return self.groups.pop(index).result()

    def _drop(self, group: Group) -> None:
        self.dropped[group.index] = sum(e.outcome.usd + e.agent_usd for e in group.episodes)
        self._tell("group.dropped", group=group.index, usd=self.dropped[group.index], sync=True)

    async def _wait(self, tasks: Collection[Background], *, first: bool = False) -> None:
        """Until all of `tasks` are done (or one, if `first`). A failure of anything in the background ends the wait."""
        while True:
            background: set[Background] = {self.workers_failed, *self.groups.values(), *self.evaluations, *tasks}
            pending = {t for t in background if not t.done()}
            for task in background - pending:
                _seen(task)
            waiting = pending.intersection(tasks)
            if not waiting or (first and len(waiting) < len(tasks)):
                return
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)

    # -- training

    async def _train(self, batch: Sequence[Group], *, started_s: float) -> None:
        self.checkpoints.require_room()
        begin_s = self.clock.monotonic()
        attempt = self._begun(batch)
        report, not_finite = _finite(await self.trainer.update(batch))
        if report.usd:
            self.meter.settle(f"update-{report.version}{attempt}", report.usd, kind="update", step=self.step)
        ref = await self.trainer.save(f"{report.version:05d}")
        self.refs[report.version] = ref
        row = step_row(self.step, batch, report, self._counted(batch, begin_s - started_s, begin_s))
        self.alarms.on_step(row, self._standing(batch, not_finite), before=self._without_signal())
        indices = [g.index for g in batch]
        self._tell("step.done", step=self.step, version=report.version, ref=ref, groups=indices, row=row, sync=True)
        self.run_dir.metrics_log.append(row)
        self.rows.append(row)
        self.on_row(self.step, row, [e for g in batch for e in g.episodes])
        self.trained.update(indices)
        self.step += 1
        await self.checkpoints.thin(self.refs, self._needed)
        self.alarms.stop(row)

    def _needed(self) -> set[int]:
        """Versions to keep: of groups under way, evaluations to come, those that a resumed run samples at, and the best so far."""
        started = {int(e["group"]): int(e["version"]) for e in self.run_dir.events("group.started")}
        under_way = {v for i, v in started.items() if i not in self.trained and i not in self.dropped}
        to_evaluate = {v for v in self.refs if self._due(v)} - self._evaluated()
        behind = range(self.step - self.schedule.max_steps_off_policy, self.step + 1)
        return {*under_way, *to_evaluate, *behind, best_version(self.run_dir)}

    def _evaluated(self) -> set[int]:
        names = self.run_dir.evals().keys() & {str(event["name"]) for event in self.run_dir.events("eval.done")}
        return {v for v in range(self.step + 1) if _validation_name(v) in names}

    def _begun(self, batch: Sequence[Group]) -> str:
        """Announce the update. One that a crash has undone was paid for all the same: each try has a name of its own."""
        self.tries[self.step] = self.tries.get(self.step, 0) + 1
        self._tell("update.started", step=self.step, groups=[g.index for g in batch], sync=True)
        return f"#{self.tries[self.step]}" if self.tries[self.step] > 1 else ""

    def _without_signal(self) -> int:
        return int(self.rows[-1].get(alarms.IN_A_ROW, 0.0)) if self.rows else 0

    def _standing(self, batch: Sequence[Group], not_finite: tuple[str, ...]) -> Standing:
        return Standing(
            signal=signal(batch),
            episodes=sum(len(g.episodes) for g in batch),
            max_steps_off_policy=self.schedule.max_steps_off_policy,
            not_finite=not_finite,
            spent_usd=self.meter.spent_usd + self.meter.reserved_usd,
            hours=(self.clock.monotonic() - self.started_s) / 3600,
            free_bytes=shutil.disk_usage(self.run_dir.path).free,
        )

    def _counted(self, batch: Sequence[Group], wait_s: float, begin_s: float) -> Counted:
        episodes = [e for g in batch for e in g.episodes]
        total = self.meter.spent_usd
        before = self.rows[-1]["usd/total"] if self.rows else 0.0
        queued = [e for e in episodes if e.job_key]
        train_s = self.clock.monotonic() - begin_s
        return Counted(
            jobs_run=sum(not e.outcome.reused for e in queued),
            jobs_reused=sum(e.outcome.reused for e in queued),
            usd=total - before,
            usd_total=total,
            step_s=wait_s + train_s,
            sample_s=max((e.agent_s for e in episodes), default=0.0),
            train_s=train_s,
            groups_dropped=len(self.dropped),
            usd_dropped=sum(self.dropped.values()),
        )

    # -- evaluating

    def _due(self, version: int) -> bool:
        every = self.schedule.eval_every
        return bool(every) and (version % (every or 1) == 0 or version == self.schedule.steps)

    def _evaluate(self, policy: Policy) -> None:
        """Every `eval_every` versions, on a fixed set of validation tasks, beside the training."""
        if self._due(policy.version) and policy.version not in self.evaluated:
            self.evaluated.add(policy.version)
            work = self._validation(policy)
            self.evaluations.add(asyncio.create_task(work, name=_validation_name(policy.version)))

    async def _validation(self, policy: Policy) -> EvalReport:
        name = _validation_name(policy.version)
        report = await evaluate(
            [f for f in self.families if not f.held_out],
            policy,
            name=name,
            label=f"version {policy.version}",
            split="validation",
            n=VALIDATION_TASKS,
            seed=self.schedule.seed,
            run=self.run_dir,
            parts=self.parts,
            baselines=self.baselines,
            deadline_s=self.schedule.deadline_s,
        )
        if (name, report.reward) not in [(e["name"], e["reward"]) for e in self.run_dir.events("eval.done")]:
            self._tell("eval.done", name=name, version=report.version, reward=report.reward, sync=True)
        return report

    # -- resuming

    async def _resume(self) -> None:
        """Go back to the last committed step, and start again what was in flight, each part at its own version."""
        await repay.settle(self.run_dir, self.parts.reward, evals=VALIDATION, tell=self._tell)
        self._read_journal()
        if 0 not in self.refs:
            self.refs[0] = await self.trainer.save("00000")
            self._tell("checkpoint", version=0, ref=self.refs[0], sync=True)
        owed = self._owed()
        versions = {v for v in self.refs if self._due(v)} - self._evaluated()
        for version in sorted({*owed, *versions, self.step}):
            await self.trainer.load(self.refs[version])
            policy = await self.trainer.policy()
            if policy.version != version:
                raise SettingsError(
                    f"the trainer is at version {policy.version} where the run is at {version}: "
                    "give each run a trainer of its own"
                )
            for index in owed.get(version, []):
                self._start(index, policy)
            self._evaluate(policy)

    def _read_journal(self) -> None:
        for event in self.run_dir.events(*_OF_THE_PAST):
            if event["event"] == "checkpoint.gone":
                version = int(event["version"])
                self.checkpoints.undeleted[version] = self.refs.pop(version)
                continue
            if event["event"] == "update.started":
                self.tries[int(event["step"])] = self.tries.get(int(event["step"]), 0) + 1
                continue
            if event["event"] == "group.dropped":
                self.dropped[int(event["group"])] = float(event["usd"])
                continue
            self.refs[int(event["version"])] = str(event["ref"])
            if event["event"] == "step.done":
                self.checkpoints.undeleted.clear()  # it was done before that step
                self.rows.append(event["row"])
                self.trained.update(event["groups"])
        self.step = len(self.rows)
        self.run_dir.rewrite_metrics(self.rows)

    def _owed(self) -> dict[int, list[int]]:
        """Groups that were started and not trained, by the version they were sampled at."""
        started = {int(e["group"]): int(e["version"]) for e in self.run_dir.events("group.started")}
        self.next_group = self.first_new = max(started, default=-1) + 1
        if self.schedule.order == "index":  # also those that a longer run would have started by now
            slots = self.schedule.groups_per_step * (self.step + self.schedule.max_steps_off_policy + 1)
            total = self.schedule.steps * self.schedule.groups_per_step
            self.next_group = max(self.first_new, min(slots, total))
            started |= {i: self.schedule.version_of(i) for i in range(self.first_new, self.next_group)}
        owed: dict[int, list[int]] = {}
        for index, version in sorted(started.items()):
            if index not in self.trained and index not in self.dropped:
                owed.setdefault(version, []).append(index)
        return owed

    # -- telling

    def _tell(self, event: str, *, sync: bool = False, **fields: JSON) -> None:
        self.run_dir.journal.append({"t": self.clock.now(), "event": event, **fields}, sync=sync)
        self.on_event(event, fields)

    @staticmethod
    async def _stop(tasks: Collection[Background]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _seen(task: Background) -> None:
    """Raise what ended a background task. What nobody foresaw is the cause of a SupervisionError that names the task."""
    error = asyncio.CancelledError("by something below") if task.cancelled() else task.exception()
    if error is None:
        return
    if isinstance(error, NestedRLError) or not isinstance(error, Exception | asyncio.CancelledError):
        raise error
    name = task.get_name() if isinstance(task, asyncio.Task) else "a background task"
    raise SupervisionError(f"{name} died: {type(error).__name__}: {error}") from error


def _finite(report: UpdateReport) -> tuple[UpdateReport, tuple[str, ...]]:
    """The report without what is no finite number, and the names of what was left out.

    Raises TrainerError when the ratios are not: then the weights cannot be either, and the last saved ones are gone on with.
    """
    for name in ("ratio_mean", "ratio_max", "ess"):
        if not math.isfinite(getattr(report, name)):
            raise TrainerError(
                f"update {report.version} gave {name} = {getattr(report, name)}, so it was not saved; the run is at version "
                f"{report.version - 1}: lower the learning rate, or look for a sampler that reports wrong log-probabilities"
            )
    left_out = tuple(sorted(key for key, value in report.metrics.items() if not math.isfinite(value)))
    return evolve(report, metrics={k: v for k, v in report.metrics.items() if k not in left_out}), left_out


def _validation_name(version: int) -> str:
    return f"{VALIDATION}{version:05d}"


def best_version(run: RunDir) -> int:
    """The version with the best validation reward; without evaluations the one after the best 5-step mean of reward/mean."""
    reports = [report for name, report in run.evals().items() if name.startswith(VALIDATION)]
    rewards = {int(r["version"]): float(r["reward"]) for r in reports if r["reward"] is not None}
    if rewards:
        return max(rewards, key=lambda v: (rewards[v], v))
    means = [row["reward/mean"] for row in run.metrics()]
    if not means:
        return 0
    windows = {
        end: sum(means[max(0, end - 5) : end]) / min(5, end) for end in range(min(5, len(means)), len(means) + 1)
    }
    return max(windows, key=lambda v: (windows[v], v))
