"""The job queue: how many jobs a second go through it, from 1, 4 and 16 processes, beside two well-known queues on SQLite.

    .venvs/bench/bin/python benchmarks/queue_rates.py [--jobs 320] [--rounds 3]

Every process puts its share of the jobs, then takes and finishes until nothing is left. The same texts of 1 KB for all. Then
how long a lease takes with 10 and with 100,000 jobs waiting. Writes benchmarks/results/queue_rates.json.

The three do not promise the same: here a job that was put, and a result, are on the disk when the call returns, and a lease
that runs out is handed on; litequeue and persist-queue leave both to the caller.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import sqlite3
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import litequeue
import persistqueue
import record

from nested_rl.queues.sqlite import SqliteQueue
from nested_rl.types import JobResult, JobSpec, Score, Task

PROCESSES = (1, 4, 16)
DEPTHS = (10, 100_000)
TARGET = 2.0
TEXT = "x" * 1024


class Queue(Protocol):
    def put(self, key: str) -> None: ...
    def take(self) -> Any: ...
    def finish(self, job: Any) -> None: ...


class Ours:
    """`nested_rl.queues.SqliteQueue`, synced or not: without the waits for the disk it is like the others."""

    def __init__(self, folder: Path, *, synced: bool = True) -> None:
        self._queue = SqliteQueue(folder / "queue.sqlite")
        if not synced:
            self._queue._file.sync = lambda: None  # noqa: SLF001
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


class Lite:
    """litequeue."""

    def __init__(self, folder: Path) -> None:
        self._queue = litequeue.LiteQueue(str(folder / "queue.sqlite"), timeout=60)

    def put(self, key: str) -> None:
        self._queue.put(json.dumps({"key": key, "text": TEXT}))

    def take(self) -> Any:
        return self._queue.pop() if hasattr(self._queue, "pop") else self._queue.get()

    def finish(self, job: Any) -> None:
        self._queue.done(job.message_id)


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


QUEUES: dict[str, Callable[[Path], Queue]] = {
    "nested_rl": Ours,
    "nested_rl, not synced": lambda folder: Ours(folder, synced=False),
    "litequeue": Lite,
    "persist-queue": Persist,
}
ALONE = {"persist-queue"}


def share(name: str, folder: Path, number: int, jobs: int, gate: Any, done: Any) -> None:
    """One process's part."""
    queue = QUEUES[name](folder)
    gate.wait()
    for i in range(jobs):
        queue.put(f"{number}-{i}")
    gate.wait()
    finished = 0
    while (job := queue.take()) is not None:
        queue.finish(job)
        finished += 1
    done.put((finished, time.process_time()))


def cycle_s(name: str, processes: int, jobs: int) -> float:
    """Wall-clock seconds for one job to go through, with so many processes at work."""
    context = multiprocessing.get_context("spawn")
    gate, done = context.Barrier(processes + 1), context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        QUEUES[name](Path(folder))
        each = jobs // processes
        workers = [
            context.Process(target=share, args=(name, Path(folder), i, each, gate, done)) for i in range(processes)
        ]
        for worker in workers:
            worker.start()
        gate.wait(120)
        started = time.perf_counter()
        gate.wait(300)
        finished = sum(done.get(timeout=300)[0] for _ in workers)
        taken = time.perf_counter() - started
        for worker in workers:
            worker.join()
    assert finished == each * processes, f"{name}: {finished} of {each * processes} jobs came out"
    return taken / finished


def leases(depth: int, n: int) -> list[float]:
    """Seconds of `n` leases with `depth` jobs waiting (each is put back by its lease running out never: they are plenty)."""
    with tempfile.TemporaryDirectory() as folder:
        queue = Ours(Path(folder))
        queue.put("0")
        with sqlite3.connect(Path(folder) / "queue.sqlite") as db:
            numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {depth - 1})"
            db.execute(f"{numbers} INSERT INTO jobs (key, spec, put_at) SELECT 'k' || i, spec, put_at FROM n, jobs")
        taken = []
        for _ in range(n):
            started = time.process_time()
            job = queue.take()
            taken.append(time.process_time() - started)
            queue._run(queue._queue.release(job, counts=False))  # noqa: SLF001 - the depth stays
    return taken


def main() -> None:
    """Print the tables and write them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--jobs", type=int, default=320)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    taken: dict[tuple[str, int], list[float]] = {}
    for _ in range(asked.rounds):
        for processes in PROCESSES:
            for name in QUEUES:
                if processes == 1 or name not in ALONE:
                    taken.setdefault((name, processes), []).append(cycle_s(name, processes, asked.jobs))
    rows = [
        {
            "queue": name,
            "processes": processes,
            "jobs_per_s": record.significant(1 / record.median(seconds), 3),
            "faster": record.significant(record.ratio(seconds, taken["nested_rl, not synced", processes]), 3),
        }
        for (name, processes), seconds in sorted(
            taken.items(), key=lambda item: (item[0][1], list(QUEUES).index(item[0][0]))
        )
    ]
    by_depth: dict[int, list[float]] = {depth: [] for depth in DEPTHS}
    for _ in range(asked.rounds):
        for depth in DEPTHS:
            by_depth[depth] += leases(depth, 100)
    depths = {depth: record.median(seconds) for depth, seconds in by_depth.items()}
    deeper = depths[DEPTHS[1]] / depths[DEPTHS[0]]
    record.show(
        "Put, leased and finished, jobs a second",
        ("queue", "processes", "jobs/s", "ours, not synced, is faster by"),
        [tuple(r.values()) for r in rows],
    )
    record.show(
        f"A lease, CPU-time; {deeper:.2f} times longer with the larger queue (at most {TARGET})",
        ("jobs waiting", "ms"),
        [(depth, round(seconds * 1e3, 3)) for depth, seconds in depths.items()],
    )
    record.write(
        "queue_rates",
        calibration_s=record.median(record.interleaved({}, rounds=15)[record.CALIBRATION]),
        seconds={f"lease, {depth} waiting": seconds for depth, seconds in depths.items()},
        ratios={f"{r['queue']} ÷ not synced, {r['processes']} processes": r["faster"] for r in rows}
        | {"lease, by depth": deeper},
        versions={name: version(name) for name in ("litequeue", "persist-queue")} | {"sqlite": sqlite3.sqlite_version},
        target=TARGET,
        settings={"jobs": asked.jobs, "rounds": asked.rounds, "text_bytes": len(TEXT)},
        rows=rows,
        depths=[
            {"waiting": depth, "cpu_ms": record.significant(seconds * 1e3, 3)} for depth, seconds in depths.items()
        ],
    )


if __name__ == "__main__":
    main()
