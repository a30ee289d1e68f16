"""`nested-rl evaluate`: which policies are meant, what they are compared with, what is printed."""

import json

import pytest
from made_run import make_run


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "pilot", steps=4, groups_per_step=2, group_size=4).path


def test_evaluate_compares_and_says_null_for_what_is_not_known(told, monkeypatch, run_dir):
    from nested_rl.evaluation import EvalReport, EvalRow

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
    from nested_rl.evaluation import EvalReport, EvalRow

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
