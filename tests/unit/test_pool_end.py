"""How a pool ends, and what it may spend."""

import asyncio

import pytest
from pool_play import BIG, R4090, START, Fleet, run, settled

from nested_rl.clock import VirtualClock
from nested_rl.errors import BudgetExceeded, SettingsError
from nested_rl.meter import Meter
from nested_rl.types import Budget


async def test_closing_ends_busy_pods_too_and_tells_their_jobs():
    fleet = Fleet()
    pool = fleet.pool(max_machines=2)

    async def work():
        jobs = [asyncio.ensure_future(fleet.job(pool, f"j{n}", 5000, tries=1)) for n in range(3)]
        await fleet.clock.sleep(100)
        await pool.stop()
        return await asyncio.gather(*jobs, return_exceptions=True)

    ended = await run(fleet, work(), pool)
    assert all(isinstance(one, Exception) for one in ended)
    settled(fleet, pool, most=2)


async def test_draining_lets_jobs_end():
    fleet = Fleet()
    pool = fleet.pool(max_machines=2)

    async def work():
        jobs = [asyncio.ensure_future(fleet.job(pool, f"j{n}", 300)) for n in range(3)]
        await fleet.clock.sleep(100)
        pool.drain(BudgetExceeded("enough"))
        ended = await asyncio.gather(*jobs, return_exceptions=True)
        await fleet.clock.sleep(20)
        assert fleet.fake.alive() == []
        return ended

    *done, refused = await run(fleet, work(), pool)
    assert done == [["pod1"], ["pod2"]]
    assert isinstance(refused, BudgetExceeded)


async def test_money_is_set_aside_first_and_settled_to_the_cent():
    fleet, rows = Fleet(), []
    meter = Meter(Budget(usd=10.0), clock=fleet.clock, write=rows.append)
    pool = fleet.pool(account=meter)
    await run(fleet, asyncio.gather(*(fleet.job(pool, f"j{n}", 5000) for n in range(3))), pool)
    assert meter.reserved_usd == 0
    assert meter.spent_usd == pytest.approx(fleet.spent(pool))
    assert {row["kind"] for row in rows} >= {"pod/provision", "pod/preflight", "pod/busy"}
    assert len({row["id"] for row in rows}) == len(rows)
    settled(fleet, pool, most=3)


async def test_a_budget_for_two_pods_makes_two():
    fleet = Fleet()
    meter = Meter(Budget(usd=0.7), clock=fleet.clock, write=lambda row: None)
    pool = fleet.pool(R4090, account=meter)
    await run(fleet, asyncio.gather(*(fleet.job(pool, f"j{n}", 300) for n in range(5))), pool)
    assert fleet.fake.most == 2


async def test_the_hard_cap_ends_what_runs():
    fleet = Fleet()
    meter = Meter(Budget(usd=0.7), clock=fleet.clock, write=lambda row: None)
    pool = fleet.pool(R4090, account=meter)
    with pytest.raises(BudgetExceeded):
        await run(fleet, fleet.job(pool, "endless", 100_000), pool)
    assert 0.3 < fleet.fake.usd() <= 0.7


async def test_what_no_candidate_has_is_refused():
    fleet = Fleet()
    pool = fleet.pool(R4090)
    with pytest.raises(SettingsError, match="no candidate has"):
        pool.machine(BIG)


async def test_a_clock_of_its_own_is_not_needed_to_make_one():
    assert Fleet(clock=VirtualClock(start=START)).pool().max_machines == 16
