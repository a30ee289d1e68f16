"""Compute backends: where machines come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nested_rl import lazy

if TYPE_CHECKING:
    from nested_rl.compute.local import LocalCompute

__all__ = ["LocalCompute"]

__getattr__ = lazy.names(__name__, {"LocalCompute": "local"})
