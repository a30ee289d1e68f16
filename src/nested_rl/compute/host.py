"""The host program: a machine's own end of `ssh_link`, with the standard library only.

    python -c 'import sys; sys.path.insert(0, AGENT); from nested_rl.compute.host import main; main()' BASE OWNER LEASE_S

It goes into the background, holds BASE/lock while it lives, and serves one `Box` on the socket BASE/socket to whoever can read
that folder: so what it runs goes on when a connection breaks, and is found again by the next one. A request is a line of JSON
with an id and the size of the bytes that follow; so is its answer. Every request can be asked twice: what was started has a name
that its owner gave, and lines are numbered. When nobody has asked anything for LEASE_S, or the other end of its `lifeline` is closed,
it kills everything and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from nested_rl.compute import orphans
from nested_rl.compute.box import Box, Orphans
from nested_rl.compute.child import LINE_BYTES, Child

Body = tuple[dict[str, Any], bytes]
TAKEN: Final = 3
"""Exit status when another controller has the machine; its name is on standard output."""
CHUNK_BYTES: Final = 1 << 20
KEPT_BYTES: Final = 20 << 30
"""Of files that were sent so much is kept, so that it is not sent again."""
SOCKET_BYTES: Final = 107 if sys.platform == "linux" else 103
"""The path of a socket has room for no more."""


class Programs:
    """Started programs by the name that their owner gave them, with the last line of each, should it be asked for again."""

    def __init__(self) -> None:
        self.children: dict[str, Child] = {}
        self.written: dict[str, int] = {}
        self.lines: dict[str, tuple[int, bytes]] = {}
        self.reading: dict[str, asyncio.Lock] = {}

    def add(self, name: str, child: Child) -> None:
        self.children[name] = child
        self.written[name], self.lines[name], self.reading[name] = 0, (0, b""), asyncio.Lock()

    async def write(self, name: str, number: int, data: bytes) -> None:
        """The `number`-th write, once."""
        if number == self.written[name] + 1:
            self.written[name] = number
            try:
                await self.children[name].write(data)
            except OSError:
                self.written[name] = number - 1
                raise

    async def line(self, name: str, number: int) -> bytes:
        """The `number`-th line; the newest may be asked for again."""
        async with self.reading[name]:
            if number == self.lines[name][0] + 1:
                self.lines[name] = (number, await self.children[name].readline())
            return self.lines[name][1]


class Host:
    """The requests, one method each."""

    def __init__(self, base: Path, lease_s: float) -> None:
        self.store = base / "store"
        self.store.mkdir(mode=0o700, exist_ok=True)
        for draft in self.store.glob("*.*"):  # of one that was killed
            draft.unlink()
        self.lease_s, self.lock = lease_s, base / "lock"
        self.asked_at = time.monotonic()
        self.orphans = Orphans(base / "machine")
        self.programs = Programs()
        self.box = Box("machine", folder=base / "machine", python=sys.executable, orphans=self.orphans, warm_env={})
        self.runs: dict[str, asyncio.Future[tuple[int, str, str]]] = {}
        self.ended = asyncio.Event()

    async def hello(self, _: dict[str, Any], __: bytes) -> Body:
        return {"root": self.box.root, "python": sys.version.split()[0]}, b""

    async def beat(self, _: dict[str, Any], __: bytes) -> Body:
        os.utime(self.lock)  # for a watchdog that ends the whole machine when its owner falls silent
        return {}, b""

    async def run(self, ask: dict[str, Any], _: bytes) -> Body:
        name = ask["name"]
        if name not in self.runs:
            work = self.box.collect(ask["argv"], env=ask["env"], timeout_s=ask["timeout_s"])
            self.runs[name] = asyncio.ensure_future(work)
        status, out, err = await asyncio.shield(self.runs[name])
        return {"status": status, "out": len(out.encode())}, (out + err).encode()

    async def forget(self, ask: dict[str, Any], _: bytes) -> Body:
        """The answer of `run` has arrived, or is not wanted any more: then it is killed."""
        work = self.runs.pop(ask["name"], None)
        if work is not None:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        return {}, b""

    async def start(self, ask: dict[str, Any], _: bytes) -> Body:
        name = ask["name"]
        if name not in self.programs.children:
            self.programs.add(name, await self.box.start(ask["argv"], env=ask["env"]))
        return {"name": name}, b""

    async def resident(self, ask: dict[str, Any], _: bytes) -> Body:
        child = await self.box.resident(ask["key"], ask["argv"], env=ask["env"])
        name = f"resident-{child.pid}"
        if self.programs.children.get(name) is not child:
            self.programs.add(name, child)
        return {"name": name, "written": self.programs.written[name], "read": self.programs.lines[name][0]}, b""

    async def write(self, ask: dict[str, Any], data: bytes) -> Body:
        await self.programs.write(ask["name"], ask["number"], data)
        return {}, b""

    async def readline(self, ask: dict[str, Any], _: bytes) -> Body:
        return {}, await self.programs.line(ask["name"], ask["number"])

    async def wait(self, ask: dict[str, Any], _: bytes) -> Body:
        child = self.programs.children[ask["name"]]
        return {"status": await child.wait()}, child.last_words.encode()

    async def kill(self, ask: dict[str, Any], _: bytes) -> Body:
        child = self.programs.children[ask["name"]]
        await child.kill()
        return {"status": await child.wait()}, b""

    async def has(self, ask: dict[str, Any], _: bytes) -> Body:
        """Put a file of the store in its place, if the store has it. Copied, never linked: a job may write to it."""
        kept = self.store / _digest(ask["sha256"])
        if not kept.exists():
            return {"has": False}, b""
        data = await asyncio.to_thread(kept.read_bytes)
        if hashlib.sha256(data).hexdigest() != ask["sha256"]:  # damaged, or meddled with
            kept.unlink()
            return {"has": False}, b""
        await self.box.put(ask["path"], data)
        kept.touch()
        return {"has": True}, b""

    async def put(self, ask: dict[str, Any], data: bytes) -> Body:
        if hashlib.sha256(data).hexdigest() != ask["sha256"]:
            raise ValueError("the bytes that arrived are not those that were sent")
        if ask["keep"]:
            kept = self.store / _digest(ask["sha256"])
            draft = kept.with_suffix(f".{secrets.token_hex(4)}")  # the same bytes may be on their way twice
            await asyncio.to_thread(draft.write_bytes, data)
            draft.rename(kept)
            trim(self.store, KEPT_BYTES)
        await self.box.put(ask["path"], data)
        return {}, b""

    async def get(self, ask: dict[str, Any], _: bytes) -> Body:
        data = await self.box.get(ask["path"])
        return {"sha256": hashlib.sha256(data).hexdigest()}, data

    async def end_lease(self, _: dict[str, Any], __: bytes) -> Body:
        """Leave only what is warm; `good` tells whether the machine can be used again."""
        await self._forget_runs()
        good = await self.box.end_lease()
        kept = {
            name: child
            for name, child in self.programs.children.items()
            if name.startswith("resident-") and child.alive
        }
        self.programs.children = kept
        return {"good": good}, b""

    async def recycle(self, _: dict[str, Any], __: bytes) -> Body:
        """Kill everything, also what is warm, and start again with an empty folder."""
        await self._forget_runs()
        await self.box.end()
        self.programs = Programs()
        self.box = Box("machine", folder=Path(self.box.root), python=sys.executable, orphans=self.orphans, warm_env={})
        return {}, b""

    async def end(self, _: dict[str, Any], __: bytes) -> Body:
        self.ended.set()
        return {}, b""

    async def close(self) -> None:
        await self._forget_runs()
        await self.box.end()
        await asyncio.to_thread(self.orphans.close)

    async def _forget_runs(self) -> None:
        for name in list(self.runs):
            await self.forget({"name": name}, b"")


ASKED: Final = frozenset(name for name in vars(Host) if not name.startswith("_") and name != "close")
"""What may be asked: the methods above."""


def trim(store: Path, most_bytes: int) -> None:
    """Remove what was not asked for the longest, so that the rest has no more than `most_bytes`."""
    files = [(each.stat().st_mtime_ns, each.stat().st_size, each) for each in store.iterdir() if not each.suffix]
    kept_bytes = 0
    for _, size, each in sorted(files, reverse=True):
        kept_bytes += size
        if kept_bytes > most_bytes:
            each.unlink()


def _digest(text: str) -> str:
    if len(text) != 64 or set(text) - set("0123456789abcdef"):
        raise ValueError(f"{text!r} is no sha256")
    return text


async def answer(host: Host, ask: dict[str, Any], data: bytes) -> Body:
    """What came of one request. An error crosses the wire by its kind and its words."""
    host.asked_at = time.monotonic()
    if ask.get("op") not in ASKED:
        return {"error": "ValueError", "message": f"unknown request {ask.get('op')!r}"}, b""
    method: Callable[[dict[str, Any], bytes], Awaitable[Body]] = getattr(host, ask["op"])
    try:
        return await method(ask, data)
    except Exception as error:  # noqa: BLE001  whatever it was, the other end must be told
        return {"error": type(error).__name__, "message": str(error), "errno": getattr(error, "errno", None)}, b""


async def serve(host: Host, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection, each as soon as it can be, until it closes."""
    sending, work = asyncio.Lock(), set[asyncio.Task[None]]()

    async def one(ask: dict[str, Any], data: bytes) -> None:
        told, body = await answer(host, ask, data)
        line = json.dumps({**told, "id": ask["id"], "size": len(body)}).encode() + b"\n"
        async with sending:
            writer.write(line)
            for start in range(0, len(body), CHUNK_BYTES):
                writer.write(body[start : start + CHUNK_BYTES])
                await writer.drain()
            await writer.drain()

    try:
        while line := await reader.readline():
            ask = json.loads(line)
            data = await reader.readexactly(ask["size"])
            task = asyncio.ensure_future(one(ask, data))
            work.add(task)
            task.add_done_callback(work.discard)
    except (OSError, EOFError, ValueError):
        pass  # the connection broke; what runs goes on
    finally:
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        writer.close()


