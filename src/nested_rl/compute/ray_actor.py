"""The actor that holds a machine's GPUs and CPUs in a Ray cluster, and carries bytes between its host program and the controller.

The class travels as it stands here to nodes that need not have this package, so this module imports the standard library only. Only
bytes, texts and numbers cross; nothing that a job has made is ever unpickled.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from typing import Final

BOOT: Final = """
import io, sys, tempfile, zipfile
if sys.version_info < (3, 11):
    sys.exit(f"Python 3.11 or newer is needed on a machine, this is {sys.version.split()[0]}")
data = sys.stdin.buffer.read(int(sys.argv[1]))
base = tempfile.mkdtemp(prefix="nested_rl-ray-")
zipfile.ZipFile(io.BytesIO(data)).extractall(base + "/agent")
sys.path.insert(0, base + "/agent")
from nested_rl.compute.ray_host import main
main(base)
"""
"""What Python on a node is given: it unpacks the host program from its standard input, which stays open while the actor lives."""
KEPT: Final = ("PATH", "HOME", "TMPDIR")
GPUS: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


class Holder:
    """Holds what Ray has given it, one host program, and open connections to ports of its node."""

    def __init__(self) -> None:
        self.base = ""
        self.program: subprocess.Popen[bytes] | None = None  # its standard input is what keeps the host program alive
        self.streams: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
        self.opened = 0

    async def open(self, agent: bytes, python: str) -> bytes:
        """Start the host program. JSON: the node, the variables that name the actor's GPUs, and what went wrong."""
        error = await asyncio.to_thread(self.started, agent, python)
        env = {name: os.environ[name] for name in GPUS if name in os.environ}
        return json.dumps({"error": error, "node": socket.gethostname(), "env": env}).encode()

    def started(self, agent: bytes, python: str) -> str:
        """Start the host program and wait until it serves; what went wrong, or nothing."""
        command = [python or sys.executable, "-I", "-c", BOOT, str(len(agent))]
        basics = {name: os.environ[name] for name in KEPT if name in os.environ}
        pipe = subprocess.PIPE
        try:
            self.program = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, cwd="/", env=basics)
        except OSError as error:
            return str(error)
        assert self.program.stdin is not None
        assert self.program.stdout is not None
        assert self.program.stderr is not None
        try:
            self.program.stdin.write(agent)
            self.program.stdin.flush()
        except OSError:
            pass  # it says why on its standard error
        self.base = self.program.stdout.read().decode().strip()
        why = self.program.stderr.read().decode(errors="replace").strip()
        return (why or "it said nothing") if self.program.wait() else ""

    async def ask(self, frame: bytes) -> bytes:
        """One request to the host program and its answer, each a line of JSON and what follows it."""
        writer = None
        try:
            reader, writer = await asyncio.open_unix_connection(f"{self.base}/socket", limit=1 << 24)
            writer.write(frame)
            await writer.drain()
            line = await reader.readline()
            return line + await reader.readexactly(json.loads(line)["size"])
        except (OSError, EOFError, ValueError) as error:
            told = {"error": "MachineLost", "message": f"its host program does not answer: {error}"}
            return json.dumps(told).encode() + b"\n"
        finally:
            if writer is not None:
                writer.close()

    async def end(self) -> bytes:
        """End the host program and everything it runs; return when that is done."""
        try:
            reader, writer = await asyncio.open_unix_connection(f"{self.base}/socket")
        except OSError:
            return b""  # it has ended
        try:
            writer.write(b'{"op": "end", "id": 0, "size": 0}\n')
            await reader.read()  # to its end: the host program closes the connection with its last breath
        except OSError:
            pass
        finally:
            writer.close()
        return b""

    async def connect(self, port: int) -> bytes:
        """Open a connection to a port of this node; its number, or nothing when nobody listens there."""
        try:
            stream = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return b""
        self.opened += 1
        self.streams[self.opened] = stream
        return str(self.opened).encode()

    async def send(self, number: int, data: bytes) -> bytes:
        """Send; nothing means that no more comes. Returns nothing when the connection is gone."""
        if number not in self.streams:
            return b""
        writer = self.streams[number][1]
        try:
            if data:
                writer.write(data)
                await writer.drain()
            elif writer.can_write_eof():
                writer.write_eof()
        except OSError:
            return b""
        return b"sent"

    async def receive(self, number: int) -> bytes:
        """What has come, at least one byte; nothing at the end."""
        if number not in self.streams:
            return b""
        try:
            return await self.streams[number][0].read(1 << 20)
        except OSError:
            return b""

    async def hang_up(self, number: int) -> bytes:
        """Close a connection."""
        if number in self.streams:
            self.streams.pop(number)[1].close()
        return b""
