"""A warm pool of rented pods: a `ComputeBackend` over any provider, which pays for as few of them as the waiting jobs need.

It grows with the number of waiting leases up to `max_machines`, keeps pods warm from job to job, and lets them go when they are idle,
worn out, lost or not what was rented. Every state is in a journal before it takes effect, so that the next controller takes over, or
ends, whatever this one has left.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

from attrs import define, field

from nested_rl import redact
from nested_rl.clock import Clock, SystemClock
from nested_rl.compute.pool_breaker import Breaker
from nested_rl.compute.pool_costs import PodCost, costs, folded
from nested_rl.compute.pool_life import Check, Connect, Life
from nested_rl.compute.pool_market import Market
from nested_rl.compute.pool_name import PodName
from nested_rl.compute.pool_places import Places
from nested_rl.compute.pool_purse import Purse
from nested_rl.compute.pool_roster import COMING, Lines, Rented, Roster, State
from nested_rl.compute.pool_terms import Terms
from nested_rl.compute.pool_watch import Watch
from nested_rl.compute.provider import Candidate, Order, Pod, Provider, ProviderError
from nested_rl.errors import BudgetExceeded, InfraFault, NestedRLError, RunDirError, SettingsError
from nested_rl.interfaces import Account, ComputeBackend, Machine
from nested_rl.types import Need
from nested_rl.waiting import Overdue, uninterrupted, within

log = redact.logger(__name__)
MONTH_S: Final = 30 * 24 * 3600.0
POISON: Final = 2
"""Pods lost under one job: it is the job."""
_LETTERS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


class Quarantined(InfraFault):
    """Too many pods were lost under this job."""


@define(eq=False)
class _Waiter:
    """Somebody who wants a machine."""

    need: Need
    job: str
    pod: asyncio.Future[Rented] = field(factory=lambda: asyncio.get_running_loop().create_future())


async def _all_right(machine: Machine, candidate: Candidate) -> None:
    """No check."""


class PodPool(ComputeBackend):
    """At most `max_machines` pods of the `candidates`. Nothing is asked of the provider before the first lease, or `start`.

    `run` is eight letters or digits that are this run's own; `journal` is a `Journal` (one controller at a time) or another `Lines`.
    `order` makes the request for a name and a candidate; `connect` makes a machine of a pod that runs; `preflight` looks at a new
    pod, `recheck` at one between two jobs; a pod ends itself `alone_s` after its controller's death. `account` (a `Meter`) is asked before a pod is made, and told what each has cost.
    """

    def __init__(
        self,
        provider: Provider,
        candidates: Sequence[Candidate],
        *,
        run: str,
        journal: Lines,
        order: Callable[[PodName, Candidate], Order],
        connect: Connect,
        preflight: Check = _all_right,
        recheck: Check = _all_right,
        max_machines: int = 16,
        terms: Terms | None = None,
        alone_s: float | None = None,
        account: Account | None = None,
        job_s: Mapping[str, float] | None = None,
        clock: Clock | None = None,
        chance: random.Random | None = None,
    ) -> None:
        if not candidates or max_machines < 1:
            raise SettingsError(f"a pool needs candidates and room for a machine, not {candidates}, {max_machines}")
        if PodName.read(f"nrl-{run}-0-000000-0") is None:
            raise SettingsError(f"run {run!r}: eight small letters or digits, its pods are named after it")
        self._provider, self._candidates, self._run_name = provider, tuple(candidates), run
        self._max_machines, self._terms = max_machines, terms or Terms()
        self._clock, self._chance = clock or SystemClock(), chance or random.Random()
        self._recheck, self._alone_s = recheck, alone_s
        self.roster = Roster(journal, clock=self._clock)
        self.market = Market(candidates, clock=self._clock, job_s=job_s, chance=self._chance)
        self.breaker = Breaker()
        self._places = Places(clock=self._clock)
        self._purse = Purse(
            account, now=lambda: self.roster.now, ahead_s=self._terms.reserve_s, idle_s=self._terms.idle_s
        )
        self._watch = Watch(provider, self.roster, breaker=self.breaker, returned=self._returned)
        self._life = Life(
            provider=provider,
            roster=self.roster,
            watch=self._watch,
            market=self.market,
            breaker=self.breaker,
            places=self._places,
            terms=self._terms,
            clock=self._clock,
            order=lambda pod: order(pod.name, pod.candidate),
            connect=connect,
            preflight=preflight,
            changed=self._changed,
        )
        self._waiters: list[_Waiter] = []
        self._lost_under: Counter[str] = Counter()
        self._stopped: NestedRLError | None = None
        self._loop: asyncio.Task[None] | None = None
        self._priced_s = float("-inf")

    # ---- the backend

    @property
    def max_machines(self) -> int:
        return self._max_machines

    @property
    def usd_per_hour(self) -> float:
        """The dearest candidate that is priced, for reservations."""
        return max(self.market.price(candidate) for candidate in self._candidates)

    def offers(self) -> Sequence[Need]:
        return [candidate.offer for candidate in self._candidates]

    def machine(self, need: Need, *, job: str = "") -> AbstractAsyncContextManager[Machine]:
        """A pod's machine. `job` names whose it is: for its costs, and to stop a job under which pods get lost."""
        if not any(need.fits(offer) for offer in self.offers()):
            raise SettingsError(f"no candidate has {need}; they have {[str(offer) for offer in self.offers()]}")
        return self._machine(need, job)

    def machine_for(self, need: Need, *, job: str) -> AbstractAsyncContextManager[Machine]:
        return self.machine(need, job=job)

    def metered(self, account: Account, *, ledger: str) -> None:
        self._purse.account = account
        self._purse.ledger = self.roster.ledger = ledger

    def costs(self) -> list[PodCost]:
        """What each pod has cost so far, and what for; also those of earlier controllers of this run."""
        return costs(self.roster.lines(), now=self.roster.now)

    async def start(self) -> None:
        """Take over what an earlier controller has left, and keep watch from now on."""
        if self._loop is not None:
            return
        self._stopped = None
        for pod in self.roster.alive():
            if pod.state is State.INTENT:  # nothing was asked for yet
                self.roster.move(pod, State.GONE, why="the controller ended")
            else:
                pod.called_off = self.roster.now >= pod.name.deadline - self._spare_s
                self._begin(pod)
        for pod in self.roster.pods.values():
            self._purse.settle(pod)
        self._loop = asyncio.ensure_future(self._run())

    def drain(self, reason: NestedRLError | None = None) -> None:
        """Make no more pods and end those that are free; what runs may end. Leases that nobody can serve any more raise `reason`."""
        self._stopped = self._stopped or reason or InfraFault("the pool is being emptied")
        for pod in self.roster.alive():
            if pod.state in COMING:
                self._call_off(pod)
            elif pod.state is State.READY:
                pod.retire("the pool is being emptied")
        self._changed()

    async def stop(self, reason: NestedRLError | None = None) -> None:
        """End every pod now, whatever runs there, and wait until the provider says so."""
        self.drain(reason)
        for pod in self.roster.alive():
            self._call_off(pod)
        await uninterrupted(self._ended())

    async def close(self) -> None:
        if self._loop is None and not self.roster.alive():
            return
        await self.start()  # also for what an earlier controller has left
        loop = self._loop
        assert loop is not None
        try:
            await self.stop(InfraFault("the pool was closed"))
        finally:
            loop.cancel()
            await asyncio.gather(loop, return_exceptions=True)
            self._loop = None

    async def _ended(self) -> None:
        lives = [pod.life for pod in self.roster.alive() if pod.life is not None]
        try:
            await within(self._clock, self._terms.close_s, _all(lives))
        except Overdue:
            left = self.roster.alive()
            told = [str(pod.name) for pod in left]
            log.error("still there after %g s, and left to their leases: %s", self._terms.close_s, told)  # noqa: TRY400  the time-out is no news
            for pod in left:
                pod.abandoned = True
            await _all(lives)

    # ---- leases

    @contextlib.asynccontextmanager
    async def _machine(self, need: Need, job: str) -> AsyncIterator[Machine]:
        await self.start()
        if job and self._lost_under[job] >= POISON:
            raise Quarantined(f"{self._lost_under[job]} pods were lost under job {job}: it gets no more")
        pod = await self._take(_Waiter(need, job))
        good = False
        try:
            if pod.machine is None:
                raise InfraFault(f"{pod.name} was lost before it could be used: {pod.why}")
            yield pod.machine
            good = True
        except InfraFault as error:
            if pod.called_off and isinstance(self._stopped, BudgetExceeded):
                raise _again(self._stopped) from error
            raise
        finally:
            await uninterrupted(self._give_back(pod, job, good=good))

    async def _take(self, waiter: _Waiter) -> Rented:
        self._waiters.append(waiter)
        self._changed()
        try:
            return await waiter.pod
        except asyncio.CancelledError:
            if waiter.pod.done() and not waiter.pod.cancelled() and waiter.pod.exception() is None:
                await uninterrupted(self._give_back(waiter.pod.result(), waiter.job, good=True))
            raise
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    async def _give_back(self, pod: Rented, job: str, *, good: bool) -> None:
        usable = False
        line, machine = pod.line, pod.machine
        broken = pod.leave.is_set() or line is None or not (good or line.connected)
        try:
            if not broken and line is not None and machine is not None:
                usable = await within(self._clock, self._terms.connect_s, line.end_lease()) if good else False
                if not good:
                    await within(self._clock, self._terms.connect_s, line.recycle())
                    usable = True
                await within(self._clock, self._terms.preflight_s, _awaited(self._recheck(machine, pod.candidate)))
        except (OSError, InfraFault) as error:
            usable = False
            self._failed_after_job(pod, error)
        pod.jobs += 1
        if broken and job:
            self._lost_under[job] += 1
        now_s = self._clock.monotonic()
        if good and usable:
            self.market.job_done(pod.candidate, now_s - pod.paid_to_s)
            pod.paid_to_s = now_s
        if pod.state is State.BUSY and not pod.leave.is_set():
            if why := self._worn(pod) if usable else "it cannot be used again":
                pod.retire(why)
            else:
                self._free(pod)
        self._changed()

    def _free(self, pod: Rented) -> None:
        try:
            self.roster.move(pod, State.READY)
        except RunDirError as error:
            pod.retire(str(error))
            raise

    def _failed_after_job(self, pod: Rented, error: Exception) -> None:
        log.warning("%s (%s) is given up after a job: %s", pod.name, pod.candidate.name, error)
        self.market.lost(pod.candidate)
        if pod.seen is not None:
            self._places.failed(pod.seen)

    def _worn(self, pod: Rented) -> str:
        if self._stopped is not None:
            return "the pool is being emptied"
        if pod.jobs >= self._terms.max_jobs:
            return f"it has run {pod.jobs} jobs"
        return "its time is over" if self.roster.now >= pod.name.deadline - self._spare_s else ""

    @property
    def _spare_s(self) -> float:
        return self._terms.ttl_s - self._terms.max_age_s

    # ---- how many

    def _changed(self) -> None:
        """A pod is free, or a lease is wanted, or there is room: hand out what there is, and make what is missing."""
        self._hand_out()
        for pod in self.roster.news():
            self._purse.settle(pod)
        if (error := self._stopped or self.breaker.error) is not None:
            self._give_up(error)
        elif self._loop is not None:
            self._grow()

    def _hand_out(self) -> None:
        if not self._waiters:
            return
        free = [p for p in self.roster.of({State.READY}) if not p.leave.is_set()]
        free = [p for p in free if p.line is not None and p.line.connected]
        if not free:  # the usual case, and those who wait may be many
            return
        for waiter in list(self._waiters):
            fitting = [pod for pod in free if waiter.need.fits(pod.candidate.offer)]
            if fitting and not waiter.pod.done():
                # The cheapest that will do; of those the one that was used last, so that the others may be let go.
                pod = min(fitting, key=lambda p: (p.usd_per_hour, -p.since_s))
                self.roster.move(pod, State.BUSY, job=waiter.job)
                self._purse.taken(pod, waiter.job)
                free.remove(pod)
                self._waiters.remove(waiter)
                waiter.pod.set_result(pod)

    def _grow(self) -> None:
        if not self._waiters:
            return
        hopeless = set[Need]()
        coming = [pod for pod in self.roster.of(COMING) if not pod.called_off]
        asked = {pod.candidate for pod in self.roster.of({State.INTENT, State.CREATING})}
        for waiter in self._waiters:
            expected = next((pod for pod in coming if waiter.need.fits(pod.candidate.offer)), None)
            if expected is not None:
                coming.remove(expected)
            elif waiter.need in hopeless:
                continue
            elif (candidate := self.market.choose(waiter.need, asked=asked)) is None:
                hopeless.add(waiter.need)  # what was asked for in this round makes it no better
            else:
                if len(self.roster.alive()) >= self._max_machines:
                    self._make_room()
                    return
                try:
                    self._new(candidate, job=waiter.job)
                except BudgetExceeded as error:  # those that are there may go on
                    self._give_up(error)
                    return
                asked.add(candidate)

    def _make_room(self) -> None:
        """A free pod that fits nobody who waits makes room for one that does."""
        free = [pod for pod in self.roster.of({State.READY}) if not pod.leave.is_set()]
        if not free or self.roster.of({State.DRAINING, State.TERMINATING, State.LOST}):
            return
        if not any(pod.leave.is_set() for pod in self.roster.alive()):
            min(free, key=lambda pod: pod.since_s).retire("it makes room for another kind")

    def _new(self, candidate: Candidate, *, job: str) -> Rented:
        taken = {pod.name.slot for pod in self.roster.alive()}
        slot = next(number for number in range(self._max_machines + len(taken)) if number not in taken)
        nonce = "".join(self._chance.choices(_LETTERS, k=6))
        deadline = int(self.roster.now + self._terms.ttl_s)
        name = PodName(run=self._run_name, slot=slot, nonce=nonce, deadline=deadline)
        price = self.market.price(candidate)
        self._purse.reserve(str(name), price, job=job)
        try:
            pod = self.roster.intend(name, candidate, usd_per_hour=price, alone_s=self._alone_s)
        except BaseException:
            self._purse.release(str(name))
            raise
        self._begin(pod)
        return pod

    def _give_up(self, error: NestedRLError) -> None:
        """Whoever waits for what no pod can give any more is told why."""
        up = [pod for pod in self.roster.alive() if pod.state in COMING | {State.READY, State.BUSY}]
        hope = [pod for pod in up if not pod.leave.is_set() and self._stopped is None]
        for waiter in list(self._waiters):
            if not any(waiter.need.fits(pod.candidate.offer) for pod in hope) and not waiter.pod.done():
                self._waiters.remove(waiter)
                waiter.pod.set_exception(_again(error))

    # ---- lives

    def _begin(self, pod: Rented) -> None:
        if pod.life is not None and not pod.life.done():
            return
        pod.begun = False
        pod.life = asyncio.ensure_future(self._life.live(pod))
        pod.life.add_done_callback(_told)

    def _call_off(self, pod: Rented) -> None:
        """Its life goes straight to its end."""
        if not pod.called_off and pod.life is not None:
            pod.called_off = True
            pod.retire("called off")
            if pod.begun and pod.id:  # before that, its life looks by itself
                pod.life.cancel()

    def _returned(self, pod: Rented, found: Pod) -> None:
        """A pod that was never seen, or gone, is there: it goes now."""
        if pod.life is None or pod.life.done():
            log.warning("%s turned up after all and is ended", pod.name)
            pod.id, pod.gone = found.id, False
            pod.sighted = True
            self.roster.move(pod, State.TERMINATING, id=found.id, usd_per_hour=found.usd_per_hour, seen=True)
            self._begin(pod)

    # ---- the watch

    async def _run(self) -> None:
        while True:
            try:
                await self._refresh_prices()
                await self._watch.once()
                self._tend()
                self._changed()
                if self.roster.bulky:
                    self.roster.fold(self._paid_for, folded)
            except Exception:  # whatever it was, the pods must not be left alone
                log.exception("the pool's watch stumbled")
            await self._clock.sleep(self._terms.look_s)

    def _paid_for(self, pod: Rented) -> bool:
        """Whether whoever pays for it has: this ledger, or nobody. Another may come back for its share, for a month."""
        owing = {row.ledger for row in costs(pod.lines, now=0.0)} - {"", self._purse.ledger}
        return not owing or self.roster.now > pod.name.deadline + MONTH_S

    async def _refresh_prices(self) -> None:
        if self._clock.monotonic() < self._priced_s + self._terms.price_s or not self._waiters:
            return
        try:
            self.market.priced(await self._provider.prices(self._candidates))
            self._priced_s = self._clock.monotonic()
        except ProviderError as error:
            log.warning("the prices are not to be had: %s", error)
        except SettingsError as error:
            self.breaker.open(error)

    def _tend(self) -> None:
        """Let go of what is idle or old; set money aside for the rest."""
        for pod in self.roster.alive():
            self.roster.sign(pod, seen=False)
            idle_s = self._clock.monotonic() - pod.since_s
            if pod.state is State.READY and (idle_s >= self._terms.idle_s or self._worn(pod)):
                pod.retire(self._worn(pod) or f"idle for {idle_s:.0f} s")
            try:
                self._purse.keep(pod)
            except BudgetExceeded as error:
                if self._purse.used_up(pod):  # the hard cap
                    self.drain(error)
                    self._call_off(pod)
                elif pod.state is State.READY:  # what is set aside for it is for those that work
                    pod.retire(str(error))


def _again(error: NestedRLError) -> NestedRLError:
    """The same reason for another waiter: one exception raised in two places would mix up their traces."""
    fresh = type(error)(*error.args)
    fresh.__cause__ = error
    return fresh


def _told(life: asyncio.Task[None]) -> None:
    """A life that ended with an error has ended all the same; the error is for the log."""
    if not life.cancelled() and (error := life.exception()) is not None:
        log.error("the end of a pod: %s", error)


async def _all(tasks: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.gather(*(asyncio.shield(task) for task in tasks), return_exceptions=True)


async def _awaited(work: Awaitable[None]) -> None:
    await work
