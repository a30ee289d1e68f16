"""Evaluations: the same tasks and seeds for every policy, pairs by task, intervals, and what is tried again."""

import random
import shutil
from types import SimpleNamespace

import pytest
from loop_doubles import Policy, Rig

from nested_rl import evaluation
from nested_rl.evaluation import EvalReport, EvalRow


def row(task, reward, **flags):
    named = ("valid", "first_try", "strongest", "own_family", "advanced", "asked_baselines")
    return EvalRow(task=task, family="triage", reward=reward, quality=reward, **{**dict.fromkeys(named, True), **flags})


def report(rows, **fields):
    return EvalReport(**{"policy": "p", "version": 0, "split": "test", "seed": 0, "rows": tuple(rows)} | fields)


class Bench:
    """A run in which policies are evaluated. `asked` has (task, seed) of every episode that an agent began."""

    def __init__(self, path, fail=lambda task: None):
        self.path, self.fail, self.asked, self.told = path, fail, [], []

    async def evaluate(self, policy, *, name="e", n=6, seed=0, label="p"):
        rig = Rig(self.path, families=("fast", "slow"), fail=self._begun)
        loop, found = rig.loop(), []

        async def work():
            found.append(
                await evaluation.evaluate(
                    rig.families,
                    policy,
                    name=name,
                    label=label,
                    split="test",
                    n=n,
                    seed=seed,
                    run=rig.run,
                    parts=loop.parts,
                    baselines=loop.baselines,
                    deadline_s=1e6,
                    tell=lambda done, of: self.told.append((done, of)),
                )
            )

        await rig.go(SimpleNamespace(run=work))
        return found[0]

    def _begun(self, task, seed):
        self.asked.append((task.id, seed))
        return self.fail(task)


class Broken:
    """The sampler is down for these tasks, as long as it is."""

    def __init__(self, *tasks):
        self.tasks = set(tasks)

    def __call__(self, task):
        return OSError("sampler down") if task.id in self.tasks else None


async def test_every_policy_gets_the_same_tasks_and_the_same_dice(tmp_path):
    first, second, other = (Bench(tmp_path / name) for name in ("one", "two", "three"))
    await first.evaluate(Policy(3), name="a")
    await second.evaluate(Policy(0), name="b")
    assert first.asked == second.asked
    assert len(set(first.asked)) == len({seed for _, seed in first.asked}) == 6
    assert [task.rpartition("-test-")[0] for task, _ in first.asked] == ["fast", "slow"] * 3
    await other.evaluate(Policy(0), name="b", seed=1)
    assert not {seed for _, seed in first.asked} & {seed for _, seed in other.asked}


async def test_only_what_was_masked_is_tried_again(tmp_path):
    down = Broken("fast-test-0-1", "slow-test-0-2")
    bench = Bench(tmp_path / "r", down)
    before = await bench.evaluate(Policy(2))
    assert (before.masked, len(before.rows)) == (2, 4)
    assert bench.told[-1] == (6, 6)
    bench.asked.clear()
    bench.told.clear()
    down.tasks.remove("fast-test-0-1")
    after = await bench.evaluate(Policy(2))
    assert [task for task, _ in bench.asked] == ["fast-test-0-1", "slow-test-0-2"]
    assert bench.told == [(4, 6), (5, 6), (6, 6)]
    assert (after.masked, len(after.rows)) == (1, 5)
    assert [r for r in after.rows if r.task != "2:fast-test-0-1"] == list(before.rows)
    bench.asked.clear()
    down.tasks.clear()
    whole = await bench.evaluate(Policy(2))
    assert [task for task, _ in bench.asked] == ["slow-test-0-2"]
    assert [r.task.partition(":")[0] for r in whole.rows] == list("012345")
    bench.asked.clear()
    assert await bench.evaluate(Policy(2)) == whole
    assert bench.asked == []


