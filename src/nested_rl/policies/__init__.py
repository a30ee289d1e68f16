"""Policies that are not trained: baselines to compare with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nested_rl import lazy

if TYPE_CHECKING:
    from nested_rl.policies.baselines import RandomPolicy, TemplatePolicy

__all__ = ["RandomPolicy", "TemplatePolicy"]

__getattr__ = lazy.names(__name__, {"RandomPolicy": "baselines", "TemplatePolicy": "baselines"})
