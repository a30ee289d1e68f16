"""`nested-rl plan`, and the question before a run that costs money."""

import json
import re
import sys
from pathlib import Path

import pytest

from nested_rl.cli import runfile
from nested_rl.experiment import Experiment
from nested_rl.plan.published import MODEL, PILOT_7
from nested_rl.rundir import RunDir

FREE = 'families = ["calc_chain"]\n[run]\nsteps = 2\ngroups_per_step = 1\ngroup_size = 2\neval_every = 0\n'
PAID = f'{FREE}[compute]\nname = "local"\nmax_machines = 2\nusd_per_hour = 0.36\n'


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "small.toml"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def ran(monkeypatch):
    """Runs that were begun, with their arguments."""
    begun = []
    monkeypatch.setattr(Experiment, "run", lambda self, **asked: begun.append(asked))
    return begun


@pytest.fixture
def seated(monkeypatch):
    """Somebody at the terminal, with an answer."""

    def says(answer):
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        monkeypatch.setattr("builtins.input", lambda question: answer)

    return says


def test_plan_shows_a_table(told, file):
    code, out, err = told("plan", file(PAID))
    assert (code, err) == (0, "")
    assert out.startswith("Plan: 2 steps of 1 group of 2 episodes")
    assert "What holds the run up" in out or "No one part" in out


def test_plan_as_json_with_other_steps_and_assumptions_of_the_file(told, file):
    code, out, _ = told(
        "plan", file(f"{PAID}[plan]\njob_s = 360\njob_spread = 0\nvalid = 1\ndistinct = 1\n"), "--json", "--steps", "3"
    )
    assert code == 0
    plan = json.loads(out)
    assert plan["setting"]["steps"] == 3
    assert plan["jobs"]["mid"] == 6
    assert plan["usd"]["machines"]["mid"] == pytest.approx(6 * 0.036, rel=0.01)  # and the baselines
    assert plan["assumptions"]["job_s[*, *]"]["source"] == "given"


def test_plan_like_a_run_that_is_none(told, file):
    code, _, err = told("plan", file(FREE), "--like", "/nowhere")
    assert code == 2
    assert "not a run directory" in err


def test_an_assumption_that_does_not_exist_is_named(told, file):
    code, _, err = told("plan", file(f"{FREE}[plan]\njobs = 3\n"))
    assert code == 2
    assert "no assumption is called 'jobs'" in err


def test_a_run_that_costs_nothing_is_not_asked_about(told, file, ran):
    code, out, _ = told("run", file(FREE))
    assert (code, len(ran)) == (0, 1)
    assert "Plan" not in out


def test_a_run_that_costs_money_is_refused_where_nobody_can_be_asked(told, file, ran, monkeypatch):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    code, out, err = told("run", file(PAID))
    assert (code, ran) == (2, [])
    assert "Plan: 2 steps" in out
    assert "--yes" in err
    assert len(err.splitlines()) == 1


def test_yes_spends_without_a_plan(told, file, ran):
    code, out, _ = told("run", file(PAID), "--yes")
    assert (code, len(ran)) == (0, 1)
    assert "Plan" not in out


@pytest.mark.parametrize(("answer", "code", "begun"), [("y", 0, 1), ("", 1, 0)])
def test_the_answer_counts(told, file, ran, seated, answer, code, begun):
    seated(answer)
    assert told("run", file(PAID))[0] == code
    assert len(ran) == begun


def test_refused_with_fresh_nothing_is_deleted(told, file, ran, tmp_path, seated):
    old = RunDir.create(tmp_path / "old", {"steps": 2})
    old.close()
    seated("no")
    assert told("run", file(PAID), "--fresh", "--out", tmp_path / "old")[0] == 1
    assert (tmp_path / "old" / "run.toml").is_file()
    assert ran == []


def test_a_finished_run_is_shown_without_a_question(told, file, ran, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    run = RunDir.create(tmp_path / "old", {"steps": 1})
    run.metrics_log.append({"step": 0})
    assert told("run", file(PAID), "--out", tmp_path / "old")[0] == 2  # two steps are asked for now
    run.metrics_log.append({"step": 1})
    run.close()
    assert told("run", file(PAID), "--out", tmp_path / "old")[0] == 0
    assert len(ran) == 1
    assert told("run", file(PAID), "--fresh", "--out", tmp_path / "old")[0] == 2  # that would be run again


def test_what_is_missing_is_told_before_anything_is_begun(told, file, ran, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RUNPOD_API_KEY", raising=False)
    text = f'{FREE}[compute]\nname = "runpod"\ngpus = ["NVIDIA A40"]\nmax_machines = 2\n[inner]\nname = "prime-rl"\n'
    code, out, err = told("run", file(text))
    assert (code, ran) == (2, [])
    assert "at most 2 pods" in " ".join(out.split())
    assert "missing: " in err
    assert "RUNPOD_API_KEY" in err


def test_the_run_file_of_the_guide_is_the_published_setting(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "guides" / "cloud-pilot.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "pilot7.toml").write_text(text)
    asked = runfile.read(tmp_path / "pilot7.toml")
    made = runfile.experiment(asked, beside=tmp_path)
    setting = {**asked.run.arguments(), "machines": made.compute.max_machines}
    assert setting == dict(PILOT_7.setting)
    assert (made.trainer.model, made.inner.bases) == (MODEL, ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B"))
    assert len(made.compute.candidates) == 4
