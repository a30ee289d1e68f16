"""Two ways to wait: at most so long, and to the end whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from nested_rl.clock import Clock

T = TypeVar("T")
AT_LEAST_S = 0.5
"""A deadline that was put off is looked at again after this time, or later."""


class Overdue(TimeoutError):
    """A deadline of `within` passed: not to be taken for a time-out that the work itself raised."""


async def within(
    clock: Clock, seconds: float, work: Coroutine[Any, Any, T], *, excused_s: Callable[[], float] = lambda: 0.0
) -> T:
    """What `work` returns, or Overdue after `seconds` on `clock`. Either way nothing of it is left running.

    `excused_s` tells how much of the time so far does not count.

    >>> from nested_rl.clock import VirtualClock
    >>> clock = VirtualClock()
    >>> asyncio.run(clock.run(within(clock, 5, clock.sleep(9))))
    Traceback (most recent call last):
    nested_rl.waiting.Overdue: not done after 5 s
    """
    task = asyncio.ensure_future(work)
    timer = asyncio.ensure_future(clock.sleep(seconds))
    until = clock.monotonic() + seconds
    try:
        while True:
            await asyncio.wait({task, timer}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            left = until + excused_s() - clock.monotonic()
            if left <= 0:
                raise Overdue(f"not done after {seconds:g} s")
            timer = asyncio.ensure_future(clock.sleep(max(left, AT_LEAST_S)))
    finally:
        task.cancel()
        timer.cancel()
        await asyncio.gather(task, timer, return_exceptions=True)


async def uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns. A cancellation meanwhile is not lost, but raised when `work` has ended: for giving things back."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # looked at, so that asyncio does not complain that nobody did
        raise cancelled
    return task.result()


async def together(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Results in order. The first failure cancels the rest and waits until they have ended."""
    tasks = [asyncio.ensure_future(w) for w in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
