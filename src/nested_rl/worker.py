"""Workers: lease a job, take a machine, train, score, hand in the result.

What the job did wrong is a result (fault "agent"). Everything else that goes wrong gives the delivery back, and the queue hands
the job out again: a lost machine, a failed scorer, a bug of ours. A score that could not be measured is never a number.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

from attrs import define

from nested_rl import redact
from nested_rl.clock import Clock
from nested_rl.errors import (
    AgentFault,
    BudgetExceeded,
    InfraFault,
    LeaseLost,
    RunDirError,
    SettingsError,
    SupervisionError,
)
from nested_rl.interfaces import ComputeBackend, InnerTrainer, JobQueue, Machine, Scorer
from nested_rl.types import JSON, Checkpoint, EvalSet, Job, JobResult, JobSpec, Score
from nested_rl.waiting import Overdue, uninterrupted, within

log = redact.logger(__name__)
T = TypeVar("T")
OnEvent: TypeAlias = Callable[[str, Mapping[str, JSON]], None]

SCORING_SHARE = 0.25
"""Of a job's time limit this much is kept for scoring, so that a job that trains to the last second is scored all the same."""
ERROR_CHARS = 2000


@define(kw_only=True)
class Delivery:
    """One job on one machine: its training, its score, its time and money."""

    job: Job
    inner: InnerTrainer
    scorer: Scorer
    clock: Clock
    machine: str = ""
    started_at: float = 0.0
    train_s: float = 0.0
    score_s: float = 0.0
    result: JobResult | None = None
    _start_s: float | None = None
    _usd_per_hour: float = 0.0

    async def run(
        self,
        compute: ComputeBackend,
        eval_set: Callable[[JobSpec], EvalSet],
        dev_set: Callable[[JobSpec], EvalSet] | None = None,
    ) -> JobResult:
        """The result. One with fault "infra" is none: the job must be delivered again.

        Raises SettingsError when the evaluation is not the one that the baselines were scored on: no delivery could mend that; and
        BudgetExceeded when there is no money for a machine, or no more of it for this one.
        """
        self.started_at = self.clock.now()
        try:
            items = eval_set(self.job.spec)
            seen = dev_set(self.job.spec) if dev_set is not None and self.job.spec.dev else None
            async with _lease(compute, self.job) as machine:
                self.result = await self._on(machine, items, seen)
        except asyncio.CancelledError as error:
            if (here := asyncio.current_task()) is None or here.cancelling():
                raise
            self._failed(error)  # something below cancelled itself, nobody called the work off
        except BudgetExceeded:
            raise
        except SettingsError as error:
            if self._start_s is None:
                raise
            self._failed(error)
        except Exception as error:  # noqa: BLE001  whatever it was, it was not the job's doing
            self._failed(error)
        assert self.result is not None
        return self.result

    @property
    def seconds(self) -> float:
        """Since the machine was there."""
        return 0.0 if self._start_s is None else self.clock.monotonic() - self._start_s

    @property
    def usd(self) -> float:
        """What the machine has cost so far."""
        return self.seconds / 3600 * self._usd_per_hour

    async def _on(self, machine: Machine, items: EvalSet, seen: EvalSet | None) -> JobResult:
        """Train and score on one lease. An agent fault is no reason to throw the machine away, so it does not get out."""
        self.machine, self._usd_per_hour, self._start_s = machine.id, machine.usd_per_hour, self.clock.monotonic()
        try:
            checkpoint = await self._train(machine)
        except AgentFault as fault:
            return self._result(fault="agent", error=redact.text(str(fault))[:ERROR_CHARS])
        post = await self._score(checkpoint, items, machine)
        dev = await self._score(checkpoint, seen, machine) if seen is not None else None
        nano = self.job.spec.scale == "nano"
        return self._result(
            post=post,
            dev=dev,
            cost=checkpoint.work if nano else self.train_s,
            cost_limit=checkpoint.work_limit if nano else self._train_limit_s,
            curve=checkpoint.curve,
            log=redact.text(checkpoint.log),
        )

    @property
    def _train_limit_s(self) -> float:
        return (1 - SCORING_SHARE) * self.job.spec.timeout_s

    async def _train(self, machine: Machine) -> Checkpoint:
        try:
            return await within(self.clock, self._train_limit_s, self.inner.train(self.job, machine))
        except Overdue:
            raise AgentFault(f"the job was still training after {self._train_limit_s:g} s, its limit") from None
        finally:
            self.train_s = self.seconds

    async def _score(self, checkpoint: Checkpoint, items: EvalSet, machine: Machine) -> Score:
        left_s = self.job.spec.timeout_s - self.seconds
        try:
            work = self.scorer.score(checkpoint, items, machine, seed=scoring_seed(self.job.spec))
            score = await within(self.clock, left_s, work)
        except Exception as error:
            raise InfraFault(f"scoring failed: {told(error)}") from error
        finally:
            self.score_s = self.seconds - self.train_s
        value: object = score.value  # a scorer of another making may give anything
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
            raise InfraFault(f"scoring failed: the score is {value!r}, which is not a number in [0, 1]")
        return score

    def _failed(self, error: BaseException) -> None:
        if self.result is None:
            self.result = self._result(fault="infra", error=told(error))
        else:
            log.warning("job %s is done, but its machine could not be given back: %s", self.job.id, told(error))

    def _result(self, **fields: Any) -> JobResult:
        return JobResult(
            seconds=self.seconds,
            train_s=self.train_s,
            score_s=self.score_s,
            usd=self.usd,
            machine=self.machine,
            started_at=self.started_at,
            deliveries=self.job.delivery,
            **fields,
        )


