"""The workers: lease → machine → train → score → result, on one lease.

A worker decides whose fault a failure was from what the controller saw, never from what the job printed: AgentFault (and
the job's own deadline) finish the job with what it earned; everything else gives the delivery back, and the queue delivers
it again until its deliveries run out. A scoring failure is never a number. Every worker is watched: one that dies takes the
run with it, loudly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from attrs import evolve

from nested_rl.clock import Clock, SystemClock
from nested_rl.errors import AgentFault, LeaseLost, SupervisionError
from nested_rl.interfaces import ComputeBackend, InnerTrainer, JobQueue, Machine, Scorer
from nested_rl.types import JSON, Checkpoint, EvalSet, Job, JobResult, JobSpec
from nested_rl.waiting import uninterrupted, within

T = TypeVar("T")

FAULTS_IN_A_ROW = 10
"""So many infra faults one after the other mean an outage: stop starting jobs instead of paying for nothing."""

SCORE_DEADLINE_S = 900.0


class Workers:
    """One worker for each machine the backend may hold. `async with` starts and stops them.

    `failed` never has a result; it gets the exception of the first worker that died.
    """

    def __init__(
        self,
        *,
        queue: JobQueue,
        compute: ComputeBackend,
        inner: InnerTrainer,
        scorer: Scorer,
        eval_set: Callable[[JobSpec], EvalSet],
        clock: Clock | None = None,
        on_event: Callable[[str, Mapping[str, JSON]], None] = lambda name, fields: None,  # noqa: ARG005
        lease_ttl_s: float = 60.0,
        poll_s: float = 0.02,
    ) -> None:
        self._queue, self._compute, self._inner, self._scorer = queue, compute, inner, scorer
        self._eval_set, self._clock, self._on_event = eval_set, clock or SystemClock(), on_event
        self._lease_ttl_s, self._poll_s = lease_ttl_s, poll_s
        self._tasks: list[asyncio.Task[None]] = []
        self._faults_in_a_row = 0
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
        for task in self._tasks:
            task.cancel()
        await uninterrupted(self._ended())
        if self.failed.done():
            self.failed.exception()  # told already to whoever waited
        else:
            self.failed.cancel()

    async def _ended(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _died(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self.failed.done():
            self.failed.set_exception(error)

    async def supervise(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns, unless a worker dies first."""
        task = asyncio.ensure_future(work)
        try:
            watched: set[asyncio.Future[Any]] = {task, self.failed}
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            if self.failed.done():
                self.failed.result()
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # -- one worker

    async def _work(self, owner: str) -> None:
        while True:
            job = await self._queue.lease(owner, ttl_s=self._lease_ttl_s)
            if job is None:
                await self._clock.sleep(self._poll_s)
                continue
            self._tell("job.started", job, delivery=job.delivery)
            try:
                await self._deliver(job)
            except asyncio.CancelledError:
                await uninterrupted(self._queue.release(job))
                raise

    async def _deliver(self, job: Job) -> None:
        """One delivery, to a result or back to the queue."""
        heart = asyncio.create_task(self._beat(job))
        work = asyncio.create_task(self._run(job))
        try:
            await asyncio.wait({heart, work}, return_when=asyncio.FIRST_COMPLETED)
            if heart.done():
                heart.result()
            result = work.result()
        except LeaseLost as error:
            self._tell("job.late", job, error=str(error))
            return
        except Exception as error:  # noqa: BLE001  whatever a machine or a part raises, the job did not do it
            await self._give_back(job, error)
            return
        finally:
            for task in (heart, work):
                task.cancel()
            await uninterrupted(_gathered(heart, work))
        self._faults_in_a_row = 0
        done = await self._queue.finish(job, result)
        kept = done.result or result
        self._tell("job.done", job, fault=kept.fault, usd=result.usd, seconds=result.seconds, machine=result.machine)

    async def _give_back(self, job: Job, error: Exception) -> None:
        self._faults_in_a_row += 1
        after = await self._queue.release(job)
        told = f"{type(error).__name__}: {error}"
        self._tell("job.fault", job, error=told[:500], state=str(after.state))
        if self._faults_in_a_row >= FAULTS_IN_A_ROW:
            raise SupervisionError(
                f"{FAULTS_IN_A_ROW} deliveries in a row failed for reasons that are not the jobs'; the last: {told}"
            ) from error

    async def _beat(self, job: Job) -> None:
        while True:
            await self._clock.sleep(self._lease_ttl_s / 3)
            await self._queue.heartbeat(job, ttl_s=self._lease_ttl_s)

    async def _run(self, job: Job) -> JobResult:
        started_at, start_s = self._clock.now(), self._clock.monotonic()
        async with self._compute.machine(job.spec.need) as machine:
            begin_s = self._clock.monotonic()
            result = await self._train_and_score(job, machine)
            held_s = self._clock.monotonic() - begin_s
            usd = held_s / 3600 * machine.usd_per_hour
            name = machine.id
        seconds = self._clock.monotonic() - start_s
        return evolve(result, started_at=started_at, seconds=seconds, usd=usd, machine=name, deliveries=job.delivery)

    async def _train_and_score(self, job: Job, machine: Machine) -> JobResult:
        start_s = self._clock.monotonic()
        try:
            checkpoint = await self._trained(job, machine)
        except AgentFault as error:
            return JobResult(fault="agent", error=str(error), train_s=self._clock.monotonic() - start_s)
        train_s = self._clock.monotonic() - start_s
        scoring = self._scorer.score(
            checkpoint, self._eval_set(job.spec), machine, seed=int(job.spec.digest[:8] or "0", 16) + job.spec.seed
        )
        post = await within(self._clock, SCORE_DEADLINE_S, scoring)
        nano = job.spec.scale == "nano"
        return JobResult(
            post=post,
            cost=checkpoint.work if nano else train_s,
            cost_limit=checkpoint.work_limit if nano else job.spec.timeout_s,
            train_s=train_s,
            score_s=self._clock.monotonic() - start_s - train_s,
            curve=checkpoint.curve,
            log=checkpoint.log,
        )

    async def _trained(self, job: Job, machine: Machine) -> Checkpoint:
        """A job that does not end in time has itself to blame: the machine's trouble would show as another error first."""
        try:
            return await within(self._clock, job.spec.timeout_s, self._inner.train(job, machine))
        except TimeoutError as error:
            raise AgentFault(f"not done within its {job.spec.timeout_s:g} s") from error

    def _tell(self, event: str, job: Job, **fields: JSON) -> None:
        self._on_event(event, {"job": job.id, "key": job.key, **fields})


async def _gathered(*tasks: asyncio.Task[Any]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
