"""Single records under faults: checkpoints of the real trainer, the ledger, updates that cost, torn queues, wrong clocks."""

import asyncio
import contextlib
import errno
import os
import shutil

import numpy as np
import pytest
from attrs import evolve
from case_doubles import small_trainer
from disk import KINDS, Killed
from life import Priced, check, check_money, done_jobs, learned, life

from nested_rl import scratch
from nested_rl.errors import NestedRLError, RunDirError
from nested_rl.queues.sqlite import SqliteQueue
from nested_rl.rundir import Log, RunDir
from nested_rl.testing.values import made_spec
from nested_rl.types import JobResult

DAY_S = 86400.0


@pytest.mark.parametrize("kind", ["each in turn", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS)])
async def test_a_checkpoint_is_the_old_one_or_the_new_one(disk, tmp_path, kind):
    """Wherever writing over a checkpoint breaks, one of the two is there, whole; the next save works, and nothing is left."""
    trainer = small_trainer(tmp_path)
    folder = tmp_path / "checkpoints"
    await trainer.save("00001")
    old = trainer._learner.theta.copy()
    trainer._learner.theta[:] += 1
    new = trainer._learner.theta.copy()
    disk.arm(-1, "")
    await trainer.save("00001")
    effects = len(disk.ops)
    seen = set()
    for at in range(effects):
        disk.restart()
        shutil.rmtree(folder)
        trainer._learner.theta[:] = old
        await trainer.save("00001")
        trainer._learner.theta[:] = new
        disk.arm(at, KINDS[at % 4] if kind == "each in turn" else kind)
        with contextlib.suppress(Killed, RunDirError):
            await trainer.save("00001")
        disk.restart()
        await trainer.load("00001")
        found = trainer._learner.theta
        seen |= {name for name, theta in (("old", old), ("new", new)) if np.array_equal(found, theta)}
        assert np.array_equal(found, old) or np.array_equal(found, new), disk.hit
        await trainer.save("00001")
        scratch.sweep(folder)
        assert [p.name for p in folder.iterdir()] == ["00001"]
    assert seen == {"old", "new"}


async def test_an_update_that_has_to_be_made_again_is_paid_for_again(disk, tmp_path):
    """Killed between the update and its commit: both tries cost a dollar, and the ledger has both."""
    paid, world = Priced.paid, life(tmp_path / "run", trainer=Priced)
    disk.arm(-1, "")
    await world.go()
    place = disk.ops.index("replace 00002")
    disk.restart()
    first = life(tmp_path / "again", trainer=Priced)
    disk.arm(place, "kill")
    with pytest.raises(Killed):
        await first.go()
    disk.restart()
    second = life(tmp_path / "again", first.clock, trainer=Priced)
    await second.go()
    rows = [row for row in second.files.costs() if row["kind"] == "update"]
    assert sorted(row["id"] for row in rows) == ["update-1", "update-2", "update-2#2"]
    assert sum(row["usd"] for row in rows) + 2 == Priced.paid - paid
    assert learned(second.files) == learned(world.files)


@pytest.mark.parametrize("jump_s", [DAY_S, -DAY_S])
@pytest.mark.parametrize("then", ["goes on", "is killed"])
async def test_a_wall_clock_that_jumps_changes_no_result_and_no_price(disk, tmp_path, jump_s, then):
    calm = life(tmp_path / "calm")
    disk.arm(-1, "")
    await calm.go()
    starts = [i for i, name in enumerate(disk.ops) if name == "write journal.jsonl"]
    disk.restart()
    for at in starts[5::18]:
        world = life(tmp_path / str(at))
        clock = world.clock

        def jump(clock=clock):
            clock.now = lambda: clock.monotonic() + jump_s

        disk.arm(at, jump)
        done = set()
        if then == "is killed":
            with contextlib.suppress(Killed):
                await asyncio.gather(world.go(), _killed_soon(disk))
            disk.restart()
            done = done_jobs(tmp_path / str(at))
            world = life(tmp_path / str(at), clock)
        await world.go()
        check(world, calm, done)
        ledger = {row["id"]: row["usd"] for row in world.files.costs()}
        for row in calm.files.costs():
            assert ledger[row["id"]] == pytest.approx(row["usd"], abs=world.inner.timeout_s / 100)
        disk.restart()


async def _killed_soon(disk):
    """Dead a few side effects after the clock has jumped."""
    while not disk.hit:  # noqa: ASYNC110  the disk sends no events
        await asyncio.sleep(0)
    for _ in range(30):
        await asyncio.sleep(0)
    disk.dead = True


