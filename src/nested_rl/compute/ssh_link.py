"""A connection to one machine over SSH: to its host program (`host.py`), made again when it breaks.

One SSH connection a machine, host keys pinned, keepalives that notice a frozen host. Requests go over one forwarded socket and may be
asked again after a reconnection, so that a job survives a broken line; what does not come back within `patience_s` is MachineLost.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nested_rl.clock import Clock
from nested_rl.compute.host import CHUNK_BYTES
from nested_rl.compute.relay import relayed
from nested_rl.compute.ssh_login import Host, library, login, owner, runs, take
from nested_rl.errors import InfraFault, MachineLost, NestedRLError, SettingsError
from nested_rl.waiting import within

if TYPE_CHECKING:
    import asyncssh

LOGIN_S: Final = 15.0
START_S: Final = 120.0
"""From the login until the host program answers, whatever the machine's shell and Python do meanwhile."""
_ERRORS: Final[Mapping[str, type[Exception]]] = {
    kind.__name__: kind
    for kind in (FileNotFoundError, PermissionError, BrokenPipeError, TimeoutError, OSError, ValueError, SettingsError)
} | {"MachineLost": MachineLost}


def raised(told: Mapping[str, Any]) -> None:
    """Raise what the host program says that it raised."""
    if "error" in told:
        kind = _ERRORS.get(told["error"], InfraFault)
        raise kind(told["message"] if kind is not InfraFault else f"{told['error']}: {told['message']}")


class _Over(MachineLost):
    """No reconnection brings it back."""


