"""A pool on a virtual clock: the real REST provider against the strict fake of the API, pods without SSH, and workers with jobs."""

import asyncio
import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import ClassVar

import httpx

from nested_rl.clock import VirtualClock
from nested_rl.compute import runpod_rest
from nested_rl.compute.pool import PodPool
from nested_rl.compute.pool_terms import Terms
from nested_rl.compute.provider import Candidate, Order, ProviderError, Unknown
from nested_rl.compute.runpod_rest import RunpodRest
from nested_rl.errors import InfraFault, MachineLost, NestedRLError, SettingsError
from nested_rl.types import Need

sys.path.insert(0, str(Path(__file__).parents[1] / "fleet"))
from fake_runpod import KEY, FakeRunpod, transport

START = 1_790_000_000.0
A5000 = Candidate(gpu="NVIDIA RTX A5000", gpus=2, cloud="community", gpu_memory_gib=24)
A40 = Candidate(gpu="NVIDIA A40", gpu_memory_gib=48)
R4090 = Candidate(gpu="NVIDIA GeForce RTX 4090", cloud="community", gpu_memory_gib=24)
ANY = Need()
BIG = Need(gpus=1, gpu_memory_gib=40)


class Killed(BaseException):
    """The controller is dead: nothing it does has an effect any more."""


class Lines(list):
    """A journal in memory. `alive` is the controller's that writes to it, which dies with line number `last`."""

    def __init__(self, rows=(), *, last=None):
        super().__init__(rows)
        self.last, self.dead = last, False

    def append(self, row, *, sync=False):
        assert sync
        if self.dead:
            raise Killed
        super().append(json.loads(json.dumps(row)))
        if len(self) == self.last:
            self.dead = True
            raise Killed

    def rows(self):
        return list(self)

    def rewrite(self, rows, *, sync=False):
        assert sync
        if self.dead:
            raise Killed
        self[:] = [json.loads(json.dumps(row)) for row in rows]


class Mortal(RunpodRest):
    """The provider as a controller sees it that may die; with `in_create` it dies before the answer to its first request."""

    def __init__(self, fleet, lines, *, in_create=False):
        super().__init__(key=KEY, clock=fleet.clock, transport=transport(fleet.fake))
        self.lines, self.in_create = lines, in_create

    async def create(self, order):
        made = await super().create(order)
        self.lines.dead |= self.in_create
        if self.lines.dead:
            raise Killed
        return made

    async def _ask(self, *args, **more):
        if self.lines.dead:
            raise Killed
        return await super()._ask(*args, **more)


class Direct(Mortal):
    """The same without HTTP in between, for thousands of stories."""

    HEADERS: ClassVar = {"authorization": f"Bearer {KEY}", "user-agent": "nested-rl/test"}

    def __init__(self, fleet, lines):
        self.fleet, self.lines, self.in_create = fleet, lines, False

    async def _ask(self, method, path, *, body=None, params=None, unsure=False, first=False):
        if self.lines.dead:
            raise Killed
        sent = json.dumps(body).encode() if body is not None else b""
        status, headers, told = self.fleet.fake.handle(method, path, params or {}, self.HEADERS, sent)
        if status is None:
            raise (Unknown if unsure else ProviderError)("no answer")
        if status >= 400:
            request = httpx.Request(method, f"http://fake{path}")
            runpod_rest._raise(httpx.Response(status, headers=headers, content=told, request=request), unsure=unsure)
        return json.loads(told) if told else {}


class PlayMachine:
    """A machine whose `run` takes virtual time and fails when its pod is gone."""

    def __init__(self, fleet, pod):
        self.id, self.pod, self.fleet = pod.id, pod, fleet
        self.usd_per_hour = pod.usd_per_hour
        self.closed = asyncio.Event()
        self.good = True

    @property
    def connected(self):
        return self.pod.ended_at is None and not self.closed.is_set() and self.pod.id not in self.fleet.frozen

    async def run(self, seconds):
        """A job of so many seconds."""
        until = self.fleet.clock.now() + seconds
        while (left := until - self.fleet.clock.now()) > 0:
            if not self.connected:
                raise MachineLost(f"{self.id} does not answer")
            nap = asyncio.ensure_future(self.fleet.clock.sleep(min(left, 10.0)))
            gone = asyncio.ensure_future(self.closed.wait())
            await asyncio.wait({nap, gone}, return_when=asyncio.FIRST_COMPLETED)
            nap.cancel(), gone.cancel()
        if not self.connected:
            raise MachineLost(f"{self.id} does not answer")

    async def end_lease(self):
        if not self.connected:
            raise MachineLost(f"{self.id} does not answer")
        return self.good

    async def recycle(self):
        await self.end_lease()

    async def close(self):
        self.closed.set()


