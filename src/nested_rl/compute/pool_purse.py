"""The pool's money: so much is set aside for a pod before it is made, more while it lives, and what it cost is settled at its end."""

from __future__ import annotations

from typing import Protocol

from nested_rl.clock import Clock
from nested_rl.compute.pool_costs import costs
from nested_rl.compute.pool_roster import Rented, State
from nested_rl.errors import BudgetExceeded
from nested_rl.types import JSON


class Account(Protocol):
    """What the pool asks of a meter; `nested_rl.meter.Meter` is one."""

    def reserve(self, key: str, usd: float) -> None:
        """Set `usd` aside for `key`. Raises BudgetExceeded."""

    def release(self, key: str) -> None:
        """Give it back."""

    def settle(self, key: str, usd: float, *, kind: str, **fields: JSON) -> None:
        """It was spent. A key that was paid before is not paid again."""


class Purse:
    """Reservations of pods. Without an account there is no limit, and nothing to settle."""

    def __init__(self, account: Account | None, *, clock: Clock, ahead_s: float) -> None:
        self._account, self._clock, self._ahead_s = account, clock, ahead_s
        self._held: dict[str, float] = {}

    def reserve(self, key: str, usd_per_hour: float) -> None:
        """Before a pod is made. Raises BudgetExceeded."""
        if self._account is not None:
            usd = usd_per_hour * self._ahead_s / 3600
            self._account.reserve(key, usd)
            self._held[key] = usd

    def keep(self, pod: Rented) -> None:
        """While it lives: what it has cost and what it may cost yet. Raises BudgetExceeded, and what was held stays held."""
        key = str(pod.name)
        hours = (self._clock.monotonic() - pod.born_s + self._ahead_s) / 3600
        usd, held = hours * pod.usd_per_hour, self._held.get(key, 0.0)
        # Half of the time ahead may pass before more is set aside.
        if self._account is None or usd <= held + pod.usd_per_hour * self._ahead_s / 7200:
            return
        self._account.release(key)
        try:
            self._account.reserve(key, usd)
            self._held[key] = usd
        except BudgetExceeded:
            self._held[key] = 0.0
            self._account.reserve(key, held)
            self._held[key] = held
            raise

    def release(self, key: str) -> None:
        """It was not made after all."""
        if self._account is not None:
            self._account.release(key)
            self._held.pop(key, None)

    def used_up(self, pod: Rented) -> bool:
        """Whether it has cost all that is set aside for it."""
        hours = (self._clock.monotonic() - pod.born_s) / 3600
        return self._account is not None and hours * pod.usd_per_hour >= self._held.get(str(pod.name), 0.0)

    def settle(self, pod: Rented) -> None:
        """When it is gone: a row for each purpose."""
        if self._account is None or pod.state is not State.GONE:
            return
        spent: dict[str, float] = {}
        for row in costs(pod.lines, now=0.0):
            spent[row.kind] = spent.get(row.kind, 0.0) + row.usd
        key = str(pod.name)
        for kind, usd in spent.items():
            if usd > (paid := pod.settled.get(kind, 0.0)):
                again = f"/{paid:.6f}" if paid else ""  # a pod that turned up again
                self._account.settle(f"{key}/{kind}{again}", usd - paid, kind=f"pod/{kind}", pod=key)
                pod.settled[kind] = usd
        self._account.release(key)
        self._held.pop(key, None)
