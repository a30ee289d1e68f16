"""Names for the arrays that the engine passes around."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[Any]
"""float32 in use, float64 where a test wants exact gradients."""
Ints: TypeAlias = npt.NDArray[np.int64]

HIDDEN = -1e4
"""What is added to an attention score that must not count: exp(-1e4) is 0 in float32."""
