"""Lease → machine → train → score → result, with everything that can go wrong on the way, in virtual time."""

import asyncio
import contextlib
from contextlib import asynccontextmanager

import pytest

from nested_rl.clock import VirtualClock
from nested_rl.errors import AgentFault, MachineLost, RunDirError, SupervisionError
from nested_rl.queues.memory import MemoryQueue
from nested_rl.testing.values import made_spec
from nested_rl.types import Checkpoint, EvalSet, Item, JobResult, JobState, Score
from nested_rl.worker import SCORING_SHARE, Workers, scoring_seed

ITEMS = EvalSet(
    family="f", difficulty=1, split="hidden", items=(Item(prompt="1+1?", answer="2", key="1+1"),), digest="d"
)
CHECKPOINT = Checkpoint(path="out", base="nano-s", work=30.0, work_limit=100.0, curve=(0.1, 0.5), log="trained")
LIMIT_S = 100.0


class Box:
    """A machine that does nothing."""

    def __init__(self, name):
        self.id = name
        self.usd_per_hour = 36.0


class Boxes:
    """A backend whose machines remember how their leases ended."""

    def __init__(self, max_machines=1):
        self.max_machines = max_machines
        self.leases = []
        self.leaving = lambda: None

    @asynccontextmanager
    async def machine(self, need):
        box = Box(f"box-{len(self.leases)}")
        self.leases.append([box.id, "held"])
        place = self.leases[-1]
        try:
            yield box
            place[1] = "given back"
        except BaseException as error:
            place[1] = type(error).__name__
            raise
        self.leaving()


class Inner:
    """Trains for `seconds`, then does what the script says for each delivery in turn; the last entry stays."""

    def __init__(self, clock, *script, seconds=10.0):
        self.clock, self.script, self.seconds = clock, list(script) or [CHECKPOINT], seconds
        self.calls = []

    async def train(self, job, machine):
        self.calls.append((job.key, job.delivery, machine.id, job.spec.seed))
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        await self.clock.sleep(self.seconds)
        if isinstance(step, BaseException):
            raise step
        return step


class Scorer:
    def __init__(self, clock, *script, seconds=5.0):
        self.clock, self.script, self.seconds = clock, list(script) or [Score.of([1.0, 0.0])], seconds
        self.calls = []

    async def score(self, model, eval_set, machine, *, seed=0):
        self.calls.append((model, eval_set, machine.id, seed))
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        await self.clock.sleep(self.seconds)
        if isinstance(step, BaseException):
            raise step
        return step


class Story:
    """A queue, a backend and the doubles, on one virtual clock."""

    def __init__(self, *, machines=1):
        self.clock = VirtualClock(start=1000.0)
        self.queue = MemoryQueue(clock=self.clock)
        self.boxes = Boxes(machines)
        self.inner = Inner(self.clock)
        self.scorer = Scorer(self.clock)
        self.events = []

    def workers(self, **settings):
        return Workers(
            queue=self.queue,
            compute=self.boxes,
            inner=self.inner,
            scorer=self.scorer,
            eval_set=settings.pop("eval_set", lambda spec: ITEMS),
            clock=self.clock,
            on_event=lambda name, fields: self.events.append((name, fields)),
            **settings,
        )

    async def one(self, *, key="k", **spec):
        """Put one job and wait for it."""

        async def told():
            async with self.workers() as workers:
                job = await self.queue.put(made_spec(timeout_s=LIMIT_S, **spec), key=key)
                return await workers.supervise(self.queue.wait(job.id))

        return (await self.clock.run(told())).result

    def names(self):
        return [name for name, _ in self.events]


@pytest.fixture
def story():
    return Story()


async def test_a_job_is_trained_and_scored_on_one_lease(story):
    result = await story.one(seed=7)
    assert result.post == Score.of([1.0, 0.0])
    assert (result.fault, result.error) == (None, "")
    assert (result.train_s, result.score_s, result.seconds) == (10.0, 5.0, 15.0)
    assert result.usd == pytest.approx(15 * 36 / 3600)
    assert (result.machine, result.deliveries, result.started_at) == ("box-0", 1, pytest.approx(1000.0, abs=1))
    assert (result.cost, result.cost_limit, result.curve, result.log) == (30.0, 100.0, (0.1, 0.5), "trained")
    assert story.inner.calls == [("k", 1, "box-0", 7)]
    assert story.scorer.calls == [(CHECKPOINT, ITEMS, "box-0", scoring_seed(made_spec(seed=7)))]
    assert story.boxes.leases == [["box-0", "given back"]]
    assert story.names() == ["job.started", "job.done"]
    done = dict(story.events[1][1])
    assert (done["key"], done["usd"], done["seconds"], done["post"]) == ("k", result.usd, 15.0, 0.5)
    assert (done["queued"], done["running"]) == (0, 0)


