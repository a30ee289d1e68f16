"""Replay: the recorded reward gives the recorded numbers, another one is compared, a broken one is one sentence."""

import asyncio
import json
import math

import attrs
import pytest
from made_run import make_run

from nested_rl import cli, grpo, rewards
from nested_rl.errors import RewardError, SettingsError
from nested_rl.replay import SAME, replay, spearman
from nested_rl.rewards import UpliftReward
from nested_rl.run import Run
from nested_rl.rundir import RunDir, write_atomic


def pay(run, reward):
    """Write every episode again, with what the loop would have paid."""
    for episode in list(run.episodes()):
        if episode.masked:
            continue
        value, parts = asyncio.run(rewards.evaluate(reward, episode.outcome))
        run.write_episode(attrs.evolve(episode, reward=value, parts=parts), files={})
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Three steps and one group in flight; there are masked episodes among them."""
    made = make_run(tmp_path_factory.mktemp("replay") / "run", steps=8, done=3, seed=6, evals=False)
    return pay(RunDir.open(made.path), UpliftReward())


@pytest.fixture
def told(capsys):
    def call(*argv):
        code = cli.main(["replay", *map(str, argv)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def uplift_only(outcome):
    return outcome.uplift


def upside_down(outcome):
    parts = UpliftReward()
    return -sum(parts.weights[name] * value for name, value in parts(outcome).items())


def test_the_recorded_reward_gives_exactly_the_recorded_numbers(run):
    report = Run(run.path).replay(UpliftReward())
    recorded = {(e.group, e.member): e.reward for e in run.episodes() if not e.masked}
    assert {(c.group, c.member): c.now for c in report.changes} == recorded
    assert report.same == len(report.changes) == len(recorded)
    assert not report.flipped
    assert not report.gainers()
    assert not report.losers()
    assert report.rank_correlation == pytest.approx(1)
    assert "exactly the recorded" in str(report)


def test_advantages_are_those_of_training(run):
    report = replay(run, uplift_only, std_floor=0.2)
    first = [c for c in report.changes if c.group == 0]
    episodes = [e for e in run.episodes() if e.group == 0]
    paid = [None if e.masked else e.reward for e in episodes]
    anew = [None if e.masked else e.outcome.uplift for e in episodes]
    expected = [a for a in grpo.advantages(paid, std_floor=0.2) if a is not None]
    assert [c.advantage_was for c in first] == expected
    assert [c.advantage_now for c in first] == [a for a in grpo.advantages(anew, std_floor=0.2) if a is not None]


def test_the_floor_is_the_trainers(tmp_path):
    made = make_run(tmp_path / "run", steps=1, evals=False)
    spec = (made.path / "run.toml").read_text()
    write_atomic(made.path / "run.toml", f"{spec}\n[parts.trainer]\nstd_floor = 0.5\n".encode())
    by_default = replay(RunDir.open(made.path), uplift_only).changes
    assert by_default == replay(RunDir.open(made.path), uplift_only, std_floor=0.5).changes
    assert by_default != replay(RunDir.open(made.path), uplift_only, std_floor=0.05).changes


def test_a_reward_turned_over_flips_every_group_that_taught_anything(run):
    report = replay(run, upside_down)
    assert report.rank_correlation == pytest.approx(-1)
    assert report.rank_correlation_within == pytest.approx(-1)
    for group in report.groups:
        assert group.reversed == group.pairs
        assert group.was_flat == group.is_flat == math.isnan(group.rank_correlation)
    assert {g.group for g in report.flipped} == {g.group for g in report.groups if not g.was_flat}
    best, worst = report.gainers(1)[0], report.losers(1)[0]
    assert best.advantage_was < 0 < best.advantage_now
    assert worst.advantage_was > 0 > worst.advantage_now
    assert best.gain == max(c.gain for c in report.changes)


def test_a_larger_scale_changes_no_order(run):
    report = replay(
        run, lambda outcome: 10 * sum(UpliftReward().weights[k] * v for k, v in UpliftReward()(outcome).items())
    )
    assert report.rank_correlation == pytest.approx(1)
    assert not report.flipped
    assert [f.now for f in report.families] == pytest.approx([10 * f.was for f in report.families])


def test_what_has_no_reward_is_left_out_and_counted(run, tmp_path):
    made = make_run(tmp_path / "run", steps=8, done=3, seed=6, evals=False)
    masked = sum(e.masked for e in made.episodes() if e.group < 12)
    lone = next(iter(sorted(made.path.glob("episodes/00012-*"))))
    (lone / "reward.json").unlink()
    report = replay(RunDir.open(made.path), uplift_only)
    assert report.unfinished == 7
    assert report.masked == masked > 0
    assert {c.group for c in report.changes} == set(range(12))
    assert len(report.changes) == 12 * 8 - masked


async def test_async_rewards_and_a_running_loop_are_fine(run):
    async def slow(outcome):
        await asyncio.sleep(0)
        return {"uplift": outcome.uplift, "valid": float(outcome.valid)}

    report = replay(run, slow)
    assert [c.now for c in report.changes] == [
        e.outcome.uplift + e.outcome.valid for e in run.episodes() if not e.masked
    ]


def test_a_reward_that_is_no_number_names_the_episode(run):
    with pytest.raises(RewardError, match=r"episode 0000\d-\d: reward function .*returned 'good'"):
        replay(run, lambda outcome: "good")


def test_a_floor_that_cannot_be(run):
    with pytest.raises(SettingsError, match="std_floor"):
        replay(run, uplift_only, std_floor=-1.0)


def test_an_empty_run_has_nothing_to_replay(tmp_path):
    empty = RunDir.create(tmp_path / "run", {"steps": 1, "group_size": 2})
    empty.close()
    report = replay(empty, uplift_only)
    assert "nothing to replay" in str(report)
    assert report.to_json()["rank_correlation"] is None


def test_ranks_against_numbers_worked_out_by_hand():
    assert spearman([1, 2, 3, 4, 5], [5, 6, 7, 8, 7]) == pytest.approx(0.8207826816681233)
    assert spearman([0.0, SAME / 2, 1.0], [1, 2, 3]) == pytest.approx(0.8660254037844387)
    assert math.isnan(spearman([1, 1, 1], [1, 2, 3]))
    assert math.isnan(spearman([], []))


# ---------------------------------------------------------------- the command


REWARDS = """
import math
def only_uplift(outcome): return outcome.uplift
def words(outcome): return "good"
class Weighted:
    weights = {"uplift": 2.0}
    def __call__(self, outcome): return {"uplift": outcome.uplift}
