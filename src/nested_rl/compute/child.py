"""A program on this computer, in a session of its own, with its output bounded in memory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from nested_rl.compute import orphans
from nested_rl.errors import MachineLost
from nested_rl.waiting import uninterrupted

if TYPE_CHECKING:
    from nested_rl.interfaces import Process
else:
    Process = object  # on a remote machine there is the standard library only, and interfaces need more

LINE_BYTES = 8 << 20
"""A longer line is cut."""
OUTPUT_BYTES = 1 << 20
"""Of a longer output the beginning and the end are kept."""

_PATIENCE_S = 10.0
_LAST_OUTPUT_S = 1.0


class Output:
    r"""The beginning and the end of what a program says.

    >>> output = Output(limit=8)
    >>> output.feed_data(b"0123456789abcdef")
    >>> output.text()
    '0123\n... 8 bytes left out ...\ncdef'
    """

    def __init__(self, limit: int = OUTPUT_BYTES) -> None:
        self._half = limit // 2
        self._head, self._tail = bytearray(), bytearray()
        self._left_out = 0

    def feed_data(self, data: bytes) -> None:
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if (over := len(self._tail) - self._half) > 0:
            del self._tail[:over]
            self._left_out += over

    def feed_eof(self) -> None:
        """Nothing more comes."""

    def text(self) -> str:
        """Decoded with replacement."""
        gap = f"\n... {self._left_out} bytes left out ...\n".encode() if self._left_out else b""
        return bytes(self._head + gap + self._tail).decode(errors="replace")


class _Wire(asyncio.SubprocessProtocol):
    """What asyncio calls: bytes to where they belong, and the news of the end, which does not wait for the pipes."""

    def __init__(self, out: Output | asyncio.StreamReader, err: Output) -> None:
        self._sinks: dict[int, Output | asyncio.StreamReader] = {1: out, 2: err}
        self.exited = asyncio.Event()
        self.silent = asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        out, pipe = self._sinks[1], transport.get_pipe_transport(1)
        if isinstance(out, asyncio.StreamReader) and pipe is not None:
            out.set_transport(pipe)  # so that a reader who does not come stops the writer

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._sinks[fd].feed_data(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002
        if fd in self._sinks:
            self._sinks[fd].feed_eof()
        else:
            self.writable.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def process_exited(self) -> None:
        self.exited.set()
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.silent.set()


class Child(Process):
    """A running program. `on_end` is called with its group's number when nothing of the group runs any more."""

    def __init__(
        self,
        argv: Sequence[str],
        transport: asyncio.SubprocessTransport,
        wire: _Wire,
        *,
        out: Output | asyncio.StreamReader,
        err: Output,
        on_end: Callable[[int], None],
    ) -> None:
        self.argv = tuple(argv)
        self.pid = transport.get_pid()
        self._transport, self._wire = transport, wire
        self._out, self._err = out, err
        self._on_end = on_end
        self._ending = asyncio.ensure_future(self._end_with_leader())

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        collect: bool,
        on_end: Callable[[int], None],
    ) -> Child:
        """Start `argv`. `collect` keeps its output for `output`, and gives it no input; otherwise lines go in and out."""
        out = Output() if collect else asyncio.StreamReader(limit=LINE_BYTES)
        err = Output()
        transport, wire = await asyncio.get_running_loop().subprocess_exec(
            lambda: _Wire(out, err),
            *argv,
            stdin=subprocess.DEVNULL if collect else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,  # Ctrl-C is for the controller, and kill() finds the whole group
        )
        return cls(argv, transport, wire, out=out, err=err, on_end=on_end)

    @property
    def alive(self) -> bool:
        return self._transport.get_returncode() is None

    async def write(self, data: bytes) -> None:
        pipe = self._transport.get_pipe_transport(0)
        if not self.alive or pipe is None or pipe.is_closing():
            raise BrokenPipeError(
                f"{self.argv[0]} (process {self.pid}) no longer reads; its last words: {self.last_words}"
            )
        assert isinstance(pipe, asyncio.WriteTransport)
        pipe.write(data)
        await self._wire.writable.wait()

    async def readline(self) -> bytes:
        assert isinstance(self._out, asyncio.StreamReader)
        try:
            return await self._out.readuntil(b"\n")
        except asyncio.IncompleteReadError as end:
            return end.partial
        except asyncio.LimitOverrunError:
            line = await self._out.readexactly(LINE_BYTES)
            await self._skip_line()
            return line + b"\n"

    async def wait(self) -> int:
        await self._wire.exited.wait()
        status = self._transport.get_returncode()
        assert status is not None
        return status

    @property
    def output(self) -> tuple[str, str]:
        """What it said on both channels, within bounds; complete once `kill` has returned."""
        assert isinstance(self._out, Output)
        return self._out.text(), self._err.text()

    async def kill(self) -> None:
        if self.alive:
            self._signal()
        await uninterrupted(self._gone())

    @property
    def last_words(self) -> str:
        """The end of its standard error, for messages."""
        return self._err.text().strip()[-500:] or "none"

    async def _gone(self) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await asyncio.shield(self._ending)
        except TimeoutError:
            raise MachineLost(f"{self.argv[0]} (process group {self.pid}) does not die when killed") from None
        if isinstance(self._out, Output):
            with contextlib.suppress(TimeoutError):  # a process that left the group may hold the pipe open for ever
                async with asyncio.timeout(_LAST_OUTPUT_S):
                    await self._wire.silent.wait()
        self._transport.close()

    async def _end_with_leader(self) -> None:
        """What it started ends with it. Done at once, while the group's number cannot have been given to others."""
        await self._wire.exited.wait()
        pause_s = 0.001
        while self._signal() and orphans.in_group(self.pid):  # whoever forks meanwhile is caught the next time round
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.05)
        self._on_end(self.pid)

    def _signal(self) -> bool:
        """Kill the group; whether there is one."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        except PermissionError:  # macOS says so of a group of zombies
            return self.alive
        return True

    async def _skip_line(self) -> None:
        assert isinstance(self._out, asyncio.StreamReader)
        while True:
            try:
                await self._out.readuntil(b"\n")
            except asyncio.LimitOverrunError as more:
                await self._out.readexactly(more.consumed)
            except asyncio.IncompleteReadError:
                return
            else:
                return
