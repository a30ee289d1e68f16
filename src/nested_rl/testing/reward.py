"""What every reward function must do."""

from __future__ import annotations

import math

import pytest

from nested_rl import rewards
from nested_rl.interfaces import RewardFn
from nested_rl.testing.values import made_outcomes


class RewardSuite:
    """Override the fixture `reward` with a reward function."""

    @pytest.fixture
    def reward(self) -> RewardFn:
        """A reward function."""
        raise NotImplementedError("override the fixture `reward`")

    async def test_every_outcome_has_a_finite_reward(self, reward: RewardFn) -> None:
        for outcome in made_outcomes():
            value, parts = await rewards.evaluate(reward, outcome)
            assert math.isfinite(value)
            assert all(math.isfinite(part) for part in parts.values())

    async def test_the_same_outcome_has_the_same_reward(self, reward: RewardFn) -> None:
        for outcome in made_outcomes():
            assert await rewards.evaluate(reward, outcome) == await rewards.evaluate(reward, outcome)
