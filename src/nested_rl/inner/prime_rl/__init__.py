"""Full-scale jobs: prime-rl runs with verifiers environments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nested_rl import lazy

if TYPE_CHECKING:
    from nested_rl.inner.prime_rl.memory import Shape
    from nested_rl.inner.prime_rl.trainer import PrimeRLTrainer

__all__ = ["PrimeRLTrainer", "Shape"]

__getattr__ = lazy.names(__name__, {"PrimeRLTrainer": "trainer", "Shape": "memory"})
