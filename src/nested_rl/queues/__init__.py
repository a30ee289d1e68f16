"""Job queues: at-least-once delivery with leases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nested_rl import lazy

if TYPE_CHECKING:
    from nested_rl.queues.memory import MemoryQueue
    from nested_rl.queues.sqlite import SqliteQueue

__all__ = ["MemoryQueue", "SqliteQueue"]

__getattr__ = lazy.names(__name__, {"SqliteQueue": "sqlite", "MemoryQueue": "memory"})
