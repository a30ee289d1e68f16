"""Deadlines leave nothing running; giving back is never cut short."""

import asyncio

import pytest

from nested_rl.clock import VirtualClock
from nested_rl.waiting import uninterrupted, within


async def test_within_gives_the_result_or_times_out_and_cleans_up():
    clock = VirtualClock()
    ended = []

    async def slow():
        try:
            await clock.sleep(10)
        finally:
            ended.append(clock.monotonic())
        return "done"

    async def story():
        assert await within(clock, 20, slow()) == "done"
        with pytest.raises(TimeoutError, match="5 s"):
            await within(clock, 5, slow())
        return clock.monotonic()

    assert await clock.run(story()) == 15.0
    assert ended == [10.0, 15.0]


async def test_within_passes_on_what_the_work_raises():
    clock = VirtualClock()

    async def broken():
        raise KeyError("x")

    with pytest.raises(KeyError):
        await clock.run(within(clock, 5, broken()))


async def test_a_cancelled_sleeper_does_not_move_the_virtual_time():
    clock = VirtualClock()

    async def story():
        long = asyncio.ensure_future(clock.sleep(3600))
        await asyncio.sleep(0)
        long.cancel()
        for _ in range(200):  # the clock takes this for waiting, and jumps
            await asyncio.sleep(0)

    await clock.run(story())
    assert clock.monotonic() == 0.0


async def test_uninterrupted_ends_its_work_before_the_cancellation_goes_on():
    clock = VirtualClock()
    ended = []

    async def give_back():
        await clock.sleep(5)
        ended.append("given back")

    async def story():
        task = asyncio.ensure_future(uninterrupted(give_back()))
        for _ in range(3):
            await clock.sleep(1)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["given back"]
        assert await uninterrupted(asyncio.sleep(0, "value")) == "value"

    await clock.run(story())
