"""Scores belong to what was scored: these weights, these items, asked in this way, and never seen by a job."""

import random

import attrs
import pytest
from case_doubles import World

from nested_rl import jobkit, tasks
from nested_rl.errors import SettingsError
from nested_rl.inner.nano import NanoInnerTrainer
from nested_rl.inner.nano_job import Shop, held_out, write
from nested_rl.jobs.folder import parse
from nested_rl.nano import serve
from nested_rl.nano.folder import load_model, weights_path
from nested_rl.nano.serve import Sampler
from nested_rl.nano.threads import single_thread

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
    asked = held_out(FAMILIES)
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
