"""Experiment's edges: what it refuses before anything runs, what it notices about a changed experiment, what it keeps."""

from __future__ import annotations

import functools
import inspect

import pytest
from loop_doubles import Rig

import nested_rl as nrl
from nested_rl import sync
from nested_rl.describe import describe
from nested_rl.errors import RunMismatch, SettingsError, SupervisionError
from nested_rl.evaluation import EvalReport, EvalRow
from nested_rl.loop import best_version
from nested_rl.rewards import UpliftReward
from nested_rl.rundir import RunDir


@pytest.mark.parametrize(
    ("parts", "run", "words"),
    [
        ({"tasks": "calc_chain"}, {}, "families"),
        ({"tasks": ["calc_chain"]}, {}, "families"),
        ({"reward": "thrifty"}, {}, "function of an Outcome"),
        ({"reward": UpliftReward}, {}, "function of an Outcome"),
        ({}, {"steps": 0}, "steps"),
        ({}, {"eval_every": -1}, "eval_every"),
        ({}, {"eval_every": 0.5}, "eval_every"),
        ({}, {"seed": "x"}, "seed"),
        ({}, {"group_size": 1}, "group_size"),
        ({}, {"order": "random"}, "order"),
    ],
)
def test_what_cannot_work_is_refused_before_a_folder_is_made(tmp_path, parts, run, words):
    with pytest.raises(SettingsError, match=words):
        nrl.Experiment(**parts).run(**{"steps": 1, "out": tmp_path / "run", "quiet": True} | run)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"compute": "loca"}, r"LocalCompute\(…\) of nested_rl\.compute\.local; 'loca' is a name.*known there: local"),
        ({"trainer": "zzz"}, r"trainer must be an object; .*known there: nano, tinker"),
        ({"compute": nrl.compute.LocalCompute}, r"not a class: compute=LocalCompute\(…\)"),
        ({"budget": 5.0}, r"nrl\.Budget"),
        ({"alarms": True}, r"nrl\.AlarmRules"),
        ({"rewrad": None}, r"of Experiment\) 'rewrad'; did you mean 'reward'"),
    ],
)
def test_a_part_is_an_object_under_a_name_that_exists(given, words):
    with pytest.raises(SettingsError, match=words):
        nrl.Experiment(**given)


@pytest.mark.parametrize("call", [nrl.Experiment.run, nrl.Experiment.plan, nrl.Experiment.run_async])
def test_a_mistyped_argument_is_a_type_error_with_the_right_one(call):
    with pytest.raises(TypeError, match="'step'; did you mean 'steps'"):
        call(nrl.Experiment(), step=3)
    assert "groups_per_step" in inspect.signature(call).parameters


def test_what_a_run_raises_does_not_begin_with_a_loop_that_was_not_running():
    async def broken():
        raise OSError("disk")

    with pytest.raises(OSError, match="disk") as raised:
        sync.run(broken())
    assert raised.value.__context__ is None


def test_held_out_families_are_not_trained_on(tmp_path):
    with pytest.raises(SettingsError, match="held out"):
        nrl.Experiment(tasks=nrl.tasks.load("triage")).run(steps=1, out=tmp_path / "run")


class Weighted:
    def __init__(self, w):
        self.w = w

    def __call__(self, outcome):
        return self.w * outcome.uplift


def scaled(outcome, w=1.0):
    return w * outcome.uplift


def test_a_changed_reward_is_another_experiment():
    assert describe(Weighted(1)) != describe(Weighted(9))
    assert describe(functools.partial(scaled, w=1.0)) != describe(functools.partial(scaled, w=2.0))
    typed = {}
    exec("def a(o): return 1.0\ndef b(o): return 2.0\nb.__qualname__ = 'a'", typed)
    assert describe(typed["a"]) != describe(typed["b"])
    assert describe(Weighted(1)) == describe(Weighted(1))


def test_a_run_keeps_its_own_hidden_evaluation(tmp_path):
    RunDir.create(tmp_path / "a", {"steps": 1}).close()
    with pytest.raises(RunMismatch, match="hidden evaluation"):
        RunDir.create(tmp_path / "a", {"steps": 1}, salt="another")


def test_a_foreign_folder_is_left_exactly_as_it_was(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(SettingsError, match="not empty"):
        RunDir.create(tmp_path, {"steps": 1})
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(SettingsError, match="is a file"):
        RunDir.create(tmp_path / "thesis.tex", {"steps": 1})


def row(reward):
    names = ("valid", "first_try", "strongest", "own_family", "advanced", "asked_baselines")
    return EvalRow(task="0:t", family="f", reward=reward, quality=0.0, **dict.fromkeys(names, True))


def report(version, reward, **fields):
    return EvalReport(policy="p", version=version, split="validation", seed=0, rows=(row(reward),), **fields)


def test_the_best_version_is_read_from_the_reports_themselves(tmp_path):
    """The journal's row may be missing: the process died between the report and it."""
    run = RunDir.create(tmp_path / "r", {"steps": 5})
    run.write_eval("validation-00000", report(0, 0.1).to_json())
    run.write_eval("validation-00005", report(5, 0.6).to_json())
    run.write_eval("triage-v00003-n1-s0", report(3, 0.9).to_json())
    assert best_version(run) == 5
    run.close()


def test_reports_under_other_conditions_are_not_compared():
    assert "reward" in str(report(1, 0.5).compare(report(0, 0.1)))
    with pytest.raises(SettingsError, match="different parts"):
        report(1, 0.5).compare(report(0, 0.1, conditions="abc"))


async def test_an_evaluation_of_nothing_is_an_error_not_a_number(tmp_path):
    rig = Rig(tmp_path / "r", fail=lambda task, seed: OSError("sampler down"), eval_every=1)
    with pytest.raises(SupervisionError, match="sampler down"):
        await rig.go()
    assert rig.run.evals() == {}


async def test_a_longer_run_samples_late_groups_at_their_own_version(tmp_path):
    short = Rig(tmp_path / "r", steps=2)
    await short.go()
    longer = Rig(tmp_path / "r", steps=4).after(short)
    await longer.go()
    assert [row["staleness/max"] for row in longer.run.metrics()] == [0, 1, 1, 1]
