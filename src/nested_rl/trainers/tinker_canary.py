"""A canary: does the new sampler have the new weights?

A sequence of the batch is scored by the trainer before and after the update, and by the new sampler. The share of the
trainer's move that the sampler shows is 1 for the new weights and 0 for the old ones, whatever the numerical noise between
the two; its standard error says whether that is told apart from noise.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Literal

from attrs import frozen

if TYPE_CHECKING:
    import numpy.typing as npt

SURE: Final = 3.0
"""So many standard errors from one half are proof."""


@frozen(kw_only=True)
class Canary:
    """`moved`: root mean square of the trainer's move, in nats; `share`: how much of it the sampler shows."""

    moved: float
    share: float
    error: float

    @property
    def verdict(self) -> Literal["new", "stale", "unclear"]:
        """What is proven; a move smaller than the noise proves nothing."""
        if self.share - SURE * self.error > 0.5:
            return "new"
        return "stale" if self.share + SURE * self.error < 0.5 else "unclear"


def judge(before: npt.NDArray[Any], after: npt.NDArray[Any], sampler: npt.NDArray[Any]) -> Canary:
    """From log-probabilities [n] of the same tokens.

    >>> import numpy as np
    >>> old, new = np.array([-1.0, -2.0, -0.5]), np.array([-0.8, -2.3, -0.6])
    >>> judge(old, new, new + 0.001).verdict, judge(old, new, old).verdict, judge(old, old, old).verdict
    ('new', 'stale', 'unclear')
    """
    move, shown = after - before, sampler - before
    size = float(move @ move)
    if size == 0.0:
        return Canary(moved=0.0, share=0.0, error=math.inf)
    share = float(shown @ move) / size
    noise = shown - share * move
    error = math.sqrt(float(noise @ noise) / max(1, len(move) - 1) / size)
    return Canary(moved=math.sqrt(size / len(move)), share=share, error=error)