async def test_at_full_scale_the_cost_is_seconds_of_training(story):
    async def told():
        import attrs

        async with story.workers() as workers:
            spec = attrs.evolve(made_spec(timeout_s=LIMIT_S), scale="full")
            job = await story.queue.put(spec, key="k")
            return await workers.supervise(story.queue.wait(job.id))

    result = (await story.clock.run(told())).result
    assert (result.cost, result.cost_limit) == (10.0, LIMIT_S * (1 - SCORING_SHARE))


def test_the_seed_of_the_evaluation_depends_on_the_job_alone():
    assert scoring_seed(made_spec(seed=1)) == scoring_seed(made_spec(seed=1))
    assert scoring_seed(made_spec(seed=1)) != scoring_seed(made_spec(seed=2))


async def test_what_the_job_did_wrong_is_its_result_and_the_machine_stays(story):
    story.inner.script = [AgentFault("reward() raised ZeroDivisionError")]
    result = await story.one()
    assert (result.fault, result.post, result.error) == ("agent", None, "reward() raised ZeroDivisionError")
    assert (result.train_s, result.usd) == (10.0, pytest.approx(0.1))
    assert story.scorer.calls == []
    assert story.boxes.leases == [["box-0", "given back"]]


async def test_training_past_the_deadline_is_the_jobs_own_doing(story):
    story.inner.seconds = 10 * LIMIT_S
    result = await story.one()
    assert result.fault == "agent"
    assert "still training after 75 s" in result.error
    assert result.seconds == 75.0


async def test_scoring_past_the_deadline_is_ours(story):
    story.scorer.seconds = 10 * LIMIT_S
    result = await story.one()
    assert (result.fault, result.post, result.deliveries) == ("infra", None, 3)
    assert "scoring failed: Overdue: not done after 90 s" in result.error
    assert story.names() == ["job.started", "job.released"] * 3


@pytest.mark.parametrize(
    "wrong",
    [MachineLost("gone"), TimeoutError("ssh"), ValueError("a bug"), asyncio.CancelledError(), OSError(5, "EIO")],
    ids=lambda error: type(error).__name__,
)
async def test_a_failed_training_is_delivered_again_on_another_machine(story, wrong):
    story.inner.script = [wrong, CHECKPOINT]
    result = await story.one()
    assert (result.fault, result.deliveries, result.machine) == (None, 2, "box-1")
    assert [lease[1] for lease in story.boxes.leases] == [type(wrong).__name__, "given back"]
    assert story.names() == ["job.started", "job.released", "job.started", "job.done"]
    released = story.events[1][1]
    assert type(wrong).__name__ in released["error"]
    assert released["usd"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    "wrong", [AgentFault("x"), RuntimeError("x"), Score(value=float("nan"), n=1), Score(value=1.5, n=1)]
)
async def test_a_failed_scoring_is_never_a_number_nor_the_jobs_fault(story, wrong):
    story.scorer.script = [wrong, Score.of([1.0])]
    result = await story.one()
    assert (result.post, result.fault, result.deliveries) == (Score.of([1.0]), None, 2)
    assert "scoring failed" in story.events[1][1]["error"]


async def test_an_evaluation_that_cannot_be_made_costs_no_machine(story):
    def broken(_spec):
        raise KeyError("no such family")

    async def told():
        async with story.workers(eval_set=broken) as workers:
            job = await story.queue.put(made_spec(), key="k")
            return await workers.supervise(story.queue.wait(job.id))

    result = (await story.clock.run(told())).result
    assert result.fault == "infra"
    assert "no such family" in result.error
    assert story.boxes.leases == []


async def test_after_three_failed_deliveries_the_job_is_masked(story):
    story.inner.script = [MachineLost("gone")]
    result = await story.one()
    assert (result.fault, result.deliveries) == ("infra", 3)
    assert "MachineLost: gone" in result.error