async def live(base: Path, lease_s: float, ready: Callable[[], None], lifeline: int | None = None) -> None:
    """Serve until told to end, until nobody has asked anything for `lease_s`, or until the pipe `lifeline` is closed."""
    host = Host(base, lease_s)
    if lifeline is not None:
        asyncio.get_running_loop().add_reader(lifeline, _cut, host, lifeline)
    socket = base / "socket"
    socket.unlink(missing_ok=True)
    server = await asyncio.start_unix_server(
        lambda reader, writer: serve(host, reader, writer), socket, limit=LINE_BYTES
    )
    ready()
    try:
        while time.monotonic() - host.asked_at < lease_s:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(1.0, lease_s / 4)):
                    await host.ended.wait()
                    break
    finally:
        await host.close()
        server.close()
        socket.unlink(missing_ok=True)


def _cut(host: Host, lifeline: int) -> None:
    asyncio.get_running_loop().remove_reader(lifeline)
    host.ended.set()


def background() -> bool:
    """Go on as a process of nobody's; True in it."""
    if os.fork():
        return False
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.chdir("/")
    return True


def main(lifeline: int | None = None) -> None:
    """Take the machine and serve it; or say who has it."""
    base, owner, lease_s = Path(sys.argv[1]).expanduser(), sys.argv[2], float(sys.argv[3])
    if (size := len(os.fsencode(base / "socket"))) > SOCKET_BYTES:
        sys.exit(
            f"the path of the socket {base}/socket has {size} bytes, {SOCKET_BYTES} are the most: give a shorter folder"
        )
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(base / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(os.read(lock, 4096).decode(errors="replace"))  # noqa: T201  the answer
        sys.exit(TAKEN)
    os.ftruncate(lock, 0)
    os.pwrite(lock, owner.encode(), 0)
    machine = base / "machine"
    orphans.end(str(machine))
    orphans.remove(machine)
    ready, told = os.pipe()
    if not background():
        os.close(told)
        os.read(ready, 1)  # until the socket is there, or the other one is dead
        sys.exit(0)
    asyncio.run(live(base, lease_s, ready=lambda: os.close(told), lifeline=lifeline))


if __name__ == "__main__":
    main()
