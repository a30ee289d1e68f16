"""Scorers: how a checkpoint is asked the hidden evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nested_rl import lazy

if TYPE_CHECKING:
    from nested_rl.scorers.nano import NanoScorer
    from nested_rl.scorers.vllm import VLLMScorer
    from nested_rl.scorers.vllm_engine import VLLMEngine

__all__ = ["NanoScorer", "VLLMEngine", "VLLMScorer"]

__getattr__ = lazy.names(__name__, {"NanoScorer": "nano", "VLLMEngine": "vllm_engine", "VLLMScorer": "vllm"})