async def test_a_machine_that_cannot_be_given_back_does_not_cost_the_result(story, caplog):
    def leaving():
        raise MachineLost("will not die")

    story.boxes.leaving = leaving
    result = await story.one()
    assert (result.post, result.deliveries) == (Score.of([1.0, 0.0]), 1)
    assert "could not be given back" in caplog.text


async def test_heartbeats_keep_a_long_job(story):
    story.inner.seconds = 70.0

    async def told():
        async with story.workers(lease_ttl_s=3.0) as workers:
            job = await story.queue.put(made_spec(timeout_s=LIMIT_S), key="k")
            waiting = asyncio.ensure_future(story.queue.wait(job.id))
            for _ in range(20):
                await story.clock.sleep(3.5)
                assert await story.queue.lease("thief", ttl_s=60) is None
            return await workers.supervise(waiting)

    assert (await story.clock.run(told())).result.deliveries == 1


async def test_a_lost_lease_stops_the_work_and_its_result_is_not_handed_in(story):
    async def told():
        async with story.workers(lease_ttl_s=6.0):
            job = await story.queue.put(made_spec(timeout_s=LIMIT_S), key="k")
            await story.clock.sleep(1)
            # The process was stopped for longer than its lease (a suspended laptop): somebody else has the job now.
            await story.queue.heartbeat(story.queue._running[int(job.id)].job, ttl_s=0.0)
            other = await story.queue.lease("other", ttl_s=60)
            await story.clock.sleep(5)
            assert story.names() == ["job.started", "job.lost"]
            assert story.boxes.leases == [["box-0", "CancelledError"]]
            done = await story.queue.finish(other, JobResult(cost=1.0))
            await story.clock.sleep(60)
            assert done.result == JobResult(cost=1.0)
            assert story.queue.late == 0

    await story.clock.run(told())


async def test_a_result_that_comes_too_late_is_told(story):
    async def told():
        async with story.workers(lease_ttl_s=1000.0):
            job = await story.queue.put(made_spec(timeout_s=LIMIT_S), key="k")
            await story.clock.sleep(1)
            await story.queue.heartbeat(story.queue._running[int(job.id)].job, ttl_s=0.0)
            other = await story.queue.lease("other", ttl_s=60)
            await story.queue.finish(other, JobResult(cost=1.0))
            await story.clock.sleep(60)
            return await story.queue.wait(job.id)

    assert (await story.clock.run(told())).result == JobResult(cost=1.0)
    assert story.names() == ["job.started", "job.late"]
    assert story.queue.late == 1


async def test_leaving_gives_running_jobs_back_at_once_and_unharmed(story):
    async def told():
        for _ in range(5):  # more often than there are deliveries
            async with story.workers():
                job = await story.queue.put(made_spec(timeout_s=LIMIT_S), key="k")
                await story.clock.sleep(1)
            assert story.boxes.leases[-1][1] == "CancelledError"
            assert await story.queue.counts() == {"queued": 1, "running": 0, "done": 0}
        other = await story.queue.lease("other", ttl_s=60)
        assert (other.id, other.delivery) == (job.id, 6)

    await story.clock.run(told())
    assert story.events[1][1]["error"] == "called off"
    assert story.events[1][1]["usd"] == pytest.approx(1 * 36 / 3600, rel=0.1)


async def test_a_result_that_was_there_when_the_work_was_called_off_is_kept(story):
    class Slow(Boxes):
        @asynccontextmanager
        async def machine(self, need):
            yield Box("box-0")
            with contextlib.suppress(asyncio.CancelledError):
                await story.clock.sleep(50)
            raise asyncio.CancelledError

    story.boxes = Slow()

    async def told():
        async with story.workers():
            job = await story.queue.put(made_spec(timeout_s=LIMIT_S), key="k")
            await story.clock.sleep(20)
        return await story.queue.wait(job.id)

    assert (await story.clock.run(told())).result.post == Score.of([1.0, 0.0])


async def test_as_many_jobs_run_at_once_as_there_are_machines():
    story = Story(machines=3)

    async def told():
        async with story.workers() as workers:
            jobs = [await story.queue.put(made_spec(timeout_s=LIMIT_S), key=str(n)) for n in range(9)]
            start_s = story.clock.monotonic()
            await workers.supervise(asyncio.wait_for(asyncio.gather(*(story.queue.wait(j.id) for j in jobs)), 60))
            return story.clock.monotonic() - start_s

    assert await story.clock.run(told()) == pytest.approx(3 * 15, abs=0.2)


