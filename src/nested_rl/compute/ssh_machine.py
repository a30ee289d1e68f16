"""A machine behind an SSH connection: the same `Box` as on this computer, asked from afar."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import secrets
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol

from nested_rl.compute.ssh_login import Host
from nested_rl.errors import MachineLost
from nested_rl.interfaces import Machine, Process
from nested_rl.types import Completed
from nested_rl.waiting import uninterrupted

KEEP_BYTES: Final = 4096
"""Files of at least this size are kept in the machine's store, so that nothing is sent twice."""
WORDS_S: Final = 1.0
"""How long a program that writes no more may take to end."""


class Line(Protocol):
    """What carries requests to a machine's host program: a `Link`, or something like it."""

    host: Host
    root: str

    @property
    def connected(self) -> bool: ...
    async def ask(self, op: str, data: bytes = b"", **fields: Any) -> tuple[dict[str, Any], bytes]: ...
    def forward(self, port: int) -> AbstractAsyncContextManager[int]: ...
    async def close(self) -> None: ...


class RemoteProcess(Process):
    """A program on the machine. Lines are numbered, so that each arrives once whatever becomes of the connection."""

    def __init__(self, link: Line, name: str, argv: Sequence[str], *, written: int = 0, read: int = 0) -> None:
        self.name, self.argv = name, tuple(argv)
        self._link = link
        self._writes, self._reads = itertools.count(written + 1), read
        self._writing, self._reading = asyncio.Lock(), asyncio.Lock()
        self._status: int | None = None
        self.last_words = "unknown"
        self._lost = False
        self._waiting = asyncio.ensure_future(self._wait())
        self._waiting.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody has to wait for it

    async def write(self, data: bytes) -> None:
        async with self._writing:
            await self._link.ask("write", data, name=self.name, number=next(self._writes))

    async def readline(self) -> bytes:
        async with self._reading:
            if self._lost:
                return b""
            _, line = await self._link.ask("readline", name=self.name, number=self._reads + 1)
            self._reads += 1
        if not line.endswith(b"\n"):  # it has ended, and its last words are on their way
            await asyncio.wait({self._waiting}, timeout=WORDS_S)
        return line

    async def wait(self) -> int:
        if self._lost:
            raise MachineLost(f"{self.argv[0]}: its lease is over, and nobody knows how it ended")
        return await asyncio.shield(self._waiting) if self._status is None else self._status

    async def kill(self) -> None:
        if self.alive:
            await uninterrupted(self._kill())
        self._waiting.cancel()

    @property
    def alive(self) -> bool:
        return self._status is None and not self._lost

    def gone(self) -> None:
        """Its machine is, or its lease has ended."""
        self._lost = True
        self._waiting.cancel()

    async def _wait(self) -> int:
        told, words = await self._link.ask("wait", name=self.name)
        self._status, self.last_words = int(told["status"]), words.decode(errors="replace")
        return self._status

    async def _kill(self) -> None:
        told, _ = await self._link.ask("kill", name=self.name)
        self._status = int(told["status"])


class SSHMachine(Machine):
    """One lease after the other on one host. Raises MachineLost when the host does not come back in time."""

    def __init__(self, link: Line) -> None:
        self.id = link.host.address
        self.usd_per_hour = link.host.usd_per_hour
        self.root = link.root
        self._link = link
        self._known: set[str] = set()
        self._processes: list[RemoteProcess] = []
        self._residents: dict[str, RemoteProcess] = {}

    async def run(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float | None = None
    ) -> Completed:
        name = secrets.token_hex(8)
        try:
            told, body = await self._link.ask(
                "run", name=name, argv=list(argv), env=self._env(env), timeout_s=timeout_s
            )
        finally:
            with contextlib.suppress(MachineLost):
                await uninterrupted(self._forget(name))
        out, err = body[: told["out"]], body[told["out"] :]
        return Completed(returncode=told["status"], stdout=out.decode(), stderr=err.decode())

    async def start(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> RemoteProcess:
        name = secrets.token_hex(8)
        await self._link.ask("start", name=name, argv=list(argv), env=self._env(env))
        process = RemoteProcess(self._link, name, argv)
        self._processes.append(process)
        return process

    async def resident(self, key: str, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> RemoteProcess:
        told, _ = await self._link.ask("resident", key=key, argv=list(argv), env=self._env(env))
        known = self._residents.get(key)
        if known is not None and known.name == told["name"]:
            return known
        if known is not None:
            known.gone()
        process = RemoteProcess(self._link, told["name"], argv, written=told["written"], read=told["read"])
        self._residents[key] = process
        return process

    async def put(self, path: str, data: bytes) -> None:
        sha256, keep = hashlib.sha256(data).hexdigest(), len(data) >= KEEP_BYTES
        if keep:
            told, _ = await self._link.ask("has", path=path, sha256=sha256)
            if told["has"]:
                return
        await self._link.ask("put", data, path=path, sha256=sha256, keep=keep)

    async def get(self, path: str) -> bytes:
        for _ in range(2):
            told, data = await self._link.ask("get", path=path)
            if hashlib.sha256(data).hexdigest() == told["sha256"]:
                return data
        raise MachineLost(f"{self.id}: {path} arrives damaged")

    def forward(self, port: int) -> AbstractAsyncContextManager[int]:
        return self._link.forward(port)

    @property
    def connected(self) -> bool:
        """Whether its line was up when last heard of."""
        return self._link.connected

    async def end_lease(self) -> bool:
        """Leave only what is warm. False when the machine cannot be used again as it is."""
        for process in self._processes:
            process.gone()
        self._processes.clear()
        told, _ = await self._link.ask("end_lease")
        return bool(told["good"])

    async def recycle(self) -> None:
        """End everything that runs there, also what is warm."""
        self.gone()
        await self._link.ask("recycle")

    def gone(self) -> None:
        """Whatever ran there runs no more."""
        for process in (*self._processes, *self._residents.values()):
            process.gone()
        self._processes.clear()
        self._residents.clear()

    async def close(self) -> None:
        """End everything and let the machine go."""
        self.gone()
        await self._link.close()

    def _env(self, env: Mapping[str, str] | None) -> dict[str, Any]:
        return {**self._link.host.env, **(env or {})}

    async def _forget(self, name: str) -> None:
        await self._link.ask("forget", name=name)
