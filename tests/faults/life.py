"""One life of a small experiment, and what must hold after however many of them."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

from case_doubles import Trainer, World

from nested_rl.rundir import RunDir, write_atomic
from nested_rl.serialize import dumps

STEPS = 2


class Saver(Trainer):
    """Its checkpoints appear at once."""

    async def save(self, name):
        write_atomic(self.folder / name, dumps([self.version, self.history]).encode(), sync=True)
        return name


class Priced(Saver):
    """An update costs a dollar, whatever becomes of it."""

    paid = 0

    async def update(self, groups):
        report = await super().update(groups)
        Priced.paid += 1
        return type(report)(version=report.version, stepped=report.stepped, usd=1.0)


def life(path: Path, clock=None, *, trainer=Saver) -> World:
    """A process: its own queue on the file in the run directory, everything else as it was asked the first time."""
    world = World(path, machines=2, steps=STEPS, eval_every=STEPS)
    world.queue, world.clock = None, clock or world.clock
    world._parts()
    world.trainer = trainer(world.trainer.say)
    return world


def done_jobs(path: Path) -> set[str]:
    """Keys of the jobs whose results are in the queue."""
    if not (path / "queue.sqlite").exists():
        return set()
    with closing(sqlite3.connect(path / "queue.sqlite")) as db:
        tables = db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'jobs'").fetchone()[0]
        return {row[0] for row in db.execute("SELECT key FROM jobs WHERE result IS NOT NULL")} if tables else set()


def learned(run: RunDir) -> list[dict[str, float]]:
    """What a run has come to: everything in its metrics but money, time and how many jobs really ran."""
    return [{k: v for k, v in row.items() if not k.startswith(("usd", "time/", "jobs/"))} for row in run.metrics()]


def check(world: World, calm: World, done_before: set[str]) -> None:
    """Nothing lost, nothing twice, and in the end as if nothing had happened."""
    run = world.files
    assert run.finished
    assert learned(run) == learned(calm.files)
    last = json.loads((run.path / "checkpoints" / f"{STEPS:05d}").read_text())
    assert last == [STEPS, calm.trainer.history] == [STEPS, [[i] for i in range(STEPS)]]
    steps = [event["step"] for event in run.events("step.done")]
    assert steps == list(range(STEPS)), "an update was made twice, or not at all"
    again = done_before & {key for key, _ in world.inner.started}
    assert not again, "a job was paid for again whose result was there"
    check_money(run)
    assert [e.reward for e in run.episodes()] == [e.reward for e in calm.files.episodes()]
    assert sorted(run.evals()) == sorted(calm.files.evals()) == sorted(e["name"] for e in run.events("eval.done"))
    assert (run.path / "report.html").read_text() == "<html>"
    assert not list(run.path.rglob(".draft-*"))


def check_money(run: RunDir) -> None:
    """Each delivery that was begun has one row in the ledger; each job with a result, one that says so; and it adds up."""
    rows = [row for row in run.costs_log.rows() if "#" in row["id"] and not row["id"].startswith("update")]
    ids = Counter(row["id"] for row in rows)
    assert set(ids.values()) <= {1}
    begun = {f"{event['key']}#{event['delivery']}" for event in run.events("job.started")}
    assert begun <= set(ids)
    assert all(row["usd"] >= 0 for row in rows)
    paid = Counter(row["id"].partition("#")[0] for row in rows if row["kind"] == "job")
    assert paid == Counter(done_jobs(run.path))
    told = {
        f"{event['key']}#{event['delivery']}": event["usd"]
        for event in run.events("job.done", "job.late", "job.lost", "job.released")
    }
    assert told == {row["id"]: row["usd"] for row in rows}
