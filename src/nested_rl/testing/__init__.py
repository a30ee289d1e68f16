"""Conformance suites, one a seam: subclass one in your tests, override its fixtures, and pytest runs it on your part.

    from nested_rl.testing import QueueSuite

    class TestRedisQueue(QueueSuite):
        @pytest.fixture
        def queue(self):
            return RedisQueue(...)

Needs pytest and pytest-asyncio, with `asyncio_mode = "auto"` or the subclass marked `@pytest.mark.asyncio`. Every built-in
part passes its suite (tests/contract).
"""

from __future__ import annotations

from nested_rl.testing.compute import ComputeSuite
from nested_rl.testing.family import FamilySuite
from nested_rl.testing.harness import HarnessSuite
from nested_rl.testing.inner import InnerTrainerSuite
from nested_rl.testing.machine import MachineSuite
from nested_rl.testing.outer import OuterTrainerSuite
from nested_rl.testing.provider import ProviderSuite
from nested_rl.testing.queue import QueueSuite
from nested_rl.testing.reward import RewardSuite
from nested_rl.testing.scorer import ScorerSuite
from nested_rl.testing.tracker import TrackerSuite

__all__ = [
    "ComputeSuite",
    "FamilySuite",
    "HarnessSuite",
    "InnerTrainerSuite",
    "MachineSuite",
    "OuterTrainerSuite",
    "ProviderSuite",
    "QueueSuite",
    "RewardSuite",
    "ScorerSuite",
    "TrackerSuite",
]
