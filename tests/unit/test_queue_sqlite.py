"""What only a file can do: many processes, killed ones, damage, a full disk."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from nested_rl.clock import VirtualClock
from nested_rl.errors import LeaseLost, RunDirError, SettingsError
from nested_rl.queues.memory import MemoryQueue
from nested_rl.queues.sqlite import SqliteQueue
from nested_rl.testing.values import made_spec
from nested_rl.types import JobResult, JobState

LONG_S = 60.0

LEASE_ALL = """
import asyncio, json, sys
from nested_rl.queues.sqlite import SqliteQueue
from nested_rl.types import JobResult
async def main(path, owner):
    queue = SqliteQueue(path)
    print("open", flush=True)
    sys.stdin.readline()
    mine = []
    while (job := await queue.lease(owner, ttl_s=60)) is not None:
        mine.append(job.id)
        await queue.finish(job, JobResult(machine=owner))
    await queue.close()
    print(json.dumps(mine))
asyncio.run(main(*sys.argv[1:]))
"""

LEASE_ONE_AND_HANG = """
import asyncio, sys
from nested_rl.queues.sqlite import SqliteQueue
async def main(path):
    queue = SqliteQueue(path)
    job = await queue.lease("doomed", ttl_s=3600)
    print(job.id, flush=True)
    sys.stdin.readline()
