"""Reading one more token of every row, the step that sampling repeats: the same numbers as `Qwen3.forward`, sooner.

Nothing is kept for a backward, most passes are in place, and what depends on the weights alone is computed once. Every
operation is the one that `layers` does, on the same operands, so the results are bit-equal. (Transposed copies of the matrices
would be read a little faster, but the BLAS sums small products in another order then.)
"""

from __future__ import annotations

import numpy as np
from attrs import frozen

from nested_rl.nano.arrays import Floats, Ints
from nested_rl.nano.cache import Cache
from nested_rl.nano.layers import SAFE_SCORE, head_norms, rms, score_bound
from nested_rl.nano.model import Qwen3
from nested_rl.nano.parameters import LayerViews


@frozen(kw_only=True)
class _Layer:
    """A layer's weights; `norms` as of `head_norms`; `safe`: no score can overflow."""

    views: LayerViews
    norms: Floats
    safe: bool


class Decoder:
    """A model's weights as they are now; make another one when they have changed."""

    def __init__(self, model: Qwen3) -> None:
        self._config, self._embed, self._norm = model.config, model.views.embed, model.views.norm
        self._cos, self._sin = model.rotary
        self._head = model.views.head
        self._layers = [
            _Layer(
                views=views,
                norms=head_norms(model.config, views),
                safe=score_bound(views, model.config.head_dim) <= SAFE_SCORE,
            )
            for views in model.views.layers
        ]

    def step(self, ids: Ints, positions: Ints, hidden: Floats | None, cache: Cache) -> Floats:
        """ids, positions [B], hidden keys as in the cache -> logits [B, vocab]; the cache has one more position."""
        first = positions[0]
        at = slice(first, first + 1) if (positions == first).all() else positions
        cos, sin = self._cos[at], self._sin[at]
        x = self._embed[ids]
        for i, w in enumerate(self._layers):
            self._attend(x, w, cos, sin, hidden, cache, i)
            self._think(x, w.views)
        cache.filled += 1
        return self.logits(x)

    def logits(self, x: Floats) -> Floats:
        """Final norm and unembedding of x [B, d]."""
        h, _ = rms(x, self._config.rms_norm_eps)
        h *= self._norm
        return h @ self._head.T

    def _attend(
        self, x: Floats, w: _Layer, cos: Floats, sin: Floats, hidden: Floats | None, cache: Cache, layer: int
    ) -> None:
        """Add attention to the stream x [B, d]."""
        c = self._config
        Hq, Hk, hd, B = c.num_attention_heads, c.num_key_value_heads, c.head_dim, len(x)
        h, _ = rms(x, c.rms_norm_eps)
        h *= w.views.norm_in
        z = (h @ w.views.qkv.T).reshape(B, Hq + 2 * Hk, hd)
        y, _ = rms(z[:, : Hq + Hk], c.rms_norm_eps)
        y *= w.norms
        halves = y.reshape(B, Hq + Hk, 2, hd // 2)
        swapped = np.empty_like(halves)
        swapped[:, :, 0] = halves[:, :, 1]
        swapped[:, :, 1] = halves[:, :, 0]
        turned, rows = swapped.reshape(B, -1), y.reshape(B, -1)
        turned *= sin
        rows *= cos
        rows += turned
        keys, values = cache.append(layer, y[:, Hq:, None], z[:, Hq + Hk :, None])
        weights = y[:, :Hq].reshape(B, Hk, Hq // Hk, hd) @ keys.swapaxes(-1, -2)
        if hidden is not None:
            weights += hidden[:, 0]
        if not w.safe:
            weights -= weights.max(-1, keepdims=True)
        np.exp(weights, out=weights)
        total = weights @ np.ones(weights.shape[-1], weights.dtype)
        total += 1e-30
        weights /= total[..., None]
        x += (weights @ values).reshape(B, -1) @ w.views.out.T

    def _think(self, x: Floats, w: LayerViews) -> None:
        """Add the MLP to the stream x [B, d]."""
        f = self._config.intermediate_size
        h, _ = rms(x, self._config.rms_norm_eps)
        h *= w.norm_mlp
        both = h @ w.gate_up.T
        gate, up = both[:, :f], both[:, f:]
        silu = np.negative(gate)
        # far negative gates overflow exp to inf, and 1/inf is the right 0
        with np.errstate(over="ignore"):
            np.exp(silu, out=silu)
        silu += 1
        np.divide(1, silu, out=silu)
        silu *= gate
        silu *= up
        x += silu @ w.down.T
