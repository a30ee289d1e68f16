"""The pieces of one Qwen3 layer, forward and backward.

RMSNorm     y = w · x · r with r = 1/sqrt(mean(x²) + eps);  dx = r · (g − x̂ · mean(g · x̂)) with g = dy · w, x̂ = x · r
RoPE        half-split form: y = x · cos + swap(x) · sin. A rotation, so its backward is itself with sin negated.
q/k-norm    RMSNorm over head_dim before RoPE. 1/sqrt(head_dim) is folded into the q_norm weight: no scaling pass.
Heads       heads that share keys are stacked along the query axis: [B, Hkv, rep·T, hd] @ [B, Hkv, hd, S]; keys and
            values are never repeated in memory.
"""

from __future__ import annotations

import math

import numpy as np
from attrs import frozen

from nested_rl.nano.arrays import Floats
from nested_rl.nano.cache import Cache
from nested_rl.nano.config import Qwen3Config
from nested_rl.nano.parameters import LayerViews

SAFE_SCORE = 60.0
"""exp of a score up to this is finite and exact enough in float32 without subtracting the maximum first."""


def rms(x: Floats, eps: float) -> tuple[Floats, Floats]:
    """Divide x by its root mean square over the last axis; also return the factor, with that axis kept."""
    r: Floats = np.einsum("...d,...d->...", x, x)
    r *= 1 / x.shape[-1]
    r += eps
    np.sqrt(r, out=r)
    np.divide(1, r, out=r)
    r = r[..., None]
    return x * r, r


def rms_backward(g: Floats, xh: Floats, r: Floats) -> Floats:
    """Gradient of `rms` at x, for g = gradient at x̂."""
    mean: Floats = np.einsum("...d,...d->...", g, xh)[..., None]
    mean *= 1 / xh.shape[-1]
    t: Floats = xh * mean
    np.subtract(g, t, out=t)
    t *= r
    return t


def rope_tables(c: Qwen3Config, dtype: np.dtype[np.generic]) -> tuple[Floats, Floats]:
    """cos and sin [positions, heads · head_dim] = [cos, cos] and [−sin, sin], tiled over the q and k heads.

    Whole-row tables keep numpy's inner loops long, several times faster than slicing halves.
    """
    inverse = 1.0 / c.rope_theta ** (np.arange(0, c.head_dim, 2, dtype=np.float64) / c.head_dim)
    # transformers rounds the frequencies to float32 first
    angle = np.arange(c.max_position_embeddings)[:, None] * inverse.astype(np.float32).astype(np.float64)
    cos, sin = np.cos(angle), np.sin(angle)
    tiles = (1, c.num_attention_heads + c.num_key_value_heads)
    return (
        np.tile(np.concatenate([cos, cos], 1), tiles).astype(dtype),
        np.tile(np.concatenate([-sin, sin], 1), tiles).astype(dtype),
    )


