"""Runs end: when they are done, when a part fails, when something hangs."""

import asyncio
import functools

import pytest
from case_doubles import World

from nested_rl.errors import MachineLost, SupervisionError, TrainerError
from nested_rl.loop import Schedule

pytestmark = pytest.mark.cases


async def test_a01_hang_at_end_of_run(tmp_path):
    """The trainer ends while jobs of a later version are out: nobody waits, nothing is left, evaluations are not lost."""
    world = World(tmp_path / "run", machines=24, steps=5, max_steps_off_policy=1, eval_every=3)
    world.trainer.stops_at = 3
    before = asyncio.all_tasks()
    with pytest.raises(TrainerError, match="has ended"):
        await world.go()
    assert world.compute.out == set()
    assert asyncio.all_tasks() == before
    assert [e["version"] for e in world.events("step.done")] == [1, 2, 3]

    again = world.again()
    run = await again.go()
    assert run.finished
    assert run.report.is_file()
    assert set(again.files.evals()) == {"validation-00000", "validation-00003", "validation-00005"}
    assert again.compute.out == set()


async def test_a02_straggler(tmp_path):
    """One job of eight never ends: it is told at its deadline with its cost, its machine is free, the step goes on."""
    world = World(tmp_path / "run", steps=2, group_size=8, max_steps_off_policy=0)
    world.inner.seconds = lambda job: 1e6 if job.id == "3" else 1.0
    await world.go()
    first = [e for e in world.files.episodes() if e.group == 0]
    late = [e for e in first if e.outcome.fault]
    assert len(first) - len(late) == 7
    assert [e.outcome.fault for e in late] == ["agent"]
    assert "still training after 6 s, its limit" in late[0].outcome.error
    assert late[0].outcome.usd == pytest.approx(6 * 36 / 3600)
    assert not any(e.masked for e in first)
    assert world.compute.out == set()
    assert len(world.trained()) == 2


async def test_a02_an_agent_that_hangs_is_masked_at_its_deadline(tmp_path, monkeypatch):
    world = World(tmp_path / "run", steps=1)
    monkeypatch.setattr("nested_rl.experiment.Schedule", functools.partial(Schedule, deadline_s=5.0))
    world.harness.seconds = 1e5
    await world.go()
    assert [e.masked for e in world.files.episodes()] == [True, True]
    assert "not done after 5 s" in next(world.files.episodes()).outcome.error


async def test_a03_swallowed_exception(tmp_path):
    """The poller of the queue dies: the run ends with its words, and can go on."""
    world = World(tmp_path / "run", machines=1)
    lease, ticks = world.queue.lease, []

    async def dies(owner, *, ttl_s):
        ticks.append(owner)
        if len(ticks) == 2:
            raise RuntimeError("boom")
        return await lease(owner, ttl_s=ttl_s)

    world.queue.lease = dies
    with pytest.raises(SupervisionError, match="boom") as raised:
        await world.go()
    assert isinstance(raised.value.__cause__, RuntimeError)
    assert "boom" in world.events("run.failed")[0]["error"]
    assert world.events("checkpoint")[0]["ref"]
    assert world.compute.out == set()
    world.queue.lease = lease
    assert (await world.again().go()).finished


async def test_a07_endless_error_loop(tmp_path):
    """No machine can be had: a bounded number of tries, no dollar spent, and the run can go on."""
    world = World(tmp_path / "run", machines=1, steps=4, group_size=8)
    await world.again(steps=1, group_size=8).go()
    world = world.again()
    spent = sum(row["usd"] for row in world.files.costs())
    world.compute.fails = lambda: OSError("500 from the provider")
    with pytest.raises(SupervisionError, match=r"10 deliveries in a row failed.*500 from the provider"):
        await world.go()
    assert len([e for e in world.events("job.released") if "500" in e["error"]]) == 10
    assert sum(row["usd"] for row in world.files.costs()) == spent
    assert (await world.again().go()).finished


async def test_a22_orphan_machines(tmp_path):
    """A wait runs out of time while a machine is held: it is given back, what it cost is booked, the job is done again."""
    world = World(tmp_path / "run", steps=1)
    world.inner.ends = lambda job: TimeoutError("waiting for the machine") if job.delivery == 1 else None
    await world.go()
    assert world.compute.out == set()
    costs = [row for row in world.files.costs() if row["kind"] == "job.released"]
    assert len(costs) == 2
    assert all(row["usd"] == pytest.approx(1 * 36 / 3600) for row in costs)


async def test_a24_machine_vanishes(tmp_path):
    """A lost machine is not the job's fault: it is run again at once and scored as any other."""
    world = World(tmp_path / "run", steps=1)
    world.inner.ends = lambda job: MachineLost("deleted") if (job.id, job.delivery) == ("1", 1) else None
    await world.go()
    first, second = world.files.episodes()
    assert {first.result.deliveries, second.result.deliveries} == {1, 2}
    assert [(e.outcome.fault, e.masked) for e in (first, second)] == [(None, False)] * 2
    assert all(e.outcome.post.value >= 0.75 for e in (first, second))


@pytest.mark.parametrize("steps", [1, 4])
async def test_a26_hidden_default_time_out(tmp_path, steps):
    """A job that needs more than it may is told the limit by its number."""
    world = World(tmp_path / "run", steps=1)
    world.inner.timeout_s = 8.0 * steps
    world.inner.seconds = lambda job: 1000.0
    await world.go()
    assert {e.outcome.error for e in world.files.episodes()} == {
        f"the job was still training after {6 * steps} s, its limit"
    }
