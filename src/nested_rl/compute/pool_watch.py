"""What the provider shows of our pods: one list each interval for all of them, and a second opinion before a pod counts as lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from nested_rl import redact
from nested_rl.compute.pool_breaker import Breaker
from nested_rl.compute.pool_roster import Rented, Roster, State
from nested_rl.compute.provider import Gone, Pod, Provider, ProviderError
from nested_rl.errors import SettingsError

log = redact.logger(__name__)
_UP: Final = frozenset({State.BOOTING, State.PREFLIGHT, State.READY, State.BUSY})
RESTARTS: Final = 2
"""A container that has started so often of itself will do it again."""


class Watch:
    """`once` looks; whoever waits in `look` gets what was seen. `returned` is told of a pod that is there although it was gone."""

    def __init__(
        self, provider: Provider, roster: Roster, *, breaker: Breaker, returned: Callable[[Rented, Pod], None]
    ) -> None:
        self._provider, self._roster, self._breaker, self._returned = provider, roster, breaker, returned
        self._waiting: list[asyncio.Future[Mapping[str, Pod] | None]] = []

    async def look(self) -> Mapping[str, Pod] | None:
        """The account's pods by name, at the next look that begins from now on; None when it failed."""
        mine: asyncio.Future[Mapping[str, Pod] | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        return await mine

    async def once(self) -> None:
        """One list, and one more question for each of ours that is missing in it."""
        waiting, self._waiting = self._waiting, []
        up = [pod for pod in self._roster.alive() if pod.state in _UP]
        seen: dict[str, Pod] | None = None
        try:
            seen = {pod.name: pod for pod in await self._provider.list()}
            await self._compare(up, seen)
        except ProviderError as error:
            log.warning("the pods cannot be listed: %s", error)
        except SettingsError as error:
            self._breaker.open(error)
        finally:
            for one in waiting:
                if not one.done():
                    one.set_result(seen)

    async def _compare(self, up: list[Rented], seen: Mapping[str, Pod]) -> None:
        for name, found in seen.items():
            pod = self._roster.pods.get(name)
            if pod is None:
                continue  # somebody else's
            if pod.state in _UP and pod.id == found.id:
                self._there(pod, found)
            elif pod.state is State.GONE and (alive := await self._ask(found.id)):
                self._returned(pod, alive)
        for pod in up:
            if str(pod.name) not in seen and pod.state in _UP and await self._ask(pod.id) is None:
                pod.lost = pod.gone = True
                pod.retire("it is gone without having been asked to go")

    async def _ask(self, pod_id: str) -> Pod | None:
        """What the provider says of this one; None when it is gone. A question without an answer says nothing."""
        try:
            return await self._provider.get(pod_id)
        except Gone:
            return None

    def _there(self, pod: Rented, found: Pod) -> None:
        before, pod.seen = pod.seen, found
        self._roster.sign(pod, seen=found.status != "terminated")
        if found.usd_per_hour > 0 and found.usd_per_hour != pod.usd_per_hour:
            self._roster.dearer(pod, found.usd_per_hour)
        if before is not None and (before.uptime_s or 0.0) > (found.uptime_s or 0.0) and found.uptime_s is not None:
            pod.restarts += 1
        if pod.restarts >= RESTARTS:
            pod.retire(f"its container has started {pod.restarts} times again")
        elif found.status in ("exited", "error", "terminated"):
            pod.lost = found.status == "terminated"
            pod.retire(f"the provider says {found.status!r}")
