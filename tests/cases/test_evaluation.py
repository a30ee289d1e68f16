"""Scores belong to what was scored: these weights, these items, asked in this way, and never seen by a job."""

import importlib.util
import json
import random
import re
import sys

import attrs
import pytest
from case_doubles import World

from nested_rl import jobkit, tasks
from nested_rl.errors import SettingsError, SupervisionError
from nested_rl.evaluation import EvalReport, EvalRow
from nested_rl.inner.nano import NanoInnerTrainer
from nested_rl.inner.nano_job import Shop, write
from nested_rl.jobs.folder import parse
from nested_rl.nano import serve
from nested_rl.nano.folder import load_model, weights_path
from nested_rl.nano.serve import Sampler
from nested_rl.nano.threads import single_thread
from nested_rl.types import Checkpoint

pytestmark = pytest.mark.cases

FAMILIES = tasks.load(scale="nano")
(FAMILY,) = tasks.load("calc_chain", scale="nano")
TASK = next(FAMILY.tasks())
PROMPTS = [item.prompt for item in FAMILY.eval_set(TASK, "hidden", salt="s", n=24).items]
QUESTION = {"base": "nano-s", "prompts": PROMPTS, "samples": 1, "temperature": 1.0, "max_tokens": 16, "seed": 0}


def saved(folder, shift):
    model, tokenizer = load_model(weights_path("nano-s"))
    model.theta[:] *= 1 + shift
    return write(folder, model, tokenizer, "nano-s")


def test_a36_eval_cache_key(tmp_path):
    """Two checkpoints, one after the other under one name and path: two answers."""
    sampler, path = Sampler(), tmp_path / "adapter"
    answers, digests = [], []
    for shift in (0.0, 0.5, 0.0):
        digests.append(saved(path, shift))
        answers.append(sampler.answer({**QUESTION, "path": str(path), "digest": digests[-1]})["completions"])
    assert answers[0] == answers[2] != answers[1]
    with pytest.raises(SettingsError, match="not the file that training wrote"):
        sampler.answer({**QUESTION, "path": str(path), "digest": digests[1]})


def test_a37_score_depends_on_batch_size(monkeypatch):
    """What a prompt is answered does not depend on how many are asked at once."""
    sampler = Sampler()
    whole = sampler.answer({**QUESTION, "samples": 2})["completions"]
    for rows in (2, 10):
        monkeypatch.setattr(serve, "_ROWS", rows)
        assert sampler.answer({**QUESTION, "samples": 2})["completions"] == whole


async def test_a37_another_way_of_asking_makes_the_baseline_void(tmp_path, monkeypatch):
    world = World(tmp_path / "run", steps=1)
    await world.go()
    again = world.again(steps=2)
    family = type(again.experiment().tasks[0])
    eval_set = family.eval_set

    def longer(self, *asked, **how):
        found = eval_set(self, *asked, **how)
        return attrs.evolve(found, sampling=attrs.evolve(found.sampling, max_tokens=99))

    monkeypatch.setattr(family, "eval_set", longer)
    with pytest.raises(SettingsError, match="evaluation of fast-k1 has changed"):
        await again.go()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a41_train_seeds_contain_eval_seeds(family):
    """Nothing that the public generator gives is in an evaluation, and what a job takes from one is recognised."""
    task = family.task()
    held = {s: {item.key for item in family.eval_set(task, s, salt="run", n=64).items} for s in ("dev", "hidden")}
    made = {
        family.key(row["prompt"]) for seed in range(20) for row in jobkit.make(family.name, random.Random(seed), 100)
    }
    assert len(made) > 100
    assert not made & (held["dev"] | held["hidden"])
    assert not held["dev"] & held["hidden"]
    asked = tasks.held_out(FAMILIES)
    assert all(asked(item.prompt) for item in family.eval_set(task, "hidden", salt="other", n=64).items)


def test_a42_checkpoint_swap(tmp_path):
    """Another model put where training wrote its own is not scored."""
    digest = saved(tmp_path / "trained", 0.1)
    saved(tmp_path / "ready", 0.0)
    weights = tmp_path / "trained" / serve.WEIGHTS
    weights.write_bytes((tmp_path / "ready" / serve.WEIGHTS).read_bytes())
    with pytest.raises(SettingsError, match="not the file that training wrote"):
        Sampler().answer({**QUESTION, "path": str(tmp_path / "trained"), "digest": digest})


HONEST = """
from nested_rl.jobkit import make, parse

def examples(rng, n):
    return make("calc_chain", rng, n)

def reward(prompt, completion, answer):
    return float(parse(completion) == answer)
"""
TRICKS = """
import time, random
time.time = time.monotonic = time.perf_counter = lambda: 0.0
random._os.environ["FAKETIME"] = "@2000-01-01"
"""
JOB = '[model]\nbase = "nano-s"\n[training]\nsteps = 1\nlearning_rate = 1e-3\nbatch_size = 16\n'


