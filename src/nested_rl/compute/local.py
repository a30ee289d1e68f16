"""Machines that are this computer: one core each, warm from lease to lease.

    /tmp/nested_rl-UID/CONTROLLER/        one folder a LocalCompute; its name tells whether its owner still lives
        local-0/                          a machine's root, emptied when a lease ends

Agent-written code must not run here as it is: that is the sandbox's work. What this gives is a clean environment, a folder of
its own, and the certainty that nothing that was started outlives its lease, the backend, or a killed controller (see orphans.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from attrs import define, field

from nested_rl import scratch
from nested_rl.compute import orphans
from nested_rl.compute.box import Box, Orphans
from nested_rl.errors import SettingsError
from nested_rl.interfaces import ComputeBackend, Machine
from nested_rl.types import Completed, Need
from nested_rl.waiting import uninterrupted


class LocalMachine(Box, Machine):
    """A folder on this computer. `python` at the start of an argv is the backend's interpreter."""

    def __init__(self, id: str, *, folder: Path, usd_per_hour: float, python: str, orphans: Orphans) -> None:  # noqa: A002
        super().__init__(id, folder=folder, python=python, orphans=orphans)
        self.usd_per_hour = usd_per_hour

    async def run(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float | None = None
    ) -> Completed:
        status, stdout, stderr = await self.collect(argv, env=env, timeout_s=timeout_s)
        return Completed(returncode=status, stdout=stdout, stderr=stderr)

    @contextlib.asynccontextmanager
    async def forward(self, port: int) -> AsyncIterator[int]:
        """The same port: this computer is the machine."""
        yield port


@define
class _Open:
    """What exists while the backend is in use."""

    folder: Path
    orphans: Orphans
    gate: asyncio.Semaphore
    machines: set[LocalMachine] = field(factory=set)
    idle: list[LocalMachine] = field(factory=list)
    numbers: itertools.count[int] = field(factory=itertools.count)


class LocalCompute(ComputeBackend):
    """At most `max_machines` machines at once, one for each core by default. Nothing is started before the first lease.

    `usd_per_hour` is what one of them is said to cost; `python` is what "python" means on them. After `close` a new lease
    starts afresh. The GPUs of this computer belong to its one machine: with `max_machines=1` they are on offer.
    """

    def __init__(
        self, max_machines: int | None = None, *, usd_per_hour: float = 0.0, python: str = sys.executable
    ) -> None:
        self._max_machines = _cores() if max_machines is None else max_machines
        if self._max_machines < 1:
            raise SettingsError(f"LocalCompute(max_machines={max_machines}): at least 1 machine is needed")
        self.usd_per_hour = usd_per_hour
        self._python = python
        self._open: _Open | None = None
        self._gpu_gib: tuple[float, ...] | None = None

    @property
    def max_machines(self) -> int:
        return self._max_machines

    def offers(self) -> Sequence[Need]:
        """What is free of the disk that holds temporary files; and GPUs, when there is one machine to have them all."""
        gpu_gib = self._gpus() if self._max_machines == 1 else ()
        disk_gib = round(shutil.disk_usage(tempfile.gettempdir()).free / 2**30, 1)
        return [Need(gpus=len(gpu_gib), gpu_memory_gib=min(gpu_gib, default=0.0), disk_gib=disk_gib)]

    def machine(self, need: Need) -> AbstractAsyncContextManager[LocalMachine]:
        (offer,) = self.offers()
        if not need.fits(offer):
            raise SettingsError(f"this computer offers {offer}, which does not fit {need}; use another backend")
        return self._machine()

    def _gpus(self) -> tuple[float, ...]:
        """GiB of each GPU, asked for once. None when no driver answers."""
        if self._gpu_gib is None:
            ask = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
            self._gpu_gib = ()
            with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
                told = subprocess.run(ask, check=True, capture_output=True, timeout=60, stdin=subprocess.DEVNULL)
                self._gpu_gib = tuple(round(int(line) / 1024, 1) for line in told.stdout.split())
        return self._gpu_gib

    async def close(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            await uninterrupted(_shut(opened))

    @contextlib.asynccontextmanager
    async def _machine(self) -> AsyncIterator[LocalMachine]:
        if self._open is None:
            folder = _own_folder()
            self._open = _Open(folder, Orphans(folder), asyncio.Semaphore(self._max_machines))
        opened = self._open
        async with opened.gate:
            machine = await self._warm(opened)
            good = False
            try:
                yield machine
                good = True
            finally:
                await uninterrupted(self._take_back(opened, machine, good=good))

    async def _warm(self, opened: _Open) -> LocalMachine:
        """The machine that was used last, or a new one."""
        while opened.idle:
            machine = opened.idle.pop()
            if machine.healthy:
                return machine
            await self._recycle(opened, machine)
        name = f"local-{next(opened.numbers)}"
        machine = LocalMachine(
            name,
            folder=opened.folder / name,
            usd_per_hour=self.usd_per_hour,
            python=self._python,
            orphans=opened.orphans,
        )
        opened.machines.add(machine)
        return machine

    async def _take_back(self, opened: _Open, machine: LocalMachine, *, good: bool) -> None:
        if good and opened is self._open and await machine.end_lease():
            opened.idle.append(machine)
        else:
            await self._recycle(opened, machine)

    async def _recycle(self, opened: _Open, machine: LocalMachine) -> None:
        opened.machines.discard(machine)
        await machine.end()


async def _shut(opened: _Open) -> None:
    try:
        await asyncio.gather(*(machine.end() for machine in opened.machines))
    finally:
        await asyncio.to_thread(opened.orphans.close)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _own_folder() -> Path:
    """A new folder that tells whose it is. Those of controllers that no longer run are cleared away first."""
    common = scratch.home()
    for old in common.iterdir():
        if scratch.left_behind(old.name):
            orphans.end(str(old))
            orphans.remove(old)
    own = common / scratch.named()
    own.mkdir(mode=0o700)
    return own
