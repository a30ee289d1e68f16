"""Deliveries that a killed controller had begun: found in the journal, closed with what is known of them."""

import pytest

from nested_rl import arrears
from nested_rl.queues.memory import MemoryQueue
from nested_rl.testing.values import made_spec
from nested_rl.types import JobResult, JobState, Score

RESULT = JobResult(post=Score.of([1.0, 0.0]), usd=0.25, seconds=90.0, machine="box", cost=3.0)


def row(event, t, delivery=1, key="k", job="1", **fields):
    return {"t": t, "event": event, "job": job, "key": key, "delivery": delivery, **fields}


def begun(t, **kw):
    return row("job.started", t, **kw)


RESTART = {"t": 9000.0, "event": "run.started"}


class Book:
    """What was paid and told."""

    def __init__(self):
        self.paid, self.told = [], []

    async def settle(self, rows, queue, **how):
        settings = {"usd_per_hour": 36.0, "timeout_s": 100.0} | how
        tell = lambda event, fields: self.told.append((event, fields))  # noqa: E731
        await arrears.settle(rows, queue, pay=self.paid.append, tell=tell, **settings)


@pytest.fixture
def book():
    return Book()


async def leased(queue, key="k"):
    await queue.put(made_spec(), key=key)
    return await queue.lease("dead", ttl_s=1e9)


@pytest.mark.parametrize(
    ("last_t", "seconds"),
    [
        (1030.0, 30.0),
        (1000.0, 0.0),
        (900.0, 0.0),  # the wall clock went back
        (1e9, 100.0),  # it went forward: a job takes no longer than its limit
    ],
)
async def test_a_delivery_that_was_cut_off_costs_what_it_ran_until_the_last_sign_of_life(book, last_t, seconds):
    queue = MemoryQueue()
    job = await leased(queue)
    await book.settle([begun(1000.0), {"t": last_t, "event": "episode.done"}, RESTART], queue)
    ((event, told),) = book.told
    assert (event, told["key"], told["delivery"], told["seconds"]) == ("job.lost", "k", 1, seconds)
    assert told["usd"] == pytest.approx(seconds / 100)
    assert (told["queued"], told["running"]) == (1, 0)
    assert (await queue.lease("me", ttl_s=60)).delivery == job.delivery + 1, "given back at once"


async def test_a_result_that_was_handed_in_is_what_its_delivery_has_cost(book):
    queue = MemoryQueue()
    await queue.finish(await leased(queue), RESULT)
    await book.settle([begun(1000.0), RESTART], queue)
    ((event, told),) = book.told
    assert (event, told["usd"], told["seconds"], told["post"]) == ("job.done", 0.25, 90.0, 0.5)


async def test_a_result_of_a_later_delivery_is_not_that_of_the_first(book):
    queue = MemoryQueue()
    await queue.release(await leased(queue))
    await queue.finish(await queue.lease("b", ttl_s=60), RESULT)
    await book.settle([begun(1000.0), begun(1001.0, delivery=2), RESTART], queue)
    assert [(event, told["delivery"]) for event, told in book.told] == [("job.lost", 1), ("job.done", 2)]


async def test_a_job_that_was_given_up_has_no_result(book):
    queue = MemoryQueue(max_deliveries=1)
    await queue.release(await leased(queue), error="lost")
    await book.settle([begun(1000.0), RESTART], queue)
    assert [event for event, _ in book.told] == ["job.lost"]
    assert (await queue.wait("1")).state is JobState.DONE


async def test_a_queue_that_has_never_heard_of_the_job(book):
    await book.settle([begun(1000.0), RESTART], MemoryQueue())
    assert [event for event, _ in book.told] == ["job.lost"]
    queue = MemoryQueue()
    await queue.finish(await leased(queue, key="another"), RESULT)
    await book.settle([begun(1000.0), RESTART], queue)
    assert [event for event, _ in book.told] == ["job.lost"] * 2


async def test_what_has_ended_is_paid_once_more_and_nothing_else_happens(book):
    """Paying is idempotent: the ledger knows which rows it has."""
    queue = MemoryQueue()
    await leased(queue)
    ended = row("job.released", 1001.0, usd=0.01)
    await book.settle([begun(1000.0), ended, RESTART], queue)
    assert (book.paid, book.told) == ([ended], [])
    assert (await queue.counts())["running"] == 1


def test_time_that_nobody_lived_through_is_not_counted():
    rows = [begun(0.0), {"t": 5.0, "event": "episode.done"}, RESTART, begun(9001.0, key="l"), RESTART | {"t": 9004.0}]
    first, second = arrears.open_deliveries(rows)
    assert (first.seconds(1e6), second.seconds(1e6)) == (5.0, 0.0)
