"""The queues that queue_rates.py compares: the package's own, and two well-known ones on SQLite."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import litequeue
import persistqueue

from nested_rl.queues import sqlite
from nested_rl.serialize import loads
from nested_rl.types import JobResult, JobSpec, Score, Task

TEXT = "x" * 1024


class Queue(Protocol):
    def put(self, key: str) -> None: ...
    def take(self) -> Any: ...
    def finish(self, job: Any) -> None: ...
    def watch(self, waits: Callable[[], None]) -> None:
        """From now on call `waits` whenever the disk is waited for."""


class Ours:
    """`nested_rl.queues.SqliteQueue`, synced or not."""

    def __init__(self, folder: Path, *, synced: bool = True) -> None:
        self._queue = sqlite.SqliteQueue(folder / "queue.sqlite")
        self._file, self._synced = self._queue._file, synced  # noqa: SLF001
        if not synced:
            self._file.sync = lambda: None  # type: ignore[method-assign]
        self._run = asyncio.Runner().run
        task = Task(id="t", family="calc_chain", difficulty=1)
        self._spec = JobSpec(task=task, files={"environment.py": TEXT}, digest="0" * 64, base="nano-m", scale="nano")
        self._result = JobResult(post=Score.of([1.0] * 16), cost=1.0, cost_limit=2.0, seconds=1.0)

    def put(self, key: str) -> None:
        self._run(self._queue.put(self._spec, key=key))

    def take(self) -> Any:
        return self._run(self._queue.lease("me", ttl_s=60.0))

    def finish(self, job: Any) -> None:
        self._run(self._queue.finish(job, self._result))

    def watch(self, waits: Callable[[], None]) -> None:
        on_commit(self._file.db, waits)
        if self._synced:
            sync = self._file.sync
            self._file.sync = lambda: (waits(), sync())[1]  # type: ignore[method-assign]

    def apart(self) -> dict[str, Callable[[], object]]:
        """What one job takes besides SQLite and the disk: its JSON both ways, and the changes of threads for two waits."""
        write = sqlite._text  # noqa: SLF001  with what it takes to leave out secrets
        spec, result = write(self._spec), write(self._result)

        def texts() -> None:
            write(self._spec), write(self._result)
            for _ in range(3):  # put, lease and finish give it back
                loads(spec, JobSpec)
            loads(result, JobResult)

        async def two_waits() -> None:
            for _ in range(2):
                await asyncio.to_thread(lambda: None)

        return {"json": texts, "threads": lambda: self._run(two_waits())}


class Lite:
    """litequeue."""

    def __init__(self, folder: Path) -> None:
        self._queue = litequeue.LiteQueue(str(folder / "queue.sqlite"), timeout=60)

    def put(self, key: str) -> None:
        self._queue.put(json.dumps({"key": key, "text": TEXT}))

    def take(self) -> Any:
        return self._queue.pop()

    def finish(self, job: Any) -> None:
        self._queue.done(job.message_id)

    def watch(self, waits: Callable[[], None]) -> None:
        on_commit(self._queue.conn, waits)


class Persist:
    """persist-queue's SQLiteAckQueue. Its items in hand are kept in memory: several processes may be given the same one."""

    def __init__(self, folder: Path) -> None:
        self._queue = persistqueue.SQLiteAckQueue(str(folder), auto_commit=True, timeout=60)

    def put(self, key: str) -> None:
        self._queue.put({"key": key, "text": TEXT})

    def take(self) -> Any:
        try:
            return self._queue.get(block=False)
        except persistqueue.Empty:
            return None

    def finish(self, job: Any) -> None:
        self._queue.ack(job)

    def watch(self, waits: Callable[[], None]) -> None:
        on_commit(self._queue._putter, waits)  # noqa: SLF001


def on_commit(db: sqlite3.Connection, waits: Callable[[], None]) -> None:
    """With a log that is written ahead, a commit waits for the disk if `synchronous` is FULL (2) or more."""
    if db.execute("PRAGMA synchronous").fetchone()[0] >= 2:
        db.set_trace_callback(lambda statement: waits() if statement == "COMMIT" else None)


QUEUES: dict[str, Callable[[Path], Queue]] = {
    "nested_rl": Ours,
    "nested_rl, not synced": lambda folder: Ours(folder, synced=False),
    "litequeue": Lite,
    "persist-queue": Persist,
}
ALONE = {"persist-queue"}
LIKE = {
    "nested_rl": "nested_rl, not synced",
    "litequeue": "nested_rl, not synced",
    "persist-queue": "nested_rl",
}
"""What each is compared with: ours where it waits for the disk, or does not, as it does."""
