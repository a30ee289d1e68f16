"""A machine that is an actor of a Ray cluster: requests to its host program, through the actor.

What Ray says of a dead actor, a dead node or a lost object is MachineLost: the job is delivered again, to another machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
from collections.abc import Awaitable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from nested_rl.compute import ray_actor
from nested_rl.compute.relay import relayed
from nested_rl.compute.ssh_link import raised
from nested_rl.compute.ssh_login import AGENT, Host, agent
from nested_rl.errors import MachineLost, MissingExtra, SettingsError

SHIPPED: Final = (*AGENT, "compute/ray_host.py")
"""What a node gets; no package has to be installed there."""
END_S: Final = 20.0
REACH_S: Final = 10.0
_connecting, _users = threading.Lock(), 0


class RayLink:
    """Requests to one actor's host program. `open` waits for the cluster to have room; `close` ends everything and gives it back."""

    def __init__(self, name: str, *, options: Mapping[str, Any], python: str | None, usd_per_hour: float) -> None:
        self.host = Host(address=name, usd_per_hour=usd_per_hour)
        self.root = ""
        self._options, self._python = options, python
        self._gpus = options.get("num_gpus", 0)
        self._ray = library()
        self._actor: Any = None
        self.connected = False

    async def open(self) -> None:
        """Make the actor and start its host program. Raises MachineLost, or SettingsError for what will not mend."""
        self._ray.cloudpickle.register_pickle_by_value(ray_actor)  # nodes need not have this package
        made = self._ray.remote(ray_actor.Holder)
        self._actor = made.options(max_restarts=0, max_task_retries=0, **self._options).remote()
        told = json.loads(await self._heard(self._actor.open.remote(agent(SHIPPED), self._python or "")))
        if told["error"]:
            raise SettingsError(f"{self.host.address} on {told['node']} cannot run its host program: {told['error']}")
        env = told["env"] if self._gpus else {"CUDA_VISIBLE_DEVICES": ""}  # what it did not ask for is not for it
        name = f"{self.host.address}@{told['node']}"
        self.host = Host(address=name, usd_per_hour=self.host.usd_per_hour, env=env)
        self.connected = True
        hello, _ = await self.ask("hello")
        self.root = hello["root"]

    async def ask(self, op: str, data: bytes = b"", **fields: Any) -> tuple[dict[str, Any], bytes]:
        """One request. Raises what it raised there, or MachineLost."""
        if not self.connected:
            raise MachineLost(f"{self.host.address} is lost")
        line = json.dumps({"op": op, **fields, "id": 0, "size": len(data)}).encode() + b"\n"
        head, _, body = (await self._heard(self._actor.ask.remote(line + data))).partition(b"\n")
        told = json.loads(head)
        try:
            raised(told)
        except MachineLost as error:
            self.connected = False
            raise MachineLost(f"{self.host.address}: {error}") from None
        return told, body

    def forward(self, port: int) -> AbstractAsyncContextManager[int]:
        """A local port; each connection to it goes on, through the actor, to `port` of its node."""

        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, MachineLost):
                await self._carry(port, reader, writer)

        return relayed(carry)

    async def close(self) -> None:
        """End everything that runs there, and the actor. Of an actor that does not answer, Ray or its death ends the rest."""
        was, self.connected = self.connected, False
        if self._actor is None:
            return
        if was:
            with contextlib.suppress(MachineLost, TimeoutError):
                await asyncio.wait_for(self._heard(self._actor.end.remote()), END_S)
        with contextlib.suppress(Exception):  # it is dead, or Ray is
            self._ray.kill(self._actor)
        self._actor = None

    async def _carry(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = int(await self._heard(self._actor.connect.remote(port)) or 0)
        if not number:
            return

        async def there() -> None:
            more = True
            while more:
                data = await reader.read(1 << 20)
                more = bool(data) and bool(await self._heard(self._actor.send.remote(number, data)))
            await self._heard(self._actor.send.remote(number, b""))

        sending = asyncio.ensure_future(there())
        try:
            while data := await self._heard(self._actor.receive.remote(number)):
                writer.write(data)
                await writer.drain()
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            self._actor.hang_up.remote(number)

    async def _heard(self, answer: Awaitable[bytes]) -> bytes:
        """What the actor returned: bytes, and nothing else is taken."""
        try:
            told = await answer
        except self._ray.exceptions.RayError as error:
            self.connected = False
            why = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            raise MachineLost(f"{self.host.address} is lost: {why}") from error
        if not isinstance(told, bytes):
            raise MachineLost(f"{self.host.address} answers with {type(told).__name__}, not with bytes")
        return told


def library() -> Any:
    """Ray, or the name of the extra that brings it."""
    try:
        import ray.exceptions
    except ImportError:
        raise MissingExtra("RayCompute", "ray") from None
    return ray


def connect(address: str) -> bool:
    """Be a driver of the cluster. True when that was not so before; then `disconnect` must follow. It blocks for seconds.

    Not called in the main thread, so that Ray leaves the handler of SIGTERM alone.
    """
    global _users  # noqa: PLW0603  Ray has one connection a process
    ray = library()
    with _connecting:
        if not _users and ray.is_initialized():
            return False  # the program's own
        if not _users:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            own = {"include_dashboard": False} if address == "local" else {}
            try:
                _answers(os.environ.get("RAY_ADDRESS", address) if address == "auto" else address)
                ray.init(address=address, log_to_driver=False, logging_level="ERROR", **own)
            except (ConnectionError, ValueError, RuntimeError, OSError) as error:
                raise SettingsError(
                    f"no Ray cluster at {address!r}: {error}; start one with `ray start --head`, name its address, or say "
                    "address='local' for one that lives as long as this program"
                ) from error
        _users += 1
    return True


def _answers(address: str) -> None:
    """Raise OSError when nobody listens at HOST:PORT: Ray itself would try for two minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), timeout=REACH_S).close()


def disconnect() -> None:
    """Let go of what `connect` has connected, when nobody else here uses it."""
    global _users  # noqa: PLW0603
    with _connecting:
        _users -= 1
        if not _users:
            library().shutdown()


def room(ask: Mapping[str, float]) -> bool:
    """Whether a node of the cluster has so much of everything, busy or not. It blocks."""
    try:
        nodes = library().nodes()
    except Exception as error:
        raise MachineLost(f"the Ray cluster does not answer: {error}") from error
    return any(
        node["Alive"] and all(node["Resources"].get(name, 0.0) >= n for name, n in ask.items()) for node in nodes
    )
