"""`nested-rl evaluate`: which policies are meant, what they are compared with, what is printed."""

import io
import json

import pytest
from made_run import make_run

from nested_rl.evaluation import EvalReport, EvalRow
from nested_rl.report.counting import Counting
from nested_rl.rundir import RunDir


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "pilot", steps=4, groups_per_step=2, group_size=4).path


def test_evaluate_compares_and_says_null_for_what_is_not_known(told, monkeypatch, run_dir):
    def evaluate(self, families, *, policy, n, seed, out):
        asked.append((policy, n, seed, out))
        flags = {
            "valid": policy == "RUN@2",
            "first_try": False,
            "strongest": False,
            "own_family": False,
            "advanced": False,
        }
        row = EvalRow(task="0:t", family="triage", reward=0.5, quality=0.4, asked_baselines=False, **flags)
        return EvalReport(policy=policy, version=0, split="test", seed=seed, rows=(row,))

    asked = []
    monkeypatch.setattr("nested_rl.experiment.Experiment.evaluate", evaluate)
    argv = ("evaluate", run_dir, "--policy", "2", "--against", f"{run_dir}@initial", "--n", 1, "--seed", 5)
    code, out, _ = told(*argv, "--json")
    found = json.loads(out, parse_constant=pytest.fail)
    assert code == 0
    assert asked == [("RUN@2", 1, 5, run_dir), ("RUN@initial", 1, 5, run_dir)]
    [difference] = found["differences"]
    assert found["policies"][0]["reward"] == 0.5
    assert (difference["policy"], difference["against"]) == ("RUN@2", "RUN@initial")
    assert difference["valid"]["value"] == 1.0
    assert difference["quality_given_valid"]["value"] is None
    assert "RUN@2 minus RUN@initial: reward +0.000" in told(*argv)[1]


@pytest.mark.parametrize(
    ("policies", "asked"),
    [
        (("RUN@every:2",), ["RUN@2", "RUN@3", "RUN@0"]),
        (("every:9",), ["RUN@3", "RUN@0"]),
        (("best", "RUN@initial"), ["RUN@best", "RUN@initial"]),
        (("initial", "3", "best"), ["RUN@3", "RUN@best", "RUN@initial"]),
        (("3", "1"), ["RUN@3", "RUN@1"]),
    ],
)
def test_several_policies_are_compared_with_the_initial_one_or_else_the_last(
    told, monkeypatch, tmp_path, policies, asked
):
    def evaluate(self, families, *, policy, n, seed, out):
        found.append(policy)
        flags = dict.fromkeys(("valid", "first_try", "strongest", "own_family", "advanced", "asked_baselines"), True)
        reward = 0.1 + 0.2 * ("initial" not in policy)
        parts = {"quality": reward / 0.6}
        rows = tuple(
            EvalRow(task=f"{i}:t", family="triage", reward=reward, quality=0.4, parts=parts, **flags) for i in range(4)
        )
        return EvalReport(policy=policy, version=0, split="test", seed=seed, rows=rows)

    found = []
    monkeypatch.setattr("nested_rl.experiment.Experiment.evaluate", evaluate)
    run = tmp_path / "run"
    make_run(run, steps=3, groups_per_step=2, group_size=4)
    named = [f"{run}@{name.removeprefix('RUN@')}" for name in policies]
    code, out, err = told("evaluate", "--policy", *named)
    assert (code, err) == (0, "")
    assert found == asked
    assert f"{asked[0]} minus {asked[-1]}: reward" in out
    assert "0.300 [0.300, 0.300]" in out
    assert "strongest base" in out


def test_evaluate_says_how_to_name_the_run_and_the_steps(told, run_dir):
    assert "which run? `nested-rl evaluate RUN`" in told("evaluate")[2]
    code, _, err = told("evaluate", run_dir, "--policy", "every:0")
    assert code == 2
    assert "such as every:5" in err


@pytest.mark.parametrize(
    ("written", "asked"),
    [
        ("{run}@best", "RUN@best"),
        ("{run}/@3", "RUN@3"),
        ("RUN@initial", "RUN@initial"),
        ("{run}", "RUN"),
        ("last", "RUN"),
        ("openai:small@http://user@localhost:8000/v1", "openai:small@http://user@localhost:8000/v1"),
    ],
)
def test_the_ways_to_name_a_policy_of_a_run(told, monkeypatch, run_dir, written, asked):
    def evaluate(self, families, *, policy, n, seed, out):
        found.append((policy, out))
        return "fine"

    found = []
    monkeypatch.setattr("nested_rl.experiment.Experiment.evaluate", evaluate)
    assert told("evaluate", run_dir, "--policy", written.format(run=run_dir))[0] == 0
    assert found == [(asked, run_dir)]


