"""A plan against what it plans: a run on real sshd pods takes and costs what the plan said, from what a first tiny run took."""

import sys
from pathlib import Path

import pytest

import nested_rl as nrl
from nested_rl.rundir import RunDir
from nested_rl.types import Checkpoint, Score

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from loop_doubles import Harness, Inner, Trainer

JOB_S = 5
"""So long that what a busy computer adds to a job is little."""
WITHIN = 0.10


class Waiting(Inner):
    """Jobs that wait on their pod, each as long as any other."""

    bases = ("strong",)
    timeout_s = 120.0

    async def train(self, job, machine):
        done = await machine.run(["sleep", str(JOB_S)])
        assert done.returncode == 0
        return Checkpoint(path="nothing", base=job.spec.base)


class Scorer:
    async def score(self, model, eval_set, machine, *, seed=0):
        return Score.of([1.0, 0.0], seconds=0.001)


def experiment(folder, compute):
    trainer = Trainer(folder / "checkpoints")
    trainer.embedded = True
    parts = {"trainer": trainer, "harness": Harness(), "inner": Waiting(), "scorer": Scorer()}
    return nrl.Experiment(nrl.tasks.load("calc_chain"), compute=compute, **parts)


def wall_clock_s(path):
    """From its beginning to the end of its last step, by its journal."""
    events = list(RunDir.open(path).events("run.started", "step.done"))
    return events[-1]["t"] - events[0]["t"]


async def test_a_plan_says_what_a_run_on_pods_takes_and_costs(world, tmp_path):
    schedule = {"groups_per_step": 1, "eval_every": 0, "quiet": True}
    first = world.compute()
    tiny = await experiment(tmp_path / "1", first).run_async(1, group_size=2, out=tmp_path / "tiny", **schedule)
    await first.close()

    exp = experiment(tmp_path / "2", world.compute())
    # The requests that are refused leave no trace in a run's records; there are none here.
    plan = exp.plan(3, group_size=4, like=tiny.path, assumptions={"refused": 0.0}, **schedule)
    run = await exp.run_async(3, group_size=4, out=tmp_path / "run", **schedule)

    pods = [row for row in RunDir.open(run.path).costs() if row["kind"].startswith("pod/")]
    usd, wall_s = sum(row["usd"] for row in pods), wall_clock_s(run.path)
    told = f"planned {plan.wall_clock_s}, ${plan.total_usd}; measured {wall_s:.1f} s, ${usd:.5f}"
    print(told)
    assert plan.jobs.mid == sum(row["jobs/run"] for row in run.metrics) == 12
    assert plan.wall_clock_s.mid == pytest.approx(wall_s, rel=WITHIN), told
    assert plan.total_usd.mid == pytest.approx(usd, rel=WITHIN), told
    assert world.fake.alive() == []
