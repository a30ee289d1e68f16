"""UpliftReward's arithmetic, and the door every reward function goes through."""

import math
from fractions import Fraction

import numpy as np
import pytest

from nested_rl.errors import RewardError, SettingsError
from nested_rl.metrics import Counted, step_row
from nested_rl.rewards import UpliftReward, evaluate
from nested_rl.types import Episode, Group, Outcome, Score, Task, Transcript, UpdateReport

TASK = Task(id="t", family="calc_chain", difficulty=3)
N = 400


def score(value: float) -> Score:
    """`value` of N items right, the easy ones first, so that two scores are as correlated as they can be."""
    right = round(value * N)
    return Score.of([1.0] * right + [0.0] * (N - right))


def outcome(base: float = 0.40, gain: float | None = 0.0, *, speed: float = 0.0, attempts: int = 1, **kw) -> Outcome:
    post = None if gain is None else score(base + gain)
    values = {"valid": True, "attempts": attempts, "baselines": {"nano-m": score(base)}, "post": post}
    return Outcome(task=TASK, cost=1 - speed, cost_limit=1.0, **(values | kw))


async def reward(o: Outcome) -> float:
    return (await evaluate(UpliftReward(), o))[0]


@pytest.mark.parametrize(
    ("gain", "speed", "expected"),
    [
        (None, 1.0, 0.350),  # valid at first try, the job crashed
        (0.0, 1.0, 0.410),  # a no-op is not paid for being fast
        (0.05, 0.0, 0.440),
        (0.10, 0.0, 0.470),
        (0.40, 0.5, 0.675),
    ],
)
async def test_arithmetic(gain, speed, expected):
    assert await reward(outcome(gain=gain, speed=speed)) == pytest.approx(expected)


async def test_the_fastest_no_op_is_below_a_true_small_gain():
    assert await reward(outcome(gain=0.0, speed=1.0)) < await reward(outcome(gain=0.05, speed=0.0))


@pytest.mark.parametrize(("attempts", "expected"), [(1, 1.0), (2, 0.6), (3, 0.3), (4, 0.0), (0, 0.0)])
def test_validation_by_attempt(attempts, expected):
    assert UpliftReward()(outcome(attempts=attempts))["validation"] == expected
    assert UpliftReward()(outcome(attempts=attempts, valid=False))["validation"] == 0.0


def test_speed_needs_an_uplift_of_two_standard_errors():
    noisy = np.random.default_rng(0)
    base = [float(x) for x in noisy.random(N) < 0.4]
    lucky = [float(x) for x in noisy.random(N) < 0.42]  # unpaired luck: the difference is noise
    fast = {"valid": True, "attempts": 1, "cost": 0.0, "cost_limit": 1.0, "baselines": {"m": Score.of(base)}}
    small = Outcome(task=TASK, post=Score.of(lucky), **fast)
    assert small.uplift <= 2 * small.noise
    assert UpliftReward()(small)["speed"] == 0.0
    clear = Outcome(task=TASK, post=Score.of([1.0] * N), **fast)
    assert UpliftReward()(clear)["speed"] == 1.0


def test_speed_is_zero_when_scores_are_not_paired_or_nothing_was_allowed():
    unpaired = outcome(gain=0.4, speed=1.0, post=Score(value=0.8, n=N))
    assert math.isinf(unpaired.noise)
    assert UpliftReward()(unpaired)["speed"] == 0.0
    assert UpliftReward()(outcome(gain=0.4, speed=1.0))["speed"] == 1.0
    assert UpliftReward()(Outcome(task=TASK, valid=True, attempts=1, post=score(0.8)))["speed"] == 0.0


def test_parts_stay_in_range():
    over = UpliftReward()(outcome(gain=0.4, speed=-4.0))
    assert over["speed"] == 0.0
    ruined = UpliftReward()(outcome(base=0.8, gain=-0.6, speed=1.0))
    assert ruined == {"validation": 1.0, "quality": pytest.approx(0.25 * 0.2), "speed": 0.0}
    perfect = UpliftReward()(outcome(base=0.0, gain=1.0, speed=1.0))
    assert perfect == {"validation": 1.0, "quality": 1.0, "speed": 1.0}


def test_uplift_is_against_the_best_base_whichever_was_trained():
    weak = outcome(post=score(0.5), baselines={"nano-s": score(0.1), "nano-m": score(0.6)})
    assert UpliftReward()(weak)["quality"] == pytest.approx(0.125)


