"""Outer trainers: who owns the policy's weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nested_rl import lazy

if TYPE_CHECKING:
    from nested_rl.trainers.nano import NanoTrainer
    from nested_rl.trainers.tinker import TinkerTrainer

__all__ = ["NanoTrainer", "TinkerTrainer"]

__getattr__ = lazy.names(__name__, {"NanoTrainer": "nano", "TinkerTrainer": "tinker"})
