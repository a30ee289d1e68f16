"""Conversations to ids and back, a module a family of models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nested_rl import lazy

if TYPE_CHECKING:
    from nested_rl.renderers.nano import NanoRenderer
    from nested_rl.renderers.qwen3 import Qwen3Renderer
    from nested_rl.renderers.qwen3_5 import Qwen35Renderer

__all__ = ["NanoRenderer", "Qwen3Renderer", "Qwen35Renderer"]

__getattr__ = lazy.names(__name__, {"NanoRenderer": "nano", "Qwen3Renderer": "qwen3", "Qwen35Renderer": "qwen3_5"})
