"""What machines cost by our own reckoning, and what the provider has billed for them: side by side, and neither replaces the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from attrs import asdict, frozen

from nested_rl.clock import Clock
from nested_rl.compute.pool_costs import PodCost, costs
from nested_rl.compute.pool_name import PodName
from nested_rl.compute.provider import Billed
from nested_rl.compute.reaping import JOURNAL
from nested_rl.errors import SettingsError
from nested_rl.rundir import Log, RunDir
from nested_rl.types import JSON

BILLS: Final = "bills.jsonl"
"""Every answer of the provider, in the run directory or in the folder of the pods' journal; only ever added to."""
BUCKET_S: Final = 3600.0
"""The provider's figures are hour by hour: the first hour is asked for whole."""


@frozen(kw_only=True)
class Spent:
    """So much for one purpose. `run` is the eight letters that pods are named after, or the run directory."""

    run: str
    kind: str
    seconds: float
    usd: float


@frozen(kw_only=True)
class Reckoned:
    """One pod by our own reckoning. `since` is when it was asked for, in seconds since the epoch."""

    pod: str
    pod_id: str
    usd: float
    since: float


@frozen(kw_only=True)
class Bill:
    """One pod, ours and theirs. `billed_usd` is None when the provider does not list it (yet: it takes hours)."""

    pod: str
    pod_id: str
    usd: float
    billed_usd: float | None

    @property
    def difference_usd(self) -> float | None:
        """Ours minus theirs; most often above 0, as ours counts from the request."""
        return None if self.billed_usd is None else self.usd - self.billed_usd


def of_journal(folder: Path, *, now: float) -> tuple[list[Spent], list[Reckoned]]:
    """By run and kind, and by pod, from the journal in `folder`. Raises SettingsError when there is none."""
    if not (folder / JOURNAL).exists():
        raise SettingsError(f"{folder} holds no journal of pods ({JOURNAL}); give --folder, or a run directory")
    lines = list(Log(folder / JOURNAL).rows())
    rows = costs(lines, now=now)
    ids = {str(line["pod"]): str(line["id"]) for line in lines if "id" in line}
    since = {str(line["pod"]): float(line.get("since") or line["t"]) for line in reversed(lines)}
    pods = [
        Reckoned(pod=pod, pod_id=ids[pod], usd=usd, since=since[pod])
        for pod, usd in _sum((row.pod, row.usd) for row in rows).items()
        if pod in ids
    ]
    return _by_kind((_run(row), row.kind, row.seconds, row.usd) for row in rows), pods


def of_run(run: RunDir) -> tuple[list[Spent], list[Reckoned]]:
    """The same from a run's ledger, where the agent's tokens and updates are too."""
    rows = list(run.costs())
    found: dict[str, Reckoned] = {}
    for row in rows:
        if "pod_id" in row:
            since = float(row["t"]) - float(row["seconds"])
            before = found.get(pod := str(row["pod"]))
            found[pod] = Reckoned(
                pod=pod,
                pod_id=str(row["pod_id"]),
                usd=float(row["usd"]) + (before.usd if before else 0.0),
                since=min(since, before.since) if before else since,
            )
    name = str(run.path)
    spent = _by_kind((name, str(row["kind"]), float(row.get("seconds", 0.0)), float(row["usd"])) for row in rows)
    return spent, list(found.values())


async def bills(provider: Billed, pods: Iterable[Reckoned], keep: Log, *, clock: Clock) -> list[Bill]:
    """What the provider has billed for these pods up to now; each answer is added to `keep`."""
    pods = list(pods)
    if not pods:
        return []
    now = clock.now()
    since = min(pod.since for pod in pods) // BUCKET_S * BUCKET_S
    billed = await provider.billed(since=since, until=now)
    found = [Bill(pod=p.pod, pod_id=p.pod_id, usd=p.usd, billed_usd=billed.get(p.pod_id)) for p in pods]
    for bill in found:
        keep.append({"t": now, "since": since, **told(bill)})
    keep.close()
    return found


def told(bill: Bill) -> Mapping[str, JSON]:
    """As it is written down."""
    return asdict(bill) | {"difference_usd": bill.difference_usd}


def _run(row: PodCost) -> str:
    name = PodName.read(row.pod)
    return name.run if name is not None else ""


def _by_kind(rows: Iterable[tuple[str, str, float, float]]) -> list[Spent]:
    seconds: dict[tuple[str, str], float] = {}
    usd: dict[tuple[str, str], float] = {}
    for run, kind, took_s, cost in rows:
        place = run, kind
        seconds[place] = seconds.get(place, 0.0) + took_s
        usd[place] = usd.get(place, 0.0) + cost
    return [Spent(run=run, kind=kind, seconds=seconds[run, kind], usd=usd[run, kind]) for run, kind in sorted(usd)]


def _sum(rows: Iterable[tuple[str, float]]) -> dict[str, float]:
    spent: dict[str, float] = {}
    for name, usd in rows:
        spent[name] = spent.get(name, 0.0) + usd
    return spent
