"""Scorers: how a checkpoint is asked the hidden evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nested_rl import lazy

if TYPE_CHECKING:
    from nested_rl.scorers.nano import NanoScorer

__all__ = ["NanoScorer"]

__getattr__ = lazy.names(__name__, {"NanoScorer": "nano"})
