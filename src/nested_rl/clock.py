"""Time, injected: every wait, deadline and timestamp in loop, queue, worker and pool goes through a Clock."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    """What time it is, and how to wait."""

    def now(self) -> float:
        """Seconds since the epoch, for display and records."""

    def monotonic(self) -> float:
        """Seconds that never run backwards, for durations and deadlines."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The real time."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))


class VirtualClock:
    """Time that passes only when everybody waits; for tests and plans.

    `run()` drives it: it lets ready tasks work until only sleepers are left, then jumps to the earliest one.

    >>> import asyncio
    >>> clock = VirtualClock()
    >>> asyncio.run(clock.run(clock.sleep(3600)))
    >>> clock.monotonic()
    3600.0
    """

    def __init__(self, start: float = 0.0) -> None:
        self._time = start
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def now(self) -> float:
        return self._time

    def monotonic(self) -> float:
        return self._time

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        wake = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._time + seconds, next(self._order), wake))
        await wake

    async def run(self, work: Coroutine[Any, Any, T], *, settle: int = 50, sealed: bool = False) -> T:
        """Drive `work` to its end, jumping over every wait. `settle` is how many idle turns mean "all are waiting".

        With `sealed` nothing comes from outside the event loop (no thread, no socket, no timer of its own): then all are waiting as
        soon as nothing is ready, which is many times faster, and a `work` that nobody will ever wake is a RuntimeError.
        """
        task = asyncio.ensure_future(work)
        ready = getattr(asyncio.get_running_loop(), "_ready", None) if sealed else None  # not every loop has it
        while not task.done():
            for _ in range(settle if ready is None else 1):
                await asyncio.sleep(0)
            while ready:  # noqa: ASYNC110  this is the event loop, seen from inside
                await asyncio.sleep(0)
            if not task.done() and not self._jump():
                if ready is not None:
                    task.cancel()
                    raise RuntimeError("everybody waits, and there is nobody who would wake them")
                await asyncio.sleep(0)
        return await task

    def _jump(self) -> bool:
        """To the next sleeper's time; False when nobody sleeps. A cancelled sleeper moves nothing."""
        while self._sleepers:
            time_s, _, wake = heapq.heappop(self._sleepers)
            if not wake.done():
                self._time = time_s
                wake.set_result(None)
                return True
        return False
