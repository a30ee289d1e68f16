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
import warnings
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from attrs import define, field

from nested_rl import scratch
from nested_rl.compute import orphans
from nested_rl.compute.child import Child
from nested_rl.compute.rooted import Root
from nested_rl.errors import SettingsError
from nested_rl.interfaces import ComputeBackend, Machine
from nested_rl.types import Completed, Need
from nested_rl.waiting import uninterrupted

ONE_THREAD: Mapping[str, str] = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""A machine is one core; more threads would only fight."""


class LocalMachine(Machine):
    """A folder and the programs started for it. `python` at the start of an argv is the backend's interpreter."""

    def __init__(self, id: str, *, folder: Path, usd_per_hour: float, python: str, orphans: Orphans) -> None:  # noqa: A002
        self.id = id
        self.usd_per_hour = usd_per_hour
        self.root = str(folder)
        self._files = Root(folder)
        self._python = python
        self._orphans = orphans
        self._lease = 0
        self._children: list[Child] = []
        self._residents: dict[str, Child] = {}
        self._warming = asyncio.Lock()

    async def run(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float | None = None
    ) -> Completed:
        child = await self._start(argv, env or {}, collect=True)
        try:
            async with asyncio.timeout(timeout_s):
                status = await child.wait()
        except TimeoutError:
            raise TimeoutError(f"{argv[0]} on {self.id}: not done after {timeout_s:g} s, and killed") from None
        finally:
            await child.kill()
        stdout, stderr = child.output
        return Completed(returncode=status, stdout=stdout, stderr=stderr)

    async def start(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Child:
        return await self._start(argv, env or {})

    async def resident(self, key: str, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Child:
        command = self._command(argv)
        async with self._warming:
            known = self._residents.get(key)
            if known is not None and known.alive and known.argv == command:
                return known
            if known is not None:
                await known.kill()
            child = await self._child(command, {**ONE_THREAD, **(env or {})}, mark="warm", collect=False)
            self._residents[key] = child
            return child

    async def put(self, path: str, data: bytes) -> None:
        await asyncio.to_thread(self._files.put, path, data)

    async def get(self, path: str) -> bytes:
        return await asyncio.to_thread(self._files.get, path)

    @contextlib.asynccontextmanager
    async def forward(self, port: int) -> AsyncIterator[int]:
        """The same port: this computer is the machine."""
        yield port

    @property
    def healthy(self) -> bool:
        """Whether everything that was warmed up still runs."""
        return all(child.alive for child in self._residents.values())

    async def end_lease(self) -> bool:
        """Leave only what is warm. False when the machine cannot be used again."""
        if self._children:
            await self._kill(self._children)
            await asyncio.to_thread(orphans.end, f"{self.root}/{self._lease}")
            self._children.clear()
        self._lease += 1
        return self.healthy and await asyncio.to_thread(self._files.empty)

    async def end(self) -> None:
        """Kill everything, remove the folder."""
        await self._kill([*self._children, *self._residents.values()])
        await asyncio.to_thread(orphans.end, self.root)
        await asyncio.to_thread(self._files.remove)

    async def _start(self, argv: Sequence[str], env: Mapping[str, str], *, collect: bool = False) -> Child:
        child = await self._child(self._command(argv), env, mark=str(self._lease), collect=collect)
        self._children.append(child)
        return child

    def _command(self, argv: Sequence[str]) -> tuple[str, ...]:
        if not argv:
            raise SettingsError(f"{self.id}: an empty command")
        return (self._python if argv[0] == "python" else argv[0], *argv[1:])

    async def _child(self, command: Sequence[str], env: Mapping[str, str], *, mark: str, collect: bool) -> Child:
        basics = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": self.root,
            "LANG": "C.UTF-8",
            orphans.MARK: f"{self.root}/{mark}",
        }
        child = await Child.start(
            command, env={**basics, **env}, cwd=self.root, collect=collect, on_end=self._orphans.forget
        )
        self._orphans.expect(child.pid)
        return child

    async def _kill(self, children: Sequence[Child]) -> None:
        for killed in await asyncio.gather(*(child.kill() for child in children), return_exceptions=True):
            if isinstance(killed, BaseException):
                warnings.warn(f"{self.id}: {killed}", RuntimeWarning, stacklevel=2)


class Orphans:
    """The controller's end of the pipe to orphans.py."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", orphans.__file__, str(folder)],
            stdin=subprocess.PIPE,
            cwd="/",
            env={"PATH": os.defpath},
            start_new_session=True,  # what kills the controller's whole group leaves this one alive
        )

    def expect(self, group: int) -> None:
        """Kill this group when the controller is gone."""
        self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        """The group has ended; its number may be given to others."""
        self._tell(f"-{group}\n")

    def close(self) -> None:
        """Let it do its work now, and wait for it."""
        assert self._process.stdin is not None
        self._tell(".\n")
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # killed, or closed
            os.write(self._process.stdin.fileno(), line.encode())


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
    starts afresh.
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

    @property
    def max_machines(self) -> int:
        return self._max_machines

    def offers(self) -> Sequence[Need]:
        """No GPU, and what is free of the disk that holds temporary files."""
        return [Need(disk_gib=round(shutil.disk_usage(tempfile.gettempdir()).free / 2**30, 1))]

    def machine(self, need: Need) -> AbstractAsyncContextManager[LocalMachine]:
        (offer,) = self.offers()
        if not need.fits(offer):
            raise SettingsError(f"this computer offers {offer}, which does not fit {need}; use another backend")
        return self._machine()

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