def rotate(y: Floats, cos: Floats, sin: Floats) -> Floats:
    """RoPE of y [N, heads, head_dim] with the rows of the tables that belong to its positions; −sin for the backward."""
    n, heads, width = y.shape
    halves = y.reshape(n, heads, 2, width // 2)
    swapped = np.empty_like(halves)
    swapped[:, :, 0] = halves[:, :, 1]
    swapped[:, :, 1] = halves[:, :, 0]
    turned = swapped.reshape(n, heads * width)
    turned *= sin
    turned += y.reshape(n, heads * width) * cos
    return turned.reshape(n, heads, width)


@frozen
class AttentionTape:
    """What the backward of one attention needs."""

    xh: Floats
    r: Floats
    h: Floats
    zh: Floats
    zr: Floats
    norms: Floats
    q: Floats
    k: Floats
    v: Floats
    weights: Floats
    mixed: Floats


@frozen
class MlpTape:
    """What the backward of one MLP needs."""

    xh: Floats
    r: Floats
    h: Floats
    gate_up: Floats
    sigmoid: Floats
    silu: Floats
    product: Floats


@frozen
class Places:
    """Batch shape, and the rotary rows of every token of it."""

    batch: int
    length: int
    cos: Floats
    sin: Floats


def attention(
    c: Qwen3Config, w: LayerViews, x: Floats, at: Places, mask: Floats | None, cache: tuple[Cache, int] | None
) -> tuple[Floats, AttentionTape]:
    """Add attention to the stream x [N, d], keeping a tape. `cache` is (cache, layer)."""
    B, T, N = at.batch, at.length, at.batch * at.length
    Hq, Hk, hd = c.num_attention_heads, c.num_key_value_heads, c.head_dim
    rep = Hq // Hk
    xh, r = rms(x, c.rms_norm_eps)
    h = xh * w.norm_in
    z = (h @ w.qkv.T).reshape(N, Hq + 2 * Hk, hd)
    zh, zr = rms(z[:, : Hq + Hk], c.rms_norm_eps)
    norms = head_norms(c, w)
    y = rotate(zh * norms, at.cos, at.sin).reshape(B, T, Hq + Hk, hd)
    q = y[:, :, :Hq].reshape(B, T, Hk, rep, hd).transpose(0, 2, 3, 1, 4).reshape(B, Hk, rep * T, hd)
    k = y[:, :, Hq:].transpose(0, 2, 1, 3)
    v = z[:, Hq + Hk :].reshape(B, T, Hk, hd).transpose(0, 2, 1, 3)
    k, v = (np.ascontiguousarray(k), np.ascontiguousarray(v)) if cache is None else cache[0].append(cache[1], k, v)
    weights = _softmax(q @ k.swapaxes(-1, -2), mask, (rep, T), bound=score_bound(w, hd))
    mixed = (weights @ v).reshape(B, Hk, rep, T, hd).transpose(0, 3, 1, 2, 4).reshape(N, Hq * hd)
    return x + mixed @ w.out.T, AttentionTape(xh, r, h, zh, zr, norms, q, k, v, weights, mixed)


def head_norms(c: Qwen3Config, w: LayerViews) -> Floats:
    """Norm weights of the q and k heads [heads, head_dim], the scale of the scores folded into those of q."""
    norms = np.empty((c.num_attention_heads + c.num_key_value_heads, c.head_dim), w.q_norm.dtype)
    norms[: c.num_attention_heads] = w.q_norm * c.head_dim**-0.5
    norms[c.num_attention_heads :] = w.k_norm
    return norms


def score_bound(w: LayerViews, head_dim: int) -> float:
    # |q̂| = |k̂| = sqrt(head_dim) before the norm weights, so no score can be larger than this
    return math.sqrt(head_dim) * float(np.abs(w.q_norm).max() * np.abs(w.k_norm).max())


def _softmax(scores: Floats, mask: Floats | None, folded: tuple[int, int], *, bound: float) -> Floats:
    """Softmax over keys, in place. `folded` = (rep, T): how the query axis of `scores` unfolds for the mask."""
    B, Hk, _, S = scores.shape
    if mask is not None:
        unfolded = scores.reshape(B, Hk, *folded, S)
        unfolded += mask
    if bound > SAFE_SCORE:
        scores -= scores.max(-1, keepdims=True)
    np.exp(scores, out=scores)
    # a matrix product is the fastest row sum; a fully hidden (padding) row stays zero
    scores /= (scores @ np.ones(S, scores.dtype))[..., None] + 1e-30
    return scores


def attention_backward(
    c: Qwen3Config, w: LayerViews, g: LayerViews, dx: Floats, t: AttentionTape, at: Places
) -> Floats:
    """Gradient at the input of `attention`; adds the weights' gradients to `g`."""
    B, T, N = at.batch, at.length, at.batch * at.length
    Hq, Hk, hd = c.num_attention_heads, c.num_key_value_heads, c.head_dim
    rep = Hq // Hk
    g.out[...] += dx.T @ t.mixed
    dmixed = dx @ w.out
    # the softmax backward needs sum_j a_j da_j, which is mixed · dmixed per head
    dot = np.einsum("nhd,nhd->nh", dmixed.reshape(N, Hq, hd), t.mixed.reshape(N, Hq, hd))
    dot = dot.reshape(B, T, Hk, rep).transpose(0, 2, 3, 1).reshape(B, Hk, rep * T, 1)
    do = dmixed.reshape(B, T, Hk, rep, hd).transpose(0, 2, 3, 1, 4).reshape(B, Hk, rep * T, hd)
    dv = t.weights.swapaxes(-1, -2) @ do
    da = do @ t.v.swapaxes(-1, -2)
    da -= dot
    da *= t.weights
    dq, dk = da @ t.k, da.swapaxes(-1, -2) @ t.q
    dy = np.empty((B, T, Hq + Hk, hd), dx.dtype)
    dy[:, :, :Hq] = dq.reshape(B, Hk, rep, T, hd).transpose(0, 3, 1, 2, 4).reshape(B, T, Hq, hd)
    dy[:, :, Hq:] = dk.transpose(0, 2, 1, 3)
    dy = rotate(dy.reshape(N, Hq + Hk, hd), at.cos, -at.sin)
    dnorms = np.einsum("nhd,nhd->hd", dy, t.zh)
    g.q_norm[...] += dnorms[:Hq].sum(0) * hd**-0.5
    g.k_norm[...] += dnorms[Hq:].sum(0)
    dy *= t.norms
    dz: Floats = np.empty((N, Hq + 2 * Hk, hd), dx.dtype)
    dz[:, : Hq + Hk] = rms_backward(dy, t.zh, t.zr)
    dz[:, Hq + Hk :] = dv.transpose(0, 2, 1, 3).reshape(N, Hk, hd)
    dz = dz.reshape(N, -1)
    g.qkv[...] += dz.T @ t.h
    dh = dz @ w.qkv
    g.norm_in[...] += np.einsum("nd,nd->d", dh, t.xh)
    dh *= w.norm_in
    return dx + rms_backward(dh, t.xh, t.r)


def mlp(c: Qwen3Config, w: LayerViews, x: Floats) -> tuple[Floats, MlpTape]:
    """Add down(silu(gate(h)) · up(h)) to the stream x [N, d], keeping a tape."""
    f = c.intermediate_size
    xh, r = rms(x, c.rms_norm_eps)
    h = xh * w.norm_mlp
    gate_up = h @ w.gate_up.T
    # far negative gates overflow exp to inf, and 1/inf is the right 0
    with np.errstate(over="ignore"):
        sigmoid = np.exp(-gate_up[:, :f])
    sigmoid += 1
    np.divide(1, sigmoid, out=sigmoid)
    silu = gate_up[:, :f] * sigmoid
    product = silu * gate_up[:, f:]
    return x + product @ w.down.T, MlpTape(xh, r, h, gate_up, sigmoid, silu, product)


def mlp_backward(c: Qwen3Config, w: LayerViews, g: LayerViews, dx: Floats, t: MlpTape) -> Floats:
    """Gradient at the input of `mlp`; adds the weights' gradients to `g`."""
    f = c.intermediate_size
    g.down[...] += dx.T @ t.product
    dproduct = dx @ w.down
    dgate_up = np.empty_like(t.gate_up)
    np.multiply(dproduct, t.silu, out=dgate_up[:, f:])
    u = 1 - t.sigmoid  # d silu = s · (1 + gate · (1 − s))
    u *= t.gate_up[:, :f]
    u += 1
    u *= t.sigmoid
    u *= t.gate_up[:, f:]
    np.multiply(u, dproduct, out=dgate_up[:, :f])
    g.gate_up[...] += dgate_up.T @ t.h
    dh = dgate_up @ w.gate_up
    g.norm_mlp[...] += np.einsum("nd,nd->d", dh, t.xh)
    dh *= w.norm_mlp
    return dx + rms_backward(dh, t.xh, t.r)
