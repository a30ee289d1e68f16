"""The outer loop: pacing, order, masks, resume. Real loop, small doubles, virtual time."""

from __future__ import annotations

import json
from collections import Counter

import loop_doubles
import pytest
from loop_doubles import Rig

from nested_rl.errors import RewardError, SettingsError, SupervisionError
from nested_rl.loop import Loop, best_version
from nested_rl.rundir import RunDir


def steps_of(path):
    return list(RunDir.open(path).events("step.done"))


async def test_index_order_samples_each_group_at_its_version_and_trains_in_order(tmp_path):
    rig = Rig(tmp_path / "r", steps=5, groups_per_step=2, max_steps_off_policy=2)
    await rig.go()
    assert [e["groups"] for e in steps_of(rig.path)] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    started = {e["group"]: e["version"] for e in rig.run.events("group.started")}
    assert started == {i: max(0, i // 2 - 2) for i in range(10)}
    assert [row["staleness/max"] for row in rig.run.metrics()] == [0, 1, 2, 2, 2]


async def test_k_zero_is_on_policy(tmp_path):
    rig = Rig(tmp_path / "r", steps=3, max_steps_off_policy=0)
    await rig.go()
    assert all(row["staleness/max"] == 0 for row in rig.run.metrics())


async def half_slow(path, *, steps, update_s=0.0, **schedule):
    """A run of 4 groups a step in ready order, half of whose jobs take 40 s instead of 10; the share of slow ones by step."""
    rig = Rig(
        path,
        families=("fast", "slow"),
        seconds=lambda spec: 40.0 if spec.task.family == "slow" else 10.0,
        update_s=update_s,
        poll_s=1.0,
        steps=steps,
        groups_per_step=4,
        order="ready",
        **schedule,
    )
    await rig.go()
    assert rig.run.metrics()[-1]["groups/dropped"] == 0
    trained = [e["groups"] for e in steps_of(path)]
    assert sorted(group for groups in trained for group in groups) == list(range(4 * steps))
    slow = {episode.group for episode in rig.run.episodes() if episode.task.family == "slow"}
    return rig, [len(slow.intersection(groups)) / 4 for groups in trained]


def windows(shares, size, *, first, last):
    return [sum(shares[i : i + size]) / size for i in range(first, last + 1 - size)]


@pytest.mark.parametrize("off_policy", [1, 2])
async def test_ready_order_keeps_slow_work_and_lets_it_count(tmp_path, off_policy):
    """Half the groups take four times as long; once the pipeline is full they are about half of what is trained, at any time.

    Not counted are the first ten steps, since slow work that is under way cannot be trained yet, and the last, in which what is left
    is slow.
    """
    _, shares = await half_slow(tmp_path / "r", steps=40, max_steps_off_policy=off_policy)
    found = windows(shares, 10, first=10, last=36)
    assert 0.45 <= min(found) <= max(found) <= 0.55


@pytest.mark.parametrize("off_policy", [2, 3])
async def test_of_more_than_a_step_needs_the_oldest_are_trained(tmp_path, off_policy):
    """Updates take longer than any job, so more is done than a step needs: nothing waits longer for its turn, fast or slow."""
    rig, shares = await half_slow(tmp_path / "r", steps=12, update_s=60.0, max_steps_off_policy=off_policy)
    assert {*shares[2:]} == {0.5}
    assert max(row["staleness/max"] for row in rig.run.metrics()) == off_policy


async def test_ready_order_does_not_wait_for_one_slow_job(tmp_path):
    rig = Rig(
        tmp_path / "r",
        seconds=lambda spec: 1000.0 if spec.task.id.endswith("-0") else 1.0,
        steps=4,
        groups_per_step=1,
        max_steps_off_policy=3,
        order="ready",
    )
    await rig.go()
    assert [e["groups"] for e in steps_of(rig.path)][-1] == [0]


async def test_stale_drop_is_counted_and_replaced(tmp_path):
    rig = Rig(
        tmp_path / "r",
        seconds=lambda spec: 7.0 if spec.task.id.endswith("-0") else 1.0,
        steps=6,
        groups_per_step=1,
        max_steps_off_policy=1,
        order="ready",
        stale="drop",
    )
    await rig.go()
    trained = [g for e in steps_of(rig.path) for g in e["groups"]]
    assert len(trained) == 6
    assert 0 not in trained
    assert rig.run.metrics()[-1]["groups/dropped"] == 1


async def test_a_masked_member_is_counted_and_a_group_of_one_is_skipped(tmp_path):
    seen = Counter()

    def fail(task, seed):
        seen[task.id] += 1
        return OSError("sampler down") if task.id.endswith("-1") and seen[task.id] == 1 else None

    rig = Rig(tmp_path / "r", fail=fail, steps=2)
    await rig.go()
    row = rig.run.metrics()[0]
    assert row["episodes/masked"] == 1
    assert row["groups/skipped"] == 1
    episode = next(e for e in rig.run.episodes() if e.masked)
    assert episode.outcome.fault == "infra"
    assert "sampler down" in episode.outcome.error


async def test_a_row_of_masked_episodes_ends_the_run(tmp_path):
    rig = Rig(tmp_path / "r", fail=lambda task, seed: OSError("down"), steps=9, group_size=8)
    with pytest.raises(SupervisionError, match="down"):
        await rig.go()


async def test_a_bad_reward_function_ends_the_run_and_nothing_is_lost(tmp_path):
    rig = Rig(tmp_path / "r")
    rig.reward = lambda outcome: "high"
    with pytest.raises(RewardError):
        await rig.go()
    rig.reward = lambda outcome: 0.5
    rig2 = Rig(rig.path).after(rig)
    await rig2.go()
    assert len(rig2.run.metrics()) == 4


async def test_a_dead_background_task_ends_the_run(tmp_path):
    rig = Rig(tmp_path / "r", seconds=lambda spec: 1e6)
    loop = rig.loop()
    rig.failed.set_exception(RuntimeError("boom"))
    with pytest.raises(SupervisionError, match="RuntimeError: boom"):
        await rig.clock.run(loop.run())
    assert all(task.done() for task in loop.groups.values())
    rig.run.close()


class Killed(BaseException):
    """kill -9, as far as the files can tell."""


CRASHES = [
    ("after update, before save", "save"),
    ("after save, before the journal", "journal"),
    ("after the journal, before metrics", "metrics"),
]


@pytest.mark.parametrize("where", [c[1] for c in CRASHES], ids=[c[0] for c in CRASHES])
@pytest.mark.parametrize("step", [0, 2])
async def test_killed_and_started_again_equals_never_killed(tmp_path, where, step, monkeypatch):
    calm = Rig(tmp_path / "calm", steps=4, max_steps_off_policy=1, eval_every=2)
    await calm.go()

    rig = Rig(tmp_path / "r", steps=4, max_steps_off_policy=1, eval_every=2)
    loop = rig.loop()
    if where == "save":
        save = rig.trainer.save

        async def dies(name):
            if name == f"{step + 1:05d}":
                raise Killed
            return await save(name)

        rig.trainer.save = dies
    else:
        log = rig.run.journal if where == "journal" else rig.run.metrics_log
        append = log.append

        def dies_too(row, **kw):
            if row.get("step") == step and row.get("event") in (None, "step.done"):
                raise Killed
            append(row, **kw)

        monkeypatch.setattr(log, "append", dies_too)
    with pytest.raises(Killed):
        await rig.go(loop)
    if where == "metrics":
        with (rig.path / "journal.jsonl").open("ab") as file:
            file.write(b'{"event":"torn')

    again = Rig(rig.path, steps=4, max_steps_off_policy=1, eval_every=2).after(rig)
    await again.go()
    skip = ("time/", "usd", "jobs/")
    plain = lambda rows: [{k: v for k, v in row.items() if not k.startswith(skip)} for row in rows]  # noqa: E731
    assert plain(again.run.metrics()) == plain(calm.run.metrics())
    assert again.trainer.history == calm.trainer.history
    assert [e["step"] for e in steps_of(rig.path)] == [0, 1, 2, 3]
    assert len(rig.finished + again.finished) == len(set(rig.finished + again.finished))
    assert set(again.run.evals()) == set(calm.run.evals())


async def test_more_steps_continue_a_finished_run(tmp_path):
    rig = Rig(tmp_path / "r", steps=2)
    await rig.go()
    longer = Rig(tmp_path / "r", steps=3).after(rig)
    await longer.go()
    assert len(longer.run.metrics()) == 3


async def test_a_used_trainer_is_refused(tmp_path):
    rig = Rig(tmp_path / "r")
    loop = rig.loop()
    rig.trainer.version = 7
    with pytest.raises(SettingsError, match="trainer"):
        await rig.clock.run(loop.run())
    rig.run.close()


async def test_validation_names_the_best_version(tmp_path):
    rig = Rig(tmp_path / "r", eval_every=2)
    await rig.go()
    evals = rig.run.evals()
    assert set(evals) == {"validation-00000", "validation-00002", "validation-00004"}
    assert best_version(rig.run) in (0, 2, 4)
    assert json.loads((rig.path / "evals/validation-00002/report.json").read_text())["version"] == 2


async def test_baselines_are_measured_once_per_run(tmp_path):
    rig = Rig(tmp_path / "r", families=("fast", "slow"))
    await rig.go()
    assert rig.scorer.asked == 2 * 2 * 2
    again = Rig(tmp_path / "r", families=("fast", "slow"), steps=5).after(rig)
    await again.go()
    assert again.scorer.asked == 0


def test_the_loop_can_be_read_in_one_sitting():
    import inspect

    assert len(inspect.getsource(Loop).splitlines()) < 400


async def test_what_the_agents_turns_cost_is_in_the_ledger_once_also_of_masked_episodes(tmp_path, monkeypatch):
    monkeypatch.setattr(loop_doubles.Policy, "usd", 0.25)
    failed = []

    def fail(task, seed):
        failed.append(seed)
        return RuntimeError("the sampler is gone") if len(failed) % 3 == 0 else None

    rig = Rig(tmp_path / "r", steps=2, groups_per_step=1, fail=fail)
    await rig.go(rig.loop())
    episodes = list(rig.run.episodes())
    rows = [row for row in rig.run.costs() if row["kind"] == "agent"]
    assert any(e.masked for e in episodes)
    assert len(rows) == len(episodes) > 0
    assert {row["usd"] for row in rows} == {0.25}
    assert sum(row["usd"] for row in rows) == pytest.approx(sum(e.agent_usd for e in episodes))
    assert sum(row["usd"] for row in rig.run.metrics()) == pytest.approx(rig.run.metrics()[-1]["usd/total"])
