"""The life of one pod, from the intent to the provider's word that it is gone; however it goes, it ends there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

from attrs import frozen

from nested_rl import redact
from nested_rl.clock import Clock
from nested_rl.compute.pool_breaker import Breaker
from nested_rl.compute.pool_market import REFUSED_S, Market
from nested_rl.compute.pool_places import BadPlace, Places
from nested_rl.compute.pool_roster import PodMachine, Rented, Roster, State
from nested_rl.compute.pool_terms import Terms
from nested_rl.compute.pool_watch import Watch
from nested_rl.compute.provider import (
    Candidate,
    Gone,
    Logged,
    NoCapacity,
    Order,
    OutOfMoney,
    Pod,
    Provider,
    ProviderError,
    Refused,
    Rejected,
    Throttled,
    Wrong,
)
from nested_rl.errors import BudgetExceeded, InfraFault, MachineLost, SettingsError
from nested_rl.interfaces import Machine
from nested_rl.waiting import uninterrupted, within

log = redact.logger(__name__)

Connect: TypeAlias = Callable[[Pod], Awaitable[tuple[Machine, PodMachine]]]
"""A connection to a pod that runs. Raises MachineLost to be asked again, SettingsError when the login is refused."""
Check: TypeAlias = Callable[[Machine, Candidate], Awaitable[None]]
"""Raises InfraFault when a pod is not what was rented, or not fit for the next job."""
MakeOrder: TypeAlias = Callable[[Rented], Order]
T = TypeVar("T")
LOG_LINES = 20
LOOK_AGAIN_S = 10.0
FULL = "no space left on device"
"""What a provider's log says of a disk that is too small for the image."""
PAUSE_S = 10.0
"""A provider that cannot be reached is not asked for a new pod for so long."""


class NotMade(InfraFault):
    """The provider has made no pod."""


