"""A compute backend for a computer that has another owner now and then: `touch PAUSE` holds the next jobs back."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from nested_rl import parts
from nested_rl.clock import Clock, SystemClock
from nested_rl.interfaces import ComputeBackend, Machine
from nested_rl.types import Need

LOOK_S = 1.0


class PausableCompute:
    """The machines of the backend `of` (a name, such as "local"), lent only while `file` does not exist.

    Jobs that run go on; evaluations and training wait with the next one. Any other keyword goes to the backend.

    >>> PausableCompute("local", max_machines=2).max_machines
    2
    """

    def __init__(
        self,
        of: str = "local",
        *,
        file: str | os.PathLike[str] = "PAUSE",
        clock: Clock | None = None,
        **settings: object,
    ) -> None:
        self._of: ComputeBackend = parts.build("compute", {"name": of, **settings})
        self._file, self._clock = Path(file), clock or SystemClock()
        self.max_machines = self._of.max_machines
        self.usd_per_hour = getattr(self._of, "usd_per_hour", 0.0)

    def offers(self) -> Sequence[Need]:
        return self._of.offers()

    @contextlib.asynccontextmanager
    async def machine(self, need: Need) -> AsyncIterator[Machine]:
        while self._file.exists():
            await self._clock.sleep(LOOK_S)
        async with self._of.machine(need) as machine:
            yield machine

    async def close(self) -> None:
        await self._of.close()