async def test_a_line_that_cannot_be_taken_back_is_cut_off_before_the_next(tmp_path, monkeypatch):
    """Half a line lands, and the disk refuses even to shorten the file: the journal is whole all the same."""
    log = Log(tmp_path / "j")
    log.append({"a": 1})
    real = log._file

    class Broken:
        def fileno(self):
            return real.fileno()

        def close(self):
            real.close()

        def write(self, line):
            real.write(line[:4])
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        def truncate(self, size):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    log._file = Broken()
    with pytest.raises(RunDirError, match="Input/output error"):
        log.append({"a": 2})
    log.append({"a": 3})
    assert list(log.rows()) == [{"a": 1}, {"a": 3}]
    log.close()


async def test_a_torn_log_of_the_queue_is_an_earlier_state_of_it(tmp_path):
    """However much of SQLite's write-ahead log has landed, the queue opens, and holds a beginning of what was done."""
    queue = SqliteQueue(tmp_path / "q")
    for number in range(6):
        await queue.put(made_spec(), key=str(number))
        await queue.finish(await queue.lease("me", ttl_s=60), JobResult(cost=float(number)))
    log = (tmp_path / "q-wal").read_bytes()
    lengths = []
    for number, size in enumerate(range(0, len(log), len(log) // 40)):
        folder = tmp_path / str(number)
        folder.mkdir()
        shutil.copy(tmp_path / "q", folder / "q")
        (folder / "q-wal").write_bytes(log[:size])
        torn = SqliteQueue(folder / "q")
        rows = torn._file.db.execute("SELECT key, state, result FROM jobs ORDER BY seq").fetchall()
        assert [row["key"] for row in rows] == [str(i) for i in range(len(rows))]
        assert all(row["state"] == "done" for row in rows[:-1])
        lengths.append(len(rows))
        await torn.put(made_spec(), key="next")
        assert torn._file.db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        await torn.close()
    assert lengths == sorted(lengths)
    assert len(set(lengths)) > 3
    await queue.close()


async def test_a_damaged_episode_is_told_and_made_again_from_the_results_that_are_there(disk, tmp_path):
    """Half of a transcript, as a power cut leaves it, in a group that is not trained yet."""
    world = life(tmp_path / "run")
    disk.arm(-1, "")
    await world.go()
    place = disk.ops.index("replace 00002")
    disk.restart()
    first = life(tmp_path / "torn")
    disk.arm(place, "kill")
    with contextlib.suppress(Killed, NestedRLError):
        await first.go()
    disk.restart()
    transcript = tmp_path / "torn" / "episodes" / "00001-0" / "transcript.jsonl"
    transcript.write_bytes(transcript.read_bytes()[:40])
    with pytest.raises(RunDirError, match="00001-0: damaged"):
        RunDir.open(tmp_path / "torn").read_episode(1, 0)
    done = done_jobs(tmp_path / "torn")
    second = life(tmp_path / "torn", first.clock)
    await second.go()
    check(second, world, done)
    (told,) = second.events("episode.damaged")
    assert (told["group"], told["member"]) == (1, 0)


async def test_what_an_earlier_try_at_an_episode_has_left_is_no_part_of_the_next(tmp_path):
    """Three attempts, then one: the record has one."""
    world = life(tmp_path / "run")
    await world.go()
    once = world.files.read_episode(0, 0)
    thrice = evolve(once, validations=once.validations * 3)
    world.files.write_episode(thrice, files={3: {"job.toml": "x"}})
    assert world.files.read_episode(0, 0) == thrice
    world.files.write_episode(once, files={1: {"job.toml": "y"}})
    assert world.files.read_episode(0, 0) == once


async def test_baselines_that_were_measured_before_a_kill_are_not_measured_again(disk, tmp_path):
    calm = life(tmp_path / "calm")
    disk.arm(-1, "")
    await calm.go()
    places = [i for i, name in enumerate(disk.ops) if name == "replace baselines.json"]
    disk.restart()
    first = life(tmp_path / "run")
    disk.arm(places[2], "kill")
    with pytest.raises(Killed):
        await first.go()
    disk.restart()
    second = life(tmp_path / "run", first.clock)
    await second.go()
    measured = [model for model, _ in second.scorer.asked if isinstance(model, str)]
    assert len(measured) == len(places) - 2
    check_money(second.files)
