"""Keys and values of what was read already, so that each new token costs one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nested_rl.nano.arrays import Floats, Ints
from nested_rl.nano.config import Qwen3Config


class Cache:
    """keys, values [layers, batch, kv heads, capacity, head_dim]; `filled` counts; `hidden` [batch,1,1,1,capacity] or None.

    `hidden` is added to the scores of the keys: it hides left padding.
    """

    def __init__(self, keys: Floats, values: Floats, filled: int = 0, hidden: Floats | None = None) -> None:
        self.keys, self.values, self.filled, self.hidden = keys, values, filled, hidden

    @classmethod
    def empty(cls, c: Qwen3Config, batch: int, capacity: int, dtype: np.dtype[Any]) -> Cache:
        """Room for `capacity` positions of `batch` rows."""
        shape = (c.num_hidden_layers, batch, c.num_key_value_heads, capacity, c.head_dim)
        return cls(np.empty(shape, dtype), np.empty(shape, dtype))

    def append(self, layer: int, keys: Floats, values: Floats) -> tuple[Floats, Floats]:
        """Add new positions [batch, kv heads, t, head_dim] of one layer; return all so far. `filled` moves separately."""
        end = self.filled + keys.shape[2]
        self.keys[layer][:, :, self.filled : end] = keys
        self.values[layer][:, :, self.filled : end] = values
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]

    def expand(self, group: int, capacity: int) -> Cache:
        """Every row `group` times over, in a new cache of `capacity`: a prompt is read once for all its samples."""

        def spread(old: Floats) -> Floats:
            layers, batch, heads, _, width = old.shape
            new = np.empty((layers, batch, group, heads, capacity, width), old.dtype)
            new[..., : self.filled, :] = old[:, :, None, :, : self.filled]
            return new.reshape(layers, batch * group, heads, capacity, width)

        hidden = None
        if self.hidden is not None:
            hidden = np.zeros((len(self.hidden) * group, 1, 1, 1, capacity), self.hidden.dtype)
            hidden[..., : self.filled] = np.repeat(self.hidden[..., : self.filled], group, 0)
        return Cache(spread(self.keys), spread(self.values), self.filled, hidden)

    def take(self, rows: Ints | Sequence[int]) -> Cache:
        """Only these rows."""

        def kept(old: Floats) -> Floats:
            new = np.empty((old.shape[0], len(rows), *old.shape[2:]), old.dtype)
            new[..., : self.filled, :] = old[:, rows, :, : self.filled]
            return new

        hidden = None if self.hidden is None else self.hidden[rows]
        return Cache(kept(self.keys), kept(self.values), self.filled, hidden)
