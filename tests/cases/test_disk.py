"""Checkpoints do not fill the disk: old ones go, and a full disk is told before a step is paid for."""

import json
import shutil
from types import SimpleNamespace

import pytest
from case_doubles import World, small_trainer

from nested_rl import Experiment, retention
from nested_rl.errors import RunDirError, SettingsError, TrainerError

pytestmark = pytest.mark.cases

MIB = 1 << 20


@pytest.fixture
def world(tmp_path):
    """Its checkpoints are 1 MiB each. `world.peak` is the most there were at once."""
    world = World(tmp_path / "run", steps=20, keep_checkpoints=2)
    furnish(world)
    return world


def furnish(world):
    trainer = world.trainer
    save, world.peak, world.busy, world.asked = trainer.save, 0, False, []

    async def saves(name):
        ref = await save(name)
        (trainer.folder / f"{name}.bin").write_bytes(bytes(MIB))
        world.peak = max(world.peak, len(list(trainer.folder.glob("*.bin"))))
        return ref

    async def forget(ref):
        world.asked.append(ref)
        if world.busy:
            raise RunDirError(f"{ref}: Device or resource busy")
        for path in (trainer.folder / ref, trainer.folder / f"{ref}.bin"):
            path.unlink(missing_ok=True)

    trainer.save, trainer.forget = saves, forget


def kept(world):
    return sorted(int(path.stem) for path in (world.path / "checkpoints").glob("*.bin"))


async def test_a35_disk_filled_by_checkpoints(world):
    """20 steps of 1 MiB: the two newest stay, and the first, the best and the one being written besides."""
    await world.go()
    assert world.peak <= 2 + 3
    newest = kept(world)[-2:]
    assert newest == [19, 20]
    assert kept(world)[0] == 0
    assert len(kept(world)) <= 4
    assert set(retention.refs(world.files)) == set(kept(world))
    gone = [e["version"] for e in world.events("checkpoint.gone")]
    assert sorted([*gone, *kept(world)]) == list(range(21))


async def test_a35_all_are_kept_when_asked_and_a_hundred_by_default(tmp_path):
    world = World(tmp_path / "run", steps=6, keep_checkpoints=None)
    furnish(world)
    await world.go()
    assert kept(world) == list(range(7))
    assert world.again().run["keep_checkpoints"] is None
    other = World(tmp_path / "other", steps=6)
    furnish(other)
    await other.go()
    assert kept(other) == list(range(7))
    assert other.files.spec["keep_checkpoints"] == retention.KEEP_CHECKPOINTS == 100


@pytest.mark.parametrize("order", ["index", "ready"])
async def test_a35_a_run_with_few_checkpoints_can_be_gone_on_with(tmp_path, order):
    """Killed after any step, with evaluations and off-policy groups under way: what a resumed run needs is still there."""
    many = World(tmp_path / "many", steps=6, order=order, max_steps_off_policy=2, eval_every=3, keep_checkpoints=None)
    await many.go()
    few = World(tmp_path / "few", steps=6, order=order, max_steps_off_policy=2, eval_every=3, keep_checkpoints=1)
    furnish(few)
    for steps in (2, 3, 6):
        few = few.again(steps=steps)
        furnish(few)
        await few.go()
    assert few.trained() == many.trained()
    assert len(kept(few)) <= 1 + 2 + 3


async def test_a35_what_is_gone_is_told_by_name(world):
    await world.go()
    refs = retention.refs(world.files)
    missing = next(v for v in range(21) if v not in refs)
    with pytest.raises(SettingsError, match=rf"no version '{missing}'.*saved: 0"):
        await Experiment().evaluate_async(world.experiment().tasks, policy=f"RUN@{missing}", n=1, out=world.path)


async def test_a18_a_checkpoint_that_cannot_be_deleted_is_tried_again(world, caplog):
    world.busy = True
    world.run["steps"] = 5
    await world.go()
    assert "cannot be deleted now" in caplog.text
    assert kept(world) == list(range(6))
    again = world.again(steps=6)
    furnish(again)
    await again.go()
    assert len(kept(again)) < 6
    assert again.asked


async def test_a35_no_room_is_told_before_the_step_is_paid_for(world, monkeypatch):
    """The error says how much is there and how much is needed; with room again the run goes on, and nothing is done twice."""
    real, full = shutil.disk_usage, [False]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=5 * MIB) if full[0] else real(path))
    world.run["steps"] = 2
    await world.go()
    again = world.again(steps=4)
    furnish(again)
    updates = len(again.trainer.history)
    full[0] = True
    with pytest.raises(RunDirError, match=r"5 MiB are free, and the next step needs about 1[67]; make room"):
        await again.go()
    assert len(again.trainer.history) == updates + 2 == 2
    full[0] = False
    last = again.again(steps=4)
    furnish(last)
    await last.go()
    assert last.trained() == [0, 1, 2, 3]


async def test_a35_the_real_trainer_forgets(tmp_path):
    trainer = small_trainer(tmp_path)
    first, second = await trainer.save("00000"), await trainer.save("00001")
    await trainer.forget(first)
    await trainer.forget(first)
    with pytest.raises(TrainerError, match="no such checkpoint"):
        await trainer.load(first)
    await trainer.load(second)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["00001"]


async def test_a35_a_job_leaves_only_text(tmp_path):
    """What a job trained stays on its machine and goes with the lease: the run directory has its files and its result."""
    world = World(tmp_path / "run", steps=1)
    await world.go()
    left = {path.name for path in (tmp_path / "run" / "episodes").rglob("*") if path.is_file()}
    assert left <= {
        "transcript.jsonl",
        "validation.json",
        "job.toml",
        "environment.py",
        "result.json",
        "reward.json",
        "jobs.json",
    }
    assert json.loads(next((tmp_path / "run").rglob("result.json")).read_text())["machine"]
