"""A session: the parts of one run, chosen, opened together, metered, and let go of together."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final

from attrs import define, field, frozen

from nested_rl import arrears
from nested_rl.alarms import BUDGET, AlarmRules, Alarms
from nested_rl.baselines import Baselines
from nested_rl.clock import Clock, SystemClock
from nested_rl.episode import Parts, Place
from nested_rl.errors import BudgetExceeded
from nested_rl.interfaces import (
    AgentHarness,
    ComputeBackend,
    InnerTrainer,
    JobQueue,
    OuterTrainer,
    RewardFn,
    Scorer,
    TaskFamily,
)
from nested_rl.meter import Meter
from nested_rl.rewards import UpliftReward
from nested_rl.rundir import RunDir
from nested_rl.types import JSON, Budget, Need
from nested_rl.worker import Workers

Watcher = Callable[[str, Mapping[str, JSON]], None]
ROOM_S: Final = 1.0
"""How often a job that there is no room for in the budget asks again."""
Pay = Callable[[Mapping[str, JSON]], None]


@frozen(kw_only=True)
class Choice:
    """The parts that somebody chose. None is the local one."""

    trainer: OuterTrainer | None = None
    harness: AgentHarness | None = None
    inner: InnerTrainer | None = None
    queue: JobQueue | None = None
    compute: ComputeBackend | None = None
    scorer: Scorer | None = None
    reward: RewardFn | None = None
    budget: Budget | None = None
    alarms: AlarmRules | None = None
    allow_weak_sandbox: bool = False
    """Run code that a large model wrote also where only resource limits hold it. Off: refused."""
    clock: Clock = field(factory=SystemClock)


@define(kw_only=True)
class Session:
    """The parts of one run, open."""

    trainer: OuterTrainer
    parts: Parts
    baselines: Baselines
    meter: Meter
    workers: Workers
    alarms: Alarms


@frozen(kw_only=True)
class Hired:
    """The parts that were chosen, or the local ones, told what they have to know of the run."""

    trainer: OuterTrainer
    harness: AgentHarness
    inner: InnerTrainer
    scorer: Scorer
    compute: ComputeBackend
    queue: JobQueue

    @property
    def usd_per_hour(self) -> float:
        """What a machine costs, for reservations."""
        return float(getattr(self.compute, "usd_per_hour", 0.0))

    @property
    def timeout_s(self) -> float:
        """The longest that a job may take."""
        return float(getattr(self.inner, "timeout_s", 3600.0))


def _hired(chosen: Choice, run: RunDir, families: Sequence[TaskFamily]) -> Hired:
    from nested_rl.compute.local import LocalCompute
    from nested_rl.harness.agent import ToolHarness
    from nested_rl.inner.nano import NanoInnerTrainer
    from nested_rl.queues.sqlite import SqliteQueue
    from nested_rl.scorers.nano import NanoScorer
    from nested_rl.trainers.nano import NanoTrainer

    hired = Hired(
        trainer=chosen.trainer or NanoTrainer(),
        harness=chosen.harness or ToolHarness(),
        inner=chosen.inner or NanoInnerTrainer(),
        scorer=chosen.scorer or NanoScorer(),
        compute=chosen.compute or LocalCompute(),
        queue=chosen.queue or SqliteQueue(run.path / "queue.sqlite", clock=chosen.clock),
    )
    told = ((hired.trainer, run.path / "checkpoints"), (hired.scorer, families), (hired.inner, families))
    for part, what in told:
        bind = getattr(part, "bind", None)
        if bind is not None:
            bind(what)
    if hasattr(hired.inner, "offered"):  # it refuses jobs that none of the machines has room for
        hired.inner.offered(hired.compute.offers())
    if hasattr(hired.inner, "keep_in"):
        hired.inner.keep_in(run.path / "weights")
    return hired


@contextlib.asynccontextmanager
async def opened(
    chosen: Choice, run: RunDir, families: Sequence[TaskFamily], *, job_seeds: int, watch: Watcher, agent: object = None
) -> AsyncIterator[Session]:
    """Every part, for as long as the `async with` lasts; let go of however it ends. `agent` is a policy that is not the trainer's."""
    hired, clock, rules = _hired(chosen, run, families), chosen.clock, chosen.alarms or AlarmRules()

    def tell(event: str, fields: Mapping[str, JSON]) -> None:
        run.journal.append({"t": clock.now(), "event": event, **fields})
        watch(event, fields)

    alarms = Alarms(rules, tell=tell, budget=chosen.budget)
    write = functools.partial(run.costs_log.append, sync=True)
    meter = Meter(chosen.budget or Budget(), clock=clock, write=write, rows=run.costs())
    pay = _payer(hired.compute, meter, run)
    need = getattr(hired.inner, "scoring_need", Need())
    baselines = Baselines(run, families, bases=hired.inner.bases, scorer=hired.scorer, compute=hired.compute, need=need)
    recorder = _recorder(run, meter, clock, alarms, watch, pay)
    workers = Workers(
        queue=hired.queue,
        compute=hired.compute,
        inner=hired.inner,
        scorer=hired.scorer,
        eval_set=baselines.hidden_set,
        dev_set=baselines.dev_set,
        clock=clock,
        on_event=recorder,
        lease_ttl_s=float(getattr(hired.queue, "lease_ttl_s", 60.0)),
        stop_after_faults=rules.stop_after_faults,
    )
    async with contextlib.AsyncExitStack() as stack:
        for held in (hired.queue, hired.compute, hired.inner, hired.scorer, hired.trainer):
            close = getattr(held, "close", None)
            if close is not None:
                stack.push_async_callback(close)
        require_walls = getattr(hired.inner, "require_walls", None)
        if require_walls and not (chosen.allow_weak_sandbox or getattr(agent or hired.trainer, "embedded", False)):
            await require_walls()
        await arrears.settle(
            run.journal.rows(),
            hired.queue,
            usd_per_hour=hired.usd_per_hour,
            timeout_s=hired.timeout_s,
            pay=pay,
            tell=recorder,
        )
        await stack.enter_async_context(workers)
        try:
            yield Session(
                trainer=hired.trainer,
                parts=_parts(chosen, hired, meter, workers, alarms, job_seeds=job_seeds),
                baselines=baselines,
                meter=meter,
                workers=workers,
                alarms=alarms,
            )
        except BudgetExceeded as error:
            alarms.set(BUDGET, str(error))  # also the provider's balance
            raise


