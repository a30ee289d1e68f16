"""Money: reserve before, settle after, one ledger row each.

Every dollar is reserved before it is spent and ends in exactly one row of costs.jsonl. Rows carry an id that is unique for
what they pay for, so a row written twice (after a crash) counts once. A budget that is reached refuses new reservations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from nested_rl.clock import Clock
from nested_rl.errors import BudgetExceeded
from nested_rl.types import JSON, Budget

FIRST_HOURS: Final = 0.1
"""The first minutes of a run say nothing about its rate."""


class Meter:
    """Reservations and spending of one run.

    `write` appends a row to the ledger; `rows` are those of an earlier part of the same run.

    >>> from nested_rl.clock import VirtualClock
    >>> meter = Meter(Budget(usd=1.0), clock=VirtualClock(), write=lambda row: None)
    >>> meter.reserve("job-1", 0.3)
    >>> meter.settle("job-1", 0.2, kind="job")
    >>> round(meter.left_usd, 2)
    0.8
    """

    def __init__(
        self,
        budget: Budget,
        *,
        clock: Clock,
        write: Callable[[Mapping[str, JSON]], None],
        rows: Iterable[Mapping[str, JSON]] = (),
    ) -> None:
        self._budget = budget
        self._clock = clock
        self._write = write
        self._started_s = clock.monotonic()
        self._reserved: dict[str, float] = {}
        self._paid = {str(row["id"]): float(row["usd"]) for row in rows}
        self._spent_usd = sum(self._paid.values())
        self._here_usd = 0.0

    @property
    def spent_usd(self) -> float:
        """What the ledger says."""
        return self._spent_usd

    @property
    def reserved_usd(self) -> float:
        """What is promised to work in flight."""
        return sum(self._reserved.values())

    @property
    def left_usd(self) -> float:
        """What may still be reserved; infinite without a budget."""
        if self._budget.usd is None:
            return float("inf")
        return self._budget.usd - self._spent_usd - self.reserved_usd

    @property
    def most_usd_per_hour(self) -> float:
        """What all that runs at once may cost; infinite without a limit."""
        return float("inf") if self._budget.usd_per_hour is None else self._budget.usd_per_hour

    def reserved_for(self, key: str) -> float:
        """What is set aside for `key`."""
        return self._reserved.get(key, 0.0)

    def reserve(self, key: str, usd: float, *, instead: str = "") -> None:
        """Set `usd` aside for `key`, in place of what was set aside for it and for `instead`.

        Raises BudgetExceeded, with the figures, when it is not covered; then everything is as it was.
        """
        freed = self.reserved_for(key) + self.reserved_for(instead)
        if usd > freed or not {key, instead} & self._reserved.keys():
            self._allow(usd, usd - freed)
        self._reserved.pop(instead, None)
        self._reserved[key] = usd

    def later(self, usd: float) -> bool:
        """Whether `usd` that is refused now may be granted later: when work in flight was cheaper than feared, or the rate has fallen."""
        hours = (self._clock.monotonic() - self._started_s) / 3600
        if self._budget.hours is not None and hours > self._budget.hours:
            return False
        if self._budget.usd is not None and usd > self._budget.usd - self._spent_usd:
            return False
        return self.reserved_usd > 0 or self._too_fast(hours)

    def _allow(self, usd: float, more_usd: float) -> None:
        if more_usd > self.left_usd + 1e-9:
            raise BudgetExceeded(
                f"the budget of ${self._budget.usd:.2f} does not cover ${usd:.4f} more: ${self._spent_usd:.4f} spent, "
                f"${self.reserved_usd:.4f} reserved; run again with a larger budget to go on"
            )
        hours = (self._clock.monotonic() - self._started_s) / 3600
        if self._budget.hours is not None and hours > self._budget.hours:
            raise BudgetExceeded(f"the budget of {self._budget.hours} hours is used up; run again to go on")
        if self._too_fast(hours):
            rate = self._here_usd / max(hours, FIRST_HOURS)
            raise BudgetExceeded(f"spending ${rate:.2f} an hour, the budget allows ${self._budget.usd_per_hour:.2f}")

    def _too_fast(self, hours: float) -> bool:
        return self._here_usd / max(hours, FIRST_HOURS) > self.most_usd_per_hour

    def release(self, key: str) -> None:
        """Give a reservation back unspent."""
        self._reserved.pop(key, None)

    def settle(self, key: str, usd: float, *, kind: str, **fields: JSON) -> None:
        """Turn a reservation (or nothing) into a ledger row. A key that was paid before is not paid again."""
        self._reserved.pop(key, None)
        if key in self._paid:
            return
        self._write({"id": key, "t": self._clock.now(), "kind": kind, "usd": usd, **fields})
        self._paid[key] = usd
        self._spent_usd += usd
        self._here_usd += usd