asyncio.run(main(sys.argv[1]))
"""


def spawn(code, *args):
    argv = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "queue.sqlite"


@pytest.fixture
async def queue(path):
    queue = SqliteQueue(path)
    yield queue
    await queue.close()


async def test_sixteen_processes_never_claim_a_job_twice(queue, path):
    ids = [(await queue.put(made_spec(), key=str(n))).id for n in range(160)]
    workers = [spawn(LEASE_ALL, path, f"w{n}") for n in range(16)]
    for worker in workers:
        assert worker.stdout.readline() == "open\n"
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    claimed = [json.loads(worker.communicate()[0]) for worker in workers]
    assert sorted((job_id for mine in claimed for job_id in mine), key=int) == ids
    assert queue.late == 0
    assert await queue.counts() == {"queued": 0, "running": 0, "done": 160}


async def test_a_result_written_by_another_process_wakes_a_waiter(path):
    here, there = SqliteQueue(path, poll_s=0.02), SqliteQueue(path)
    put = await here.put(made_spec(), key="k")
    waiting = asyncio.ensure_future(here.wait(put.id))
    await asyncio.sleep(0)
    await there.finish(await there.lease("b", ttl_s=LONG_S), JobResult(cost=2.0))
    assert (await asyncio.wait_for(waiting, 30)).result == JobResult(cost=2.0)
    await here.close()
    await there.close()


async def test_a_killed_process_loses_its_lease_at_once_and_the_job_no_chance(queue, path):
    put = await queue.put(made_spec(), key="k")
    for _ in range(4):
        owner = spawn(LEASE_ONE_AND_HANG, path)
        assert owner.stdout.readline().strip() == put.id
        os.kill(owner.pid, signal.SIGKILL)
        owner.communicate()
        assert await queue.lease("me", ttl_s=LONG_S) is None
        again = SqliteQueue(path)
        assert await again.counts() == {"queued": 1, "running": 0, "done": 0}
        await again.close()
    job = await queue.lease("me", ttl_s=LONG_S)
    assert job.delivery == 5


async def test_a_living_process_keeps_its_lease_when_another_opens_the_file(queue, path):
    await queue.put(made_spec(), key="k")
    job = await queue.lease("me", ttl_s=LONG_S)
    other = SqliteQueue(path)
    assert await other.lease("other", ttl_s=LONG_S) is None
    await other.close()
    await queue.heartbeat(job, ttl_s=LONG_S)


async def test_everything_is_there_after_opening_again(path):
    first = SqliteQueue(path)
    await first.put(made_spec(), key="a")
    await first.put(made_spec(seed=7), key="b")
    await first.finish(await first.lease("me", ttl_s=LONG_S), JobResult(cost=1.0))
    await first.close()
    await first.close()
    assert (await first.counts())["done"] == 1  # using it opens it again
    await first.close()
    second = SqliteQueue(path)
    assert (await second.put(made_spec(), key="a")).result == JobResult(cost=1.0)
    assert (await second.lease("me", ttl_s=LONG_S)).spec == made_spec(seed=7)
    await second.close()


async def test_a_changed_wall_clock_changes_no_lease(path):
    class Jumpy(VirtualClock):
        wall_s = 1e9

        def now(self):
            return self.wall_s

    clock = Jumpy(start=1000.0)
    queue = SqliteQueue(path, clock=clock)
    await queue.put(made_spec(), key="k")
    job = await queue.lease("a", ttl_s=60)
    clock.wall_s += 1e6
    assert await queue.lease("b", ttl_s=60) is None
    clock.wall_s -= 2e6
    await clock.run(clock.sleep(30))
    await queue.heartbeat(job, ttl_s=60)
    await clock.run(clock.sleep(59))
    assert await queue.lease("b", ttl_s=60) is None
    await clock.run(clock.sleep(1))
    assert (await queue.lease("b", ttl_s=60)).delivery == 2
    await queue.close()


async def test_a_lease_of_an_earlier_boot_has_run_out(path):
    before = SqliteQueue(path, clock=VirtualClock(start=1e6))
    await before.put(made_spec(), key="k")
    await before.lease("a", ttl_s=60)
    after = SqliteQueue(path, clock=VirtualClock(start=10))
    assert (await after.lease("b", ttl_s=60)).delivery == 2
    await before.close()
    await after.close()


async def test_late_results_are_kept_for_the_record(queue, path):
    await queue.put(made_spec(), key="k")
    job = await queue.lease("a", ttl_s=LONG_S)
    await queue.finish(job, JobResult(cost=1.0))
    await queue.finish(job, JobResult(cost=2.0))
    assert queue.late == 1
    with closing(sqlite3.connect(path)) as db:
        assert '"cost": 2.0' in db.execute("SELECT result FROM late").fetchone()[0]


@pytest.mark.parametrize(
    ("column", "damage"),
    [
        ("spec", b'{"task": {'),
        ("spec", b"\xff\xfe"),
        ("spec", b'{"tsk": 1}'),
        ("result", b'{"post": 3}'),
        ("result", b"null"),
    ],
)
async def test_a_row_that_cannot_be_read_is_put_aside_with_its_reason(queue, path, column, damage):
    bad = await queue.put(made_spec(), key="bad")
    good = await queue.put(made_spec(), key="good")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"UPDATE jobs SET {column} = CAST(? AS TEXT) WHERE key = 'bad'", (damage,))
    assert (await queue.lease("me", ttl_s=LONG_S)).id == good.id
    ended = await asyncio.wait_for(queue.wait(bad.id), 30)
    assert (ended.state, ended.result.fault) == (JobState.DONE, "infra")
    assert "quarantined" in ended.result.error
    again = await queue.put(made_spec(seed=5), key="bad")
    assert (again.state, again.spec) == (JobState.QUEUED, made_spec(seed=5))
    assert (await queue.lease("me", ttl_s=LONG_S)).id == bad.id


async def test_a_full_disk_is_one_sentence_and_loses_nothing(queue, path):
    await queue.put(made_spec(), key="a")
    pages = queue._file.db.execute("PRAGMA page_count").fetchone()[0]
    queue._file.db.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(RunDirError, match=r"queue\.sqlite: .*full.*free some space") as caught:
        await queue.put(made_spec({"environment.py": "x" * 1_000_000}), key="b")
    assert "\n" not in str(caught.value)
    queue._file.db.execute("PRAGMA max_page_count=1000000")
    assert (await queue.lease("me", ttl_s=LONG_S)).key == "a"
    await queue.put(made_spec(), key="c")


async def test_a_locked_file_is_one_sentence(path):
    queue = SqliteQueue(path, busy_s=0.05)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(RunDirError, match="another process keeps it locked"):
            await queue.put(made_spec(), key="a")
    await queue.put(made_spec(), key="a")
    await queue.close()


def test_what_is_no_queue_is_refused(path, tmp_path):
    path.write_bytes(b"my diary" * 1000)
    with pytest.raises(RunDirError, match="this is no queue"):
        SqliteQueue(path)
    with pytest.raises(RunDirError, match="cannot be opened"):
        SqliteQueue(tmp_path / "missing" / "queue.sqlite")


async def test_a_file_of_a_newer_version_is_refused(queue, path):
    queue._file.db.execute("PRAGMA user_version=99")
    with pytest.raises(RunDirError, match="newer"):
        SqliteQueue(path)


async def test_unknown_jobs_are_refused(queue):
    with pytest.raises(SettingsError, match="no job '77'"):
        await queue.wait("77")
    with pytest.raises(SettingsError, match="no job '77'"):
        await MemoryQueue().wait("77")


async def test_finding_work_never_reads_the_whole_table(queue):
    queue._file.db.set_trace_callback((statements := []).append)
    await queue.put(made_spec(), key="k")
    await queue.lease("me", ttl_s=LONG_S)
    await queue.lease("me", ttl_s=LONG_S)
    queue._file.db.set_trace_callback(None)
    lookups = [s for s in statements if s.startswith(("SELECT", "UPDATE"))]
    assert lookups
    for statement in lookups:
        plan = " ".join(row[3] for row in queue._file.db.execute(f"EXPLAIN QUERY PLAN {statement}"))
        assert "SEARCH" in plan, statement
        assert "SCAN" not in plan, statement


OWNERS = st.sampled_from(["a", "b"])
KEYS = st.sampled_from(["x", "y", "z"])
PAST = st.integers(0, 5)


class Twins(RuleBasedStateMachine):
    """The SQLite queue and the one in memory do the same, whatever is done to them."""

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = VirtualClock()
        self.queues = [
            SqliteQueue(":memory:", clock=self.clock, max_deliveries=2),
            MemoryQueue(clock=self.clock, max_deliveries=2),
        ]
        self.leased = []

    def both(self, call):
        async def told(queue):
            try:
                return await call(queue)
            except LeaseLost as error:
                return str(error)

        first, second = (self.loop.run_until_complete(told(queue)) for queue in self.queues)
        assert first == second
        return first

    def an_old(self, past):
        return self.leased[-1 - past % len(self.leased)]

    @initialize()
    def start(self):
        self.both(lambda q: q.put(made_spec(), key="x"))
        self.lease("a", 3)

    @rule(key=KEYS, seed=st.integers(0, 1))
    def put(self, key, seed):
        self.both(lambda q: q.put(made_spec(seed=seed), key=key))

    @rule(owner=OWNERS, ttl_s=st.integers(1, 5))
    def lease(self, owner, ttl_s):
        job = self.both(lambda q: q.lease(owner, ttl_s=ttl_s))
        if job is not None:
            self.leased.append(job)

    @rule(past=PAST, ttl_s=st.integers(1, 5))
    def heartbeat(self, past, ttl_s):
        self.both(lambda q: q.heartbeat(self.an_old(past), ttl_s=ttl_s))

    @rule(past=PAST, fault=st.sampled_from([None, "agent"]))
    def finish(self, past, fault):
        self.both(lambda q: q.finish(self.an_old(past), JobResult(fault=fault)))

    @rule(past=PAST, counts=st.booleans(), error=st.sampled_from(["", "lost"]))
    def release(self, past, counts, error):
        self.both(lambda q: q.release(self.an_old(past), error=error, counts=counts))

    @rule(seconds=st.integers(1, 4))
    def time_passes(self, seconds):
        self.loop.run_until_complete(self.clock.run(self.clock.sleep(seconds)))

    @invariant()
    def counts_agree(self):
        self.both(lambda q: q.counts())
        assert self.queues[0].late == self.queues[1].late

    def teardown(self):
        self.both(lambda q: q.close())
        self.loop.close()


TestTwins = Twins.TestCase
TestTwins.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
