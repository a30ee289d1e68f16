"""One vLLM server on a machine, from its start to its end: ours for certain, and serving what it was told to serve."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import secrets
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar

import httpx
from attrs import define, frozen

from nested_rl.clock import Clock
from nested_rl.endpoint import Endpoint, EndpointError, Unavailable
from nested_rl.errors import InfraFault, MachineLost
from nested_rl.interfaces import Machine, Process
from nested_rl.pyz import packed
from nested_rl.scorers import vllm_canary, vllm_host
from nested_rl.scorers.vllm_engine import VLLMEngine
from nested_rl.types import JSON
from nested_rl.waiting import Overdue, uninterrupted, within

T = TypeVar("T")

_LAST_WORDS_S: Final = 5.0
_POLL_S: Final = 0.1
_CHECK_S: Final = 120.0
"""A first answer, which may have to wait for kernels to be loaded."""
_NEWS_S: Final = 0.5
_AGAIN_S: Final = 5.0
"""So long a server that says that it failed is asked again."""


@frozen(kw_only=True)
class Model:
    """What is to be served: a base (a folder on the machine), or a checkpoint on top of it."""

    base: str
    kind: Literal["base", "full", "lora"] = "base"
    path: str | None = None
    digest: str = ""


@define(eq=False)
class Server:
    """A running server. `gone` is done when it no longer runs, with the reason."""

    machine: Machine
    model: Model
    process: Process
    port: int
    key: str
    names: tuple[str, ...]
    concurrency: int
    clock: Clock
    gone: asyncio.Task[str]
    checked: bool = False

    @classmethod
    async def start(cls, machine: Machine, model: Model, engine: VLLMEngine, *, start_s: float, clock: Clock) -> Self:
        """Start one and wait until it answers as it should.

        Raises InfraFault, with the server's last words, when it does not within `start_s`; nothing is left running then.
        """
        key = secrets.token_urlsafe(32)
        program = f"{secrets.token_hex(8)}-vllm_host.pyz"
        try:
            await machine.put(program, host())
            process = await machine.start([engine.python, "-I", f"{machine.root}/{program}"])
        except OSError as error:
            raise MachineLost(f"vLLM cannot be started on {machine.id}: {error}") from error
        server: Self | None = None
        try:
            until = clock.monotonic() + start_s
            said = await within(clock, start_s, _ordered(process, _order(machine, model, engine, key)))
            server = cls(
                machine=machine,
                model=model,
                process=process,
                port=said["port"],
                key=key,
                names=tuple(said["names"]),
                concurrency=engine.max_num_seqs,
                clock=clock,
                gone=asyncio.ensure_future(_end_of(process)),
            )
            await within(clock, until - clock.monotonic(), server.unless_gone(server.check()))
        except Overdue:
            words = await _last_words(process) if server is None else ""
            raise InfraFault(f"vLLM on {machine.id} was not ready after {start_s:g} s{words}") from None
        except OSError as error:
            raise MachineLost(f"vLLM on {machine.id}: {error}") from error
        finally:
            if server is None or not server.checked:
                await uninterrupted(server.end() if server else process.kill())
        return server

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.alive and not self.gone.done()

    async def check(self) -> None:
        """Raises InfraFault unless the server is healthy, insists on its key, serves these names, answers, and applies its adapter."""
        async with self.machine.forward(self.port) as port:
            await self._greet(f"http://127.0.0.1:{port}")
        async with self.reached(timeout_s=_AGAIN_S, attempt_s=_CHECK_S) as endpoint:
            try:
                await vllm_canary.sing(endpoint, self.names)
            except EndpointError as error:
                raise InfraFault(f"vLLM on {self.machine.id} does not answer a first prompt: {error}") from error
        self.checked = True

    async def _greet(self, url: str) -> None:
        who = f"vLLM on {self.machine.id}"
        async with httpx.AsyncClient(base_url=url, timeout=10.0, trust_env=False) as client:
            while not await _healthy(client):
                await self.clock.sleep(_POLL_S)
            try:
                refused = await client.get("/v1/models")
                told = await client.get("/v1/models", headers={"authorization": f"Bearer {self.key}"})
            except httpx.HTTPError as error:
                raise InfraFault(f"{who} does not say what it serves: {error}") from error
        if refused.status_code != 401 or told.status_code != 200:
            raise InfraFault(
                f"what answers for {who} is not the server that was started: it says {refused.status_code} without its key "
                f"and {told.status_code} with it"
            )
        names = _names(told)
        if names != set(self.names):
            raise InfraFault(f"{who} serves {sorted(names)}, not {sorted(self.names)}")

    @property
    def name(self) -> str:
        """What the model that is scored is called. An adapter of zeros is the base."""
        return "adapter" if "adapter" in self.names else "base"

    @contextlib.asynccontextmanager
    async def reached(self, *, timeout_s: float, attempt_s: float) -> AsyncIterator[Endpoint]:
        """The server, for as long as the `async with` lasts."""
        async with self.machine.forward(self.port) as port:
            endpoint = Endpoint(
                f"http://127.0.0.1:{port}/v1",
                "",
                key=self.key,
                timeout_s=timeout_s,
                attempt_s=attempt_s,
                concurrency=self.concurrency,
                clock=self.clock,
            )
            try:
                yield endpoint
            finally:
                await uninterrupted(endpoint.close())

    async def unless_gone(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns; MachineLost as soon as the server no longer runs, whatever was answered until then."""
        task = asyncio.ensure_future(work)
        either: set[asyncio.Future[Any]] = {task, self.gone}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not task.cancelled() and isinstance(task.done() and task.exception(), Unavailable):
                await asyncio.wait({self.gone}, timeout=_NEWS_S)  # it may have died: that is the better reason
            if self.gone.done():
                raise MachineLost(f"vLLM on {self.machine.id} {self.gone.result()}")
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def end(self) -> None:
        """Kill it, with everything that it started."""
        try:
            await self.process.kill()
        finally:
            self.gone.cancel()
            await asyncio.gather(self.gone, return_exceptions=True)


