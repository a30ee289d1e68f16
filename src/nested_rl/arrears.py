"""What an earlier process of a run still owes its records: found in the journal when the run is opened again.

A process can be killed in the middle of a delivery, between a result and the row that pays for it, or between a journal row and
the ledger. The journal has every delivery's start before the work begins, so each of them can be closed: with the result that
the queue has kept, or, when there is none, with what the machine had cost when the journal was last written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from attrs import define

from nested_rl.errors import SettingsError
from nested_rl.interfaces import JobQueue
from nested_rl.types import JSON, Job, JobResult, JobSpec, Task

_NO_SPEC = JobSpec(task=Task(id="", family="", difficulty=0), files={}, digest="", base="", scale="nano")
"""A job that is given back is known by its id and delivery."""


@define(kw_only=True)
class Delivery:
    """One delivery of which the journal has only the start. Times are the journal's, in seconds since the epoch."""

    job: str
    key: str
    number: int
    started_at: float
    seen_at: float
    """When the process that had it last wrote something."""
    cut_off: bool = False

    def seconds(self, most_s: float) -> float:
        """How long it is known to have run. The wall clock may have been changed meanwhile: never below 0 or above `most_s`."""
        return min(max(0.0, self.seen_at - self.started_at), most_s)


def open_deliveries(rows: Iterable[Mapping[str, JSON]]) -> list[Delivery]:
    """Deliveries that were begun and never ended, in a journal."""
    found: dict[str, Delivery] = {}
    for row in rows:
        event, at = str(row["event"]), float(row["t"])
        for delivery in found.values():
            delivery.cut_off = delivery.cut_off or event == "run.started"
            delivery.seen_at = delivery.seen_at if delivery.cut_off else at
        if event == "job.started":
            number, key = int(row["delivery"]), str(row["key"])
            found[ledger_id(row)] = Delivery(job=str(row["job"]), key=key, number=number, started_at=at, seen_at=at)
        elif ended(row):
            found.pop(ledger_id(row), None)
    return list(found.values())


def ended(row: Mapping[str, JSON]) -> bool:
    """Whether a journal row is the end of a delivery, with what it cost."""
    return "usd" in row and str(row["event"]).startswith("job.")


def ledger_id(row: Mapping[str, JSON]) -> str:
    """What a delivery's row in the ledger is known by."""
    return f"{row['key']}#{row['delivery']}"


async def settle(
    rows: Iterable[Mapping[str, JSON]],
    queue: JobQueue,
    *,
    usd_per_hour: float,
    timeout_s: float,
    pay: Callable[[Mapping[str, JSON]], None],
    tell: Callable[[str, Mapping[str, JSON]], None],
) -> None:
    """Close every delivery of a process that was killed. `rows` is its journal.

    `pay` gets each row that ended a delivery, to make sure that the ledger has it. `tell` is told of the deliveries that were cut
    off, as the worker would have told it: `job.done` when the result had been handed in, `job.lost` otherwise.
    """
    rows = list(rows)
    for row in rows:
        if ended(row):
            pay(row)
    for delivery in open_deliveries(rows):
        result = await _given_back(queue, delivery)
        counts = await queue.counts()
        about: dict[str, JSON] = {"job": delivery.job, "key": delivery.key, "delivery": delivery.number}
        sizes: dict[str, JSON] = {"queued": counts["queued"], "running": counts["running"]}
        if result is None:
            seconds = delivery.seconds(timeout_s)
            spent: dict[str, JSON] = {"usd": seconds / 3600 * usd_per_hour, "seconds": seconds}
            tell("job.lost", {**about, "error": "its controller was killed", **spent, **sizes})
        else:
            tell("job.done", {**about, **result_fields(result), **sizes})


async def _given_back(queue: JobQueue, delivery: Delivery) -> JobResult | None:
    """The result that this very delivery had handed in. Without one the job is given back, for others to have it at once."""
    stale = Job(id=delivery.job, key=delivery.key, spec=_NO_SPEC, delivery=delivery.number)
    try:
        job = await queue.release(stale, error="its controller was killed", counts=False)
    except SettingsError:  # a queue in memory, or a file that somebody has removed: there is no such job any more
        return None
    here = job.key == delivery.key and job.delivery == delivery.number
    return job.result if here and job.result is not None and job.result.fault != "infra" else None


def result_fields(result: JobResult) -> dict[str, JSON]:
    """What is told of a result when it is handed in."""
    return {
        "fault": result.fault,
        "error": result.error[:300],
        "post": result.post.value if result.post else None,
        "cost": result.cost,
        "usd": result.usd,
        "seconds": result.seconds,
        "machine": result.machine,
    }
