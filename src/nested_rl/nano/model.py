"""Qwen3 (dense) in numpy: forward, and the backward written out by hand.

The parameters are one flat vector, `theta`; `tensors` are views of it under their Hugging Face names.
"""

from __future__ import annotations

import numpy as np
from attrs import define, field

from nested_rl.errors import SettingsError
from nested_rl.nano.arrays import Floats, Ints
from nested_rl.nano.cache import Cache
from nested_rl.nano.config import Qwen3Config
from nested_rl.nano.layers import (
    AttentionTape,
    MlpTape,
    Places,
    attention,
    attention_backward,
    mlp,
    mlp_backward,
    rms,
    rms_backward,
    rope_tables,
)
from nested_rl.nano.parameters import Views, initialise, size

_ONE_HOT_VOCAB = 1024
"""Up to this vocabulary a one-hot product is faster than adding rows one by one."""


@define
class Tape:
    """What `backward` needs of one forward. Pass an empty one to `forward` and `logits`."""

    ids: Ints | None = None
    places: Places | None = None
    layers: list[tuple[AttentionTape, MlpTape]] = field(factory=list)
    head: tuple[Floats, Floats, Floats] | None = None


class Qwen3:
    """A model: `theta` [size] float32, `grad` of the same shape once `zero_grad` was called.

    >>> Qwen3(Qwen3Config(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1)).size
    3416
    """

    def __init__(
        self,
        config: Qwen3Config,
        theta: Floats | None = None,
        *,
        seed: int = 0,
        dtype: type[np.float32 | np.float64] = np.float32,
    ) -> None:
        self.config = config
        self.size = size(config)
        if theta is not None and theta.shape != (self.size,):
            raise SettingsError(f"theta has shape {theta.shape}, this config needs ({self.size},)")
        self.theta: Floats = np.empty(self.size, dtype) if theta is None else np.array(theta, dtype, copy=True)
        self.views = Views.of(config, self.theta)
        if theta is None:
            initialise(config, self.views, seed)
        self.grad: Floats = np.empty(0, dtype)
        self.grad_views: Views | None = None
        self._cos, self._sin = rope_tables(config, np.dtype(dtype))

    @property
    def tensors(self) -> dict[str, Floats]:
        """Parameters by Hugging Face name; writing to them changes the model."""
        return self.views.tensors

    @property
    def rotary(self) -> tuple[Floats, Floats]:
        """The tables of `layers.rope_tables`."""
        return self._cos, self._sin

    def copy(self) -> Qwen3:
        """The same weights in memory of its own."""
        return Qwen3(self.config, self.theta, dtype=self.theta.dtype.type)

    def zero_grad(self) -> Views:
        """Start a new gradient."""
        if self.grad_views is None:
            self.grad = np.zeros_like(self.theta)
            self.grad_views = Views.of(self.config, self.grad)
        else:
            self.grad[:] = 0
        return self.grad_views

    def forward(
        self,
        ids: Ints,
        positions: Ints,
        mask: Floats | None = None,
        *,
        cache: Cache | None = None,
        tape: Tape | None = None,
    ) -> Floats:
        """ids, positions [B, T] -> the residual stream [B·T, d] before the final norm (see `logits`).

        `mask` is added to the scores, broadcast to [B, 1, 1, T, S]; None: everything in the cache may be seen.
        """
        B, T = ids.shape
        flat = positions.ravel()
        places = Places(B, T, self._cos[flat], self._sin[flat])
        x: Floats = self.views.embed[ids.ravel()]
        for i, w in enumerate(self.views.layers):
            x, a = attention(self.config, w, x, places, mask, None if cache is None else (cache, i))
            x, m = mlp(self.config, w, x)
            if tape is not None:
                tape.layers.append((a, m))
        if cache is not None:
            cache.filled += T
        if tape is not None:
            tape.ids, tape.places = ids, places
        return x

    def logits(self, x: Floats, tape: Tape | None = None) -> Floats:
        """Final norm and unembedding of the chosen rows x [k, d] -> [k, vocab]."""
        xh, r = rms(x, self.config.rms_norm_eps)
        h = xh * self.views.norm
        if tape is not None:
            tape.head = (xh, r, h)
        return h @ self.views.head.T

    def logits_backward(self, dlogits: Floats, tape: Tape) -> Floats:
        """Gradient at the rows given to `logits`; adds the head's gradients."""
        g = self._gradients()
        if tape.head is None:
            raise SettingsError("logits_backward needs the tape that was given to logits")
        xh, r, h = tape.head
        g.head[...] += dlogits.T @ h  # with tied embeddings this is the embedding's gradient
        dh = dlogits @ self.views.head
        g.norm[...] += np.einsum("nd,nd->d", dh, xh)
        dh *= self.views.norm
        return rms_backward(dh, xh, r)

    def backward(self, dx: Floats, tape: Tape) -> None:
        """dx [B·T, d] = gradient at what `forward` returned; adds to `grad`."""
        g = self._gradients()
        if tape.ids is None or tape.places is None:
            raise SettingsError("backward needs the tape that was given to forward")
        for w, gw, (a, m) in zip(reversed(self.views.layers), reversed(g.layers), reversed(tape.layers), strict=True):
            dx = mlp_backward(self.config, w, gw, dx, m)
            dx = attention_backward(self.config, w, gw, dx, a, tape.places)
        ids = tape.ids.ravel()
        if self.config.vocab_size <= _ONE_HOT_VOCAB:
            one_hot = np.zeros((len(ids), self.config.vocab_size), dx.dtype)
            one_hot[np.arange(len(ids)), ids] = 1
            g.embed[...] += one_hot.T @ dx
        else:
            np.add.at(g.embed, ids, dx)

    def _gradients(self) -> Views:
        if self.grad_views is None:
            raise SettingsError("call zero_grad() before backward")
        return self.grad_views
