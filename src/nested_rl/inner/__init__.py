"""Inner trainers: what a job is and how it is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nested_rl import lazy

if TYPE_CHECKING:
    from nested_rl.inner.nano import NanoInnerTrainer
    from nested_rl.inner.prime_rl import PrimeRLTrainer

__all__ = ["NanoInnerTrainer", "PrimeRLTrainer"]

__getattr__ = lazy.names(__name__, {"NanoInnerTrainer": "nano", "PrimeRLTrainer": "prime_rl"})
