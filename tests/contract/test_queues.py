"""Both queues keep the contract."""

import pytest

from nested_rl.queues.memory import MemoryQueue
from nested_rl.queues.sqlite import SqliteQueue
from nested_rl.testing import QueueSuite


class TestMemoryQueue(QueueSuite):
    @pytest.fixture
    def queue(self):
        return MemoryQueue()


class TestSqliteQueue(QueueSuite):
    @pytest.fixture
    async def queue(self, tmp_path):
        queue = SqliteQueue(tmp_path / "queue.sqlite")
        yield queue
        await queue.close()