@functools.cache
def host() -> bytes:
    """The program that starts vLLM on a machine, as one file."""
    source = Path(vllm_host.__file__)
    return packed("from vllm_host import main\nmain()\n", {source.name: source.read_bytes()})


def _order(machine: Machine, model: Model, engine: VLLMEngine, key: str) -> dict[str, JSON]:
    return {
        "root": machine.root,
        "base": model.base,
        "kind": model.kind,
        "path": model.path,
        "digest": model.digest,
        "engine": engine.kind,
        "argv": engine.argv,
        "max_model_len": engine.max_model_len,
        "extra_args": engine.extra_args,
        "key": key,
        **{
            name: {"options": engine.options(cpu=cpu), "environment": engine.environment(cpu=cpu)}
            for name, cpu in (("cpu", True), ("gpu", False))
        },
    }


async def _ordered(process: Process, order: dict[str, JSON]) -> dict[str, Any]:
    """Give the order; the event that says that the server listens."""
    await process.write(json.dumps(order).encode() + b"\n")
    said = _event(await process.readline())
    if "port" not in said:
        raise InfraFault(f"vLLM {_why(said)}")
    return said


async def _end_of(process: Process) -> str:
    try:
        return _why(_event(await process.readline()))
    except OSError as error:
        return f"can no longer be reached: {error}"


def _event(line: bytes) -> dict[str, Any]:
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _why(said: dict[str, Any]) -> str:
    log = f"; its last words: {said['log'].strip()[-1500:]}" if said.get("log", "").strip() else ""
    if "refused" in said:
        return f"cannot be started: {said['refused']}"
    if "foreign" in said:
        return f"cannot be trusted: another process listens on its port {said['foreign']}{log}"
    return f"died with status {said['died']}{log}" if "died" in said else f"has ended{log}"


async def _last_words(process: Process) -> str:
    """What a server says that does not get ready."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_LAST_WORDS_S):
            await process.write(b"end\n")
            return f"; it {_why(_event(await process.readline()))}"
    return ""


async def _healthy(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/health")).status_code == 200
    except httpx.HTTPError:
        return False


def _names(told: httpx.Response) -> set[str]:
    try:
        return {str(row["id"]) for row in told.json()["data"]}
    except (ValueError, TypeError, KeyError):
        return set()
