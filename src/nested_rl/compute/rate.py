"""At most so many requests a minute, whoever makes them; giving things back goes first."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque

from nested_rl.clock import Clock


class RateLimit:
    """A window of a minute, and a pause for everybody when the other side asks for one.

    >>> from nested_rl.clock import VirtualClock
    >>> clock = VirtualClock()
    >>> limit = RateLimit(clock, per_minute=2)
    >>> async def three():
    ...     for _ in range(3):
    ...         await limit.turn()
    >>> asyncio.run(clock.run(three()))
    >>> clock.monotonic()
    60.0
    """

    def __init__(self, clock: Clock, *, per_minute: int) -> None:
        self._clock, self._per_minute = clock, per_minute
        self._made: deque[float] = deque()
        self._quiet_until_s = 0.0
        self._waiting: list[tuple[bool, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._serving: asyncio.Task[None] | None = None

    async def turn(self, *, first: bool = False) -> None:
        """Wait for one's turn. `first` goes before those who only ask."""
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (not first, next(self._numbers), mine))
        if self._serving is None or self._serving.done():
            self._serving = asyncio.ensure_future(self._serve())
        await mine

    def pause(self, seconds: float) -> None:
        """Nobody asks anything for so long."""
        self._quiet_until_s = max(self._quiet_until_s, self._clock.monotonic() + seconds)

    async def _serve(self) -> None:
        while self._waiting:
            now = self._clock.monotonic()
            while self._made and self._made[0] <= now - 60.0:
                self._made.popleft()
            full_for_s = self._made[0] + 60.0 - now if len(self._made) >= self._per_minute else 0.0
            pause_s = max(self._quiet_until_s - now, full_for_s)
            if pause_s > 0:
                await self._clock.sleep(pause_s)
                continue
            _, _, waiting = heapq.heappop(self._waiting)
            if not waiting.done():
                self._made.append(now)
                waiting.set_result(None)
