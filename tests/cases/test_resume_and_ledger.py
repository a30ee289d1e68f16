"""What is on disk after a kill, a full disk or a damaged file is enough, and nothing in it counts twice."""

import errno
import json
import os
import threading

import numpy as np
import pytest
from case_doubles import Killed, World, small_trainer

from nested_rl import rundir
from nested_rl.clock import VirtualClock
from nested_rl.errors import RunDirError, TrainerError
from nested_rl.meter import Meter
from nested_rl.rundir import RunDir, write_atomic
from nested_rl.types import Budget

pytestmark = pytest.mark.cases


async def test_a12_weights_never_reach_sampler(tmp_path):
    """The sampler stays at its first weights: the run ends after the first update and says so."""
    world = World(tmp_path / "run")
    first = await world.trainer.policy()

    async def stuck():
        return first

    world.trainer.policy = stuck
    with pytest.raises(TrainerError, match="sampler is still at version 0 after update 1"):
        await world.go()
    assert len(world.events("step.done")) == 1


@pytest.mark.parametrize(
    "place", ["between update and checkpoint", "between checkpoint and journal", "after the journal"]
)
async def test_a13_resume_replays(tmp_path, place, monkeypatch):
    """Wherever it is killed, each batch is trained exactly once."""
    world = World(tmp_path / "run", steps=4)
    save, append = world.trainer.save, rundir.Log.append

    async def dies_saving(name):
        if name == "00002":
            raise Killed
        return await save(name)

    def dies_writing(log, row, **how):
        if row.get("event") == "step.done" and row["step"] == 1:
            if place == "after the journal":
                append(log, row, **how)
            raise Killed
        append(log, row, **how)

    with monkeypatch.context() as patch:
        if place == "between update and checkpoint":
            world.trainer.save = dies_saving
        else:
            patch.setattr(rundir.Log, "append", dies_writing)
        with pytest.raises(Killed):
            await world.go()
    again = world.again()
    await again.go()
    assert again.trained() == [0, 1, 2, 3]
    assert again.trainer.history == [[0], [1], [2], [3]]
    assert [row["step"] for row in again.files.metrics()] == [0, 1, 2, 3]


async def test_a14_latest_is_not_latest(tmp_path):
    """Versions are numbers, and only those that the journal has are there: no name, no time of a file decides."""
    world = World(tmp_path / "run", steps=11)
    await world.go()
    folder = tmp_path / "run" / "checkpoints"
    (folder / "00012").write_text(json.dumps([12, "half written"]))
    for age, path in enumerate(sorted(folder.iterdir())):
        os.utime(path, (1e9 - age, 1e9 - age))
    again, loaded = world.again(steps=12), []
    load = again.trainer.load

    async def watched(ref):
        loaded.append(ref)
        await load(ref)

    again.trainer.load = watched
    await again.go()
    assert loaded[-1] == "00011"
    assert again.trainer.history[-2:] == [[10], [11]]


async def test_a15_nothing_saved(tmp_path):
    """Killed after two steps of a run with default settings: two steps are there, and a third follows."""
    world = World(tmp_path / "run", steps=25, eval_every=None, order=None)
    world.trainer.stops_at = 2
    with pytest.raises(TrainerError):
        await world.go()
    assert [e["ref"] for e in world.events("checkpoint", "step.done")] == ["00000", "00001", "00002"]
    again = world.again()
    again.trainer.stops_at = 3
    with pytest.raises(TrainerError):
        await again.go()
    assert again.trained() == [0, 1, 2]


async def test_a16_double_count(tmp_path):
    """Killed between a row of the ledger and everything that follows it: the row counts once, also when written twice."""
    run = RunDir.create(tmp_path / "run", {})

    def dies(row):
        run.costs_log.append(row)
        raise Killed

    meter = Meter(Budget(usd=1.0), clock=VirtualClock(), write=dies)
    meter.reserve("k#1", 0.3)
    with pytest.raises(Killed):
        meter.settle("k#1", 0.2, kind="job")
    run.close()
    run = RunDir.create(tmp_path / "run", {})
    again = Meter(Budget(usd=1.0), clock=VirtualClock(), write=run.costs_log.append, rows=run.costs())
    again.settle("k#1", 0.2, kind="job")
    again.settle("k#2", 0.1, kind="job")
    run.costs_log.append({"id": "k#2", "kind": "job", "usd": 0.1})
    assert again.spent_usd == pytest.approx(0.3)
    assert sum(row["usd"] for row in run.costs()) == pytest.approx(0.3)
    run.close()


class Telling:
    """A reward that shows when it was given."""

    def __init__(self):
        self.told = ["the-first-future"]

    def settings(self):
        return {}

    def __call__(self, outcome):
        return {self.told[-1]: outcome.post.value}


async def test_a17_stale_data_after_resume(tmp_path):
    """Set back to step 4 of 6, a run does not train on what its lost future left on disk."""
    world = World(tmp_path / "run", steps=6, max_steps_off_policy=0)
    world.reward = Telling()
    await world.go()
    journal = tmp_path / "run" / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    last = next(i for i, line in enumerate(lines) if '"step.done"' in line and '"step":3' in line)
    journal.write_text("".join(lines[: last + 1]))
    again = world.again()
    world.reward.told.append("the-second-future")
    await again.go()
    parts = {e.group: set(e.parts) for e in again.files.episodes()}
    assert parts == {i: {"the-first-future" if i < 4 else "the-second-future"} for i in range(6)}
    assert again.trained() == [0, 1, 2, 3, 4, 5]


async def test_a18_clean_up_kills_run(tmp_path, monkeypatch):
    """An older checkpoint of the same name cannot be removed: the new one is there all the same."""
    trainer = small_trainer(tmp_path)
    first = await trainer.save("00001")
    trainer._learner.theta[:] += 1

    def busy(*args, **how):
        raise OSError(errno.EBUSY, "Device or resource busy")

    with monkeypatch.context() as patch:
        for name in ("unlink", "rmdir", "remove"):
            patch.setattr(os, name, busy)
        assert await trainer.save("00001") == first
    theta = trainer._learner.theta.copy()
    await trainer.load(first)
    assert np.array_equal(trainer._learner.theta, theta)


def test_a33_shared_temp_name(tmp_path):
    """Two writers of one record, a thousand times each: a reader never sees half of one, and nothing else is left."""
    path = tmp_path / "record.json"
    texts = [json.dumps({"by": name, "text": name * size}).encode() for name, size in (("a", 300), ("b", 9000))]
    write_atomic(path, texts[0])

    def write(data):
        for _ in range(1000):
            write_atomic(path, data)

    writers = [threading.Thread(target=write, args=(text,)) for text in texts]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert path.read_bytes() in texts
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("nth", [1, 2, 4, 6, 8, 10])
async def test_a34_disk_full(tmp_path, nth, monkeypatch):
    """The disk is full at the n-th write: one plain error, machines given back; with room again nothing is missing or twice."""
    world = World(tmp_path / "run", machines=2)
    await world.again(steps=1).go()
    world = world.again()
    writes = []

    def full(handle):
        writes.append(handle)
        if len(writes) >= nth:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RunDirError, match="No space left on device"):
            await world.go()
    assert world.compute.out == set()
    again = world.again()
    await again.go()
    assert again.trained() == [0, 1, 2]
    assert json.loads((tmp_path / "run/checkpoints/00003").read_text()) == [3, [[0], [1], [2]]]
    done = again.events("job.done")
    assert len({e["key"] for e in done}) == len(done) == 6
    rows = again.files.costs()
    assert len({row["id"] for row in rows}) == len(rows)
