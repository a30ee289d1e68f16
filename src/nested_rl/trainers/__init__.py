"""Outer trainers: who owns the policy's weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nested_rl import lazy

if TYPE_CHECKING:
    from nested_rl.trainers.nano import NanoTrainer

__all__ = ["NanoTrainer"]

__getattr__ = lazy.names(__name__, {"NanoTrainer": "nano"})
