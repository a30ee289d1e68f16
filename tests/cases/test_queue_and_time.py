"""Jobs are handed out once at a time, come back when their holder is gone, and no clock confuses them."""

import asyncio
import sqlite3
import subprocess
import sys
import time

import pytest
from case_doubles import World

from nested_rl.clock import VirtualClock
from nested_rl.errors import LeaseLost
from nested_rl.meter import Meter
from nested_rl.queues.memory import MemoryQueue
from nested_rl.queues.sqlite import SqliteQueue
from nested_rl.testing.values import made_spec
from nested_rl.types import Budget, JobResult, JobState, Score
from nested_rl.worker import Workers

pytestmark = pytest.mark.cases

RIGHT = JobResult(post=Score.of([1.0, 1.0]))
WRONG = JobResult(post=Score.of([0.0, 0.0]))


def started(command):
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


class Deaf(MemoryQueue):
    """Takes no notice of the heartbeats of a first delivery."""

    async def heartbeat(self, job, *, ttl_s):
        if job.delivery > 1:
            await super().heartbeat(job, ttl_s=ttl_s)


async def test_a04_late_result(tmp_path):
    """Delivery 1 is given up, delivery 2 runs, delivery 1 reports: one score, both paid for, no exception."""
    world = World(tmp_path / "run", steps=1, machines=3, queue=lambda clock: Deaf(clock=clock))
    world.inner.timeout_s = 200.0
    world.inner.seconds = lambda job: {1: 70.0, 2: 30.0}[job.delivery] if job.id == "1" else 1.0
    run = await world.go()
    assert run.finished
    (late,) = world.events("job.late")
    assert late["delivery"] == 1
    done = [e["key"] for e in world.events("job.done")]
    assert len(done) == len(set(done)) == 2
    costs = {row["id"]: row for row in world.files.costs() if row["id"].startswith(late["key"])}
    assert {row["kind"] for row in costs.values()} == {"job", "job.late"}
    assert all(row["usd"] > 0 for row in costs.values())


CLAIMER = """
import asyncio, sys
from nested_rl.queues.sqlite import SqliteQueue

async def main():
    queue = SqliteQueue(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    while (job := await queue.lease(sys.argv[2], ttl_s=600)) is not None:
        print(job.id, flush=True)
    await queue.close()

asyncio.run(main())
"""


async def test_a28_double_claim(tmp_path):
    """Four processes claim the same 300 jobs at once: each job has exactly one winner, and none is lost."""
    queue = SqliteQueue(tmp_path / "q")
    for number in range(300):
        await queue.put(made_spec(), key=str(number))
    command = [sys.executable, "-c", CLAIMER, str(tmp_path / "q")]
    claimers = [started([*command, str(i)]) for i in range(4)]
    for claimer in claimers:
        assert claimer.stdout.readline() == "ready\n"
    for claimer in claimers:
        claimer.stdin.write("go\n")
        claimer.stdin.flush()
    claimed = [job for claimer in claimers for job in claimer.communicate(timeout=60)[0].split()]
    assert sorted(map(int, claimed)) == list(range(1, 301))
    await queue.close()


