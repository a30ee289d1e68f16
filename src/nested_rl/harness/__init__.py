"""The tool-using agent, its workspace and its tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nested_rl import lazy

if TYPE_CHECKING:
    from nested_rl.harness.agent import ToolHarness

__all__ = ["ToolHarness"]

__getattr__ = lazy.names(__name__, {"ToolHarness": "agent"})