class Workers:
    """As many workers as the backend has machines, for as long as the `async with` lasts.

    `failed` gets the exception of a worker that died; `supervise` raises it at once. `on_event` is told of `job.started`, and of
    the end of each delivery with its `usd`: `job.done`, `job.released` (failed, or called off), `job.lost` (its lease ran out),
    `job.late` (its result came too late). `stop_after_faults` deliveries in a row that fail for reasons of ours, over more than
    one job, mean that something is broken, and end it with SupervisionError. Leaving the block gives running jobs back to the
    queue, free for others at once.
    """

    def __init__(
        self,
        *,
        queue: JobQueue,
        compute: ComputeBackend,
        inner: InnerTrainer,
        scorer: Scorer,
        eval_set: Callable[[JobSpec], EvalSet],
        dev_set: Callable[[JobSpec], EvalSet] | None = None,
        clock: Clock,
        on_event: OnEvent,
        lease_ttl_s: float = 60.0,
        poll_s: float = 0.05,
        stop_after_faults: int = 10,
    ) -> None:
        self._queue, self._compute, self._inner, self._scorer = queue, compute, inner, scorer
        self._eval_set, self._dev_set, self._clock, self._on_event = eval_set, dev_set, clock, on_event
        self._lease_ttl_s, self._poll_s = lease_ttl_s, poll_s
        self._stop_after_faults = stop_after_faults
        self._faults: list[str] = []  # keys of the jobs whose deliveries failed, since the last one that did not
        self._leaving = False
        self._tasks: list[asyncio.Task[None]] = []
        self.refused: BudgetExceeded | None = None
        self.failed: asyncio.Future[None]

    async def __aenter__(self) -> Self:
        self.failed = asyncio.get_running_loop().create_future()
        for number in range(self._compute.max_machines):
            task = asyncio.create_task(self._work(f"worker-{number}"), name=f"worker-{number}")
            task.add_done_callback(self._died)
            self._tasks.append(task)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leaving = True
        await uninterrupted(_stopped(*self._tasks))
        if not self.failed.cancel():
            self.failed.exception()  # seen, also when nobody waited for it

    async def supervise(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns; SupervisionError, with `work` cancelled, as soon as a worker dies.

        When there is no money for a machine, no job is begun any more, and BudgetExceeded comes when those under way have ended.
        """
        task = asyncio.ensure_future(work)
        either: set[asyncio.Future[Any]] = {task, self.failed}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self.failed.result()
            return await task
        finally:
            await _stopped(task)

    def _died(self, task: asyncio.Task[None]) -> None:
        if self._leaving or self.failed.done():
            return
        error = asyncio.CancelledError("by something below") if task.cancelled() else task.exception()
        if error is None:
            if all(one.done() for one in self._tasks):
                self.failed.set_exception(self.refused or SupervisionError("every worker has left"))
            return
        if not isinstance(error, SupervisionError | RunDirError):
            cause, error = error, SupervisionError(f"{task.get_name()} died: {told(error)}")
            error.__cause__ = cause
        self.failed.set_exception(error)

    async def _work(self, owner: str) -> None:
        while self.refused is None:
            job = await self._queue.lease(owner, ttl_s=self._lease_ttl_s)
            if job is None:
                await self._clock.sleep(self._poll_s)
            else:
                await self._deliver(job)

    async def _deliver(self, job: Job) -> None:
        """One delivery from lease to end. Whatever comes, the lease is ended or given back."""
        delivery = Delivery(job=job, inner=self._inner, scorer=self._scorer, clock=self._clock)
        work = asyncio.ensure_future(delivery.run(self._compute, self._eval_set, self._dev_set))
        beat = asyncio.ensure_future(self._beat(job))
        try:
            await self._tell("job.started", job)
            await asyncio.wait({work, beat}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                beat.result()
            result = work.result()
        except LeaseLost:
            await uninterrupted(_stopped(work, beat))
            await self._tell("job.lost", job, usd=delivery.usd)
        except BudgetExceeded as error:
            await uninterrupted(self._called_off(job, delivery, work, beat))
            self.refused = self.refused or error
        except BaseException:  # called off, or the queue is broken
            await uninterrupted(self._called_off(job, delivery, work, beat))
            raise
        else:
            await _stopped(beat)
            await uninterrupted(self._hand_in(job, result))

    async def _called_off(self, job: Job, delivery: Delivery, *tasks: asyncio.Future[Any]) -> None:
        await _stopped(*tasks)
        if delivery.result is not None:  # it was paid for
            await self._hand_in(job, delivery.result)
        else:
            await self._queue.release(job, counts=False)
            await self._tell("job.released", job, error="called off", usd=delivery.usd)

    async def _beat(self, job: Job) -> None:
        while True:
            await self._clock.sleep(self._lease_ttl_s / 3)
            await self._queue.heartbeat(job, ttl_s=self._lease_ttl_s)

    async def _hand_in(self, job: Job, result: JobResult) -> None:
        spent: dict[str, JSON] = {"usd": result.usd, "seconds": result.seconds, "machine": result.machine}
        if result.fault == "infra":
            after = await self._queue.release(job, error=result.error)
            await self._tell("job.released", job, error=result.error, state=str(after.state), **spent)
            self._faults.append(job.key)
            jobs = len(set(self._faults))
            if len(self._faults) >= self._stop_after_faults and jobs > 1:
                raise SupervisionError(
                    f"{len(self._faults)} deliveries in a row failed, of {jobs} jobs, and no job is to blame; the last: "
                    f"{result.error}"
                )
            return
        self._faults.clear()
        done = await self._queue.finish(job, result)
        post = result.post.value if result.post else None
        event = "job.done" if done.delivery == job.delivery and done.result == result else "job.late"
        await self._tell(event, job, fault=result.fault, error=result.error[:300], post=post, cost=result.cost, **spent)

    async def _tell(self, event: str, job: Job, **fields: JSON) -> None:
        counts = await self._queue.counts()
        sizes = {"queued": counts["queued"], "running": counts["running"]}
        self._on_event(event, {"job": job.id, "key": job.key, "delivery": job.delivery, **fields, **sizes})


def _lease(compute: ComputeBackend, job: Job) -> AbstractAsyncContextManager[Machine]:
    """A machine for this job; a backend that wants to know whose it is gets the key, which is the same at every delivery."""
    if (named := getattr(compute, "machine_for", None)) is None:
        return compute.machine(job.spec.need)
    lease: AbstractAsyncContextManager[Machine] = named(job.spec.need, job=job.key)
    return lease


def scoring_seed(spec: JobSpec) -> int:
    """The seed of a job's evaluation: the same for the same job, on any machine and at any delivery."""
    return int.from_bytes(hashlib.sha256(f"score/{spec.digest}/{spec.seed}".encode()).digest()[:6], "big")


def told(error: BaseException | None) -> str:
    """An exception in one line, without secrets."""
    return redact.text(f"{type(error).__name__}: {error}")[:ERROR_CHARS]


async def _stopped(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
