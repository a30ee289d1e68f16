"""What counts: faults of ours never do, what counts is a finite number, and nobody counts more for being quick."""

import json
import math
from collections import Counter

import numpy as np
import pytest
from case_doubles import Boxes, Inner, Scorer, World, calls, small_trainer

from nested_rl import grpo, rewards, tasks
from nested_rl.clock import VirtualClock
from nested_rl.errors import InfraFault, MachineLost, RewardError, SettingsError
from nested_rl.harness.agent import ToolHarness
from nested_rl.report.page import render, summary
from nested_rl.rewards import UpliftReward
from nested_rl.scorers.nano import NanoScorer
from nested_rl.testing.values import made_spec, made_task
from nested_rl.types import Episode, Group, Job, Message, Outcome, Score, Transcript, Turn
from nested_rl.worker import Delivery

pytestmark = pytest.mark.cases

TASK = made_task()


def group_of(*paid: float | None) -> Group:
    """A group with these rewards; None is a masked member, whatever number it has."""
    turn = Turn(message=Message(role="assistant"), prompt_ids=(4,), ids=(5, 6), logprobs=(-1.0, -2.0))
    said = Transcript(conversation=(turn,), end="submitted")
    episodes = tuple(
        Episode(
            group=0,
            member=i,
            task=TASK,
            version=0,
            transcript=said,
            outcome=Outcome(task=TASK),
            reward=0.0 if reward is None else reward,
            masked=reward is None,
        )
        for i, reward in enumerate(paid)
    )
    return Group(index=0, task=TASK, version=0, episodes=episodes)


async def test_a05_off_policy_drops_slow_jobs(tmp_path):
    """Half the work takes four times as long: it makes up half of what is trained, and nothing paid for is thrown away."""
    world = World(
        tmp_path / "run",
        families=("quick", "slow"),
        machines=24,
        steps=15,
        groups_per_step=4,
        max_steps_off_policy=2,
        order="ready",
    )
    world.inner.timeout_s = 20.0
    world.inner.seconds = lambda job: 1.0 if job.spec.task.family == "slow" else 0.25
    await world.go()
    slow = sum(index % 2 for index in world.trained())
    assert 0.45 <= slow / 60 <= 0.55
    assert [row["groups/dropped"] for row in world.files.metrics()] == [0] * 15


def test_a05_one_token_far_off_outweighs_nothing():
    ratio = grpo.ratios(np.array([-1.0, -1.0, 5.0]), np.array([-1.0, -1.0, 0.0]))
    weights = grpo.coefficients(ratio, np.ones(3), cap=2.0, tokens=3)
    stats = grpo.RatioStats.of(ratio)
    assert weights.tolist() == pytest.approx([-1 / 3, -1 / 3, -2 / 3])
    assert stats.max == pytest.approx(math.exp(5))
    assert stats.ess < 0.4
    assert np.isfinite(grpo.ratios(np.array([0.0]), np.array([-1e9]))).all()


def test_a06_off_policy_without_correction():
    """A bandit whose sampler is a version behind learns as the one on policy does, with the correction that is the default."""

    def learned(lag: int) -> float:
        rng, theta, history = np.random.default_rng(0), 0.0, [0.0]
        for _ in range(60):
            old = history[-1 - min(lag, len(history) - 1)]
            chosen = rng.random(64) < 1 / (1 + math.exp(-old))
            sign = np.where(chosen, 1.0, -1.0)
            new_log, old_log = -np.log1p(np.exp(-sign * theta)), -np.log1p(np.exp(-sign * old))
            advantage = np.array(grpo.advantages(chosen.astype(float).tolist()))
            weights = grpo.coefficients(grpo.ratios(new_log, old_log), advantage, cap=2.0, tokens=64)
            slope = sign * (1 - np.exp(new_log))
            theta -= 0.5 * float(weights @ slope)
            history.append(theta)
        return 1 / (1 + math.exp(-theta))

    assert learned(0) > 0.95
    assert learned(1) == pytest.approx(learned(0), abs=0.03)