RACER = """
import asyncio, sys
from nested_rl.queues.sqlite import SqliteQueue

async def main():
    queue = SqliteQueue(sys.argv[1])
    print("ready", flush=True)
    for line in sys.stdin:
        job = await queue.lease(sys.argv[2], ttl_s=600)
        print(job.id if job else "-", flush=True)
    await queue.close()

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a28_sixteen_claim_one_job(tmp_path):
    """One queued job, sixteen processes that ask at the same moment, again and again: exactly one winner each time."""
    queue = SqliteQueue(tmp_path / "q")
    racers = [started([sys.executable, "-c", RACER, str(tmp_path / "q"), str(i)]) for i in range(16)]
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    for number in range(1, 501):
        await queue.put(made_spec(), key=str(number))
        for racer in racers:
            racer.stdin.write("go\n")
            racer.stdin.flush()
        told = [racer.stdout.readline().strip() for racer in racers]
        assert sorted(told) == ["-"] * 15 + [str(number)]
    for racer in racers:
        racer.communicate(timeout=60)
    await queue.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a28_sixteen_processes_and_ten_thousand_leases(tmp_path, capsys):
    """No job is claimed twice and none is lost. Prints how fast it went; how fast is no condition."""
    jobs, queue = 10_000, SqliteQueue(tmp_path / "q")
    first = await queue.put(made_spec(), key="1")
    with queue._file.writing():
        row = queue._file.db.execute("SELECT spec, put_at FROM jobs WHERE seq = ?", (first.id,)).fetchone()
        rows = ((str(number), row["spec"], row["put_at"]) for number in range(2, jobs + 1))
        queue._file.db.executemany("INSERT INTO jobs (key, spec, put_at) VALUES (?, ?, ?)", rows)
    claimers = [started([sys.executable, "-c", CLAIMER, str(tmp_path / "q"), str(i)]) for i in range(16)]
    for claimer in claimers:
        assert claimer.stdout.readline() == "ready\n"
    start_s = time.monotonic()
    for claimer in claimers:
        claimer.stdin.write("go\n")
        claimer.stdin.flush()
    texts = await asyncio.gather(*(asyncio.to_thread(claimer.communicate, timeout=800) for claimer in claimers))
    seconds = time.monotonic() - start_s
    claimed = [job for text, _ in texts for job in text.split()]
    assert sorted(map(int, claimed)) == list(range(1, jobs + 1))
    with capsys.disabled():
        print(f" {jobs:,} leases by 16 processes, no job twice, {jobs / seconds:,.0f} a second", end="")
    await queue.close()


DIES = """
import asyncio, os, sys
from nested_rl.queues.sqlite import SqliteQueue
asyncio.run(SqliteQueue(sys.argv[1]).lease("dies", ttl_s=1e9))
os.kill(os.getpid(), 9)
"""


async def test_a29_stuck_in_running(tmp_path):
    """Its owner was killed with nine hours of lease left: the job is given out once more, and the others were never blocked."""
    queue = SqliteQueue(tmp_path / "q")
    for key in ("first", "second"):
        await queue.put(made_spec(), key=key)
    with started([sys.executable, "-c", DIES, str(tmp_path / "q")]) as dying:
        assert dying.wait(60) == -9
    assert (await queue.counts())["running"] == 1
    assert (await queue.lease("me", ttl_s=60)).key == "second"
    await queue.close()
    again = SqliteQueue(tmp_path / "q")
    job = await again.lease("me", ttl_s=60)
    assert (job.key, job.delivery) == ("first", 2)
    assert await again.lease("me", ttl_s=60) is None
    await again.close()


@pytest.mark.parametrize("make", [MemoryQueue, SqliteQueue])
async def test_a30_lease_shorter_than_job(tmp_path, make):
    """With heartbeats a job of 20 s runs once under a lease of 5 s. Without, it is given to another."""
    clock = VirtualClock()
    queue = make(clock=clock) if make is MemoryQueue else make(tmp_path / "q", clock=clock)
    world = World(tmp_path / "run")
    world.inner.clock, world.inner.seconds = clock, lambda job: 20.0

    async def told():
        workers = Workers(
            queue=queue,
            compute=world.compute,
            inner=world.inner,
            scorer=world.scorer,
            eval_set=lambda spec: None,
            clock=clock,
            on_event=lambda name, fields: None,
            lease_ttl_s=5.0,
        )
        job = await queue.put(made_spec(), key="k")
        held = await queue.lease("silent", ttl_s=5.0)
        async with workers:
            while (await queue.counts())["done"] == 0:
                await clock.sleep(1.0)
        with pytest.raises(LeaseLost):
            await queue.heartbeat(held, ttl_s=5.0)
        return await queue.wait(job.id)

    world.scorer.score = lambda *asked, seed: asyncio.sleep(0, Score.of([1.0]))
    job = await clock.run(told())
    assert (job.delivery, job.result.deliveries, job.result.train_s) == (2, 2, 20.0)
    assert world.inner.started == [("k", 2)]
    await queue.close()


async def test_a31_clock_jump(tmp_path):
    """The wall clock goes back an hour in the middle of a job: time, speed and money are what they were."""
    world = World(tmp_path / "run", steps=2)
    clock = world.clock
    clock.now = lambda: clock.monotonic() - 3600.0 * (clock.monotonic() > 1000.6)
    await world.go()
    for episode in world.files.episodes():
        assert episode.result.train_s == pytest.approx(1.0)
        assert episode.result.usd == pytest.approx(36.0 / 3600)
        assert episode.result.deliveries == 1
    assert all(row["time/step_s"] >= 0 and row["usd"] >= 0 for row in world.files.metrics())


def test_a31_a_budget_of_hours_takes_no_notice_of_the_wall_clock():
    clock = VirtualClock()
    meter = Meter(Budget(hours=1.0), clock=clock, write=lambda row: None)
    clock.now = lambda: -7200.0
    meter.reserve("a", 1.0)
    clock.now = lambda: 7200.0
    meter.reserve("b", 1.0)


async def test_a32_poison_record(tmp_path):
    """Three jobs that cannot be read: each ends with the reason, and the good one, stale, is recovered."""
    clock = VirtualClock()
    queue = SqliteQueue(tmp_path / "q", clock=clock)
    jobs = [await queue.put(made_spec(), key=key) for key in ("x", "y", "z", "good")]
    for _ in jobs:
        await queue.lease("gone", ttl_s=5.0)
    with sqlite3.connect(tmp_path / "q") as db:
        for job, text in zip(jobs, ('{"id": null}', "", "[]"), strict=False):
            db.execute("UPDATE jobs SET spec = ? WHERE seq = ?", (text, job.id))
    db.close()
    await clock.run(clock.sleep(6.0))
    found = await queue.lease("me", ttl_s=60.0)
    assert (found.key, found.delivery) == ("good", 2)
    for job in jobs[:3]:
        ended = await queue.wait(job.id)
        assert (ended.state, ended.result.fault) == (JobState.DONE, "infra")
        assert "quarantined" in ended.result.error
    assert (await queue.finish(found, RIGHT)).result == RIGHT
    await queue.close()


async def test_a04_the_queue_keeps_the_late_result_apart(tmp_path):
    clock = VirtualClock()
    queue = SqliteQueue(tmp_path / "q", clock=clock)
    await queue.put(made_spec(), key="k")
    first = await queue.lease("one", ttl_s=5.0)
    await clock.run(clock.sleep(6.0))
    second = await queue.lease("two", ttl_s=5.0)
    assert (await queue.finish(first, WRONG)).state is JobState.RUNNING
    assert (await queue.finish(second, RIGHT)).result == RIGHT
    assert queue.late == 1
    await queue.close()