def _payer(compute: ComputeBackend, meter: Meter, run: RunDir) -> Pay:
    """Who pays for a delivery: its row in the ledger, or a backend that pays for whole machines."""
    metered = getattr(compute, "metered", None)
    if metered is None:
        return functools.partial(_pay, meter)
    began = next((str(row["t"]) for row in run.journal.rows()), "")
    metered(meter, ledger=hashlib.sha256(f"{run.path.resolve()} {began}".encode()).hexdigest()[:12])
    return lambda row: None  # noqa: ARG005


def _parts(chosen: Choice, hired: Hired, meter: Meter, workers: Workers, alarms: Alarms, *, job_seeds: int) -> Parts:
    """What every episode shares."""

    async def admit(key: str, seconds: float) -> None:
        usd = hired.usd_per_hour * seconds / 3600
        while True:
            if workers.refused is not None:
                raise BudgetExceeded(str(workers.refused))
            try:
                meter.reserve(key, usd)
            except BudgetExceeded as error:
                if not meter.later(usd):
                    raise
                alarms.set(BUDGET, f"jobs wait for money that is set aside for others: {error}")
                await chosen.clock.sleep(ROOM_S)
            else:
                return

    return Parts(
        harness=hired.harness,
        inner=hired.inner,
        queue=hired.queue,
        reward=chosen.reward or UpliftReward(),
        clock=chosen.clock,
        job_seeds=job_seeds,
        max_jobs=getattr(hired.harness, "max_jobs", 1),
        admit=admit,
        waive=meter.release,
        charge=functools.partial(_charge, meter, chosen.clock),
    )


def _recorder(run: RunDir, meter: Meter, clock: Clock, alarms: Alarms, watch: Watcher, pay: Pay) -> Watcher:
    """Journals what the workers tell, and gives every delivery that cost something its row in the ledger."""

    def on_event(event: str, fields: Mapping[str, JSON]) -> None:
        row = {"t": clock.now(), "event": event, **fields}
        run.journal.append(row, sync=event == "job.started")
        if arrears.ended(row):
            pay(row)
        if event == "job.done" or fields.get("state") == "done":
            meter.release(str(fields["key"]))
        watch(event, fields)
        alarms.on_event(event, fields)

    return on_event


def _charge(meter: Meter, clock: Clock, place: Place, usd: float) -> None:
    """An agent's turns, a row an episode; one that is sampled once more after a crash is paid for once more."""
    row = f"agent-{place.seed:x}@{clock.now():.3f}"
    meter.settle(row, usd, kind="agent", group=place.group, member=place.member)


def _pay(meter: Meter, row: Mapping[str, JSON]) -> None:
    """The end of one delivery, however it came, has one row in the ledger."""
    kind = "job" if row["event"] == "job.done" else str(row["event"])
    meter.settle(arrears.ledger_id(row), float(row["usd"]), kind=kind, seconds=row.get("seconds", 0.0))
