"""Machines of a Ray cluster: each is an actor that holds the GPUs and CPUs that were asked for."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from nested_rl import redact
from nested_rl.clock import Clock, SystemClock
from nested_rl.compute import ray_link
from nested_rl.compute.ray_link import RayLink
from nested_rl.compute.ssh_machine import SSHMachine
from nested_rl.errors import InfraFault, MachineLost, SettingsError
from nested_rl.interfaces import ComputeBackend
from nested_rl.types import Need
from nested_rl.waiting import Overdue, uninterrupted, within

log = redact.logger(__name__)
ATTEMPTS: Final = 3


class RayMachine(SSHMachine):
    """An actor's machine; it is asked as one behind SSH is, through the actor. Raises MachineLost when the actor or its node dies."""

    @property
    def gpu_ids(self) -> tuple[int, ...]:
        """Which GPUs of its node are its own, as the driver counts them: others may be somebody else's.

        Raises MachineLost where the cluster names them otherwise.
        """
        told = self._link.host.env.get("CUDA_VISIBLE_DEVICES", "")
        if not all(part.strip().isdigit() for part in told.split(",") if told):
            raise MachineLost(f"{self.id}: its GPUs are named {told!r}, not by their numbers")
        return tuple(int(part) for part in told.split(",") if told)

    async def beat(self) -> None:
        """Is it still there? Raises MachineLost."""
        await self._link.ask("beat")


