"""A queue in one SQLite file, shared by every process on this computer.

Leases run in `Clock.monotonic`, which is the same for all processes of one boot and takes no notice of a changed wall
clock. A lease that could not have been given in this boot counts as run out, and one whose process is gone is given back
when the file is opened, so that a killed run goes on at once. What must survive a power cut (a job put, a result) is
synced to disk before the call returns; a lease is not, since losing one only means giving the job out again.

Transactions run on the event loop's own thread: they take a fraction of a millisecond, and so no cancellation ever comes
between a claim and its owner. Only the wait for the disk is in a thread. Put the file on a local disk: SQLite's write-ahead
log does not work on network file systems.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from nested_rl import process, redact
from nested_rl.clock import Clock, SystemClock
from nested_rl.errors import LeaseLost, SettingsError
from nested_rl.interfaces import JobQueue
from nested_rl.queues.memory import given_up
from nested_rl.queues.sqlite_file import SqliteFile
from nested_rl.serialize import dumps, loads
from nested_rl.types import Job, JobResult, JobSpec, JobState, Task
from nested_rl.waiting import within

COLUMNS = "seq, key, spec, state, delivery, tries, owner, process, expires_s, error, result"
UNREADABLE = JobSpec(task=Task(id="", family="", difficulty=0), files={}, digest="", base="", scale="nano")
"""Stands in for a spec that cannot be read; such a job is only ever seen done, with the reason as its error."""


class SqliteQueue(JobQueue):
    """Jobs in the file `path`, which is made if missing. Any number of processes may open it.

    Raises RunDirError when the file cannot be read or written. `poll_s` is how often `wait` looks for results that
    another process has written; those of this process wake it at once.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Clock | None = None,
        max_deliveries: int = 3,
        poll_s: float = 0.5,
        busy_s: float = 30.0,
    ) -> None:
        self.path = Path(path)
        self._clock = clock or SystemClock()
        self._max_deliveries = max_deliveries
        self._poll_s = poll_s
        self._process = process.identity()
        self._done: dict[str, asyncio.Event] = {}
        self._file = SqliteFile(self.path, busy_s=busy_s)
        self._recover()

    @property
    def late(self) -> int:
        """Results that came after another delivery had taken over, or had finished first. They are kept in table `late`."""
        with self._file.plainly():
            return int(self._file.db.execute("SELECT count(*) FROM late").fetchone()[0])

    async def put(self, spec: JobSpec, *, key: str) -> Job:
        text = _text(spec)
        with self._file.writing():
            row = self._find("key = ?", key)
            if row is None:
                self._file.db.execute(
                    "INSERT INTO jobs (key, spec, put_at) VALUES (?, ?, ?)", (key, text, self._clock.now())
                )
            elif (result := _job(row).result) is not None and result.fault == "infra":
                self._set(row, spec=text, state=JobState.QUEUED, tries=0, owner="", error="", result=None)
            row = self._row("key = ?", key)
        await asyncio.to_thread(self._file.sync)
        return _job(row)

    async def lease(self, owner: str, *, ttl_s: float) -> Job | None:
        if not self._work_to_do():  # most calls of idle workers end here, without the write lock
            return None
        with self._file.writing():
            for old in self._run_out():
                self._give_back(old, "its lease ran out")
            while (row := self._find("state = 'queued' ORDER BY seq LIMIT 1")) is not None:
                self._set(
                    row,
                    state=JobState.RUNNING,
                    owner=owner,
                    process=self._process,
                    delivery=row["delivery"] + 1,
                    tries=row["tries"] + 1,
                    expires_s=self._clock.monotonic() + ttl_s,
                    ttl_s=ttl_s,
                )
                job = _job(self._row("seq = ?", row["seq"]))
                if job.result is None:
                    return job
                self._end(row, job.result)  # quarantined: the others go on
        return None

    async def heartbeat(self, job: Job, *, ttl_s: float) -> None:
        with self._file.writing():
            row = self._held(job)
            if row is None:
                raise LeaseLost(f"job {job.id} ({job.key}): delivery {job.delivery} no longer holds it")
            self._set(row, expires_s=self._clock.monotonic() + ttl_s, ttl_s=ttl_s)

    async def finish(self, job: Job, result: JobResult) -> Job:
        text = _text(result)
        with self._file.writing():
            row = self._held(job)
            if row is not None:
                self._end(row, result)
            else:
                values = (int(job.id), job.delivery, job.owner, self._clock.now(), text)
                self._file.db.execute("INSERT INTO late VALUES (?, ?, ?, ?, ?)", values)
            row = self._row("seq = ?", job.id)
        await asyncio.to_thread(self._file.sync)
        return _job(row)

    async def release(self, job: Job, *, error: str = "", counts: bool = True) -> Job:
        with self._file.writing():
            row = self._held(job)
            if row is not None:
                self._give_back(row, error, counts=counts)
            row = self._row("seq = ?", job.id)
        return _job(row)

    async def wait(self, job_id: str) -> Job:
        while True:
            with self._file.plainly():
                row = self._row("seq = ?", job_id)
            if row["state"] == JobState.DONE:
                return _job(row)
            finished = self._done.setdefault(job_id, asyncio.Event())
            with contextlib.suppress(TimeoutError):
                await within(self._clock, self._poll_s, finished.wait())

    async def counts(self) -> Mapping[str, int]:
        with self._file.plainly():
            rows = self._file.db.execute("SELECT state, count(*) FROM jobs GROUP BY state").fetchall()
        return dict.fromkeys(map(str, JobState), 0) | {row[0]: row[1] for row in rows}

    async def close(self) -> None:
        """Let go of the file. Using the queue again opens it again."""
        self._done.clear()
        self._file.close()

    # ------------------------------------------------------------ leases

    def _recover(self) -> None:
        """Give back what a process that no longer runs has leased; its end was not the job's fault."""
        with self._file.plainly():
            running = self._file.db.execute("SELECT process FROM jobs WHERE state = 'running'").fetchall()
        gone = {row[0] for row in running if not process.alive(row[0])}
        if gone:
            with self._file.writing():
                for row in self._rows("state = 'running'"):
                    if row["process"] in gone:
                        self._give_back(row, "its process ended", counts=False)

    def _held(self, job: Job) -> sqlite3.Row | None:
        """The row, if this very delivery still has it."""
        row = self._row("seq = ?", job.id)
        return row if row["state"] == JobState.RUNNING and row["delivery"] == job.delivery else None

    def _run_out(self) -> list[sqlite3.Row]:
        """Leases past their end. Those that end later than possible are of an earlier boot."""
        now_s = self._clock.monotonic()
        return self._rows("state = 'running' AND (expires_s <= ? OR expires_s > ? + ttl_s)", now_s, now_s)

    def _work_to_do(self) -> bool:
        with self._file.plainly():
            return self._find("state = 'queued' LIMIT 1") is not None or bool(self._run_out())

    def _give_back(self, row: sqlite3.Row, error: str, *, counts: bool = True) -> None:
        error = redact.text(error) or row["error"]
        if counts and row["tries"] >= self._max_deliveries:
            self._end(row, given_up(row["delivery"], row["tries"], error))
        else:
            self._set(row, state=JobState.QUEUED, owner="", error=error, tries=row["tries"] - (not counts))

    def _end(self, row: sqlite3.Row, result: JobResult) -> None:
        self._set(row, state=JobState.DONE, result=_text(result), done_at=self._clock.now())
        if waiting := self._done.pop(str(row["seq"]), None):
            waiting.set()

    # ------------------------------------------------------------ rows

    def _rows(self, where: str, *values: object) -> list[sqlite3.Row]:
        return self._file.db.execute(f"SELECT {COLUMNS} FROM jobs WHERE {where}", values).fetchall()  # noqa: S608  constants

    def _find(self, where: str, *values: object) -> sqlite3.Row | None:
        rows = self._rows(where, *values)
        return rows[0] if rows else None

    def _row(self, where: str, value: object) -> sqlite3.Row:
        row = self._find(where, value)
        if row is None:
            raise SettingsError(f"there is no job {value!r} in {self.path}")
        return row

    def _set(self, row: sqlite3.Row, **values: object) -> None:
        names = ", ".join(f"{name} = ?" for name in values)
        self._file.db.execute(f"UPDATE jobs SET {names} WHERE seq = ?", (*values.values(), row["seq"]))  # noqa: S608  constants


def _text(value: JobSpec | JobResult) -> str:
    """JSON without secrets, but for a job's files: they are what runs, and what its digest is of."""
    return dumps(value, clean=lambda plain: {k: v if k == "files" else redact.data(v) for k, v in plain.items()})


def _job(row: sqlite3.Row) -> Job:
    """The job in a row. What cannot be read makes it a job that ended with an infra fault, and says why."""
    spec = UNREADABLE
    try:
        spec, state = loads(row["spec"], JobSpec), JobState(row["state"])
        result = loads(row["result"], JobResult) if row["result"] is not None else None
    except ValueError as error:
        bad = f"quarantined: what the queue has stored cannot be read ({error})"
        state, result = JobState.DONE, JobResult(fault="infra", error=bad)
    return Job(
        id=str(row["seq"]),
        key=row["key"],
        spec=spec,
        state=state,
        delivery=row["delivery"],
        owner=row["owner"],
        result=result,
    )
