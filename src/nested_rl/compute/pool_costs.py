"""What the pods cost and what for, reckoned from the journal alone: seconds × price from the create request to the confirmed end.

That is an upper bound of what a provider bills, which may count from a later moment. The rows of a pod always add up to its time.
Time in which no controller looked is booked as far as the pod can have lived: until its lease was over or its deadline, whichever was
first, and a little longer for its end; all of it when the provider shows it afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

from attrs import define, evolve, field, frozen

from nested_rl.compute.pool_name import PodName
from nested_rl.compute.pool_roster import BEAT_S, State
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
ENDING_S: Final = 120.0
"""What a pod that ends itself may take for that: it looks every ten seconds, and tries several ways of up to twenty."""
LATE_S: Final = 60.0
"""So late a sign of life may be: the look before it waits for the provider."""
PAID: Final = "(paid)"
"""No ledger's name."""


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
    sign: float = 0.0
    alone_s: float = float("inf")
    up: bool = False
    cut: float = float("inf")
    stay: int = 0
    folded: int = 0
    past: int = 0
    rows: list[PodCost] = field(factory=list)

    def line(self, row: Mapping[str, JSON]) -> None:
        if "spent" in row:
            self._unfold(row)
            return
        after, rate = State(row["state"]), float(row.get("usd_per_hour", self.usd_per_hour))
        if not self.made and "id" in row:  # what was asked for at the catalog's price was made at this one
            self.made, self.usd_per_hour = True, rate
            self.rows = [evolve(one, usd=one.seconds / 3600 * rate) for one in self.rows]
            self.cut = float("inf")
        elif row.get("seen"):
            self.cut = float("inf")
        elif self.sign:
            self.cut = min(self.cut, self._last(float(row["t"])))
        self.sign, self.alone_s = float(row["t"]), float(row.get("alone_s", self.alone_s))
        self.up = self.up or after is State.PREFLIGHT
        if "beat" in row:
            return
        self._book(min(self.sign, self.cut))
        if after is not self.state:
            if self.state is State.BUSY and after not in (State.READY, State.DRAINING):
                self.rows[self.stay :] = [evolve(one, kind="lost") for one in self.rows[self.stay :]]
            self.state, self.job, self.stay = after, str(row.get("job", "")), len(self.rows)
        self.usd_per_hour, self.ledger = rate, str(row.get("ledger", self.ledger))

    def _unfold(self, row: Mapping[str, JSON]) -> None:
        """What `folded` has made."""
        self.state, self.since, self.made = State(row["state"]), float(row["t"]), True
        self.sign = self.since
        self.usd_per_hour, self.ledger = float(row["usd_per_hour"]), str(row.get("ledger", ""))
        for kind, ledger, seconds, usd in row["spent"]:
            self.rows.append(PodCost(pod=self.pod, kind=kind, seconds=seconds, usd=usd, ledger=ledger))
        self.stay = self.folded = len(self.rows)
        self.past = int(row["rows"])

    def until(self, t: float) -> None:
        """Close the stretch of time that ends at `t`, or when the pod was over."""
        self._book(min(t, self.cut, self._last(t)))

    def _last(self, t: float) -> float:
        """Until when it can have lived, when nothing is heard of it from its last sign to `t`; infinite when it is heard of in time.

        A pod that has never been up counts its lease from a moment that nobody knows: it has its deadline only.
        """
        name = PodName.read(self.pod)
        alone = self.sign + BEAT_S + LATE_S + self.alone_s + ENDING_S if self.up else float("inf")
        deadline = max(self.sign, name.deadline) + ENDING_S if name is not None else float("inf")
        last = min(alone, max(self.sign + BEAT_S + LATE_S, deadline))
        return last if t > last else float("inf")

    def _book(self, t: float) -> None:
        seconds, self.since = t - self.since, max(t, self.since)
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
    """Rows of one pod that nothing will change any more: those before the state that it is in. Later there are only more.

    Those that were folded are empty and nobody's, but keep their place.
    """
    account = _Account("")
    for row in lines:
        account.pod = str(row["pod"])
        account.line(row)
    past = [PodCost(pod=account.pod, kind="lost", seconds=0.0, usd=0.0, ledger=PAID)] * account.past
    return past + account.rows[account.folded : account.stay] if account.made else []


def folded(lines: Sequence[Mapping[str, JSON]]) -> list[Mapping[str, JSON]]:
    """One line in place of all of a pod that is gone and paid: what it cost, and for what. Whose jobs those were is in the ledgers.

    A pod that was never made keeps its lines: should it turn up after all, it is paid from its first second.
    """
    account = _Account(str(lines[0]["pod"]))
    for row in lines:
        account.line(row)
    if account.state is not State.GONE or not account.made:
        return list(lines)
    spent: dict[tuple[str, str], tuple[float, float]] = {}
    for one in account.rows:
        seconds, usd = spent.get((one.kind, one.ledger), (0.0, 0.0))
        spent[one.kind, one.ledger] = seconds + one.seconds, usd + one.usd
    line = {
        "t": account.since,
        "pod": account.pod,
        "state": str(account.state),
        "id": next(row["id"] for row in reversed(lines) if "id" in row),
        "candidate": lines[0]["candidate"],
        "usd_per_hour": account.usd_per_hour,
        "since": lines[0].get("since", lines[0]["t"]),
        "rows": account.past + len(account.rows) - account.folded,
        "spent": [[*about, *much] for about, much in spent.items()],
    }
    return [line | ({"ledger": account.ledger} if account.ledger else {})]


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