class Needs:
    def __init__(self, factor): self.factor = factor
class Dumb: pass
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(REWARDS)
    monkeypatch.chdir(tmp_path)
    return "mine.py"


def test_the_command_without_a_reward_takes_the_default(told, run):
    code, out, err = told(run.path)
    assert (code, err) == (0, "")
    assert "rewards are exactly the recorded ones" in out


def test_the_command_tells_what_changes(told, run, file):
    code, out, _ = told(run.path, "--reward", f"{file}:only_uplift", "--show", "3")
    assert code == 0
    for words in (
        "rank correlation",
        "By family",
        "calc_chain",
        "gain most",
        "lose most",
        "Groups that flip",
        "signal",
    ):
        assert words in out
    assert out.splitlines()[0].startswith("only_uplift on ")


def test_json_has_everything(told, run, file):
    code, out, _ = told(run.path, "--reward", f"{file}:Weighted", "--json")
    data = json.loads(out)
    assert code == 0
    assert data["episodes"] == len(data["changes"])
    by_place = {(e.group, e.member): e for e in run.episodes()}
    for change in data["changes"]:
        assert change["now"] == 2 * by_place[change["group"], change["member"]].outcome.uplift
    assert {g["group"] for g in data["groups"]} == {c["group"] for c in data["changes"]}


@pytest.mark.parametrize(
    ("reward", "code", "words"),
    [
        ("nowhere.py:fn", 2, "nowhere.py: no such file"),
        ("mine.py:only_uplfit", 2, "did you mean 'only_uplift'"),
        ("mine.py", 2, "FILE.py:NAME or MODULE:NAME"),
        ("no_such_module:fn", 2, "cannot be imported"),
        ("mine.py:Needs", 2, "cannot be made without arguments"),
        ("mine.py:Dumb", 2, "give it __call__(self, outcome)"),
        ("mine.py:words", 1, "returned 'good' (str); it must be a finite number"),
    ],
)
def test_a_reward_that_cannot_be_used_is_one_sentence(told, run, file, reward, code, words):
    found, out, err = told(run.path, "--reward", reward)
    assert (found, out) == (code, "")
    assert words in err
    assert err.count("\n") == 1


def test_a_path_that_is_no_run(told, tmp_path):
    code, _, err = told(tmp_path)
    assert code == 2
    assert "not a run directory" in err