async def test_weights_are_yours():
    value, parts = await evaluate(UpliftReward(validation=0, quality=1, speed=0), outcome(gain=0.4))
    assert value == parts["quality"]
    for bad in (-0.1, math.nan, "0.5", True):
        with pytest.raises(SettingsError, match="quality"):
            UpliftReward(quality=bad)


async def test_sync_async_numbers_and_mappings():
    async def later(o):
        return {"a": 0.25, "b": np.float32(0.5)}

    assert await evaluate(later, outcome()) == (0.75, {"a": 0.25, "b": 0.5})
    assert await evaluate(lambda o: Fraction(1, 2), outcome()) == (0.5, {})
    assert await evaluate(lambda o: np.int64(3), outcome()) == (3.0, {})
    assert await evaluate(lambda o: {}, outcome()) == (0.0, {})


@pytest.mark.parametrize("yes", [True, np.bool_(True)])
async def test_true_and_false_count_as_one_and_zero(yes):
    no = yes ^ yes  # False of the same type
    assert repr(await evaluate(lambda o: yes, outcome())) == "(1.0, {})"
    assert repr(await evaluate(lambda o: no, outcome())) == "(0.0, {})"
    assert repr(await evaluate(lambda o: {"yes": yes, "no": no}, outcome())) == "(1.0, {'yes': 1.0, 'no': 0.0})"


@pytest.mark.parametrize(
    ("name", "words"),
    [("mean", "`reward/mean` is the reward itself"), ("", "at least one"), ("a b", "white space"), ("a/b", "'/'")],
)
async def test_a_part_whose_name_cannot_be_a_column_is_refused(name, words):
    def thrifty(o):
        return {"fine": 1.0, name: 0.5}

    with pytest.raises(RewardError, match=f"thrifty returned a part named '{name}'") as caught:
        await evaluate(thrifty, outcome())
    assert words in str(caught.value)


def test_a_part_never_takes_the_place_of_the_reward_in_the_metrics():
    transcript = Transcript(conversation=(), end="stop")
    episodes = tuple(
        Episode(
            group=0, member=m, task=TASK, version=0, transcript=transcript, outcome=outcome(), reward=0.5, parts=parts
        )
        for m, parts in enumerate(({"mean": 9.0, "a": 1.0}, {"a": 2.0}))
    )
    group = Group(index=0, task=TASK, version=0, episodes=episodes)
    row = step_row(0, [group], UpdateReport(version=1, stepped=True), Counted())
    assert {key: value for key, value in row.items() if key.startswith("reward/")} == {
        "reward/mean": 0.5,
        "reward/a": 1.5,
    }


@pytest.mark.parametrize("bad", [None, "1.0", math.nan, math.inf, -math.inf, 10**400, [1.0], 1j])
async def test_anything_but_finite_numbers_is_refused_by_name(bad):
    def thrifty(o):
        return bad

    def parted(o):
        return {"fine": 1.0, "broken": bad}

    with pytest.raises(RewardError, match=r"thrifty returned"):
        await evaluate(thrifty, outcome())
    with pytest.raises(RewardError, match=r"'broken'.*parted"):
        await evaluate(parted, outcome())


async def test_what_a_reward_function_raises_is_named_and_kept():
    def broken(o):
        return 1 / 0

    with pytest.raises(RewardError, match=r"broken raised ZeroDivisionError") as caught:
        await evaluate(broken, outcome())
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


async def test_a_typo_is_told_with_its_line_and_what_was_likely_meant():
    def typo(o):
        return o.uplfit

    line = typo.__code__.co_firstlineno + 1
    with pytest.raises(RewardError, match=rf"'uplfit'\. Did you mean: 'uplift'\? \(.*test_rewards\.py:{line}\)"):
        await evaluate(typo, outcome())

    def name(o):
        return outcom(o)  # noqa: F821

    with pytest.raises(RewardError, match=r"Did you mean: 'outcome'"):
        await evaluate(name, outcome())


async def test_weights_that_do_not_fit_are_refused():
    class Odd:
        def __init__(self, weights):
            self.weights = weights

        def __call__(self, o):
            return {"a": 1.0, "b": 1.0}

    with pytest.raises(RewardError, match=r"Odd has no weight for part 'b'"):
        await evaluate(Odd({"a": 1.0}), outcome())
    with pytest.raises(RewardError, match=r"`weights` of reward function"):
        await evaluate(Odd([1.0]), outcome())
    with pytest.raises(RewardError, match="names of parts are strings"):
        await evaluate(lambda o: {1: 1.0}, outcome())