def test_a55_fake_speed(tmp_path):
    """A job that stops its own clock costs what the honest one costs: work is counted outside of it."""
    shop, found = Shop(), []
    for name, code in (("honest", HONEST), ("tricks", TRICKS + HONEST)):
        files = {"job.toml": JOB, "environment.py": code}
        config, problems = parse(files, NanoInnerTrainer().surface)
        assert problems == ()
        question = {
            "base": config.base,
            "files": files,
            "recipe": {**config["training"], **config["rollout"], **config["nano"]},
            "seed": 0,
            "work_limit": 1e10,
            "families": [],
            "out": str(tmp_path / name),
        }
        with single_thread():
            found.append(shop.answer(question))
    shop.close()
    assert found[0]["work"] == found[1]["work"] > 0
    assert found[0]["digest"] == found[1]["digest"]


async def test_a63_grader_changed_during_the_run(tmp_path):
    """One byte of what picks the evaluation is changed: the run in progress keeps its own, a later one gives no reward."""
    world = World(tmp_path / "run", steps=3)
    salt = tmp_path / "run" / "secret" / "salt"
    asked = []
    score = world.scorer.score

    async def watched(model, eval_set, machine, *, seed=0):
        asked.append((eval_set.split, eval_set.digest))
        if len(asked) == 5:
            salt.write_text("0" + salt.read_text()[1:])
        return await score(model, eval_set, machine, seed=seed)

    salt.parent.mkdir(parents=True)
    salt.write_text("1" * 32)
    world.scorer.score = watched
    await world.go()
    assert salt.read_text().startswith("0")
    assert len({digest for split, digest in asked if split == "hidden"}) == 1
    again = world.again(steps=4)
    with pytest.raises(SettingsError, match="evaluation of fast-k1 has changed"):
        await again.go()
    assert len(again.trained()) == 3
    assert max(e.group for e in again.files.episodes()) == 2


GRADER = """
from case_doubles import Family

class Graded(Family):
    tolerance = "{remark}"
"""


def graded(folder, remark):
    """A family whose code is a file of its own."""
    path = folder / "graded.py"
    path.write_text(GRADER.format(remark=remark))
    spec = importlib.util.spec_from_file_location("graded", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["graded"] = module
    spec.loader.exec_module(module)
    return module.Graded("fast")


async def test_a63_one_byte_of_the_code_that_grades(tmp_path, monkeypatch):
    """The family's file changes while the run is on: no episode is rewarded after that, and the run stops and says why."""
    monkeypatch.setitem(sys.modules, "graded", None)
    family = graded(tmp_path, "a")
    world = World(tmp_path / "run", steps=3)
    plain = world.experiment
    world.experiment = lambda: attrs.evolve(plain(), tasks=[family])
    score, scored = world.scorer.score, []

    async def watched(model, eval_set, machine, *, seed=0):
        if isinstance(model, Checkpoint):
            scored.append(model)
            if len(scored) == 3:
                (tmp_path / "graded.py").write_text(GRADER.format(remark="b"))
        return await score(model, eval_set, machine, seed=seed)

    world.scorer.score = watched
    with pytest.raises((SettingsError, SupervisionError), match="code that grades fast-k1 has changed"):
        await world.go()
    assert len(scored) <= 4
    later = [e for e in world.files.episodes() if e.group > 1]
    assert all(e.masked for e in later)


def report(grader):
    row = EvalRow(
        task="0:t",
        family="f",
        reward=1.0,
        valid=True,
        first_try=True,
        quality=1.0,
        strongest=True,
        own_family=True,
        advanced=False,
        asked_baselines=False,
    )
    return EvalReport(policy="p", version=0, split="test", seed=0, rows=(row,), grader=grader)


def test_a63_scores_of_different_graders_are_not_compared():
    assert report("a").compare(report("a")).n == 1
    assert EvalReport.from_json(report("a").to_json()) == report("a")
    with pytest.raises(SettingsError, match="graded by different code"):
        report("a").compare(report("b"))


async def test_a63_the_grader_is_recorded_with_baselines_and_evaluations(tmp_path):
    world = World(tmp_path / "run", steps=1, eval_every=1)
    await world.go()
    (found,) = [r for r in world.files.evals().values() if r["version"] == 1]
    digests = json.loads((tmp_path / "run" / "evaluations.json").read_text())
    assert found["grader"] == digests["fast-k1"]["grader"]
    assert re.fullmatch("[0-9a-f]{64}", found["grader"])
