"""Policies that are not trained: baselines to compare with, and large models behind a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nested_rl import lazy

if TYPE_CHECKING:
    from nested_rl.policies.baselines import RandomPolicy, TemplatePolicy
    from nested_rl.policies.frozen import FrozenPolicy

__all__ = ["FrozenPolicy", "RandomPolicy", "TemplatePolicy"]

__getattr__ = lazy.names(
    __name__, {"FrozenPolicy": "frozen", "RandomPolicy": "baselines", "TemplatePolicy": "baselines"}
)