class Fleet:
    """The provider's side: pods come up after `boot_s`; `frozen` ones answer nothing, `closed_to_us` refuse the login."""

    def __init__(self, *, boot_s=30.0, clock=None):
        self.clock = clock or VirtualClock(start=START)
        self.fake = FakeRunpod(self.clock.now, boot=self.boot)
        self.boot_s, self.frozen, self.unwilling, self.closed_to_us = boot_s, set(), set(), False
        self.machines, self.connects, self.running, self.twice = {}, [], {}, []
        self.finished, self.handed_in = Counter(), set()
        self.unfit = set()
        self.boots = []

    def boot(self, pod):
        number = len(self.fake.pods)
        if self.boot_s is None:
            return
        self.boots.append(asyncio.ensure_future(self._boot(pod, f"10.0.{number // 250}.{number % 250}", self.boot_s)))

    async def _boot(self, pod, host, boot_s):
        await self.clock.sleep(boot_s)
        if pod.ended_at is None:
            self.fake.run(pod, ssh=(host, 22))

    async def connect(self, pod):
        self.connects.append(pod.id)
        there = self.fake.pods[pod.id]
        if self.closed_to_us:
            raise SettingsError("Permission denied")
        if there.ended_at is not None or pod.id in self.unwilling:
            raise MachineLost("nobody there")
        machine = self.machines[pod.id] = PlayMachine(self, there)
        return machine, machine

    async def preflight(self, machine, candidate):
        await self.clock.sleep(5.0)
        if machine.id in self.unfit:
            raise InfraFault(f"{machine.id} has 1 GPU, not {candidate.gpus}")

    def pool(self, *candidates, lines=None, provider=None, **more):
        provider = provider or RunpodRest(key=KEY, clock=self.clock, transport=transport(self.fake))
        return PodPool(
            provider,
            candidates or (A5000, A40, R4090),
            run="abcd1234",
            journal=Lines() if lines is None else lines,
            order=lambda name, candidate: Order(name=str(name), candidate=candidate, image="image:tag"),
            connect=self.connect,
            preflight=self.preflight,
            clock=self.clock,
            chance=random.Random(1),
            **{"terms": Terms(), **more},
        )

    async def job(self, pool, name, seconds, need=ANY, *, tries=5):
        """One job to its end, delivered again after a loss: the pods it was on."""
        pods = []
        for _ in range(tries):
            try:
                async with pool.machine(need, job=name) as machine:
                    if name in self.running:
                        self.twice.append(name)
                    self.running[name] = machine.id
                    pods.append(machine.id)
                    try:
                        await machine.run(seconds)
                        self.finished[name] += 1
                    finally:
                        del self.running[name]
            except MachineLost:
                continue
            self.handed_in.add(name)
            return pods
        raise NestedRLError(f"{name}: {tries} tries, on {pods}")

    async def killed(self, pool, *jobs):
        """What kill -9 leaves of a controller and of the jobs it ran: nothing but pods and its journal."""
        tasks = [pool._loop, *(pod.life for pod in pool.roster.pods.values()), *jobs]
        for task in [task for task in tasks if task is not None]:
            task.cancel()
        for looking in pool._watch._waiting:  # nobody looks any more
            looking.cancel()
        await asyncio.gather(*(task for task in tasks if task is not None), return_exceptions=True)
        self.running.clear()
        for name in set(self.finished) - self.handed_in:  # nobody will ever know; it is delivered again
            del self.finished[name]

    def spent(self, pool):
        return sum(row.usd for row in pool.costs())


def states(lines):
    """Each pod's states in the order they were journalled."""
    told = {}
    for line in lines:
        states = told.setdefault(line["pod"], [])
        if not states or states[-1] != line["state"]:
            states.append(line["state"])
    return list(told.values())


def settled(fleet, pool, *, most, slack_usd=0.0):
    """What must hold whenever everything is over."""
    assert fleet.fake.alive() == []
    assert fleet.fake.most <= most
    assert not fleet.twice
    assert not [name for name, times in fleet.finished.items() if times > 1]
    ledger, meter = fleet.fake.usd(), fleet.spent(pool)
    assert ledger - 1e-9 <= meter <= ledger * 1.02 + slack_usd + 1e-9, (ledger, meter)


async def run(fleet, work, pool):
    """`work` and the pool's end, in virtual time; then everything is settled."""

    async def all_of_it():
        try:
            return await work
        finally:
            await pool.close()
            settled(fleet, pool, most=pool.max_machines)

    return await fleet.clock.run(all_of_it())
