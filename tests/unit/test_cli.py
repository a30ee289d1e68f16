"""The command line: what it prints, and that whatever goes wrong is one sentence and an exit code."""

import json
import logging
from typing import ClassVar

import pytest
from made_run import make_run

from nested_rl.cli import runfile, running
from nested_rl.errors import (
    BudgetExceeded,
    NestedRLError,
    RunDirError,
    SettingsError,
    SupervisionError,
    TrainerError,
    UnknownName,
)
from nested_rl.rewards import UpliftReward
from nested_rl.rundir import RunDir
from nested_rl.sync import Terminated
from nested_rl.types import Problem, Validation


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "pilot", steps=4, groups_per_step=2, group_size=4).path


COMMANDS = ("pilot", "run", "evaluate", "report", "tasks", "jobs", "machines", "models", "doctor")


def test_help_lists_every_command_in_the_order_of_need(told):
    code, out, _ = told("--help")
    assert code == 0
    places = [out.index(f" {name} ") for name in COMMANDS]
    assert places == sorted(places)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(told, command):
    code, out, _ = told(command, "--help")
    assert code == 0
    assert f"nested-rl {command}" in out


def test_version(told):
    assert told("--version")[1].strip().count(".") == 2


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["pilto"], 'Did you mean "pilot"'),
        (["pilot", "--steps", "many"], "--steps"),
        (["pilot", "--stepz", "3"], "--stepz"),
        (["report"], "RUN requires an argument"),
        (["report", "/nowhere/at/all"], "not a run directory"),
        (["tasks", "show", "calc_chian"], "did you mean 'calc_chain'"),
        (["run", "/nowhere.toml"], "No such file"),
        (["evaluate", "/nowhere"], "not a run directory"),
        (["jobs", "check", "/nowhere/at/all"], "no such folder"),
    ],
)
def test_wrong_use_is_one_sentence_and_exit_code_2(told, argv, words):
    code, out, err = told(*argv)
    assert code == 2
    assert words in err
    assert err.startswith("nested-rl: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert out == ""


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (SettingsError("no such thing"), 2, "no such thing"),
        (UnknownName("family", "calc_chian", ["calc_chain"]), 2, "did you mean"),
        (RunDirError("runs/x: No space left on device"), 5, "No space left"),
        (BudgetExceeded("the budget is used up"), 4, "used up"),
        (SupervisionError("worker-0 died"), 3, "worker-0 died"),
        (TrainerError("the gradient is not finite"), 3, "not finite"),
        (NestedRLError("broken"), 1, "broken"),
        (KeyboardInterrupt(), 130, "stopped; run the same command again to resume"),
        (Terminated(), 143, "stopped; run the same command again to resume"),
    ],
)
def test_errors_become_exit_codes(told, monkeypatch, error, code, words):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("nested_rl.experiment.Experiment.run", fail)
    found, _, err = told("pilot", "--out", "somewhere")
    assert found == code
    assert err == f"nested-rl: {err.removeprefix('nested-rl: ')}"
    assert words in err


def test_a_bug_of_ours_keeps_its_traceback(told, monkeypatch):
    monkeypatch.setattr("nested_rl.experiment.Experiment.run", lambda *_, **__: 1 / 0)
    code, _, err = told("pilot", "--out", "somewhere")
    assert code == 70
    assert err.startswith("Traceback")
    assert err.endswith("ZeroDivisionError: division by zero\n")


def test_a_dead_background_task_is_told_with_its_traceback_and_what_is_kept(told, monkeypatch):
    def fail(*_, **__):
        error = SupervisionError("worker-0 died: ZeroDivisionError: division by zero")
        error.add_note("Kept in runs/x: 3 steps")
        try:
            1 / 0  # noqa: B018
        except ZeroDivisionError as cause:
            raise error from cause

    monkeypatch.setattr("nested_rl.experiment.Experiment.run", fail)
    code, _, err = told("pilot", "--out", "somewhere")
    assert code == 3
    assert err.startswith("Traceback")
    assert "1 / 0" in err
    assert err.endswith("nested-rl: worker-0 died: ZeroDivisionError: division by zero\nKept in runs/x: 3 steps\n")


# ---------------------------------------------------------------- report


def test_report_writes_the_page_and_prints_the_paragraph(told, run_dir):
    (run_dir / "report.html").unlink(missing_ok=True)
    code, out, err = told("report", run_dir)
    assert (code, err) == (0, "")
    assert out.startswith("Reward went from")
    assert (run_dir / "report.html").exists()