class RayCompute(ComputeBackend):
    """At most `max_machines` actors, each with `gpus` GPUs and `cpus` CPUs (and `resources`, `accelerator_type`) of a cluster.

    The program must run on a node of the cluster, or `address="local"` starts one. Nothing is asked of it before the first lease. An actor is
    kept warm from lease to lease, given back after `idle_s` without one, and ends with this program, however that ends. A cluster that
    has no room within `start_s` is MachineLost. `python` is what `python` means on a machine (default: that of the node's Ray).
    `gpu_memory_gib` and `disk_gib` are what each machine is said to have.

    >>> compute = RayCompute(4, gpus=1, gpu_memory_gib=48, cpus=8)     # doctest: +SKIP
    >>> compute.offers()                                               # doctest: +SKIP
    [Need(gpus=1, gpu_memory_gib=48, disk_gib=10.0)]
    """

    def __init__(
        self,
        max_machines: int,
        *,
        gpus: int = 0,
        cpus: float = 1.0,
        gpu_memory_gib: float = 0.0,
        disk_gib: float = 10.0,
        accelerator_type: str | None = None,
        resources: Mapping[str, float] | None = None,
        address: str = "auto",
        python: str | None = None,
        usd_per_hour: float = 0.0,
        start_s: float = 1800.0,
        idle_s: float = 300.0,
        clock: Clock | None = None,
    ) -> None:
        if max_machines < 1 or gpus < 0 or cpus < 0:
            raise SettingsError(
                f"RayCompute({max_machines}, gpus={gpus}, cpus={cpus}): at least 1 machine, and no less than none"
            )
        if address.startswith("ray://"):
            raise SettingsError(
                f"RayCompute(address={address!r}): a Ray client is no part of the cluster, and what it started would outlive it; "
                "join this computer with `ray start --address=HOST:PORT --num-cpus=0` and say address='auto'"
            )
        ray_link.library()
        self._max_machines = max_machines
        self._offer = Need(gpus=gpus, gpu_memory_gib=gpu_memory_gib, disk_gib=disk_gib)
        self._options: dict[str, Any] = {"num_cpus": cpus, "num_gpus": gpus, "resources": dict(resources or {})}
        self._asked: dict[str, float] = {"CPU": cpus, "GPU": gpus, **(resources or {})}
        if accelerator_type is not None:
            self._options["accelerator_type"] = accelerator_type
            self._asked[f"accelerator_type:{accelerator_type}"] = 0.001
        self._address, self._python = address, python
        self.usd_per_hour = usd_per_hour
        self._start_s, self._idle_s = start_s, idle_s
        self._clock = clock or SystemClock()
        self._changed = asyncio.Condition()
        self._opening = asyncio.Lock()
        self._open = self._own = False
        self._numbers = itertools.count()
        self._waiting = 0
        self._idle: list[RayMachine] = []
        self._lent: set[RayMachine] = set()
        self._growing: list[asyncio.Task[None]] = []
        self._resting: dict[RayMachine, asyncio.Task[None]] = {}
        self._troubles: list[Exception] = []

    @property
    def max_machines(self) -> int:
        return self._max_machines

    def settings(self) -> dict[str, object]:
        """What is recorded with a run."""
        return {"max_machines": self._max_machines, **self._asked}

    def offers(self) -> list[Need]:
        return [self._offer]

    def machine(self, need: Need) -> AbstractAsyncContextManager[RayMachine]:
        if not need.fits(self._offer):
            raise SettingsError(
                f"a machine of this Ray cluster is said to have {self._offer}, which does not fit {need}"
            )
        return self._machine()

    async def close(self) -> None:
        await uninterrupted(self._close())

    @contextlib.asynccontextmanager
    async def _machine(self) -> AsyncIterator[RayMachine]:
        async with self._opening:
            if not self._open:
                self._own = await asyncio.to_thread(ray_link.connect, self._address)
                self._open = True
        machine = await self._take()
        good = False
        try:
            yield machine
            good = True
        finally:
            await uninterrupted(self._give_back(machine, good=good))

    async def _take(self) -> RayMachine:
        """One that is idle, or a new one as soon as the cluster has room for it: whichever comes first."""
        while True:
            machine = await self._next()
            try:
                await machine.beat()
            except MachineLost as lost:  # while nobody looked
                log.info("%s", lost)
                await uninterrupted(self._give_back(machine, good=False))
            except BaseException:
                await uninterrupted(self._give_back(machine, good=False))
                raise
            else:
                return machine

    async def _next(self) -> RayMachine:
        async with self._changed:
            self._waiting += 1
            try:
                while not self._idle:
                    if not self._open:
                        raise MachineLost("the Ray cluster was let go of")
                    if self._troubles:
                        raise self._troubles.pop()
                    if len(self._growing) < self._waiting and self._held < self._max_machines:
                        self._growing.append(asyncio.ensure_future(self._grow()))
                    await self._changed.wait()
                machine = self._idle.pop()
                self._resting.pop(machine).cancel()
                self._lent.add(machine)
                return machine
            finally:
                self._waiting -= 1
                del self._troubles[self._waiting :]
                for task in self._growing[self._waiting :]:
                    task.cancel()  # nobody waits for it any more

    @property
    def _held(self) -> int:
        return len(self._lent) + len(self._idle) + len(self._growing)

    async def _grow(self) -> None:
        """Make one, and put it with the idle ones; or tell whoever waits why that cannot be done."""
        try:
            if not await asyncio.to_thread(ray_link.room, self._asked):
                log.warning("no node of the Ray cluster has %s; waiting for one for %g s", self._asked, self._start_s)
            machine = await within(self._clock, self._start_s, self._made())
        except Overdue:
            told = f"the Ray cluster had no room for {self._asked} within {self._start_s:g} s"
            self._trouble(MachineLost(told))
        except Exception as error:  # noqa: BLE001  whatever it was, it is raised where somebody waits
            self._trouble(error)
        else:
            self._rest(machine)
        finally:
            here = asyncio.current_task()
            self._growing = [task for task in self._growing if task is not here]
            await self._told()

    def _trouble(self, error: Exception) -> None:
        if len(self._troubles) < self._waiting:  # or nobody needs it any more
            self._troubles.append(error)

    async def _made(self) -> RayMachine:
        """A new one. Ray may choose a node that has died without its knowledge: then another is asked for, so often."""
        for left in reversed(range(ATTEMPTS)):
            name = f"ray-{next(self._numbers)}"
            link = RayLink(name, options=self._options, python=self._python, usd_per_hour=self.usd_per_hour)
            try:
                await link.open()
            except BaseException as error:
                await uninterrupted(link.close())
                if not isinstance(error, MachineLost) or not left:
                    raise
                log.info("%s", error)
            else:
                break
        return RayMachine(link)

    def _rest(self, machine: RayMachine) -> None:
        self._idle.append(machine)
        self._resting[machine] = asyncio.ensure_future(self._expire(machine))

    async def _expire(self, machine: RayMachine) -> None:
        """Give back what nobody has wanted for long."""
        await self._clock.sleep(self._idle_s)
        self._idle.remove(machine)
        del self._resting[machine]
        self._lent.add(machine)  # until it has ended, it counts
        await uninterrupted(self._give_back(machine, good=False))

    async def _give_back(self, machine: RayMachine, *, good: bool) -> None:
        kept = False
        try:
            kept = good and self._open and await machine.end_lease()
        except (OSError, InfraFault) as error:
            log.info("%s: %s", machine.id, error)
        if not kept:
            await machine.close()
        self._lent.discard(machine)
        if kept:
            self._rest(machine)
        await self._told()

    async def _told(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _close(self) -> None:
        self._open, was = False, self._open
        for task in (*self._growing, *self._resting.values()):
            task.cancel()
        await asyncio.gather(*self._growing, *self._resting.values(), return_exceptions=True)
        machines, self._idle = [*self._idle, *self._lent], []
        self._resting.clear()
        await asyncio.gather(*(machine.close() for machine in machines))
        await self._told()
        self._changed, self._opening = asyncio.Condition(), asyncio.Lock()  # the next event loop's
        if was and self._own:
            await asyncio.to_thread(ray_link.disconnect)
