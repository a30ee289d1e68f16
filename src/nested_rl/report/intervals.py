"""Means and how sure one may be of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attrs import frozen


@frozen
class Interval:
    """A mean of `n` numbers with its 95 % interval; NaN where nothing is known.

    >>> str(Interval(0.5, 0.41, 0.59, 32))
    '0.50 [0.41, 0.59]'
    """

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        if math.isnan(self.low):
            return _plain(self.value)
        return f"{_plain(self.value)} [{_plain(self.low)}, {_plain(self.high)}]"

    def signed(self) -> str:
        """The same for a difference, with signs."""
        return f"{self.value:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


def _plain(value: float) -> str:
    """Two decimals, and no sign before nought."""
    text = f"{value:.2f}"
    return "0.00" if text == "-0.00" else text


def of(values: Sequence[float]) -> Interval:
    """The mean, ± 1.96 standard errors.

    >>> of([0.0, 1.0] * 50).n
    100
    """
    n = len(values)
    if not n:
        return Interval(math.nan, math.nan, math.nan, 0)
    mean = sum(values) / n
    if n == 1:
        return Interval(mean, math.nan, math.nan, 1)
    half = 1.96 * math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1) / n)
    return Interval(mean, mean - half, mean + half, n)


def paired(ours: Sequence[float], theirs: Sequence[float], *, draws: int = 2000) -> Interval:
    """The mean of the differences, pair by pair, with a bootstrap interval over pairs (seeded: always the same)."""
    import numpy as np

    differences = np.asarray(ours, dtype=float) - np.asarray(theirs, dtype=float)
    n = len(differences)
    if not n:
        return Interval(math.nan, math.nan, math.nan, 0)
    picks = np.random.default_rng(0).integers(0, n, (draws, n))
    low, high = np.percentile(differences[picks].mean(axis=1), [2.5, 97.5])
    return Interval(float(differences.mean()), float(low), float(high), n)


def apart(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """The difference of two means of unrelated numbers, ± 1.96 standard errors; NaN where a side has fewer than two.

    >>> apart([1.0, 1.0, 1.0], [0.0, 0.0]).signed()
    '+1.00 [+1.00, +1.00]'
    """
    a, b = of(ours), of(theirs)
    if not a.n or not b.n:
        return Interval(math.nan, math.nan, math.nan, 0)
    half = math.hypot(a.high - a.value, b.high - b.value)
    difference = a.value - b.value
    return Interval(difference, difference - half, difference + half, min(a.n, b.n))
