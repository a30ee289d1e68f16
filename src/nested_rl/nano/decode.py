"""Reading on from a cache, which is what sampling does: the same numbers as `Qwen3.forward`, sooner.

Nothing is kept for a backward, most passes are in place, and what depends on the weights alone is computed once. Every
operation is the one that `layers` does, on the same operands, so the results are bit-equal.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen

from nested_rl.nano.arrays import Floats, Ints
from nested_rl.nano.cache import Cache
from nested_rl.nano.layers import SAFE_SCORE, head_norms, rms, score_bound
from nested_rl.nano.model import Qwen3

_LARGE = 1_000_001
"""From so many multiplications on a transposed copy of a matrix is read a tenth faster, to the same bits.

Below, OpenBLAS has kernels of their own for small products, which sum in another order for each layout.
"""


class _Matrix:
    """A matrix [out, in] that rows are multiplied with."""

    def __init__(self, w: Floats) -> None:
        self._plain = w.T
        self._turned: Floats | None = None

    def __call__(self, x: Floats) -> Floats:
        """x [k, in] -> [k, out]."""
        if len(x) * self._plain.size < _LARGE:
            return x @ self._plain
        if self._turned is None:
            self._turned = np.ascontiguousarray(self._plain)
        return x @ self._turned


@frozen(kw_only=True)
class _Layer:
    """A layer's weights; `norms` as of `head_norms`; `safe`: no score can overflow."""

    norm_in: Floats
    qkv: _Matrix
    norms: Floats
    safe: bool
    out: _Matrix
    norm_mlp: Floats
    gate_up: _Matrix
    down: _Matrix


class Decoder:
    """A model's weights as they are now; make another one when they have changed."""

    def __init__(self, model: Qwen3) -> None:
        self._config, self._embed, self._norm = model.config, model.views.embed, model.views.norm
        self._cos, self._sin = model.rotary
        self._head = _Matrix(model.views.head)
        self._layers = [
            _Layer(
                norm_in=w.norm_in,
                qkv=_Matrix(w.qkv),
                norms=head_norms(model.config, w),
                safe=score_bound(w, model.config.head_dim) <= SAFE_SCORE,
                out=_Matrix(w.out),
                norm_mlp=w.norm_mlp,
                gate_up=_Matrix(w.gate_up),
                down=_Matrix(w.down),
            )
            for w in model.views.layers
        ]

    def step(self, ids: Ints, positions: Ints, mask: Floats | None, cache: Cache) -> Floats:
        """ids, positions [B, T], mask as for `Qwen3.forward` -> the stream [B·T, d]; the cache has T more positions."""
        T, flat = ids.shape[1], positions.ravel()
        # rows at the same position share one row of the tables
        at = slice(flat[0], flat[0] + 1) if T == 1 and (flat == flat[0]).all() else flat
        cos, sin = self._cos[at], self._sin[at]
        x = self._embed[ids.ravel()]
        for i, w in enumerate(self._layers):
            self._attend(x, w, (len(ids), T), (cos, sin), mask, cache, i)
            self._think(x, w)
        cache.filled += T
        return x

    def logits(self, x: Floats) -> Floats:
        """Final norm and unembedding of x [k, d] -> [k, vocab]."""
        h, _ = rms(x, self._config.rms_norm_eps)
        h *= self._norm
        return self._head(h)

    def _attend(
        self,
        x: Floats,
        w: _Layer,
        shape: tuple[int, int],
        rotary: tuple[Floats, Floats],
        mask: Floats | None,
        cache: Cache,
        layer: int,
    ) -> None:
        """Add attention to the stream x [B·T, d]."""
        c, (B, T), N = self._config, shape, len(x)
        Hq, Hk, hd = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        rep = Hq // Hk
        h, _ = rms(x, c.rms_norm_eps)
        h *= w.norm_in
        z = w.qkv(h).reshape(N, Hq + 2 * Hk, hd)
        y, _ = rms(z[:, : Hq + Hk], c.rms_norm_eps)
        y *= w.norms
        _rotate(y, *rotary)
        heads, all_heads = y.reshape(B, T, Hq + Hk, hd), z.reshape(B, T, Hq + 2 * Hk, hd)
        q = heads[:, :, :Hq].reshape(B, T, Hk, rep, hd).transpose(0, 2, 3, 1, 4).reshape(B, Hk, rep * T, hd)
        k, v = heads[:, :, Hq:].transpose(0, 2, 1, 3), all_heads[:, :, Hq + Hk :].transpose(0, 2, 1, 3)
        keys, values = cache.append(layer, k, v)
        weights = q @ keys.swapaxes(-1, -2)
        if mask is not None:
            unfolded = weights.reshape(B, Hk, rep, T, -1)
            unfolded += mask
        if not w.safe:
            weights -= weights.max(-1, keepdims=True)
        np.exp(weights, out=weights)
        total = weights @ np.ones(weights.shape[-1], weights.dtype)
        total += 1e-30
        weights /= total[..., None]
        mixed = (weights @ values).reshape(B, Hk, rep, T, hd).transpose(0, 3, 1, 2, 4).reshape(N, Hq * hd)
        x += w.out(mixed)

    def _think(self, x: Floats, w: _Layer) -> None:
        """Add the MLP to the stream x [B·T, d]."""
        f = self._config.intermediate_size
        h, _ = rms(x, self._config.rms_norm_eps)
        h *= w.norm_mlp
        both = w.gate_up(h)
        gate, up = both[:, :f], both[:, f:]
        silu = np.negative(gate)
        # far negative gates overflow exp to inf, and 1/inf is the right 0
        with np.errstate(over="ignore"):
            np.exp(silu, out=silu)
        silu += 1
        np.divide(1, silu, out=silu)
        silu *= gate
        silu *= up
        x += w.down(silu)


def _rotate(y: Floats, cos: Floats, sin: Floats) -> None:
    """RoPE of y [N, heads, head_dim] in place, see `layers.rotate`."""
    n, heads, width = y.shape
    halves = y.reshape(n, heads, 2, width // 2)
    swapped = np.empty_like(halves)
    swapped[:, :, 0] = halves[:, :, 1]
    swapped[:, :, 1] = halves[:, :, 0]
    turned, rows = swapped.reshape(n, -1), y.reshape(n, -1)
    turned *= sin
    rows *= cos
    rows += turned
