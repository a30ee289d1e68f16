"""Conformance suites, one a seam: subclass one in your tests, override its fixture, and pytest runs it on your part.

    from nested_rl.testing import QueueSuite

    class TestRedisQueue(QueueSuite):
        @pytest.fixture
        def queue(self):
            return RedisQueue(...)

Needs pytest and pytest-asyncio. Every built-in part passes its suite (tests/contract).
"""

from __future__ import annotations

from nested_rl.testing.compute import ComputeSuite
from nested_rl.testing.machine import MachineSuite
from nested_rl.testing.queue import QueueSuite

__all__ = ["ComputeSuite", "MachineSuite", "QueueSuite"]
