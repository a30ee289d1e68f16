"""Experiment: composes the parts, runs them, evaluates what came out.

Every part that is not given is the local one: real models, real RL, a real hidden evaluation, on this computer's CPU.
Async inside, a sync door outside; Ctrl-C and SIGTERM unwind everything and give every machine back.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from attrs import field, frozen

from nested_rl import arguments, endings, parts, retention, soundness, sync, wrapping
from nested_rl.alarms import TRACKER, AlarmRules, Alarms
from nested_rl.describe import describe
from nested_rl.errors import RunDirError, SettingsError
from nested_rl.evaluation import EvalReport, evaluate
from nested_rl.interfaces import Policy, TaskFamily, Tracker
from nested_rl.loop import Loop, Schedule, best_version
from nested_rl.retention import KEEP_CHECKPOINTS
from nested_rl.rewards import UpliftReward
from nested_rl.run import Run
from nested_rl.rundir import RunDir
from nested_rl.session import Choice, Watcher, opened
from nested_rl.types import JSON, Budget, Episode
from nested_rl.worker import told

if TYPE_CHECKING:
    from nested_rl.plan import Assumptions, Plan
    from nested_rl.report.digest import Digest

PILOT = ("calc_chain", "string_pipeline", "dispatch")
MAY_CHANGE = ("steps", "eval_every", "keep_checkpoints", "budget", "alarms", "nested_rl", "parts.compute")
"""What may differ when a run is gone on with: more steps, a larger budget, other alarms or machines, a newer version of the package;
while no step is done, another reward too (repay.py)."""


@arguments.known
@frozen
class Experiment(Choice):
    """What to run. Swap any part; `run()` on the defaults needs no account, no GPU and no download.

    >>> exp = Experiment()                                   # doctest: +SKIP
    >>> exp.run(steps=25, out="runs/pilot")                  # doctest: +SKIP
    """

    tasks: Sequence[TaskFamily] | None = None
    trackers: Sequence[Tracker] = field(default=(), kw_only=True)

    def __attrs_post_init__(self) -> None:
        """Parts are objects; their names are for run files."""
        for kind in parts.GROUPS.keys() - {"tracker"}:
            parts.require_object(kind, getattr(self, kind))
        for name, value, right in (("budget", self.budget, Budget), ("alarms", self.alarms, AlarmRules)):
            if value is not None and not isinstance(value, right):
                raise SettingsError(
                    f"{name} must be a {right.__name__}, such as nrl.{right.__name__}(…), not {value!r}"
                )

    # -- running

    @arguments.known
    def run(
        self,
        steps: int = 25,
        *,
        groups_per_step: int = 4,
        group_size: int = 8,
        max_steps_off_policy: int = 1,
        order: Literal["index", "ready"] | None = None,
        stale: Literal["keep", "drop"] = "keep",
        job_seeds: int = 2,
        eval_every: int | None = None,
        keep_checkpoints: int | None = KEEP_CHECKPOINTS,
        seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        eval_salt_from: str | os.PathLike[str] | None = None,
        quiet: bool = False,
    ) -> Run:
        """Run, or go on with what is in `out`; on a finished run, just return it.

        `max_steps_off_policy` is K: groups are sampled at most K versions before they are trained on. `eval_every=N` runs 24
        validation tasks every N versions (0: never; default 5 on local machines, never on rented ones). `job_seeds` bounds
        how many distinct seeds identical jobs get: an identical job with the same seed is not run twice. `eval_salt_from`
        takes the hidden evaluation of another run, which makes the two comparable. Of the trainer's checkpoints the
        `keep_checkpoints` newest are kept (None: all), besides the first, the best and those that are still needed.
        """
        return sync.run(
            self.run_async(
                steps,
                groups_per_step=groups_per_step,
                group_size=group_size,
                max_steps_off_policy=max_steps_off_policy,
                order=order,
                stale=stale,
                job_seeds=job_seeds,
                eval_every=eval_every,
                keep_checkpoints=keep_checkpoints,
                seed=seed,
                out=out,
                eval_salt_from=eval_salt_from,
                quiet=quiet,
            )
        )

    @arguments.known
    async def run_async(
        self,
        steps: int = 25,
        *,
        groups_per_step: int = 4,
        group_size: int = 8,
        max_steps_off_policy: int = 1,
        order: Literal["index", "ready"] | None = None,
        stale: Literal["keep", "drop"] = "keep",
        job_seeds: int = 2,
        eval_every: int | None = None,
        keep_checkpoints: int | None = KEEP_CHECKPOINTS,
        seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        eval_salt_from: str | os.PathLike[str] | None = None,
        quiet: bool = False,
    ) -> Run:
        """The same, inside a running event loop."""
        if self.reward is not None and (not callable(self.reward) or isinstance(self.reward, type)):
            raise SettingsError(
                f"reward must be a function of an Outcome (or an object that can be called), not {self.reward!r}"
            )
        schedule = self._schedule(
            steps,
            groups_per_step=groups_per_step,
            group_size=group_size,
            max_steps_off_policy=max_steps_off_policy,
            order=order,
            stale=stale,
            eval_every=eval_every,
            keep_checkpoints=keep_checkpoints,
            seed=seed,
        )
        families = self._families(training=True)
        asked = self._asked(schedule, families, job_seeds=_at_least("job_seeds", job_seeds, 1))
        salt = RunDir.open(eval_salt_from).salt if eval_salt_from is not None else None
        run = RunDir.create(Path(out or "runs/latest"), asked, may_change=MAY_CHANGE, salt=salt, now=self.clock.now)
        with contextlib.closing(run):
            if _finished(run, schedule):
                self._say(run, quiet=quiet)
            else:
                await self._run(run, schedule, families, job_seeds, quiet=quiet)
        return Run(run.path)

    async def _run(
        self, run: RunDir, schedule: Schedule, families: Sequence[TaskFamily], job_seeds: int, *, quiet: bool
    ) -> None:
        from nested_rl.report.during import DuringRun
        from nested_rl.report.live import Live
        from nested_rl.trackers.guard import guarded

        live = Live(schedule.steps, mode="quiet" if quiet else "auto", done_steps=tuple(run.metrics()))
        trackers, report = guarded(self.trackers), DuringRun(run)
        alarms: Alarms | None = None

        def on_row(step: int, row: Mapping[str, float], episodes: Sequence[Episode]) -> None:
            live.on_metrics(row)
            trackers.metrics(step, row)
            for episode in episodes:
                trackers.episode(step, episode)
            if alarms is not None:
                alarms.set(TRACKER, trackers.trouble)
            report.step_done()

        run.journal.append({"t": self.clock.now(), "event": "run.started"}, sync=True)
        with contextlib.closing(trackers), live, report:
            async with (
                self._failure_told(run),
                opened(self, run, families, job_seeds=job_seeds, watch=live.on_event) as session,
            ):
                alarms = session.alarms
                level = getattr(session.parts.inner, "sandbox_level", None)
                if level is not None:
                    run.journal.append({"t": self.clock.now(), "event": "sandbox", "level": await level()})
                loop = Loop(
                    run=run,
                    families=families,
                    trainer=session.trainer,
                    parts=session.parts,
                    baselines=session.baselines,
                    meter=session.meter,
                    schedule=schedule,
                    clock=self.clock,
                    workers_failed=session.workers.failed,
                    on_event=live.on_event,
                    on_row=on_row,
                    alarms=alarms,
                )
                await session.workers.supervise(loop.run())
        if alarms is not None:
            alarms.set(TRACKER, trackers.trouble)  # what came of the last step is known when they are closed
        digest = report.last()
        run.journal.append({"t": self.clock.now(), "event": "run.finished"}, sync=True)
        self._say(run, digest, quiet=quiet)

    @contextlib.asynccontextmanager
    async def _failure_told(self, run: RunDir) -> AsyncIterator[None]:
        """What ends a run before its time is in its journal too, for whoever looks later."""
        try:
            yield
        except asyncio.CancelledError:
            with contextlib.suppress(RunDirError):
                run.journal.append({"t": self.clock.now(), "event": "run.stopped"}, sync=True)
            raise
        except Exception as error:
            with contextlib.suppress(RunDirError):  # a full disk, say, which is what `error` tells already
                run.journal.append({"t": self.clock.now(), "event": "run.failed", "error": told(error)}, sync=True)
            error.add_note(endings.kept(run, error))
            raise

    @staticmethod
    def _say(run: RunDir, digest: Digest | None = None, *, quiet: bool) -> None:
        """The summary is what a script's user waits for."""
        from nested_rl.report.page import summary

        if not quiet:
            print(wrapping.fitted(summary(run, digest)))  # noqa: T201

    def _schedule(
        self,
        steps: int,
        *,
        groups_per_step: int,
        group_size: int,
        max_steps_off_policy: int,
        order: str | None,
        stale: str,
        eval_every: int | None,
        keep_checkpoints: int | None,
        seed: int,
    ) -> Schedule:
        """What was asked for, checked; what was left open depends on whether machines cost something."""
        local = self.compute is None or not getattr(self.compute, "usd_per_hour", 0.0)
        return Schedule(
            steps=_at_least("steps", steps, 1),
            groups_per_step=_at_least("groups_per_step", groups_per_step, 1),
            group_size=_at_least("group_size", group_size, 2),
            max_steps_off_policy=_at_least("max_steps_off_policy", max_steps_off_policy, 0),
            order=_one_of("order", order or ("index" if local else "ready"), ("index", "ready")),
            stale=_one_of("stale", stale, ("keep", "drop")),
            eval_every=_at_least("eval_every", eval_every if eval_every is not None else (5 if local else 0), 0),
            keep_checkpoints=None if keep_checkpoints is None else _at_least("keep_checkpoints", keep_checkpoints, 1),
            seed=_at_least("seed", seed, 0),
        )

    # -- planning

    @arguments.known
    def plan(
        self,
        steps: int = 25,
        *,
        groups_per_step: int = 4,
        group_size: int = 8,
        max_steps_off_policy: int = 1,
        order: Literal["index", "ready"] | None = None,
        stale: Literal["keep", "drop"] = "keep",
        job_seeds: int = 2,
        eval_every: int | None = None,
        keep_checkpoints: int | None = KEEP_CHECKPOINTS,
        seed: int = 0,
        out: str | os.PathLike[str] | None = None,  # noqa: ARG002  the arguments of `run`, so that one table serves both
        eval_salt_from: str | os.PathLike[str] | None = None,  # noqa: ARG002
        quiet: bool = False,
        assumptions: Assumptions | Mapping[str, JSON] | None = None,
        like: str | os.PathLike[str] | None = None,
        matrix: str | os.PathLike[str] | None = None,
    ) -> Plan:
        """What `run` with the same arguments would take, by simulating it: jobs, wall-clock, machine hours, dollars. Spends nothing.

        Figures come from `assumptions` (all of them, or those to change by name), a past run (`like`), a table of
        `nested-rl bench-gpus` (`matrix`), and for the rest from stated assumptions, each shown with what it rests on. Nothing is said of
        rewards. `.show()` prints it, `.ask()` asks whether to go on. In a terminal a line counts the simulations, unless `quiet`.

        >>> plan = Experiment().plan(steps=2, groups_per_step=1)      # doctest: +SKIP
        >>> plan.jobs.mid                                             # doctest: +SKIP
        14
        """
        from nested_rl import plan
        from nested_rl.plan.missing import missing

        schedule = self._schedule(
            steps,
            groups_per_step=groups_per_step,
            group_size=group_size,
            max_steps_off_policy=max_steps_off_policy,
            order=order,
            stale=stale,
            eval_every=eval_every,
            keep_checkpoints=keep_checkpoints,
            seed=seed,
        )
        _at_least("job_seeds", job_seeds, 1)
        asked = plan.setting(self, schedule, [family.name for family in self._families(training=True)])
        told = plan.assumptions(self, asked, given=assumptions, like=like, table=matrix)
        lacks = tuple(missing(self.trainer, self.compute, self.inner, self.scorer))
        return plan.make(asked, told, missing=lacks, budget=self.budget, costs_money=plan.spends(self), quiet=quiet)

    # -- evaluating

    @arguments.known
    def evaluate(
        self,
        tasks: Sequence[TaskFamily],
        *,
        policy: str | Policy = "RUN@best",
        n: int = 96,
        seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        quiet: bool = False,
    ) -> EvalReport:
        """Evaluate a policy of a run on `n` test tasks of these families, held-out ones welcome.

        `policy` is `RUN@STEP`, `RUN@best`, `RUN@initial` or `RUN` (its last version), where RUN is a run directory, or the
        word RUN together with `out=`; or `openai:MODEL@URL`, or any Policy, as the agent in the run directory `out`. The
        result is kept in RUN/evals/ and not computed twice, except for episodes that were masked. `.compare(other)` pairs two. In a
        terminal a line counts the episodes, unless `quiet`.
        """
        return sync.run(self.evaluate_async(tasks, policy=policy, n=n, seed=seed, out=out, quiet=quiet))

    @arguments.known
    async def evaluate_async(
        self,
        tasks: Sequence[TaskFamily],
        *,
        policy: str | Policy = "RUN@best",
        n: int = 96,
        seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        quiet: bool = False,
    ) -> EvalReport:
        """The same, inside a running event loop."""
        from nested_rl.report.counting import Counting

        if isinstance(policy, str) and policy.startswith("openai:"):
            from nested_rl.policies import FrozenPolicy

            policy = FrozenPolicy.named(policy)
        path, _, which = policy.partition("@") if isinstance(policy, str) else ("RUN", "", "")
        if path == "RUN":
            path = str(out or "runs/latest")
        run = RunDir.open(path)
        run.own()
        with contextlib.closing(run), contextlib.ExitStack() as stack:
            families = self._families(given=tasks)
            job_seeds = int(run.spec.get("job_seeds", 2))
            if isinstance(policy, str):
                refs = retention.refs(run)
                version = version_of(run, which, refs)
                agent, label = f"v{version:05d}", f"{path}@{which or version}"
            else:
                agent, label = _named(policy)
            conditions = self._conditions(families, seed)
            counting = stack.enter_context(Counting(f"evaluating {label}", "episodes", quiet=quiet))
            own = None if isinstance(policy, str) else policy
            silent: Watcher = lambda event, fields: None  # noqa: ARG005, E731
            async with (
                _ready(policy),
                opened(self, run, families, job_seeds=job_seeds, watch=silent, agent=own) as session,
            ):
                if isinstance(policy, str):
                    await session.trainer.load(refs[version])
                    policy = await session.trainer.policy()
                return await session.workers.supervise(
                    evaluate(
                        families,
                        policy,
                        name=f"{'-'.join(f.name for f in families)}-{agent}-n{n}-s{seed}{conditions and '-' + conditions}",
                        label=label,
                        split="test",
                        n=_at_least("n", n, 1),
                        seed=seed,
                        run=run,
                        parts=session.parts,
                        baselines=session.baselines,
                        deadline_s=Schedule().deadline_s,
                        conditions=conditions,
                        tell=counting,
                    )
                )

    # -- the parts

    def _families(self, *, given: Sequence[TaskFamily] | None = None, training: bool = False) -> tuple[TaskFamily, ...]:
        """The families, at the scale of the inner trainer. Held-out ones are never trained on."""
        from nested_rl import tasks

        chosen = given if given is not None else (self.tasks or tasks.load(*PILOT))
        if isinstance(chosen, str) or not isinstance(chosen, Sequence) or any(isinstance(f, str) for f in chosen):
            raise SettingsError(f"tasks are families, not {chosen!r}: pass nrl.tasks.load('calc_chain', …)")
        scale = self.inner.scale if self.inner else "nano"
        families = tuple(soundness.tried(f.at(scale) if hasattr(f, "at") else f) for f in chosen)
        if not families:
            raise SettingsError("no task families given: pass tasks=nrl.tasks.load('calc_chain', …)")
        held_out = [f.name for f in families if f.held_out]
        if training and held_out:
            raise SettingsError(
                f"{', '.join(held_out)} is held out and never trained on; evaluate on it with Experiment.evaluate"
            )
        return families

    def _own_parts(self, *names: str) -> dict[str, JSON]:
        """The parts that are not the built-in ones, described."""
        given = {name: getattr(self, name) for name in names}
        return {name: describe(part) for name, part in given.items() if part is not None and part != UpliftReward()}

    def _conditions(self, families: Sequence[TaskFamily], seed: int) -> str:
        """What makes two evaluations different besides policy, tasks and seed; empty for the built-in parts and families."""
        from nested_rl import tasks

        own = {f.name: next(f.tasks("test", seed=seed)).difficulty for f in families if f.name not in tasks.names()}
        told = self._own_parts("harness", "inner", "scorer", "reward") | ({"families": own} if own else {})
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:8] if told else ""

    def _asked(self, schedule: Schedule, families: Sequence[TaskFamily], *, job_seeds: int) -> dict[str, JSON]:
        from nested_rl import __version__

        fields = (
            "steps",
            "groups_per_step",
            "group_size",
            "max_steps_off_policy",
            "order",
            "stale",
            "eval_every",
            "keep_checkpoints",
            "seed",
        )
        return {
            "nested_rl": __version__,
            **{name: getattr(schedule, name) for name in fields},
            "job_seeds": job_seeds,
            "tasks": [f.name for f in families],
            "parts": self._own_parts("trainer", "harness", "inner", "compute", "scorer", "reward"),
            "budget": describe(self.budget) if self.budget else None,
            "alarms": describe(self.alarms) if self.alarms else None,
        }


