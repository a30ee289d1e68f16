"""Trackers: side channels that never hurt a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nested_rl import lazy

if TYPE_CHECKING:
    from nested_rl.trackers.dashboard import DashboardTracker
    from nested_rl.trackers.jsonl import JsonlTracker

__all__ = ["DashboardTracker", "JsonlTracker"]

__getattr__ = lazy.names(__name__, {"DashboardTracker": "dashboard", "JsonlTracker": "jsonl"})
