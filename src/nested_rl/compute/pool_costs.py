"""What the pods cost and what for, reckoned from the journal alone: seconds × price from the create request to the confirmed end.

That is an upper bound of what a provider bills, which may count from a later moment. The rows of a pod always add up to its time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias

from attrs import define, evolve, field, frozen

from nested_rl.compute.pool_roster import State
from nested_rl.types import JSON

Kind: TypeAlias = Literal["provision", "preflight", "busy", "idle", "drain", "lost"]
KINDS: Final[Mapping[State, Kind]] = {
    State.CREATING: "provision",
    State.BOOTING: "provision",
    State.PREFLIGHT: "preflight",
    State.READY: "idle",
    State.BUSY: "busy",
    State.DRAINING: "drain",
    State.TERMINATING: "drain",
    State.LOST: "lost",
    State.GONE: "lost",
}
"""GONE counts for a pod that turned up again only."""


@frozen(kw_only=True)
class PodCost:
    """So many seconds of one pod for one purpose; `job` is whose, when it is known, and `ledger` the one that pays."""

    pod: str
    kind: Kind
    seconds: float
    usd: float
    job: str = ""
    ledger: str = ""


@define
class _Account:
    """One pod while its lines are read."""

    pod: str
    state: State = State.INTENT
    since: float = 0.0
    usd_per_hour: float = 0.0
    job: str = ""
    ledger: str = ""
    made: bool = False
    stay: int = 0
    rows: list[PodCost] = field(factory=list)

    def line(self, row: Mapping[str, JSON]) -> None:
        after, rate = State(row["state"]), float(row.get("usd_per_hour", self.usd_per_hour))
        if not self.made and "id" in row:  # what was asked for at the catalog's price was made at this one
            self.made, self.usd_per_hour = True, rate
            self.rows = [evolve(one, usd=one.seconds / 3600 * rate) for one in self.rows]
        self.until(float(row["t"]))
        if after is not self.state:
            if self.state is State.BUSY and after not in (State.READY, State.DRAINING):
                self.rows[self.stay :] = [evolve(one, kind="lost") for one in self.rows[self.stay :]]
            self.state, self.job, self.stay = after, str(row.get("job", "")), len(self.rows)
        self.usd_per_hour, self.ledger = rate, str(row.get("ledger", self.ledger))

    def until(self, t: float) -> None:
        """Close the stretch of time that ends at `t`."""
        seconds, self.since = t - self.since, t
        if self.state is not State.INTENT and seconds > 0:
            usd = seconds / 3600 * self.usd_per_hour
            kind, job, ledger = KINDS[self.state], self.job, self.ledger
            self.rows.append(PodCost(pod=self.pod, kind=kind, seconds=seconds, usd=usd, job=job, ledger=ledger))


def costs(lines: Iterable[Mapping[str, JSON]], *, now: float) -> list[PodCost]:
    """Rows of every pod that was made, up to `now` for those that are not gone; each of one purpose and one job."""
    accounts: dict[str, _Account] = {}
    for row in lines:
        name = str(row["pod"])
        accounts.setdefault(name, _Account(name)).line(row)
    found: list[PodCost] = []
    for account in accounts.values():
        if account.state is not State.GONE:
            account.until(now)
        if account.made or account.state is not State.GONE:
            found += account.rows
    return found


def final(lines: Iterable[Mapping[str, JSON]]) -> list[PodCost]:
    """Rows of one pod that nothing will change any more: those before the state that it is in. Later there are only more."""
    account = _Account("")
    for row in lines:
        account.pod = str(row["pod"])
        account.line(row)
    return account.rows[: account.stay] if account.made else []


def by_kind(rows: Iterable[PodCost]) -> dict[str, float]:
    """Dollars by purpose."""
    spent: dict[str, float] = dict.fromkeys(dict.fromkeys(KINDS.values()), 0.0)
    for row in rows:
        spent[row.kind] += row.usd
    return spent


def by_job(rows: Iterable[PodCost]) -> dict[str, float]:
    """Dollars of each job's own machine time, also where it was lost."""
    spent: dict[str, float] = {}
    for row in rows:
        if row.job:
            spent[row.job] = spent.get(row.job, 0.0) + row.usd
    return spent
