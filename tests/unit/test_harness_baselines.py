"""The two policies that learn nothing, through the same harness as every other."""

import ast
import tomllib

import pytest

from nested_rl import tasks
from nested_rl.errors import SettingsError
from nested_rl.harness.agent import ToolHarness
from nested_rl.inner.nano import NanoInnerTrainer
from nested_rl.interfaces import Desk
from nested_rl.policies.baselines import RandomPolicy, TemplatePolicy
from nested_rl.types import Draft, Problem, Task, Validation

TASK = Task(id="t", family="multi_hop", difficulty=3, brief="task multi_hop k 3")
GOOD = Validation(ok=True)
BAD = Validation(ok=False, problems=(Problem(code="c", where="w", message="m"),))


class Desk1(Desk):
    task = TASK

    def __init__(self, *verdicts):
        self.verdicts = list(verdicts)
        self.jobs = []

    async def baselines(self):
        return {}

    async def submit(self, files):
        self.jobs.append(files)
        return self.verdicts.pop(0)

    async def result(self):
        raise NotImplementedError

    def guide(self, *, brief):
        return ""


async def jobs(policy, *, seed=0, verdicts=(GOOD,)):
    desk = Desk1(*verdicts)
    transcript = await ToolHarness().run(TASK, policy, desk, seed=seed)
    assert all(turn.ids is None for turn in transcript.turns)
    return transcript, desk.jobs


async def test_the_template_writes_one_sound_job():
    transcript, (job,) = await jobs(TemplatePolicy())
    assert transcript.end == "submitted"
    assert tomllib.loads(job["job.toml"])["model"]["base"] == "nano-m"
    assert 'make("multi_hop"' in job["environment.py"]
    ast.parse(job["environment.py"])
    assert (await jobs(TemplatePolicy(), seed=9))[1] == [job]


async def test_the_template_can_be_changed_but_not_misspelt():
    _, (job,) = await jobs(TemplatePolicy({"base": "nano-s", "steps": "12"}))
    assert tomllib.loads(job["job.toml"]) == {
        "model": {"base": "nano-s"},
        "training": {"steps": 12, "learning_rate": 1e-3, "batch_size": 128, "group_size": 8},
        "rollout": {"temperature": 1.0},
    }
    with pytest.raises(SettingsError, match="stepz"):
        TemplatePolicy({"stepz": "3"})


async def test_random_jobs_differ_by_seed_and_come_again_with_it():
    drawn = [(await jobs(RandomPolicy(), seed=seed))[1][0] for seed in range(12)]
    assert len({tuple(job.values()) for job in drawn}) > 9
    assert (await jobs(RandomPolicy(), seed=3))[1] == [drawn[3]]
    for job in drawn:
        tomllib.loads(job["job.toml"])
        ast.parse(job["environment.py"])


async def test_what_they_write_is_valid():
    inner = NanoInnerTrainer()
    family = tasks.load("multi_hop", scale="nano")[0]
    task = next(family.tasks())
    for policy, seeds in ((TemplatePolicy(), [0]), (RandomPolicy(), range(12))):
        for seed in seeds:
            _, (job,) = await jobs(policy, seed=seed)
            validation = await inner.validate(Draft(task=task, files=job))
            assert validation.ok, (job, validation.problems)
            assert validation.families == ("multi_hop",)
    await inner.close()


async def test_after_an_error_they_write_again_until_the_attempts_are_used():
    transcript, tried = await jobs(RandomPolicy(), verdicts=[BAD] * 3)
    assert (transcript.end, len(tried)) == ("attempts", 3)
    assert len({tuple(job.values()) for job in tried}) > 1