def test_a08_infra_failure_scored_0():
    """Six of eight failed for reasons of ours: the other two are compared with each other, the six have no weight."""
    found = grpo.advantages([0.6, 0.5] + [None] * 6, std_floor=0.0)
    assert found[:2] == pytest.approx([1.0, -1.0])
    assert found[2:] == [None] * 6
    assert len(grpo.group_datums(group_of(0.6, 0.5, *[None] * 6))) == 2
    assert grpo.group_datums(group_of(0.6, *[None] * 7)) == []


async def test_a09_silent_zero_advantage(tmp_path):
    """Everybody earns the same: each step is recorded as one without a signal, nothing is sampled again, the run ends.

    After three in a row somebody is told, and a run that was asked to stops.
    """
    world = World(tmp_path / "run", steps=4)
    world.reward = UpliftReward(quality=0.0, speed=0.0)
    await world.go()
    assert [row["groups/zero_advantage"] for row in world.files.metrics()] == [1.0] * 4
    assert world.trained() == [0, 1, 2, 3]
    assert [row["steps/no_signal"] for row in world.files.metrics()] == [1.0, 2.0, 3.0, 4.0]
    (alarm,) = world.events("alarm")
    assert alarm["name"] == "no-signal"

    trainer = small_trainer(tmp_path)
    before = trainer._learner.theta.copy()
    report = await trainer.update([group_of(0.35, 0.35, 0.35)])
    assert (report.version, report.stepped, trainer.version) == (1, False, 1)
    assert np.array_equal(trainer._learner.theta, before)


NOT_REWARDS = [None, "nan", float("nan"), float("inf"), float("-inf"), 1e309, "0.5", 10**400]


@pytest.mark.parametrize("value", NOT_REWARDS, ids=lambda value: repr(value)[:8])
async def test_a10_nan_reward(value):
    """Only a finite number is a reward, alone or as a part, or a score."""
    outcome = Outcome(task=TASK)
    with pytest.raises(RewardError, match="must be a finite number"):
        await rewards.evaluate(lambda outcome: value, outcome)
    with pytest.raises(RewardError, match=r"part 'quality' .* must be a finite number"):
        await rewards.evaluate(lambda outcome: {"quality": value}, outcome)


@pytest.mark.parametrize("value", [*NOT_REWARDS, True, -0.1, 1.5], ids=lambda value: repr(value)[:8])
async def test_a10_a_score_that_is_none_is_delivered_again(value):
    clock, scorer = VirtualClock(), Scorer()

    async def score(*asked, seed):
        return Score(value=value, n=4)

    scorer.score = score
    job = Job(id="1", key="k", spec=made_spec(), delivery=1)
    delivery = Delivery(job=job, inner=Inner(clock), scorer=scorer, clock=clock)
    result = await clock.run(delivery.run(Boxes(1), lambda spec: None))
    assert (result.fault, result.post) == ("infra", None)
    assert "scoring failed: the score is" in result.error


def test_a10_a_group_with_nan_is_refused():
    with pytest.raises(SettingsError, match="must be finite"):
        grpo.advantages([0.5, float("nan")])


async def test_a11_baseline_shifted_by_empty_sample(tmp_path):
    """An empty message is the agent's own doing: it earns 0, in the mean, the deviation and the weights alike."""
    world = World(tmp_path / "run", steps=1, group_size=4)
    said = []

    def say(talk):
        said.append(talk)
        return Message(role="assistant") if len(said) == 1 else calls("submit_job")

    world.trainer.say, world.harness = say, ToolHarness(clock=world.clock)
    await world.go()
    episodes = list(world.files.episodes())
    (empty,) = [e for e in episodes if not e.outcome.attempts]
    assert (empty.transcript.end, empty.reward, empty.masked) == ("stop", 0.0, False)
    (row,) = world.files.metrics()
    assert row["reward/mean"] == pytest.approx(sum(e.reward for e in episodes) / 4)
    assert row["reward/mean"] < min(e.reward for e in episodes if e is not empty)
    found = grpo.advantages([100.0, 1.0, 0.0, None])
    assert sum(found[:3]) == pytest.approx(0.0)


