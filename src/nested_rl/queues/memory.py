"""A queue in this process's memory: for tests, plans and throw-away runs. The same behaviour as the SQLite queue."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Mapping

import attrs
from attrs import define

from nested_rl.clock import Clock, SystemClock
from nested_rl.errors import LeaseLost, SettingsError
from nested_rl.interfaces import JobQueue
from nested_rl.types import Job, JobResult, JobSpec, JobState


@define
class _Entry:
    job: Job
    tries: int = 0  # deliveries that count; `job.delivery` counts all, because it fences
    expires_s: float = 0.0
    error: str = ""


class MemoryQueue(JobQueue):
    """Jobs in a dict, leases in monotonic time.

    >>> import asyncio
    >>> from nested_rl.types import Task
    >>> spec = JobSpec(task=Task(id="t", family="f", difficulty=1), files={}, digest="d", base="nano-s", scale="nano")
    >>> async def story():
    ...     queue = MemoryQueue()
    ...     await queue.put(spec, key="a")
    ...     job = await queue.lease("me", ttl_s=60)
    ...     return await queue.finish(job, JobResult())
    >>> asyncio.run(story()).state
    <JobState.DONE: 'done'>
    """

    def __init__(self, *, clock: Clock | None = None, max_deliveries: int = 3) -> None:
        self._clock = clock or SystemClock()
        self._max_deliveries = max_deliveries
        self._entries: dict[str, _Entry] = {}
        self._ids: dict[str, str] = {}
        self._queued: list[int] = []
        self._running: dict[int, _Entry] = {}
        self._soonest_s = float("inf")
        """No lease runs out before."""
        self._done: dict[str, asyncio.Event] = {}
        self.late = 0
        """Results that came after another delivery had taken over, or had finished first."""

    async def put(self, spec: JobSpec, *, key: str) -> Job:
        known = self._entries.get(self._ids.get(key, ""))
        if known is None:
            job_id = str(len(self._entries) + 1)
            self._ids[key] = job_id
            known = self._entries[job_id] = _Entry(Job(id=job_id, key=key, spec=spec))
            heapq.heappush(self._queued, int(job_id))
        elif known.job.result is not None and known.job.result.fault == "infra":
            known.job = attrs.evolve(known.job, spec=spec, state=JobState.QUEUED, owner="", result=None)
            known.tries, known.error = 0, ""
            heapq.heappush(self._queued, int(known.job.id))
        return known.job

    async def lease(self, owner: str, *, ttl_s: float) -> Job | None:
        now_s = self._clock.monotonic()
        if now_s >= self._soonest_s:
            for entry in [e for e in self._running.values() if e.expires_s <= now_s]:
                self._give_back(entry, "its lease ran out")
            self._soonest_s = min((e.expires_s for e in self._running.values()), default=float("inf"))
        if not self._queued:
            return None
        entry = self._entries[str(heapq.heappop(self._queued))]
        entry.job = attrs.evolve(entry.job, state=JobState.RUNNING, owner=owner, delivery=entry.job.delivery + 1)
        entry.tries, entry.expires_s = entry.tries + 1, now_s + ttl_s
        self._soonest_s = min(self._soonest_s, entry.expires_s)
        self._running[int(entry.job.id)] = entry
        return entry.job

    async def heartbeat(self, job: Job, *, ttl_s: float) -> None:
        entry = self._held(job)
        if entry is None:
            raise LeaseLost(f"job {job.id} ({job.key}): delivery {job.delivery} no longer holds it")
        entry.expires_s = self._clock.monotonic() + ttl_s
        self._soonest_s = min(self._soonest_s, entry.expires_s)  # a shorter one counts too

    async def finish(self, job: Job, result: JobResult) -> Job:
        entry = self._held(job)
        if entry is None:
            self.late += 1
            return self._entry(job.id).job
        return self._end(entry, result)

    async def release(self, job: Job, *, error: str = "", counts: bool = True) -> Job:
        entry = self._held(job)
        if entry is None:
            return self._entry(job.id).job
        return self._give_back(entry, error, counts=counts)

    async def wait(self, job_id: str) -> Job:
        entry = self._entry(job_id)
        while entry.job.state is not JobState.DONE:
            await self._done.setdefault(job_id, asyncio.Event()).wait()
        return entry.job

    async def counts(self) -> Mapping[str, int]:
        queued, running = len(self._queued), len(self._running)
        done = len(self._entries) - queued - running
        return {str(JobState.QUEUED): queued, str(JobState.RUNNING): running, str(JobState.DONE): done}

    async def close(self) -> None:
        """The jobs stay."""
        self._done.clear()

    # ------------------------------------------------------------

    def _entry(self, job_id: str) -> _Entry:
        if job_id not in self._entries:
            raise SettingsError(f"there is no job {job_id!r} in this queue")
        return self._entries[job_id]

    def _held(self, job: Job) -> _Entry | None:
        """The entry, if this very delivery still has it."""
        entry = self._entry(job.id)
        return entry if entry.job.state is JobState.RUNNING and entry.job.delivery == job.delivery else None

    def _give_back(self, entry: _Entry, error: str, *, counts: bool = True) -> Job:
        entry.error = error or entry.error
        if counts and entry.tries >= self._max_deliveries:
            return self._end(entry, given_up(entry.job.delivery, entry.tries, entry.error))
        entry.tries -= not counts
        entry.job = attrs.evolve(entry.job, state=JobState.QUEUED, owner="")
        del self._running[int(entry.job.id)]
        heapq.heappush(self._queued, int(entry.job.id))
        return entry.job

    def _end(self, entry: _Entry, result: JobResult) -> Job:
        entry.job = attrs.evolve(entry.job, state=JobState.DONE, result=result)
        del self._running[int(entry.job.id)]
        if waiting := self._done.pop(entry.job.id, None):
            waiting.set()
        return entry.job


def given_up(deliveries: int, tries: int, error: str) -> JobResult:
    """The result of a job whose deliveries ran out."""
    return JobResult(
        fault="infra", error=f"given up after {tries} deliveries; the last: {error}", deliveries=deliveries
    )
