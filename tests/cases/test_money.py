"""A budget is a wall, not advice."""

import itertools

import pytest
from case_doubles import World

from nested_rl import Budget
from nested_rl.clock import VirtualClock
from nested_rl.errors import BudgetExceeded
from nested_rl.meter import Meter

pytestmark = pytest.mark.cases


def test_a59_budget_overrun():
    meter = Meter(Budget(usd=1.0), clock=VirtualClock(), write=lambda row: None)
    started = []
    for number in range(16):
        try:
            meter.reserve(f"job-{number}", 0.30)
        except BudgetExceeded:
            continue
        started.append(number)
        assert meter.spent_usd + meter.reserved_usd <= 1.0
    assert started == [0, 1, 2]
    meter.settle("job-0", 0.05, kind="job")
    meter.reserve("job-16", 0.30)
    with pytest.raises(
        BudgetExceeded, match=r"\$1\.00 does not cover \$0\.3000 more: \$0\.0500 spent, \$0\.9000 reserved"
    ):
        meter.reserve("job-17", 0.30)


async def test_a59_sixteen_jobs_at_once(tmp_path):
    """Each job may cost $0.30 of $1.00 and costs $0.20: three start at once, a fourth on what they left, and no fifth.

    With more money the run goes on, and they are not paid again.
    """
    world = World(tmp_path / "run", steps=1, group_size=16, job_seeds=16, machines=16, budget=Budget(usd=1.0))
    world.inner.timeout_s = 30.0
    world.inner.seconds = lambda job: 20.0
    with pytest.raises(BudgetExceeded):
        await world.go()
    journal = [row["event"] for row in world.files.events("job.started", "job.done")]
    running = [1 if event == "job.started" else -1 for event in journal]
    assert max(itertools.accumulate(running)) == 3
    assert len(world.inner.started) == len(world.events("job.done")) == 4
    assert sum(row["usd"] for row in world.files.costs()) == pytest.approx(4 * 0.2)
    world.budget = Budget(usd=0.8 + 12 * 0.3)
    again = world.again()
    again.inner.timeout_s = 30.0
    again.inner.seconds = world.inner.seconds
    assert (await again.go()).finished
    assert len(again.inner.started) == 12
    assert sum(row["usd"] for row in again.files.costs()) == pytest.approx(16 * 0.2)
