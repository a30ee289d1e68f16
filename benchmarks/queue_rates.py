"""The job queue: how many jobs a second go through it, from 1, 4 and 16 processes, beside two well-known queues on SQLite.

    .venvs/bench/bin/python benchmarks/queue_rates.py [--jobs 320] [--rounds 3] [--write]

Every process puts its share of the jobs, then takes and finishes until nothing is left. The same texts of 1 KB for all. Then
how long a lease takes with 10 and with 100,000 jobs waiting. Writes benchmarks/results/queue_rates.json.

The three do not promise the same. Here a job that was put, and a result, are on the disk when the call returns; persist-queue
waits for the disk with every change, a lease among them; litequeue never does, so it is compared with ours without these waits.
A lease that runs out is handed on here only.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import sqlite3
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import record
from queue_kinds import ALONE, LIKE, QUEUES, TEXT, Ours

PROCESSES = (1, 4, 16)
DEPTHS = (10, 100_000)
DONE, RUNNING, LEASES = 1000, 16, 100
"""Beside those that wait: jobs that are done, and that run. How many are leased in a round."""
TARGET = 2.0


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
    done.put(finished)


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
        finished = sum(done.get(timeout=300) for _ in workers)
        taken = time.perf_counter() - started
        for worker in workers:
            worker.join()
    assert finished == each * processes, f"{name}: {finished} of {each * processes} jobs came out"
    return taken / finished


def waits_a_job(name: str, jobs: int = 20) -> float:
    """How often one job waits for the disk."""
    seen: list[None] = []
    with tempfile.TemporaryDirectory() as folder:
        queue = QUEUES[name](Path(folder))
        queue.watch(lambda: seen.append(None))
        for number in range(jobs):
            queue.put(str(number))
        while (job := queue.take()) is not None:
            queue.finish(job)
    return len(seen) / jobs


def filled(folder: Path, depth: int) -> Ours:
    """A queue with so many jobs waiting, behind some that are done and some that run."""
    queue = Ours(folder)
    queue.put("done")
    queue.finish(queue.take())
    queue.put("running")
    queue.take()
    queue.put("waiting")
    with contextlib.closing(sqlite3.connect(folder / "queue.sqlite")) as db:
        names = [row[1] for row in db.execute("PRAGMA table_info(jobs)") if row[1] not in ("seq", "key")]
        columns = ", ".join(names)
        for key, times in (("done", DONE), ("running", RUNNING), ("waiting", depth)):
            numbers = f"WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < {times})"
            copies = f"SELECT '{key}-' || i, {columns} FROM n, jobs WHERE key = '{key}'"
            db.execute(f"{numbers} INSERT INTO jobs (key, {columns}) {copies}")
        db.commit()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return queue


def leases(depth: int) -> dict[str, float]:
    """Median seconds of a lease, by both clocks. Every job is another; for each that is leased a new one is put."""
    clocks = {"wall": time.perf_counter, "cpu": time.process_time}
    taken: dict[str, list[float]] = {name: [] for name in clocks}
    with tempfile.TemporaryDirectory() as folder:
        queue, jobs = filled(Path(folder), depth), set()
        for number in range(LEASES):
            started = {name: clock() for name, clock in clocks.items()}
            job = queue.take()
            for name, clock in clocks.items():
                taken[name].append(clock() - started[name])
            jobs.add(job.key)
            queue.put(f"new-{number}")
    assert len(jobs) == LEASES, "a job was leased twice"
    return {name: record.median(seconds) for name, seconds in taken.items()}


def cycles(jobs: int, rounds: int) -> list[dict[str, Any]]:
    """Jobs a second of every queue and number of processes, in turn."""
    taken: dict[tuple[int, str], list[float]] = {}
    for _ in range(rounds):
        for processes in PROCESSES:
            for name in QUEUES:
                if processes == 1 or name not in ALONE:
                    taken.setdefault((processes, name), []).append(cycle_s(name, processes, jobs))
    waits = {name: waits_a_job(name) for name in QUEUES}
    return [
        {
            "queue": name,
            "processes": processes,
            "waits_a_job": waits[name],
            "jobs_per_s": record.significant(1 / record.median(seconds), 3),
            "by": LIKE.get(name),
            "ratio": record.significant(record.ratio(taken[processes, LIKE[name]], seconds), 3)
            if name in LIKE
            else None,
        }
        for (processes, name), seconds in taken.items()
    ]


def depths(rounds: int) -> tuple[dict[int, dict[str, list[float]]], float]:
    """Seconds of a lease by depth and clock, of every round, and the calibration between them."""
    calibration = record.Calibration(time.perf_counter)
    found: dict[int, dict[str, list[float]]] = {depth: {"wall": [], "cpu": []} for depth in DEPTHS}
    for _ in range(rounds):
        for depth in DEPTHS:
            for clock, seconds in leases(depth).items():
                found[depth][clock].append(seconds)
            for _ in range(5):
                calibration.take()
    return found, calibration.seconds


def apart(rounds: int) -> dict[str, float]:
    """Wall-clock milliseconds a job of what ours does besides SQLite and the disk."""
    with tempfile.TemporaryDirectory() as folder:
        taken = record.interleaved(Ours(Path(folder)).apart(), rounds=50 * rounds, clock=time.perf_counter)
    return {
        f"{name}_ms": record.significant(1e3 * record.median(seconds), 3)
        for name, seconds in taken.items()
        if name != record.CALIBRATION
    }


def enough(text: str) -> int:
    """Jobs: every process has at least one."""
    if (number := record.count(text)) < max(PROCESSES):
        raise argparse.ArgumentTypeError(f"must be at least {max(PROCESSES)}, one for each process")
    return number


def main() -> None:
    """Print the tables and write them."""
    parser = record.options(__doc__)
    parser.add_argument("--jobs", type=enough, default=320)
    parser.add_argument("--rounds", type=record.count, default=3)
    asked = parser.parse_args()
    rows = cycles(asked.jobs, asked.rounds)
    by_depth, calibration_s = depths(asked.rounds)
    deeper = record.ratio(by_depth[DEPTHS[1]]["wall"], by_depth[DEPTHS[0]]["wall"])
    depth_rows = [
        {"waiting": depth}
        | {f"{clock}_ms": record.significant(1e3 * record.median(of), 3) for clock, of in clocks.items()}
        for depth, clocks in by_depth.items()
    ]
    other = apart(asked.rounds)
    record.show(
        "Put, leased and finished",
        ("queue", "processes", "waits for the disk a job", "jobs/s", "compared with", "times as many jobs"),
        [tuple(r.values()) for r in rows],
    )
    record.show(
        f"A lease; {deeper:.2f} times longer with the larger queue (at most {TARGET})",
        ("jobs waiting", "wall-clock ms", "CPU-ms"),
        [tuple(r.values()) for r in depth_rows],
    )
    record.show("Of a job of ours, besides SQLite and the disk", tuple(other), [tuple(other.values())])
    if not record.usual(parser, asked):
        return
    record.write(
        "queue_rates",
        calibration_s=calibration_s,
        seconds={f"lease, {depth} waiting": record.median(of["wall"]) for depth, of in by_depth.items()},
        ratios={
            f"jobs a second, {r['queue']} by {r['by']}, {r['processes']} processes": r["ratio"] for r in rows if r["by"]
        }
        | {"lease, by depth": deeper},
        versions={name: version(name) for name in ("litequeue", "persist-queue")} | {"sqlite": sqlite3.sqlite_version},
        target=TARGET,
        settings={
            "jobs": asked.jobs, "rounds": asked.rounds, "text_bytes": len(TEXT), "done": DONE, "running": RUNNING, "leases": LEASES,
        },
        rows=rows,
        depths=depth_rows,
        apart=other,
    )  # fmt: skip


if __name__ == "__main__":
    main()