async def test_too_many_faults_of_ours_in_a_row_stop_everything(story):
    story.inner.script = [MachineLost("the provider is down")]

    async def told():
        async with story.workers() as workers:
            jobs = [await story.queue.put(made_spec(timeout_s=LIMIT_S), key=str(n)) for n in range(9)]
            await workers.supervise(story.queue.wait(jobs[-1].id))

    with pytest.raises(SupervisionError, match=r"10 deliveries in a row .* the provider is down"):
        await story.clock.run(told())
    assert story.names().count("job.released") == 10


async def test_faults_that_are_not_in_a_row_do_not(story):
    story.inner.script = [MachineLost("a"), CHECKPOINT, MachineLost("b"), AgentFault("c"), MachineLost("d"), CHECKPOINT]

    async def told():
        async with story.workers(stop_after_faults=2) as workers:
            for key in "xyz":
                job = await story.queue.put(made_spec(timeout_s=LIMIT_S), key=key)
                await workers.supervise(story.queue.wait(job.id))

    await story.clock.run(told())
    assert story.names().count("job.released") == 3


async def test_one_job_alone_does_not_stop_everything(story):
    """It has its three deliveries, and is masked; the others are not to suffer."""
    story.inner.script = [MachineLost("a"), MachineLost("b"), MachineLost("c"), CHECKPOINT]

    async def told():
        async with story.workers(stop_after_faults=2) as workers:
            for key in "xy":
                job = await story.queue.put(made_spec(timeout_s=LIMIT_S), key=key)
                ended = await workers.supervise(story.queue.wait(job.id))
                faults.append(ended.result.fault)

    faults = []
    await story.clock.run(told())
    assert faults == ["infra", None]


async def test_a_worker_that_is_cancelled_from_below_is_missed(story):
    """A CancelledError that nobody asked for would end a worker without a word, and the jobs would wait for ever."""
    story.queue.lease = lambda owner, *, ttl_s: cancelled()

    async def cancelled():
        raise asyncio.CancelledError

    async def told():
        async with story.workers() as workers:
            await workers.supervise(story.clock.sleep(1e6))

    with pytest.raises(SupervisionError, match="worker-0 died: CancelledError"):
        await story.clock.run(told())


async def test_a_broken_queue_is_told_at_once(story):
    async def broken(owner, *, ttl_s):
        raise RunDirError("the disk is full")

    story.queue.lease = broken

    async def told():
        async with story.workers() as workers:
            await workers.supervise(story.clock.sleep(1e6))

    with pytest.raises(RunDirError, match=r"^the disk is full"):
        await story.clock.run(told())
    assert story.clock.monotonic() < 2000


async def test_a_queue_that_breaks_under_a_running_job_stops_it(story):
    async def broken(job, *, ttl_s):
        raise RunDirError("the disk is full")

    story.queue.heartbeat = broken
    story.inner.seconds = 50

    async def told():
        async with story.workers() as workers:
            job = await story.queue.put(made_spec(timeout_s=LIMIT_S), key="k")
            await workers.supervise(story.queue.wait(job.id))

    with pytest.raises(RunDirError, match=r"^the disk is full"):
        await story.clock.run(told())
    assert story.boxes.leases == [["box-0", "CancelledError"]]
    assert (await story.queue.put(made_spec(), key="k")).state is JobState.QUEUED


async def test_a_listener_that_fails_is_not_silent(story):
    def full(name, fields):
        raise RunDirError("the journal cannot be written")

    async def told():
        workers = story.workers()
        workers._on_event = full
        async with workers:
            job = await story.queue.put(made_spec(timeout_s=LIMIT_S), key="k")
            await workers.supervise(story.queue.wait(job.id))

    with pytest.raises(RunDirError, match=r"^the journal cannot be written"):
        await story.clock.run(told())


async def test_supervised_work_keeps_its_own_errors_and_is_ended_with_its_caller(story):
    async def told():
        async with story.workers() as workers:
            with pytest.raises(KeyError):
                await workers.supervise(_raising(KeyError("mine")))
            inside = asyncio.ensure_future(workers.supervise(story.clock.sleep(1e6)))
            await story.clock.sleep(1)
            inside.cancel()
            with pytest.raises(asyncio.CancelledError):
                await inside
            assert await workers.supervise(_returning("value")) == "value"

    await story.clock.run(told())
    assert story.clock.monotonic() < 2000


async def _raising(error):
    raise error


async def _returning(value):
    return value
