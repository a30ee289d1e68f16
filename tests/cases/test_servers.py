"""Servers that are busy or down."""

import asyncio
import json
import os

import httpx
import pytest
from case_doubles import World

from nested_rl.clock import SystemClock
from nested_rl.compute.local import LocalCompute
from nested_rl.compute.provider import Candidate, Order, ProviderError
from nested_rl.compute.runpod_rest import RunpodRest
from nested_rl.endpoint import Endpoint, RateLimited
from nested_rl.errors import InfraFault
from nested_rl.scorers import vllm_canary
from nested_rl.types import Checkpoint, Need
from nested_rl.weights import Lock, locate

pytestmark = pytest.mark.cases

FINE = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}]}


class Waits(SystemClock):
    """A clock on which waiting takes no time, and is written down."""

    def __init__(self):
        self.waits = []

    def monotonic(self):
        return sum(self.waits)

    async def sleep(self, seconds):
        self.waits.append(seconds)


@pytest.fixture
def asked(monkeypatch):
    """What the server was asked; it answers from `script`, the last answer for ever."""
    seen, script = [], []

    def answer(request):
        seen.append(json.loads(request.content))
        status, headers, body = script.pop(0) if len(script) > 1 else script[0]
        return httpx.Response(status, headers=headers, json=body)

    class Client(httpx.AsyncClient):
        def __init__(self, **settings):
            super().__init__(**settings, transport=httpx.MockTransport(answer))

    monkeypatch.setattr(httpx, "AsyncClient", Client)
    return seen, script


def endpoint(clock, timeout_s):
    return Endpoint("http://localhost/v1", "", timeout_s=timeout_s, attempt_s=5.0, concurrency=2, clock=clock)


async def test_a20_api_429_and_5xx(asked):
    """Told five times to wait 3 s, then down five times, then there: one answer, and the waits that were asked for."""
    seen, script = asked
    script += (
        [(429, {"retry-after": "3"}, {}) for _ in range(5)] + [(503, {}, {}) for _ in range(5)] + [(200, {}, FINE)]
    )
    clock = Waits()
    server = endpoint(clock, 600.0)
    assert await server.ask({"model": "m"}) == FINE
    assert len(seen) == 11
    assert clock.waits[:5] == [3.0] * 5
    assert all(wait > 0 for wait in clock.waits[5:])
    await server.close()


async def test_a20_there_is_an_end_to_waiting(asked):
    seen, script = asked
    script += [(429, {"retry-after": "3"}, {})]
    clock = Waits()
    server = endpoint(clock, 20.0)
    with pytest.raises(RateLimited, match=r"tried \d+ times within timeout_s=20"):
        await server.ask({"model": "m"})
    assert sum(clock.waits) <= 20.0
    assert len(seen) == len(clock.waits) + 1
    await server.close()


class AdapterServer:
    """A server that has an adapter and its control loaded, and says how likely the next tokens are."""

    def __init__(self, **shifts):
        self.shifts = {"base": 0.0, **shifts}

    async def ask(self, body):
        shift = self.shifts[body["model"]]
        likely = [{"token": "a", "logprob": -0.5 + shift}, {"token": "b", "logprob": -1.5 - shift}]
        return {"choices": [{"logprobs": {"content": [{"top_logprobs": likely}]}}]}


async def test_a38_adapter_ignored(tmp_path):
    """The server takes any adapter and answers as the base does: our fault, masked, and never an uplift of 0."""
    names = ("base", "adapter", "control")
    deaf = AdapterServer(adapter=0.0, control=0.0)
    with pytest.raises(InfraFault, match="loaded but has no effect"):
        await vllm_canary.sing(deaf, names)
    await vllm_canary.sing(AdapterServer(adapter=0.2, control=0.4), names)
    await vllm_canary.sing(AdapterServer(adapter=0.0, control=0.4), names)  # applied, and too weak to be seen

    world = World(tmp_path / "run", steps=1)
    score = world.scorer.score

    async def checked(model, *asked, seed=0):
        if isinstance(model, Checkpoint):
            await vllm_canary.sing(deaf, names)
        return await score(model, *asked, seed=seed)

    world.scorer.score = checked
    await world.go()
    episodes = list(world.files.episodes())
    assert [e.masked for e in episodes] == [True, True]
    assert all("no effect" in e.outcome.error and e.outcome.post is None for e in episodes)


HUB = """#!/bin/sh
echo asked >> {calls}
[ -f {busy} ] && echo '429 Too Many Requests' >&2 && exit 1
while [ $# -gt 0 ]; do [ "$1" = --local-dir ] && out=$2; shift; done
sleep 0.2
echo '{{}}' > $out/config.json
echo weights > $out/model.safetensors
"""


async def test_a21_many_machines_ask_the_hub_at_once(tmp_path, monkeypatch):
    """Sixteen jobs need a base that nobody has: one download; with a warm cache none; a busy Hub is our fault, never a job's."""
    calls, busy = tmp_path / "calls", tmp_path / "busy"
    program = tmp_path / "bin" / "hf"
    program.parent.mkdir()
    program.write_text(HUB.format(calls=calls, busy=busy))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    compute, lock = LocalCompute(1), Lock(tmp_path / "lock.json")
    try:
        async with compute.machine(Need()) as machine:

            async def ask():
                return await locate(machine, "me/base", folders=[str(tmp_path / "bases")], lock=lock)

            busy.touch()
            with pytest.raises(InfraFault, match="429 Too Many Requests"):
                await ask()
            busy.unlink()
            calls.unlink()
            found = await asyncio.gather(*(ask() for _ in range(16)))
            assert len(set(found)) == 1
            assert calls.read_text() == "asked\n"
            await ask()
            assert calls.read_text() == "asked\n"
    finally:
        await compute.close()


def lost(request):
    raise httpx.ReadTimeout("no answer", request=request)


def unreached(request):
    raise httpx.ConnectError("refused", request=request)


@pytest.mark.parametrize(
    "answer",
    [
        lost,
        unreached,
        *(lambda request, status=status: httpx.Response(status, json={}) for status in (409, 429, 500, 503)),
    ],
    ids=["lost", "unreached", "409", "429", "500", "503"],
)
async def test_a23_duplicate_create(answer):
    """A create that fails in any way is sent once: whether it had its effect is looked up before another one is sent."""
    sent = []

    def server(request):
        sent.append(request.method)
        return answer(request)

    provider = RunpodRest(key="rpa_TESTSECRET0123456789", transport=httpx.MockTransport(server))
    gpu = Candidate(gpu="NVIDIA A40", gpus=1, cloud="secure", gpu_memory_gib=48)
    with pytest.raises(ProviderError) as failed:
        await provider.create(Order(name="nrl-run-0-abc", candidate=gpu, image="image:tag", env={}))
    await provider.close()
    assert sent == ["POST"]
    assert "TESTSECRET" not in str(failed.value)