def _finished(run: RunDir, schedule: Schedule) -> bool:
    """Every step done, and the end recorded after the last of them."""
    events = [event["event"] for event in run.events("step.done", "run.finished")]
    return events.count("step.done") >= schedule.steps and events[-1] == "run.finished"


def version_of(run: RunDir, which: str, refs: Mapping[int, str]) -> int:
    """What follows the @ of a policy's name."""
    named = {"best": best_version(run), "initial": 0, "": max(refs, default=0)}
    version = named.get(which, int(which) if re.fullmatch(r"\d+", which) else -1)
    if version not in refs:
        raise SettingsError(
            f"{run.path} has no version {which!r}; use best, initial or a step (saved: {retention.known(refs)})"
        )
    return version


def _named(policy: Policy) -> tuple[str, str]:
    """Name and label of a policy of another making. The name tells its settings too, so that others are evaluated anew."""
    label = str(getattr(policy, "label", type(policy).__name__))
    about = hashlib.sha256(json.dumps(describe(policy), sort_keys=True).encode()).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9.]+', '-', label)[:60].strip('-.')}-{about}", label


@contextlib.asynccontextmanager
async def _ready(policy: object) -> AsyncIterator[None]:
    """A policy behind a server is checked before anything is started, and its connections are let go of at the end."""
    check, close = getattr(policy, "check", None), getattr(policy, "aclose", None)
    try:
        if check is not None:
            await check()
        yield
    finally:
        if close is not None:
            await close()


def _at_least(name: str, value: int, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise SettingsError(f"{name} must be a whole number of at least {low}, not {value!r}")
    return value


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> JSON:
    if value not in choices:
        raise SettingsError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
    return value