class Link:
    """Requests to one machine's host program. `open` takes the machine; `close` lets it go, and ends what runs there.

    `whose` is who has the machine then (this process, by default): what is found there of the same one is ended, what is of another is left alone.
    """

    def __init__(
        self,
        host: Host,
        *,
        clock: Clock,
        known_hosts: Path | None = None,
        patience_s: float = 120.0,
        lease_s: float = 600.0,
        keepalive_s: float = 15.0,
        whose: str = "",
    ) -> None:
        self.host = host
        self.root = ""
        self._clock, self._known_hosts = clock, known_hosts
        self._patience_s, self._lease_s, self._keepalive_s = patience_s, lease_s, keepalive_s
        self._owner = whose or owner()
        self._base = ""
        self._taking: asyncio.Task[str] | None = None
        self._ids = itertools.count(1)
        self._connecting = asyncio.Lock()
        self._connection: asyncssh.SSHClientConnection | None = None
        self._writer: asyncssh.SSHWriter[bytes] | None = None
        self._pending: dict[int, asyncio.Future[tuple[dict[str, Any], bytes]]] = {}
        self._sending = asyncio.Lock()
        self._listening: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._closed = False

    async def open(self) -> None:
        """Connect, take the machine, and keep the lease fresh. Raises MachineLost, or SettingsError for what will not mend."""
        await self._connect()
        told, _ = await self.ask("hello")
        self.root = told["root"]
        self._beating = asyncio.ensure_future(self._beat())

    @property
    def connected(self) -> bool:
        """Whether the line was up when last heard of."""
        return self._writer is not None

    async def ask(self, op: str, data: bytes = b"", **fields: Any) -> tuple[dict[str, Any], bytes]:
        """One request; asked again after a broken connection. Raises what it raised there, or MachineLost.

        An answer may take days: the patience begins when the connection breaks, and anew when one has lasted for that long.
        """
        deadline_s: float | None = None
        while True:
            asked_s, connection = self._clock.monotonic(), self._connection
            try:
                told, body = await self._ask_once({"op": op, **fields}, data)
            except (OSError, EOFError) as error:
                self._broke(connection)
                now_s = self._clock.monotonic()
                if deadline_s is None or now_s - asked_s >= self._patience_s:
                    deadline_s = now_s + self._patience_s
                if self._closed or now_s >= deadline_s:
                    raise MachineLost(
                        f"{self.host.address} does not answer: {error or type(error).__name__}"
                    ) from error
                try:
                    await self._reconnect(deadline_s)
                except SettingsError as wrong:  # it was right before: whoever answers now is not our machine
                    raise MachineLost(str(wrong)) from wrong
                continue
            raised(told)
            return told, body

    def forward(self, port: int) -> AbstractAsyncContextManager[int]:
        """A local port; each connection to it goes on to `port` of the machine, over whichever SSH connection there is."""
        return relayed(functools.partial(self._carry, port))

    async def close(self) -> None:
        """End the host program, and with it everything that runs there. A machine that does not answer ends by its lease."""
        self._closed = True
        with contextlib.suppress(OSError, EOFError, NestedRLError, asyncio.TimeoutError, library().Error):
            async with asyncio.timeout(10):
                if self._taking is not None and not self._base:
                    # Cut off while it began: what begins there holds the machine.
                    # Shielded: cancelled, it would wait for the far shell to close, which one that stands still never does.
                    self._base = await asyncio.shield(self._taking)
                    self._drop()
                if self._base:
                    await self._connect()  # the line may have broken since
                await self._ask_once({"op": "end"}, b"")
                if self._listening is not None:
                    await self._listening  # the host program closes the socket when everything has ended
        self._drop()
        tasks = [task for task in (self._taking, self._listening, self._beating) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- the wire

    async def _ask_once(self, ask: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        if self._writer is None:
            raise ConnectionError("not connected")
        number = next(self._ids)
        waiting: asyncio.Future[tuple[dict[str, Any], bytes]] = asyncio.get_running_loop().create_future()
        self._pending[number] = waiting
        try:
            async with self._sending:
                writer = self._writer
                if writer is None:
                    raise ConnectionError("the connection broke")
                writer.write(json.dumps({**ask, "id": number, "size": len(data)}).encode() + b"\n")
                for start in range(0, len(data), CHUNK_BYTES):
                    writer.write(data[start : start + CHUNK_BYTES])
                    await writer.drain()
                await writer.drain()
            return await waiting
        finally:
            self._pending.pop(number, None)

    async def _listen(self, reader: asyncssh.SSHReader[bytes], connection: asyncssh.SSHClientConnection) -> None:
        try:
            while line := await reader.readline():
                told = json.loads(line)
                body = await reader.readexactly(told["size"]) if told["size"] else b""
                waiting = self._pending.get(told["id"])
                if waiting is not None and not waiting.done():
                    waiting.set_result((told, body))
        except (OSError, EOFError):
            pass
        finally:
            self._broke(connection)

    def _broke(self, connection: asyncssh.SSHClientConnection | None) -> None:
        """This one did; there may be a later one already."""
        if self._connection is connection:
            self._drop()

    def _drop(self) -> None:
        """Let go of the connection; whoever waits asks again."""
        connection, self._connection, self._writer = self._connection, None, None
        if connection is not None:
            connection.abort()
        for waiting in self._pending.values():
            if not waiting.done():
                waiting.set_exception(ConnectionError("the connection broke"))

    async def _reconnect(self, deadline_s: float) -> None:
        pause_s = 0.1
        while True:
            try:
                return await self._connect()
            except _Over:
                raise
            except MachineLost:
                if self._closed or self._clock.monotonic() + pause_s >= deadline_s:
                    raise
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, 5.0)

    async def _beat(self) -> None:
        while True:
            await self._clock.sleep(min(self._keepalive_s, self._lease_s / 4))
            with contextlib.suppress(OSError, NestedRLError):  # whatever it was, it may go better next time
                await self.ask("beat")

    async def _carry(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._connection is None:
            return
        with contextlib.suppress(OSError, EOFError, library().Error):
            far_reader, far_writer = await self._connection.open_connection("127.0.0.1", port, encoding=None)

            async def there() -> None:
                while data := await reader.read(65536):
                    far_writer.write(data)
                    await far_writer.drain()
                far_writer.write_eof()

            sending = asyncio.ensure_future(there())
            try:
                while data := await far_reader.read(65536):
                    writer.write(data)
                    await writer.drain()
            finally:
                sending.cancel()
                far_writer.close()

    # ---- connecting

    async def _connect(self) -> None:
        async with self._connecting:
            if self._writer is not None:
                return
            try:
                reader = await within(self._clock, START_S, self._start())
            except (OSError, library().Error) as error:
                raise MachineLost(f"{self.host.address} cannot be reached: {error}") from error
            finally:
                if self._writer is None and (self._taking is None or self._taking.done()):
                    self._drop()
            assert self._connection is not None
            self._listening = asyncio.ensure_future(self._listen(reader, self._connection))

    async def _start(self) -> asyncssh.SSHReader[bytes]:
        self._connection = await login(
            self.host,
            known_hosts=self._known_hosts,
            keepalive_s=self._keepalive_s,
            timeout_s=max(1.0, min(LOGIN_S, self._patience_s)),
        )
        if not self._base:
            self._taking = asyncio.ensure_future(
                take(self._connection, self.host, owner=self._owner, lease_s=self._lease_s)
            )
            self._base = await asyncio.shield(self._taking)  # if this is cut off, `close` waits for it
        elif not await runs(self._connection, self._base):
            raise _Over(f"{self.host.address}: its host program has ended, and with it what ran there")
        try:
            reader, self._writer = await self._connection.open_unix_connection(
                f"{self._base}/socket", encoding=None, window=1 << 23
            )
        except library().ChannelOpenError as error:
            if not await runs(self._connection, self._base):
                raise
            raise MachineLost(
                f"{self.host.address}: its host program runs, but its sshd does not lead to it ({error}); "
                "`AllowStreamLocalForwarding yes` must hold there"
            ) from error
        return reader