async def test_a39_gain_inside_noise(tmp_path):
    """Jobs that do nothing earn no bonus for having been quick at it, and the same job is not scored twice."""
    rng = np.random.default_rng(0)
    base = Score.of((rng.random((100, 4)) < 0.4).mean(axis=1).tolist())
    posts = [Score.of((rng.random(100) < 0.4).astype(float).tolist()) for _ in range(8)]
    parts = [
        UpliftReward()(
            Outcome(task=TASK, valid=True, attempts=1, baselines={"m": base}, post=post, cost=0.0, cost_limit=1.0)
        )
        for post in posts
    ]
    assert [part["speed"] for part in parts] == [0.0] * 8
    assert np.std([0.05 * p["speed"] + 0.6 * p["quality"] for p in parts]) < 0.05

    world = World(tmp_path / "run", steps=1, group_size=8, job_seeds=2)
    world.harness = ToolHarness(clock=world.clock)
    await world.go()
    assert len(world.inner.started) <= 2
    assert world.files.metrics()[0]["jobs/reused"] >= 6


class Server:
    """A machine whose sampling server says what it is told to."""

    id = "box"

    def __init__(self, **said) -> None:
        self.said = said

    async def resident(self, key, argv, *, env=None):
        return self

    async def write(self, data):
        self.nonce = json.loads(data)["nonce"]

    async def readline(self):
        return json.dumps({"nonce": self.nonce, **self.said}).encode() + b"\n" if self.said else b""

    async def kill(self):
        self.said = {}


(FAMILY,) = tasks.load("calc_chain", scale="nano")
EVAL = FAMILY.eval_set(next(FAMILY.tasks()), "hidden", salt="s", n=16)


async def test_a40_truncation(tmp_path):
    """Answers that were cut off are wrong and counted as what they are, and the count is kept with the job."""
    texts = [f">{item.answer}." for item in EVAL.items for _ in range(4)]
    machine = Server(completions=texts, finished=[False] * 64, tokens=64)
    score = await NanoScorer().score("nano-s", EVAL, machine)
    assert (score.value, score.truncated) == (0.0, 64)
    assert EVAL.sampling.max_tokens == EVAL.baseline_sampling.max_tokens

    world = World(tmp_path / "run", steps=1)
    plain = world.scorer.score

    async def cut(model, *asked, seed=0):
        found = await plain(model, *asked, seed=seed)
        return Score.of(found.items, truncated=4)

    world.scorer.score = cut
    await world.go()
    assert {e.result.post.truncated for e in world.files.episodes()} == {4}
    assert "100 % of the trained models' answers were cut off at their length limit" in summary(world.files)
    page = render(world.files)
    assert "answers cut off" in page
    assert "8 of 8" in page


async def test_a40_a_few_cut_answers_are_counted_without_a_warning(tmp_path):
    world = World(tmp_path / "run", steps=1)
    await world.go()
    assert "cut off" not in summary(world.files)
    assert "0 of 8" in render(world.files)


async def test_a61_bias_to_fast_episodes(tmp_path):
    """Quick jobs are bad and slow ones good: each batch has as many of either as were started."""
    world = World(
        tmp_path / "run", families=("bad", "good"), machines=16, steps=20, groups_per_step=4, max_steps_off_policy=1
    )
    world.inner.timeout_s = 20.0
    world.inner.seconds = lambda job: 1.0 if job.spec.task.family == "good" else 0.1
    await world.go()
    for event in world.events("step.done"):
        assert Counter(index % 2 for index in event["groups"]) == {0: 2, 1: 2}


async def test_a62_grader_crash_becomes_0(tmp_path):
    """The scorer crashes on every try: there is no score, the episodes are masked, and no group has them in its mean."""
    world = World(tmp_path / "run", steps=1)
    world.scorer.fails = lambda: ValueError("no verdict")
    await world.go()
    for episode in world.files.episodes():
        assert episode.masked
        assert (episode.outcome.fault, episode.outcome.post) == ("infra", None)
        assert "given up after 3 deliveries" in episode.outcome.error
        assert "no verdict" in episode.outcome.error
    (row,) = world.files.metrics()
    assert (row["episodes/masked"], row["groups/skipped"]) == (2, 1)


@pytest.mark.parametrize(
    ("said", "error"),
    [({}, MachineLost), ({"error": "MemoryError"}, InfraFault), ({"completions": [], "finished": []}, InfraFault)],
)
async def test_a62_a_scorer_that_says_nothing_has_said_nothing(said, error):
    with pytest.raises(error):
        await NanoScorer().score("nano-s", EVAL, Server(**said))