async def test_a_stopped_evaluation_goes_on_with_the_episodes_that_are_there(tmp_path):
    bench = Bench(tmp_path / "r")
    whole = await bench.evaluate(Policy(2))
    folder = tmp_path / "r" / "evals" / "e"
    (folder / "report.json").unlink()
    (folder / "episodes" / "00004-0" / "reward.json").write_text("{torn")
    shutil.rmtree(folder / "episodes" / "00001-0")
    bench.asked.clear()
    assert await bench.evaluate(Policy(2)) == whole
    assert [task for task, _ in bench.asked] == ["slow-test-0-0", "fast-test-0-2"]


@pytest.mark.parametrize("what", ["grader", "version"])
async def test_episodes_graded_by_other_code_or_of_another_version_are_not_taken(tmp_path, what):
    bench = Bench(tmp_path / "r")
    await bench.evaluate(Policy(2))
    folder = tmp_path / "r" / "evals" / "e"
    (folder / "report.json").unlink()
    if what == "grader":
        (folder / "grader").write_text("of other code")
    bench.asked.clear()
    await bench.evaluate(Policy(2 if what == "grader" else 3))
    assert len(bench.asked) == 6


class Lockstep(Policy):
    """Gives out seats, like the local agent; their turns round together."""

    def seats(self, n):
        self.given = n
        return [Policy(self.version) for _ in range(n)]


async def test_a_policy_in_lockstep_starts_a_stopped_evaluation_again_and_a_masked_episode_alone(tmp_path):
    down, policy = Broken("fast-test-0-1"), Lockstep(2)
    bench = Bench(tmp_path / "r", down)
    await bench.evaluate(policy)
    assert policy.given == 6
    await bench.evaluate(policy)
    assert policy.given == 1
    (tmp_path / "r" / "evals" / "e" / "report.json").unlink()
    await bench.evaluate(policy)
    assert policy.given == 6


async def test_a_kept_report_is_called_what_it_was_asked_for_as(tmp_path):
    bench = Bench(tmp_path / "r")
    assert (await bench.evaluate(Policy(2), label="RUN@best")).policy == "RUN@best"
    assert (await bench.evaluate(Policy(2), label="RUN@2")).policy == "RUN@2"
    assert len(bench.asked) == 6


def test_pairs_are_made_by_task_and_not_by_place():
    mine = report([row("0:a", 0.9), row("1:b", 0.1), row("2:c", 0.5)])
    theirs = report([row("2:c", 0.4), row("1:b", 0.0), row("3:d", 0.7)], masked=1)
    found = mine.compare(theirs)
    assert (found.n, found.left_out) == (2, 2)
    assert found.reward.value == pytest.approx(0.1)
    assert (found.reward.low, found.reward.high) == (pytest.approx(0.1), pytest.approx(0.1))
    assert "(n=2, paired; 2 that only one side has are left out)" in str(found)
    assert "(n=3, paired)" in str(mine.compare(mine))


def test_intervals_are_those_of_95_percent():
    rng = random.Random(0)
    values = [rng.gauss(0.5, 0.1) for _ in range(400)]
    interval = report(row(f"{i}:t", value) for i, value in enumerate(values)).interval
    mean = sum(values) / 400
    error = (sum((x - mean) ** 2 for x in values) / 399 / 400) ** 0.5
    assert interval.value == pytest.approx(mean)
    assert (interval.high - mean) / error == pytest.approx(1.96, rel=0.08)
    assert (mean - interval.low) / error == pytest.approx(1.96, rel=0.08)
    before = [rng.gauss(0.3, 0.1) for _ in range(400)]
    paired = report(row(f"{i}:t", v) for i, v in enumerate(values)).compare(
        report(row(f"{i}:t", v) for i, v in enumerate(before))
    )
    differences = [a - b for a, b in zip(values, before, strict=True)]
    mean = sum(differences) / 400
    error = (sum((x - mean) ** 2 for x in differences) / 399 / 400) ** 0.5
    assert (paired.reward.high - paired.reward.low) / error == pytest.approx(2 * 1.96, rel=0.06)


def test_a_report_says_how_many_were_masked():
    assert "(n=1, 2 masked)" in str(report([row("0:a", 0.5)], masked=2))
    assert "(n=1)" in str(report([row("0:a", 0.5)]))
