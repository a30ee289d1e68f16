"""Workers and money: whose a machine is, and what becomes of jobs when there is none for one."""

import pytest
from test_worker import CHECKPOINT, LIMIT_S, Boxes, Story

from nested_rl.errors import BudgetExceeded, MachineLost
from nested_rl.testing.values import made_spec


@pytest.fixture
def story():
    return Story()


class Named(Boxes):
    """Wants to know whose a machine is."""

    def __init__(self, max_machines=1):
        super().__init__(max_machines)
        self.jobs = []

    def machine_for(self, need, *, job):
        self.jobs.append(job)
        return self.machine(need)


async def test_a_backend_that_wants_to_know_is_told_the_key_at_every_delivery(story):
    story.boxes = Named()
    story.inner.script = [MachineLost("gone"), CHECKPOINT]
    result = await story.one(key="mine")
    assert (result.fault, result.deliveries) == (None, 2)
    assert story.boxes.jobs == ["mine", "mine"]


class Poor(Boxes):
    """Has money for `paid` leases."""

    def __init__(self, max_machines, paid):
        super().__init__(max_machines)
        self.paid = paid

    def machine(self, need):
        if len(self.leases) >= self.paid:
            raise BudgetExceeded("the balance is used up")
        return super().machine(need)


async def test_without_money_for_a_machine_no_job_is_begun_and_those_under_way_end(story):
    story.boxes = Poor(3, paid=2)

    async def told():
        async with story.workers() as workers:
            jobs = [await story.queue.put(made_spec(timeout_s=LIMIT_S), key=f"k{n}") for n in range(5)]
            with pytest.raises(BudgetExceeded, match="the balance is used up"):
                await workers.supervise(story.queue.wait(jobs[4].id))
            assert isinstance(workers.refused, BudgetExceeded)

    await story.clock.run(told())
    assert await story.queue.counts() == {"queued": 3, "running": 0, "done": 2}
    assert [how for _, how in story.boxes.leases] == ["given back"] * 2
    assert len(story.inner.calls) == 2
    refused = [fields for name, fields in story.events if name == "job.released"]
    assert [(fields["error"], fields["usd"]) for fields in refused] == [("called off", 0.0)]


async def test_a_machine_that_is_ended_for_want_of_money_uses_up_no_delivery(story):
    story.inner.script = [BudgetExceeded("the budget is used up")]

    async def told():
        async with story.workers() as workers:
            job = await story.queue.put(made_spec(timeout_s=LIMIT_S), key="k")
            with pytest.raises(BudgetExceeded):
                await workers.supervise(story.queue.wait(job.id))

    await story.clock.run(told())
    assert await story.queue.counts() == {"queued": 1, "running": 0, "done": 0}
    (released,) = [fields for name, fields in story.events if name == "job.released"]
    assert released["usd"] == pytest.approx(10 * 36 / 3600)  # it was paid all the same
