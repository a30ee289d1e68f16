"""The pool's money: so much is set aside for a pod before it is made, more while it lives, and each stretch of its time is paid once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from nested_rl.compute.pool_costs import PodCost, costs, final
from nested_rl.compute.pool_roster import COMING, Rented, State
from nested_rl.errors import BudgetExceeded
from nested_rl.interfaces import Account
from nested_rl.types import JSON

ENDING_S: Final = 60.0
"""How long a pod costs yet when it is told to go: the hard cap is for that too."""


class Purse:
    """Reservations of pods. Without an account there is no limit, and nothing to pay into. `ledger` is the account's name.

    `now` is the journal's time; for `ahead_s` a pod is paid ahead that is coming up or works for nobody's reservation, for `idle_s`
    one that is free or has its job's.
    """

    def __init__(
        self, account: Account | None, *, now: Callable[[], float], ahead_s: float, idle_s: float = 300.0
    ) -> None:
        self.account, self.ledger = account, ""
        self._now, self._ahead_s, self._short_s = now, ahead_s, min(ahead_s, idle_s + ENDING_S)
        self._held: dict[str, float] = {}
        self._rates: dict[str, float] = {}
        self._jobs: dict[str, float] = {}
        self._read: dict[str, int] = {}
        self._paid: dict[str, list[float]] = {}

    def reserve(self, key: str, usd_per_hour: float, *, job: str = "") -> None:
        """Before a pod is made, in place of what was set aside for the job that it is made for. Raises BudgetExceeded."""
        if self.account is None:
            return
        rate, most = sum(self._rates.values()), self.account.most_usd_per_hour
        if rate + usd_per_hour > most + 1e-9:
            raise BudgetExceeded(
                f"the budget allows ${most:.2f} an hour; machines for ${rate:.2f} are there, and one more is ${usd_per_hour:.2f}"
            )
        theirs = self.account.reserved_for(job)
        usd = max(usd_per_hour * self._ahead_s / 3600, theirs)
        self.account.reserve(key, usd, instead=job)
        self._held[key], self._rates[key], self._jobs[key] = usd, usd_per_hour, theirs

    def taken(self, pod: Rented, job: str) -> None:
        """A job is on a pod, and paid from what is set aside for that: what was for the job is now for the pod."""
        if self.account is None or not (theirs := self.account.reserved_for(job)):
            return
        key, held = str(pod.name), self._held.get(str(pod.name), 0.0)
        self._jobs[key] = theirs
        self._held[key] = max(held, min(self._wanted(pod), held + theirs))
        self.account.reserve(key, self._held[key], instead=job)

    def keep(self, pod: Rented) -> None:
        """While it lives: what it owes and what it may cost yet. Raises BudgetExceeded, and what was held stays held."""
        key = str(pod.name)
        if self.account is None:
            return
        self._rates[key] = pod.usd_per_hour
        owed, usd = self._owed(pod), self._wanted(pod)
        if self._held.get(key, 0.0) - owed >= (usd - owed) / 2:  # half of it may pass before more is set aside
            return
        self.account.reserve(key, usd)
        self._held[key] = usd

    def release(self, key: str) -> None:
        """It was not made after all, or is gone and paid."""
        if self.account is not None:
            self.account.release(key)
        for kept in (self._held, self._rates, self._jobs):
            kept.pop(key, None)

    def used_up(self, pod: Rented) -> bool:
        """Whether it will have cost all that is set aside for it by the time that it could be gone."""
        ending = ENDING_S / 3600 * pod.usd_per_hour
        return self.account is not None and self._owed(pod) + ending >= self._held.get(str(pod.name), 0.0)

    def settle(self, pod: Rented) -> None:
        """Pay what nothing will change any more, a row a stretch; when it is gone, let go of what was set aside."""
        key = str(pod.name)
        if self.account is None or self._read.get(key) == len(pod.lines):
            return
        paid = self._paid.setdefault(key, [])
        for number, row in enumerate(final(pod.lines)):
            if number >= len(paid):
                if row.ledger == self.ledger:
                    self.account.settle(f"{key}/{number}", row.usd, kind=f"pod/{row.kind}", **_told(pod, row))
                paid.append(row.usd)
        self._read[key] = len(pod.lines)
        if not pod.alive:
            self.release(key)
        elif key in self._held:
            if pod.state not in COMING | {State.BUSY}:
                self._jobs.pop(key, None)
            self._held[key] = min(self._held[key], self._wanted(pod))  # what is paid is not set aside any more
            self.account.reserve(key, self._held[key])

    def _owed(self, pod: Rented) -> float:
        """Of what it has cost, what is in no row yet."""
        spent = sum(row.usd for row in costs(pod.lines, now=self._now()))
        return max(0.0, spent - sum(self._paid.get(str(pod.name), ())))

    def _wanted(self, pod: Rented) -> float:
        """What should be set aside: what it owes, and its time ahead or the job that it has."""
        owed, job = self._owed(pod), self._jobs.get(str(pod.name), 0.0)
        ahead, short = (pod.usd_per_hour * seconds / 3600 for seconds in (self._ahead_s, self._short_s))
        if pod.state is State.READY:
            return owed + short
        if pod.state is State.BUSY and job:
            return max(owed, job) + short
        return max(owed + ahead, job)


def _told(pod: Rented, row: PodCost) -> dict[str, JSON]:
    about: dict[str, JSON] = {"pod": row.pod, "pod_id": pod.id, "seconds": row.seconds}
    return about | ({"job": row.job} if row.job else {})
