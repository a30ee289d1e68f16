"""What every job queue must do."""

from __future__ import annotations

import asyncio

import pytest

from nested_rl.errors import LeaseLost
from nested_rl.interfaces import JobQueue
from nested_rl.testing.values import made_spec
from nested_rl.types import Job, JobResult, JobState, Score

LONG_S = 60.0
SHORT_S = 0.02


async def leased(queue: JobQueue, owner: str = "a", *, ttl_s: float = LONG_S) -> Job:
    """The next job, which must be there."""
    job = await queue.lease(owner, ttl_s=ttl_s)
    assert job is not None
    return job


class QueueSuite:
    """Override the fixture `queue` with an empty JobQueue that hands a job out at most 3 times."""

    @pytest.fixture
    def queue(self) -> JobQueue:
        """An empty queue."""
        raise NotImplementedError("override the fixture `queue`")

    async def test_a_job_goes_from_queued_to_running_to_done(self, queue: JobQueue) -> None:
        spec, result = made_spec(), JobResult(post=Score.of([1.0, 0.0]), cost=3.5, curve=(0.1, 0.2), log="fine")
        put = await queue.put(spec, key="k")
        assert (put.state, put.key, put.spec, put.result) == (JobState.QUEUED, "k", spec, None)
        job = await leased(queue, "worker-1")
        assert (job.id, job.state, job.owner, job.delivery, job.spec) == (
            put.id,
            JobState.RUNNING,
            "worker-1",
            1,
            spec,
        )
        done = await queue.finish(job, result)
        assert (done.state, done.result) == (JobState.DONE, result)
        assert await queue.wait(job.id) == done
        assert await queue.lease("worker-2", ttl_s=LONG_S) is None

    async def test_the_same_key_is_queued_once(self, queue: JobQueue) -> None:
        first = await queue.put(made_spec(), key="k")
        assert (await queue.put(made_spec(), key="k")).id == first.id
        job = await leased(queue)
        assert await queue.lease("b", ttl_s=LONG_S) is None
        assert (await queue.put(made_spec(), key="k")).state is JobState.RUNNING
        await queue.finish(job, JobResult(cost=1.0))
        again = await queue.put(made_spec(), key="k")
        assert again.result == JobResult(cost=1.0)

    async def test_the_oldest_job_comes_first_also_when_it_was_given_back(self, queue: JobQueue) -> None:
        for key in "abc":
            await queue.put(made_spec(), key=key)
        first = await leased(queue)
        assert first.key == "a"
        await queue.release(first)
        assert [(await leased(queue)).key for _ in "abc"] == ["a", "b", "c"]

    async def test_an_empty_queue_has_nothing(self, queue: JobQueue) -> None:
        assert await queue.lease("a", ttl_s=LONG_S) is None

    async def test_a_job_is_claimed_once(self, queue: JobQueue) -> None:
        for number in range(10):
            await queue.put(made_spec(), key=str(number))
        jobs = await asyncio.gather(*(queue.lease(f"w{n}", ttl_s=LONG_S) for n in range(20)))
        assert sorted(job.key for job in jobs if job) == [str(n) for n in range(10)]

    async def test_a_lease_that_ran_out_is_given_to_another(self, queue: JobQueue) -> None:
        await queue.put(made_spec(), key="k")
        first = await leased(queue, "a", ttl_s=SHORT_S)
        await asyncio.sleep(2 * SHORT_S)
        second = await leased(queue, "b")
        assert (second.id, second.delivery, second.owner) == (first.id, 2, "b")
        with pytest.raises(LeaseLost):
            await queue.heartbeat(first, ttl_s=LONG_S)

    async def test_a_heartbeat_keeps_the_lease(self, queue: JobQueue) -> None:
        await queue.put(made_spec(), key="k")
        job = await leased(queue, ttl_s=SHORT_S)
        await queue.heartbeat(job, ttl_s=LONG_S)
        await asyncio.sleep(2 * SHORT_S)
        assert await queue.lease("b", ttl_s=LONG_S) is None
        assert (await queue.finish(job, JobResult())).state is JobState.DONE

    async def test_a_late_result_of_an_old_delivery_is_ignored(self, queue: JobQueue) -> None:
        await queue.put(made_spec(), key="k")
        old = await leased(queue, ttl_s=SHORT_S)
        await asyncio.sleep(2 * SHORT_S)
        new = await leased(queue)
        assert (await queue.finish(old, JobResult(error="old"))).state is JobState.RUNNING
        assert (await queue.release(old, error="old")).state is JobState.RUNNING
        assert (await queue.finish(new, JobResult(error="new"))).result == JobResult(error="new")
        assert (await queue.finish(old, JobResult(error="old"))).result == JobResult(error="new")

    async def test_the_first_finish_wins(self, queue: JobQueue) -> None:
        await queue.put(made_spec(), key="k")
        job = await leased(queue)
        await queue.finish(job, JobResult(cost=1.0))
        assert (await queue.finish(job, JobResult(cost=2.0))).result == JobResult(cost=1.0)
        with pytest.raises(LeaseLost):
            await queue.heartbeat(job, ttl_s=LONG_S)

    async def test_after_three_failed_deliveries_a_job_ends_with_an_infra_fault(self, queue: JobQueue) -> None:
        await queue.put(made_spec(), key="k")
        for number in (1, 2):
            released = await queue.release(await leased(queue), error=f"lost {number}")
            assert (released.state, released.delivery) == (JobState.QUEUED, number)
        ended = await queue.release(await leased(queue), error="lost 3")
        assert ended.state is JobState.DONE
        assert ended.result is not None
        assert (ended.result.fault, ended.result.post, ended.result.deliveries) == ("infra", None, 3)
        assert "lost 3" in ended.result.error
        assert await queue.wait(ended.id) == ended

    async def test_leases_that_run_out_count_as_deliveries(self, queue: JobQueue) -> None:
        put = await queue.put(made_spec(), key="k")
        for _ in range(3):
            await leased(queue, ttl_s=SHORT_S)
            await asyncio.sleep(2 * SHORT_S)
        assert await queue.lease("b", ttl_s=LONG_S) is None
        ended = await queue.wait(put.id)
        assert ended.result is not None
        assert ended.result.fault == "infra"

    async def test_work_that_was_called_off_uses_up_no_delivery(self, queue: JobQueue) -> None:
        await queue.put(made_spec(), key="k")
        for number in range(1, 6):
            released = await queue.release(await leased(queue), counts=False)
            assert (released.state, released.delivery) == (JobState.QUEUED, number)
        for _ in range(2):
            assert (await queue.release(await leased(queue), error="lost")).state is JobState.QUEUED

    async def test_a_job_that_ended_with_an_infra_fault_may_be_put_again(self, queue: JobQueue) -> None:
        first = await queue.put(made_spec(), key="k")
        for _ in range(3):
            await queue.release(await leased(queue), error="lost")
        again = await queue.put(made_spec(), key="k")
        assert (again.id, again.state, again.result) == (first.id, JobState.QUEUED, None)
        assert (await queue.release(await leased(queue))).state is JobState.QUEUED
        job = await leased(queue)
        assert (await queue.finish(job, JobResult(cost=1.0))).result == JobResult(cost=1.0)

    async def test_an_agent_fault_is_a_result_for_good(self, queue: JobQueue) -> None:
        await queue.put(made_spec(), key="k")
        await queue.finish(await leased(queue), JobResult(fault="agent", error="crashed"))
        again = await queue.put(made_spec(), key="k")
        assert again.result == JobResult(fault="agent", error="crashed")
        assert await queue.lease("b", ttl_s=LONG_S) is None

    async def test_many_may_wait_for_one_job(self, queue: JobQueue) -> None:
        put = await queue.put(made_spec(), key="k")
        waiting = [asyncio.ensure_future(queue.wait(put.id)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        done = await queue.finish(await leased(queue), JobResult(cost=1.0))
        assert await asyncio.wait_for(asyncio.gather(*waiting[1:]), 30) == [done, done]

    async def test_jobs_are_counted_by_state(self, queue: JobQueue) -> None:
        for key in "abcd":
            await queue.put(made_spec(), key=key)
        await queue.finish(await leased(queue), JobResult())
        await leased(queue)
        counts = await queue.counts()
        assert (counts["queued"], counts["running"], counts["done"]) == (2, 1, 1)