@frozen(kw_only=True)
class Life:
    """What every life needs. `changed` is called when a pod is ready, or has made room."""

    provider: Provider
    roster: Roster
    watch: Watch
    market: Market
    breaker: Breaker
    places: Places
    terms: Terms
    clock: Clock
    order: MakeOrder
    connect: Connect
    preflight: Check
    changed: Callable[[], None]

    async def live(self, pod: Rented) -> None:
        """Through all states. A cancellation cuts short what was wanted of the pod, and never its end."""
        pod.begun, came_up = True, self.breaker.came_up
        try:
            await self._work(pod)
        except NotMade as error:
            log.warning("no pod (%s): %s", pod.candidate.name, error)
            pod.retire(str(error))
        except asyncio.CancelledError:
            pod.retire("called off")
        except Exception as error:  # noqa: BLE001  a pod that is not to be used, for whatever reason
            pod.retire(str(error))
            await uninterrupted(self._blame(pod, error, came_up=came_up))
        finally:
            await uninterrupted(self._end(pod))

    async def _work(self, pod: Rented) -> None:
        if pod.state in (State.DRAINING, State.TERMINATING, State.LOST, State.GONE):
            return
        if pod.state is State.INTENT and not pod.called_off:
            await uninterrupted(self._create(pod))
        elif pod.state is State.CREATING:
            await uninterrupted(self._find(pod))
        elif not pod.called_off and pod.state is not State.BOOTING:
            self.roster.move(pod, State.BOOTING, why="taken over")
        if pod.called_off:
            return
        await self._boot(pod)
        await self._check(pod)
        self.market.good(pod.candidate)
        self.breaker.good()
        if pod.seen is not None:
            self.places.good(pod.seen)
        self.roster.move(pod, State.READY)
        self.changed()
        await pod.leave.wait()
        if pod.lost:
            self.market.lost(pod.candidate)

    # ---- creating

    async def _create(self, pod: Rented) -> None:
        """Ask once. What came of it when nobody knows is looked up, and never asked again."""
        order = self.order(pod)
        self.roster.move(pod, State.CREATING)
        try:
            made = await self.provider.create(order)
        except NoCapacity as error:
            self.market.rest(pod.candidate)
            raise NotMade(str(error)) from error
        except Rejected as error:
            self.market.rest(pod.candidate)
            self.breaker.rejected(pod.candidate, str(error), among=self.market.offered())
            raise NotMade(str(error)) from error
        except Refused as error:
            self.market.rest(pod.candidate, seconds=REFUSED_S)
            raise NotMade(str(error)) from error
        except Wrong as error:
            self.breaker.open(error)
            raise NotMade(str(error)) from error
        except OutOfMoney as error:
            self.breaker.open(BudgetExceeded(f"the provider's balance is too low: {error}; top it up and run again"))
            raise NotMade(str(error)) from error
        except Throttled as error:
            self.market.pause(error.after_s)
            raise NotMade(str(error)) from error
        except Exception as error:
            if isinstance(error, ProviderError) and type(error) is ProviderError:
                self.market.pause(PAUSE_S)
                raise NotMade(str(error)) from error
            # Whatever it was, there may be a pod.
            log.warning("%s: nobody knows whether it was made: %s", pod.name, error)
            await self._find(pod)
            return
        self._made(pod, made)

    async def _find(self, pod: Rented) -> None:
        """Look for the pod by its name."""
        until_s, good_looks = self.clock.monotonic() + self.terms.find_s, 0
        while True:
            seen = await self.watch.look()
            if seen is not None and (found := seen.get(str(pod.name))) is not None:
                self._made(pod, found)
                return
            if pod.abandoned:
                raise NotMade("nobody knows whether it was made")
            good_looks += seen is not None
            if good_looks > 1 and self.clock.monotonic() >= until_s:
                self.market.rest(pod.candidate)
                raise NotMade("no pod of that name has appeared")

    def _made(self, pod: Rented, made: Pod) -> None:
        self.roster.known(pod, made)
        self.roster.move(pod, State.BOOTING, id=pod.id, usd_per_hour=pod.usd_per_hour)
        self.market.made(pod.candidate)
        self.breaker.taken()
        self.changed()

    # ---- coming up

    async def _boot(self, pod: Rented) -> None:
        """Until it runs and lets us in."""
        until_s, running, trouble = self.clock.monotonic() + self.terms.boot_s, False, "it does not run"
        while not pod.leave.is_set():
            seen = pod.seen
            if seen is not None and seen.status == "running":
                if not running:
                    running, until_s = True, self.clock.monotonic() + self.terms.ssh_s
                self.places.check(seen)
                trouble = "it has no port for SSH"
                if seen.ssh is not None:
                    try:
                        line = within(self.clock, self.terms.connect_s, _awaited(self.connect(seen)))
                        pod.machine, pod.line = await line
                    except (InfraFault, OSError) as error:
                        trouble = str(error)
                    else:
                        return
            if self.clock.monotonic() >= until_s:
                raise InfraFault(f"not there in time: {trouble}")
            await self.watch.look()
        raise MachineLost(pod.why)

    async def _check(self, pod: Rented) -> None:
        assert pod.machine is not None
        self.roster.move(pod, State.PREFLIGHT)
        check = _awaited(self.preflight(pod.machine, pod.candidate))
        await within(self.clock, self.terms.preflight_s, check)
        if pod.leave.is_set():
            raise MachineLost(pod.why)

    async def _blame(self, pod: Rented, error: Exception, *, came_up: int) -> None:
        """Find out what a failure teaches."""
        said = await self._said(pod)
        log.warning("%s (%s) is given up: %s%s", pod.name, pod.candidate.name, error, said)
        self.market.rest(pod.candidate)
        if isinstance(error, SettingsError):
            self.breaker.no_login(str(error))
        elif pod.seen is not None and not isinstance(error, BadPlace):
            self.places.failed(pod.seen)
        if FULL in said.lower():
            self.breaker.no_room(pod.candidate)
        if not isinstance(error, BadPlace):  # which nobody has tried
            self.breaker.failed(str(error), before=came_up)

    async def _said(self, pod: Rented) -> str:
        """The end of the provider's log of a pod that does not come up."""
        if pod.state is not State.BOOTING or pod.gone or not isinstance(self.provider, Logged):
            return ""
        with contextlib.suppress(ProviderError, SettingsError):
            return "\n" + await self.provider.log(pod.id, source="system", lines=LOG_LINES)
        return ""

    # ---- its end

    async def _end(self, pod: Rented) -> None:
        move = self.roster.move
        if pod.id and not pod.gone:
            await self._sight(pod)
        if not pod.lost and pod.state in (State.READY, State.BUSY):
            move(pod, State.DRAINING, must=False, why=pod.why)
        await self._hang_up(pod)
        if pod.lost:
            move(pod, State.LOST, must=False, why=pod.why)
        if pod.id and not pod.gone:
            move(pod, State.TERMINATING, must=False, why=pod.why)
            await self._terminate(pod)
        if pod.abandoned and not pod.gone:
            return
        move(pod, State.GONE, must=False, why=pod.why)
        self.changed()

    async def _sight(self, pod: Rented) -> None:
        """Whether one that nobody looked after is still there, before it is told to go: afterwards nobody knows until when it was."""
        pause_s = 2.0
        while not pod.sighted and not pod.abandoned:
            try:
                found = await self.provider.get(pod.id)
            except Gone:
                pod.gone, pod.lost = True, pod.lost or pod.state is not State.TERMINATING
                return
            except (ProviderError, SettingsError):
                if pause_s > LOOK_AGAIN_S:  # better paid too much than told to go too late
                    self.roster.sign(pod, seen=True)
                    return
                await self.clock.sleep(pause_s)
                pause_s *= 2
            else:
                self.roster.sign(pod, seen=found.status != "terminated")
                return

    async def _hang_up(self, pod: Rented) -> None:
        line, pod.machine, pod.line = pod.line, None, None
        if line is not None:
            try:
                await within(self.clock, self.terms.hang_up_s, _awaited(line.close()))
            except Exception as error:  # noqa: BLE001  it ends with its pod
                log.warning("%s: hanging up failed: %s", pod.name, error)

    async def _terminate(self, pod: Rented) -> None:
        """Ask until it is gone: an answer to the request proves nothing."""
        asked_s, pause_s, told = self.clock.monotonic(), 2.0, False
        while not pod.abandoned:
            trouble = "it is still there"
            for ask in (self.provider.terminate, self.provider.get):
                try:
                    await ask(pod.id)
                except Gone:
                    pod.gone = True
                    return
                except Exception as error:  # noqa: BLE001  it costs money until it is gone, whatever happens here
                    trouble = str(error)
            if not told and self.clock.monotonic() - asked_s >= self.terms.alarm_s:
                told = True
                log.error("%s does not end and costs $%.2f an hour: %s", pod.name, pod.usd_per_hour, trouble)
            await self.clock.sleep(pause_s)
            pause_s = min(2 * pause_s, 60.0)


async def _awaited(work: Awaitable[T]) -> T:
    return await work
