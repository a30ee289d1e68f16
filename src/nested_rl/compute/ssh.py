"""Machines that one can log in to: a list of hosts, each held by one controller at a time."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from attrs import define

from nested_rl.clock import Clock, SystemClock
from nested_rl.compute.ssh_link import Link
from nested_rl.compute.ssh_login import Host, library, owner
from nested_rl.compute.ssh_machine import SSHMachine
from nested_rl.errors import InfraFault, MachineLost, NestedRLError, SettingsError
from nested_rl.interfaces import ComputeBackend
from nested_rl.types import Need
from nested_rl.waiting import Overdue, uninterrupted, within

REST_S = 60.0
"""A host that could not be used is left alone for so long."""


@define(eq=False)
class _Place:
    """One host: taken by a lease or free, connected or not, and until when it is left alone."""

    host: Host
    machine: SSHMachine | None = None
    taken: bool = False
    rests_until_s: float = 0.0
    trouble: str = ""


class SSHCompute(ComputeBackend):
    """Hosts of one's own. `hosts` are addresses ([user@]host[:port]) or `Host`s; nothing is connected before the first lease.

    Host keys are pinned: `Host(host_key=…)`, or else those of `known_hosts` (default ~/.ssh/known_hosts); an unknown one is refused.
    A host whose line breaks has `patience_s` to come back, and what runs there goes on meanwhile; then its job moves to
    another. A host that hears nothing for `lease_s` ends everything that runs there by itself.

    >>> compute = SSHCompute(["ann@gpu1.lab", "ann@gpu2.lab:2222"])     # doctest: +SKIP
    >>> compute.max_machines                                            # doctest: +SKIP
    2
    """

    def __init__(
        self,
        hosts: Sequence[str | Host],
        *,
        key: str | None = None,
        known_hosts: str | None = None,
        patience_s: float = 120.0,
        lease_s: float = 600.0,
        keepalive_s: float = 15.0,
        clock: Clock | None = None,
    ) -> None:
        if isinstance(hosts, str) or not hosts:
            raise SettingsError(f"SSHCompute needs a list of hosts, such as ['me@gpu1.lab'], not {hosts!r}")
        named = [host if isinstance(host, Host) else Host(address=host, key=key) for host in hosts]
        addresses = [host.address for host in named]
        for host in named:
            _ = host.parts
        if len(set(addresses)) < len(addresses):
            raise SettingsError(f"SSHCompute: a host is named twice in {addresses}")
        library()
        self._places = [_Place(host) for host in named]
        self._known_hosts = Path(known_hosts) if known_hosts else None
        self._patience_s, self._lease_s, self._keepalive_s = patience_s, lease_s, keepalive_s
        self._clock = clock or SystemClock()
        self._owner = owner(secrets.token_hex(4))  # a process may have several of us, and none has the other's hosts
        self._freed = asyncio.Condition()

    @property
    def usd_per_hour(self) -> float:
        """The dearest host, for reservations."""
        return max(place.host.usd_per_hour for place in self._places)

    @property
    def max_machines(self) -> int:
        return len(self._places)

    def settings(self) -> dict[str, object]:
        """What is recorded with a run."""
        return {"hosts": [place.host.address for place in self._places]}

    def offers(self) -> Sequence[Need]:
        return [place.host.offer for place in self._places]

    def machine(self, need: Need) -> AbstractAsyncContextManager[SSHMachine]:
        if not any(need.fits(offer) for offer in self.offers()):
            raise SettingsError(f"no host has {need}; they have {[str(offer) for offer in self.offers()]}")
        return self._machine(need)

    async def close(self) -> None:
        machines = [place.machine for place in self._places if place.machine is not None]
        for place in self._places:
            place.machine = None
        await uninterrupted(_closed(machines))
        self._freed = asyncio.Condition()  # one that was waited on belongs to this event loop; the next run has another

    @contextlib.asynccontextmanager
    async def _machine(self, need: Need) -> AsyncIterator[SSHMachine]:
        place = await self._take(need)
        good = False
        try:
            machine = await self._connected(place)
            yield machine
            good = True
        finally:
            await uninterrupted(self._give_back(place, good=good))

    async def _take(self, need: Need) -> _Place:
        """A free host that fits, the warm ones first. Raises MachineLost when all that fit are out of order."""
        async with self._freed:
            while True:
                fitting = [place for place in self._places if need.fits(place.host.offer)]
                now = self._clock.monotonic()
                usable = [p for p in fitting if p.rests_until_s <= now]
                free = [p for p in usable if not p.taken]
                if free:
                    place = max(free, key=lambda p: p.machine is not None)
                    place.taken = True
                    return place
                if not usable and not any(p.taken for p in fitting):
                    raise MachineLost("no host can be used: " + "; ".join(p.trouble for p in fitting))
                rested_s = min((p.rests_until_s - now for p in fitting if p not in usable), default=REST_S)
                with contextlib.suppress(Overdue):
                    await within(self._clock, rested_s, _said(self._freed))

    async def _connected(self, place: _Place) -> SSHMachine:
        if place.machine is None:
            link = Link(
                place.host,
                clock=self._clock,
                known_hosts=self._known_hosts,
                patience_s=self._patience_s,
                lease_s=self._lease_s,
                keepalive_s=self._keepalive_s,
                whose=self._owner,
            )
            try:
                await link.open()
            except BaseException as error:
                await uninterrupted(link.close())
                if isinstance(error, NestedRLError):
                    self._rest(place, str(error))
                raise
            place.machine = SSHMachine(link)
        return place.machine

    async def _give_back(self, place: _Place, *, good: bool) -> None:
        machine = place.machine
        try:
            if machine is not None and not (good and await machine.end_lease()):
                if not machine.connected:
                    raise MachineLost(f"{machine.id} was lost")
                await machine.recycle()
        except (OSError, InfraFault) as error:
            self._rest(place, str(error))
            place.machine = None
            if machine is not None:
                await machine.close()
        finally:
            place.taken = False
            async with self._freed:
                self._freed.notify_all()

    def _rest(self, place: _Place, trouble: str) -> None:
        place.rests_until_s, place.trouble = self._clock.monotonic() + REST_S, trouble


async def _said(freed: asyncio.Condition) -> None:
    await freed.wait()


async def _closed(machines: Sequence[SSHMachine]) -> None:
    await asyncio.gather(*(machine.close() for machine in machines))