def test_report_can_open_a_browser(told, run_dir, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    told("report", run_dir, "--open")
    assert opened == [(run_dir / "report.html").resolve().as_uri()]


# ---------------------------------------------------------------- pilot


class Fake:
    """Stands in for Experiment: records what it was asked, and leaves a made run behind."""

    asked: ClassVar[list] = []
    quiet: ClassVar[list] = []

    def __init__(self, **parts):
        self.parts = parts

    def run(self, steps=25, **arguments):
        Fake.asked.append(("run", steps, arguments))
        if not arguments["out"].exists():
            make_run(arguments["out"], steps=2, groups_per_step=2, group_size=4)

    def evaluate(self, families, *, policy, n, seed, out, quiet):
        Fake.asked.append(("evaluate", tuple(f.name for f in families), policy, n, seed, out))
        Fake.quiet.append(quiet)
        return self

    def compare(self, other):
        return "reward +0.480 [+0.400, +0.550]"


@pytest.fixture
def fake(monkeypatch):
    Fake.asked, Fake.quiet = [], []
    monkeypatch.setattr("nested_rl.experiment.Experiment", Fake)
    return Fake


def test_pilot_trains_evaluates_both_sides_and_writes_the_report(told, fake, tmp_path):
    out = tmp_path / "pilot"
    code, printed, _ = told("pilot", "--out", out, "--steps", 3, "--seed", 7)
    assert code == 0
    assert fake.asked == [
        ("run", 3, {"seed": 7, "out": out, "quiet": False}),
        ("evaluate", ("triage",), "RUN@best", 48, 0, out),
        ("evaluate", ("triage",), "RUN@initial", 48, 0, out),
    ]
    assert "best minus untrained: reward +0.480" in printed
    assert "Report: " in printed
    assert (out / "report.html").exists()


def test_quiet_says_nothing(told, fake, tmp_path):
    assert told("pilot", "--out", tmp_path / "pilot", "--quiet")[1:] == ("", "")
    assert fake.quiet == [True, True]


def test_fresh_deletes_a_run_and_nothing_else(told, fake, tmp_path):
    out = make_run(tmp_path / "pilot", steps=1, groups_per_step=1, group_size=2).path
    (out / "mark").touch()
    told("pilot", "--out", out)
    assert (out / "mark").exists()
    told("pilot", "--out", out, "--fresh")
    assert not (out / "mark").exists()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").touch()
    code, _, err = told("pilot", "--out", tmp_path / "home", "--fresh")
    assert code == 2
    assert "is not a run directory, so it is not deleted" in err
    assert (tmp_path / "home" / "thesis.tex").exists()


def test_fresh_leaves_a_run_alone_that_somebody_works_in(tmp_path):
    make_run(tmp_path / "run", steps=1, groups_per_step=1, group_size=2)
    held = RunDir.open(tmp_path / "run")
    held.own()
    with pytest.raises(SettingsError, match="another process"):
        running.start_over(tmp_path / "run")
    held.close()
    assert (tmp_path / "run" / "run.toml").exists()


# ---------------------------------------------------------------- run files

FILE = """
families = ["calc_chain", "ledger"]
reward = "mine.py:thrifty"
[run]
steps = 3
order = "ready"
[budget]
usd = 5.0
[queue]
name = "memory"
[evaluate]
families = ["triage"]
n = 12
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "mine.py").write_text("def thrifty(outcome):\n    return 0.5\n")
    path = tmp_path / "thrifty.toml"
    path.write_text(FILE)
    return path


def test_a_run_file_is_an_experiment(told, fake, file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = told("run", file)
    assert (code, err) == (0, "")
    (_, steps, arguments), (_, families, policy, n, *_), _ = fake.asked
    assert (steps, arguments["order"], str(arguments["out"])) == (3, "ready", "runs/thrifty")
    assert (families, policy, n) == (("triage",), "RUN@best", 12)


def test_the_parts_of_a_run_file(file):
    experiment = runfile.experiment(runfile.read(file), beside=file.parent)
    assert [family.name for family in experiment.tasks] == ["calc_chain", "ledger"]
    assert experiment.reward(None) == 0.5
    assert experiment.budget.usd == 5.0
    assert type(experiment.queue).__name__ == "MemoryQueue"
    assert experiment.trainer is None


def test_a_reward_table_sets_the_weights(file):
    file.write_text("[reward]\nquality = 1.0\n")
    assert runfile.experiment(runfile.read(file), beside=file.parent).reward == UpliftReward(quality=1.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("familys = []", "thrifty.toml: unknown key (at the top) 'familys'; did you mean 'families'"),
        ("[run]\nstep = 3", "did you mean 'steps'"),
        ("[run]\nsteps = 'three'", "run.steps: expected a whole number"),
        ("[run]\norder = 'random'", "run.order: expected one of"),
        ("[evaluate]\nn = 3", "evaluate.families: missing"),
        ("[budget]\ndollars = 3", "unknown key"),
        ("[budget]\nusd = -3", "budget: usd must be a finite number, 0 or more, not -3.0"),
        ("[budget]\nhours = 0", "budget: hours must be a finite number, more than 0"),
        ("[evaluate]\nfamilies = ['triagee']", "did you mean 'triage'"),
        ("[evaluate]\nfamilies = []", "name at least one family"),
        ("[evaluate]\nfamilies = ['triage']\nn = 0", "evaluate.n: expected at least 1 task, got 0"),
        ("families = ['calc_chian']", "did you mean 'calc_chain'"),
        ("reward = 3", "reward is FILE.py:NAME"),
        ("[reward]\nqualty = 1", "unknown key (in [reward]) 'qualty'; did you mean 'quality'"),
        ("[queue]\nname = 'memoy'", "did you mean 'memory'"),
        ("[queue]\nname = 'memory'\nsize = 3", "unknown key"),
        ("steps = = 3", "not TOML"),
    ],
)
def test_a_wrong_run_file_is_refused_with_the_place(told, fake, file, tmp_path, text, words):
    file.write_text(text)
    code, _, err = told("run", file, "--out", tmp_path / "run")
    assert code == 2
    assert fake.asked == []  # before anything is trained
    assert not (tmp_path / "run").exists()
    assert words in err


def test_a_run_with_parts_of_its_own_is_not_evaluated_with_others(told, tmp_path):
    run = RunDir.create(tmp_path / "run", {"steps": 1, "parts": {"reward": {"name": "thrifty"}}})
    run.close()
    code, _, err = told("evaluate", tmp_path / "run")
    assert code == 2
    assert "made with parts of its own (reward)" in err
    assert "--using FILE.toml" in err


# ---------------------------------------------------------------- tasks, jobs, doctor


def test_tasks_lists_the_families(told):
    code, out, _ = told("tasks")
    assert code == 0
    for name in ("calc_chain", "multi_hop", "string_pipeline", "ledger", "dispatch"):
        assert f"{name} " in out
    assert "held out" in next(line for line in out.splitlines() if line.startswith("triage"))


def test_tasks_show_shows_training_questions_only(told):
    from nested_rl import tasks

    code, out, _ = told("tasks", "show", "triage", "--n", 20, "--seed", 3)
    assert code == 0
    assert "held out" in out
    (family,) = tasks.load("triage", scale="nano")
    questions = [line.partition("  ->  ")[0] for line in out.splitlines() if "  ->  " in line]
    assert len(questions) == 20
    assert all(tasks.bucket("triage", family.key(question)) >= 2 for question in questions)
    assert "task triage" in out


class Inner:
    scale = "nano"
    verdict = Validation(ok=True, base="nano-m", families=("calc_chain",))

    async def validate(self, draft):
        Inner.seen = draft
        return self.verdict


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr("nested_rl.parts.find", lambda kind, name: Inner)
    job = tmp_path / "job"
    (job / "data").mkdir(parents=True)
    (job / "job.toml").write_text("[model]\n")
    (job / "environment.py").write_text("x = 1\n")
    (job / "data" / "rows.jsonl").write_text("{}\n")
    (job / ".git").mkdir()
    (job / ".git" / "config").write_text("")
    return job


def test_jobs_check_accepts(told, folder, monkeypatch):
    code, out, _ = told("jobs", "check", folder, "--json")
    assert (code, json.loads(out)) == (0, {"ok": True, "problems": []})
    assert set(Inner.seen.files) == {"job.toml", "environment.py", "data/rows.jsonl"}
    assert Inner.seen.task.family == "calc_chain"
    assert "a valid job on nano-m" in told("jobs", "check", folder)[1]


def test_jobs_check_refuses_with_the_reasons(told, folder, monkeypatch):
    problem = Problem(code="key.unknown", where="job.toml", message="no key x", hint="did you mean y?", brief="b")
    monkeypatch.setattr(Inner, "verdict", Validation(ok=False, problems=(problem,)))
    code, out, _ = told("jobs", "check", folder, "--json")
    expected = {"code": "key.unknown", "where": "job.toml", "message": "no key x", "hint": "did you mean y?"}
    assert (code, json.loads(out)) == (1, {"ok": False, "problems": [expected]})
    code, out, _ = told("jobs", "check", folder)
    assert code == 1
    assert "job.toml: no key x [key.unknown]" in out


REAL_JOB = """[model]
base = "nano-m"

[training]
steps = 12
learning_rate = 1e-3
"""
REAL_ENVIRONMENT = """from nested_rl.jobkit import make, parse

def examples(rng, n):
    return make("calc_chain", rng, n)

def reward(prompt, completion, answer):
    return {reward}
"""


@pytest.mark.parametrize(
    ("reward", "ok"), [("float(parse(completion) == answer)", True), ("'a string'", False), ("float('nan')", False)]
)
def test_jobs_check_asks_the_real_inner_trainer(told, tmp_path, reward, ok):
    (tmp_path / "job.toml").write_text(REAL_JOB)
    (tmp_path / "environment.py").write_text(REAL_ENVIRONMENT.format(reward=reward))
    code, out, err = told("jobs", "check", tmp_path, "--json")
    found = json.loads(out)
    assert (code, found["ok"], bool(found["problems"]), err) == (0 if ok else 1, ok, not ok, "")
    assert all(set(problem) == {"code", "where", "message", "hint"} for problem in found["problems"])


def test_jobs_check_gives_json_whatever_is_wrong(told, folder, tmp_path):
    (folder / "data" / "rows.jsonl").write_bytes(b" " * 4_000_001)
    for place, words in ((tmp_path / "nowhere", "no such folder"), (folder, "data/rows.jsonl is too big")):
        code, out, err = told("jobs", "check", place, "--json")
        (problem,) = json.loads(out)["problems"]
        assert (code, json.loads(out)["ok"], problem["where"], err) == (1, False, str(place), "")
        assert words in problem["message"]
        code, out, err = told("jobs", "check", place)
        assert (code, out) == (2, "")
        assert words in err


def test_jobs_check_says_in_json_what_it_warns_of(told, folder, monkeypatch):
    class Warns(Inner):
        async def validate(self, draft):
            logging.getLogger("nested_rl.inner").warning("tasksets need %s", "verifiers")
            return await super().validate(draft)

    monkeypatch.setattr("nested_rl.parts.find", lambda kind, name: Warns)
    code, out, _ = told("jobs", "check", folder, "--json")
    assert (code, json.loads(out)["warnings"]) == (0, ["tasksets need verifiers"])


def test_jobs_check_does_not_follow_links(told, folder, tmp_path):
    (tmp_path / "secret").write_text("not of the job")
    (folder / "data" / "more.jsonl").symlink_to(tmp_path / "secret")
    code, out, err = told("jobs", "check", folder)
    assert (code, out) == (2, "")
    assert "data/more.jsonl is a link" in err


@pytest.mark.parametrize(
    "options",
    [
        ("--gpus", 1),
        ("--gpu-memory-gib", 24),
        ("--gpus", -1, "--gpu-memory-gib", 24),
        ("--gpus", 1, "--gpu-memory-gib", -3),
    ],
)
def test_jobs_check_wants_a_whole_machine(told, folder, options):
    code, _, err = told("jobs", "check", folder, *options)
    assert code == 2
    assert "--gpu-memory-gib" in err
    assert told("jobs", "check", folder, "--gpus", 1, "--gpu-memory-gib", 24)[0] == 0


# ---------------------------------------------------------------- models


def test_models_build_makes_the_bases_and_then_the_agent(told, monkeypatch, tmp_path):
    made = []

    def base(name, folder, *, seed, log):
        log("step 1 of 1: loss 0.500")
        folder.mkdir(parents=True)
        (folder / "config.json").touch()
        made.append((name, folder, seed))

    monkeypatch.setattr("nested_rl.pretrain.bases.build", base)
    monkeypatch.setattr("nested_rl.pretrain.baselines.record", lambda place, names: made.append(("record", place, 4)))
    monkeypatch.setattr("nested_rl.cli.models._build_agent", lambda folder, seed: made.append(("agent", folder, seed)))
    code, out, _ = told("models", "build", "--out", tmp_path, "--seed", 4)
    assert code == 0
    assert [name for name, *_ in made] == ["nano-m", "nano-s", "record", "agent"]
    assert all(folder in (tmp_path, tmp_path / name, tmp_path / "nano-agent") for name, folder, _ in made)
    assert {seed for *_, seed in made} == {4}
    assert "loss 0.500" in out
    made.clear()
    told("models", "build", "--only", "nano-m", "--out", tmp_path / "other")
    assert [name for name, *_ in made] == ["nano-m"]
    code, _, err = told("models", "build", "--only", "nano-l")
    assert code == 2
    assert "unknown nano model 'nano-l'" in err