@pytest.mark.parametrize("option", ["--policy", "--against"])
def test_a_policy_of_another_run_is_refused_and_the_right_command_told(told, monkeypatch, run_dir, option):
    monkeypatch.setattr("nested_rl.experiment.Experiment.evaluate", lambda *_, **__: pytest.fail("evaluated"))
    code, _, err = told("evaluate", run_dir, option, "runs/other@best")
    assert code == 2
    assert "runs/other@best is a policy of another run" in err
    assert "`nested-rl evaluate runs/other --policy best`" in err


def scored(policy, *, masked=0, seed=0):
    """An evaluation on eight tasks, of which the last were masked."""
    flags = dict.fromkeys(("valid", "first_try", "strongest", "own_family", "advanced", "asked_baselines"), True)
    rows = [
        EvalRow(task=f"{i}:t", family="triage", reward=0.1 * i + 0.01 * len(policy), quality=0.4, **flags)
        for i in range(8 - masked)
    ]
    return EvalReport(policy=policy, version=0, split="test", seed=seed, masked=masked, rows=tuple(rows))


@pytest.fixture
def evaluated(monkeypatch):
    """Every policy is evaluated in no time, the second one with masked episodes; which were asked."""
    asked = []

    def evaluate(self, families, *, policy, n, seed, out):
        asked.append(policy)
        return scored(policy, masked=3 * (len(asked) % 2 == 0))

    monkeypatch.setattr("nested_rl.experiment.Experiment.evaluate", evaluate)
    return asked


def test_masked_episodes_and_intervals_are_shown(told, evaluated, run_dir):
    argv = ("evaluate", run_dir, "--policy", "2", "--against", "initial")
    _, out, _ = told(*argv)
    lines = [line.split() for line in out.splitlines()]
    assert [line[:3] for line in lines if line[:1] == ["RUN@2"] and line[1:2] == ["8"]] == [["RUN@2", "8", "0"]]
    assert ["RUN@initial", "5", "3"] in [line[:3] for line in lines]
    assert "(n=5, 3 masked)" in out
    assert "(n=5, paired; 3 that only one side has are left out)" in out
    found = json.loads(told(*argv, "--json")[1])
    assert [(one["n"], one["masked"]) for one in found["policies"]] == [(8, 0), (5, 3)]
    for one in found["policies"]:
        assert one["interval"]["low"] < one["interval"]["value"] == one["reward"] < one["interval"]["high"]
    assert found["differences"][0]["left_out"] == 3


@pytest.fixture
def thinned(tmp_path):
    """A run of seven steps that has let go of versions 1 to 4."""
    make_run(tmp_path / "thin", steps=7, groups_per_step=1, group_size=2)
    run = RunDir.open(tmp_path / "thin")
    for version in (1, 2, 3, 4):
        run.journal.append({"t": 0.0, "event": "checkpoint.gone", "version": version})
    run.close()
    return run.path


def test_of_a_thinned_run_every_evaluates_what_is_there_and_says_what_is_not(told, evaluated, thinned):
    code, _, err = told("evaluate", "--policy", f"{thinned}@every:2")
    assert code == 0
    assert evaluated == ["RUN@6", "RUN@7", "RUN@0"]
    assert "of every:2 the checkpoints of 2, 4 are gone" in err
    assert "keep_checkpoints=None" in err
    evaluated.clear()
    code, _, err = told("evaluate", "--policy", f"{thinned}@every:5")
    assert (code, evaluated, err) == (0, ["RUN@5", "RUN@7", "RUN@0"], "")


@pytest.mark.parametrize("against", ["every:2", "RUN@every:2"])
def test_the_others_are_compared_with_one(told, evaluated, run_dir, against):
    code, _, err = told("evaluate", run_dir, "--policy", "2", "--against", against)
    assert code == 2
    assert "compared with one policy" in err
    assert evaluated == []


def test_an_address_where_nobody_listens_is_told_at_once(told, run_dir):
    code, _, err = told("evaluate", run_dir, "--policy", "openai:small@http://127.0.0.1:9/v1", "--n", 2)
    assert code != 0
    assert "http://127.0.0.1:9/v1" in err
    assert "is the server running" in err


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_sees_how_far_it_is_in_one_line_that_goes_away(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    for shown in (False, True):
        file = Terminal() if shown else io.StringIO()
        with Counting("evaluating runs/a-long-name/pilot@best", "episodes", file=file) as counting:
            counting(3, 48)
        assert "\n" not in file.getvalue()
        lines = file.getvalue().split("\r")
        assert any(line.endswith("3 of 48 episodes") for line in lines) is shown
        assert max(map(len, lines)) <= 29
        assert file.getvalue() == "" or lines[-2:] == [" " * 29, ""]
    file = Terminal()
    with Counting("evaluating RUN@best", "episodes", quiet=True, file=file) as counting:
        counting(1, 2)
    assert file.getvalue() == ""
    with Counting("evaluating RUN@best", "episodes", file=Closed()) as counting:
        counting(1, 2)  # does not raise


class Closed(Terminal):
    def write(self, text):
        raise OSError("the terminal is gone")
