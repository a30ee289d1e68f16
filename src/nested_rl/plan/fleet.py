"""Simulated machines: plain slots, or the real `PodPool` over a provider that boots, refuses and loses pods as assumed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from attrs import define, evolve, field, frozen

from nested_rl import matrix
from nested_rl.clock import Clock, VirtualClock
from nested_rl.compute.pool import PodPool
from nested_rl.compute.pool_costs import PodCost
from nested_rl.compute.pool_terms import Terms
from nested_rl.compute.provider import Candidate, Gone, NoCapacity, Order, Pod, Price, Provider
from nested_rl.errors import MachineLost
from nested_rl.interfaces import ComputeBackend, Machine, Process
from nested_rl.plan.stand_ins import Chance
from nested_rl.queues.memory import MemoryQueue
from nested_rl.types import JSON, Completed, Job, JobSpec, Need


@frozen(kw_only=True)
class Rents:
    """Pods of these candidates, under these terms."""

    candidates: tuple[Candidate, ...]
    terms: Terms = field(factory=Terms)


class PlanMachine(Machine):
    """Somewhere to spend time. `gone` is set when it is lost."""

    root = ""

    def __init__(self, id: str, clock: Clock, *, gpu: str = "", usd_per_hour: float = 0.0) -> None:  # noqa: A002
        self.id, self.gpu, self.usd_per_hour = id, gpu, usd_per_hour
        self._clock = clock
        self.lost_at_s = float("inf")

    async def work(self, seconds: float) -> None:
        """Use it for so long. Raises MachineLost."""
        left_s = self.lost_at_s - self._clock.monotonic()
        await self._clock.sleep(min(seconds, left_s))
        if seconds >= left_s:
            raise MachineLost(f"{self.id} is lost")

    @property
    def connected(self) -> bool:
        """As the pool asks of a pod's line."""
        return self._clock.monotonic() < self.lost_at_s

    async def end_lease(self) -> bool:
        """Nothing is left there."""
        if not self.connected:
            raise MachineLost(f"{self.id} is lost")
        return True

    async def recycle(self) -> None:
        """Nothing is left there."""
        await self.end_lease()

    async def close(self) -> None:
        """Nothing to let go of."""

    async def run(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float | None = None
    ) -> Completed:
        raise NotImplementedError

    async def start(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Process:
        raise NotImplementedError

    async def put(self, path: str, data: bytes) -> None:
        raise NotImplementedError

    async def get(self, path: str) -> bytes:
        raise NotImplementedError

    def forward(self, port: int) -> AbstractAsyncContextManager[int]:
        raise NotImplementedError

    async def resident(self, key: str, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Process:
        raise NotImplementedError


class Slots(ComputeBackend):
    """So many machines that are simply there: this computer's, hosts of one's own, a cluster's."""

    def __init__(self, n: int, clock: Clock, *, usd_per_hour: float = 0.0) -> None:
        self._free = [PlanMachine(f"machine-{i}", clock, usd_per_hour=usd_per_hour) for i in reversed(range(n))]
        self._n, self._clock, self.usd_per_hour = n, clock, usd_per_hour
        self._gate = asyncio.Semaphore(n)
        self.busy_s = 0.0

    @property
    def max_machines(self) -> int:
        return self._n

    def offers(self) -> Sequence[Need]:
        return [Need()]

    @contextlib.asynccontextmanager
    async def machine(self, need: Need) -> AsyncIterator[Machine]:  # noqa: ARG002  the seam's
        async with self._gate:
            one, start_s = self._free.pop(), self._clock.monotonic()
            try:
                yield one
            finally:
                self.busy_s += self._clock.monotonic() - start_s
                self._free.append(one)

    async def close(self) -> None:
        """Nothing to give back."""


@define
class _Rented:
    """One pod, on the provider's side."""

    pod: Pod
    up_at_s: float
    lost_at_s: float


class PlanProvider(Provider):
    """Rents what is assumed to be there, at the assumed price."""

    def __init__(self, chance: Chance, clock: VirtualClock) -> None:
        self._chance, self._clock = chance, clock
        self._told, self._value = chance.told, chance.value
        self._draws = chance.of("provider")
        self._pods: dict[str, _Rented] = {}
        self._ids = itertools.count(1)

    async def create(self, order: Order) -> Pod:
        candidate, now_s = order.candidate, self._clock.monotonic()
        there = Counter(p.pod.gpu for p in self._pods.values() if now_s < p.lost_at_s)
        if self._draws.random() < self._value(self._told.refused) or there[candidate.name] >= self._told.capacity.get(
            candidate.name, 10**9
        ):
            raise NoCapacity(f"no {candidate.name} at the moment")
        number = next(self._ids)
        pod = Pod(
            id=f"pod-{number}",
            name=order.name,
            status="starting",
            usd_per_hour=self._price(candidate),
            gpus=candidate.gpus,
            gpu=candidate.name,
            cloud=candidate.cloud,
        )
        never = self._draws.random() < self._value(self._told.boot_failure)
        up_at_s = now_s + self._chance.around(self._value(self._told.boot_s), 0.3, self._draws)
        rate = self._value(self._told.lost_per_hour)
        lives_s = 3600 * self._draws.expovariate(rate) if rate else float("inf")
        self._pods[pod.id] = _Rented(pod, float("inf") if never else up_at_s, now_s + lives_s)
        return pod

    async def list(self) -> Sequence[Pod]:
        now_s = self._clock.monotonic()
        return [self._seen(one) for one in self._pods.values() if now_s < one.lost_at_s]

    async def get(self, pod_id: str) -> Pod:
        one = self._pods.get(pod_id)
        if one is None or self._clock.monotonic() >= one.lost_at_s:
            raise Gone(f"there is no {pod_id}")
        return self._seen(one)

    async def terminate(self, pod_id: str) -> None:
        self._pods.pop(pod_id, None)

    async def prices(self, candidates: Sequence[Candidate]) -> Sequence[Price]:
        return [
            Price(candidate=one, usd_per_hour=self._price(one))
            for one in candidates
            if one.name in self._told.usd_per_hour
        ]

    async def close(self) -> None:
        """Nothing to let go of."""

    def machine(self, pod: Pod) -> PlanMachine:
        """Of a pod that runs."""
        made = PlanMachine(pod.id, self._clock, gpu=pod.gpu, usd_per_hour=pod.usd_per_hour)
        if pod.id in self._pods:
            made.lost_at_s = self._pods[pod.id].lost_at_s
        return made

    def _price(self, candidate: Candidate) -> float:
        return self._value(self._told.usd_per_hour[candidate.name])

    def _seen(self, one: _Rented) -> Pod:
        if one.pod.status != "running" and self._clock.monotonic() >= one.up_at_s:
            number = one.pod.id.removeprefix("pod-")
            one.pod = evolve(one.pod, status="running", ssh=(f"host-{number}", 22))
        return one.pod


class PaperLines(list[Mapping[str, JSON]]):
    """The pool's journal in memory."""

    def append(self, row: Mapping[str, JSON], *, sync: bool = False) -> None:  # noqa: ARG002  the seam's
        super().append(row)

    def rows(self) -> Iterable[Mapping[str, JSON]]:
        """All lines so far."""
        return iter(self)


class Pods(ComputeBackend):
    """The real pool over a simulated provider."""

    def __init__(self, rents: Rents, chance: Chance, clock: VirtualClock, *, max_machines: int) -> None:
        self.provider = PlanProvider(chance, clock)
        self._chance, self._clock = chance, clock
        self._pool = PodPool(
            self.provider,
            rents.candidates,
            run="plan0000",
            journal=PaperLines(),
            order=lambda name, candidate: Order(name=str(name), candidate=candidate, image="plan"),
            connect=self._connect,
            preflight=self._preflight,
            max_machines=max_machines,
            terms=rents.terms,
            job_s=_priors(chance, rents.candidates),
            clock=clock,
            chance=chance.of("pool"),
        )

    @property
    def max_machines(self) -> int:
        return self._pool.max_machines

    def offers(self) -> Sequence[Need]:
        return self._pool.offers()

    def machine(self, need: Need) -> AbstractAsyncContextManager[Machine]:
        return self._pool.machine(need)

    def machine_for(self, need: Need, *, job: str) -> AbstractAsyncContextManager[Machine]:
        """As the workers ask."""
        return self._pool.machine(need, job=job)

    def costs(self) -> list[PodCost]:
        """Of every pod, by purpose."""
        return self._pool.costs()

    async def close(self) -> None:
        await self._pool.close()

    async def _connect(self, pod: Pod) -> tuple[PlanMachine, PlanMachine]:
        machine = self.provider.machine(pod)
        return machine, machine

    async def _preflight(self, machine: Machine, candidate: Candidate) -> None:  # noqa: ARG002  the seam's
        await self._clock.sleep(self._chance.value(self._chance.told.preflight_s))


def _priors(chance: Chance, candidates: Sequence[Candidate]) -> dict[str, float]:
    """What the pool's table would say of each kind: the mean over bases."""
    found: dict[str, float] = {}
    for kind in {matrix.kind(candidate.name) for candidate in candidates}:
        of_it = [guess for (_, gpu), guess in chance.told.job_s.items() if gpu == kind]
        if of_it:
            found[kind] = sum(map(chance.value, of_it)) / len(of_it)
    return found


class PlanQueue(MemoryQueue):
    """A queue in memory whose `lease` waits until there is something to do, so that idle workers cost a simulation nothing."""

    lease_ttl_s = 1e7
    """Nobody dies in a simulation without being noticed."""

    def __init__(self, *, clock: Clock) -> None:
        super().__init__(clock=clock)
        self._idle: deque[asyncio.Future[None]] = deque()

    async def put(self, spec: JobSpec, *, key: str) -> Job:
        job = await super().put(spec, key=key)
        self._wake()
        return job

    async def release(self, job: Job, *, error: str = "", counts: bool = True) -> Job:
        given = await super().release(job, error=error, counts=counts)
        self._wake()
        return given

    async def lease(self, owner: str, *, ttl_s: float) -> Job | None:
        while True:
            if (job := await super().lease(owner, ttl_s=ttl_s)) is not None:
                return job
            turn = asyncio.get_running_loop().create_future()
            self._idle.append(turn)
            await turn

    def _wake(self) -> None:
        """Whoever has waited longest."""
        while self._idle:
            if not (one := self._idle.popleft()).done():
                one.set_result(None)
                return
