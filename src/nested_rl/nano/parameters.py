"""Where each tensor lies in the one flat parameter vector.

One vector makes the optimiser a handful of vector operations. The order puts q, k, v and gate, up next to each other, so
that the fused matrices the model multiplies with are views too: writing a Hugging Face tensor writes the fused one.
"""

from __future__ import annotations

import math
from typing import Self

import numpy as np
from attrs import frozen

from nested_rl.nano.arrays import Floats
from nested_rl.nano.config import Qwen3Config

Layout = list[tuple[str, tuple[int, ...]]]


def layout(c: Qwen3Config) -> Layout:
    """Names (as in Hugging Face files) and shapes, in the order of the flat vector."""
    d, f = c.hidden_size, c.intermediate_size
    q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    tensors: Layout = [("model.embed_tokens.weight", (c.vocab_size, d))]
    for i in range(c.num_hidden_layers):
        tensors += [
            (f"model.layers.{i}.{name}.weight", shape)
            for name, shape in (
                ("input_layernorm", (d,)),
                ("self_attn.q_proj", (q, d)),
                ("self_attn.k_proj", (kv, d)),
                ("self_attn.v_proj", (kv, d)),
                ("self_attn.q_norm", (c.head_dim,)),
                ("self_attn.k_norm", (c.head_dim,)),
                ("self_attn.o_proj", (d, q)),
                ("post_attention_layernorm", (d,)),
                ("mlp.gate_proj", (f, d)),
                ("mlp.up_proj", (f, d)),
                ("mlp.down_proj", (d, f)),
            )
        ]
    tensors.append(("model.norm.weight", (d,)))
    if not c.tie_word_embeddings:
        tensors.append(("lm_head.weight", (c.vocab_size, d)))
    return tensors


def size(c: Qwen3Config) -> int:
    """How many parameters."""
    return sum(math.prod(shape) for _, shape in layout(c))


@frozen(kw_only=True)
class LayerViews:
    """One layer's tensors, q/k/v and gate/up fused."""

    norm_in: Floats
    qkv: Floats
    q_norm: Floats
    k_norm: Floats
    out: Floats
    norm_mlp: Floats
    gate_up: Floats
    down: Floats


@frozen(kw_only=True)
class Views:
    """All views of one flat vector. `head` is `embed` itself when the embeddings are tied."""

    tensors: dict[str, Floats]
    layers: tuple[LayerViews, ...]
    embed: Floats
    norm: Floats
    head: Floats

    @classmethod
    def of(cls, c: Qwen3Config, flat: Floats) -> Self:
        """Views into `flat` [size]; nothing is copied."""
        starts: dict[str, int] = {}
        tensors: dict[str, Floats] = {}
        at = 0
        for name, shape in layout(c):
            starts[name] = at
            tensors[name] = flat[at : at + math.prod(shape)].reshape(shape)
            at += math.prod(shape)

        def fused(first: str, after: str) -> Floats:
            return flat[starts[first] : starts[after]].reshape(-1, c.hidden_size)

        layers = tuple(
            LayerViews(
                norm_in=tensors[f"{p}input_layernorm.weight"],
                qkv=fused(f"{p}self_attn.q_proj.weight", f"{p}self_attn.q_norm.weight"),
                q_norm=tensors[f"{p}self_attn.q_norm.weight"],
                k_norm=tensors[f"{p}self_attn.k_norm.weight"],
                out=tensors[f"{p}self_attn.o_proj.weight"],
                norm_mlp=tensors[f"{p}post_attention_layernorm.weight"],
                gate_up=fused(f"{p}mlp.gate_proj.weight", f"{p}mlp.down_proj.weight"),
                down=tensors[f"{p}mlp.down_proj.weight"],
            )
            for p in (f"model.layers.{i}." for i in range(c.num_hidden_layers))
        )
        embed = tensors["model.embed_tokens.weight"]
        head = tensors.get("lm_head.weight", embed)
        return cls(tensors=tensors, layers=layers, embed=embed, norm=tensors["model.norm.weight"], head=head)


def initialise(c: Qwen3Config, views: Views, seed: int) -> None:
    """Fill with random weights; the last matrix of each branch is smaller, so that depth does not blow up."""
    rng = np.random.default_rng(seed)
    for name, shape in layout(c):
        if len(shape) == 1:
            views.tensors[name][:] = 1
            continue
        deviation = 1 / math.sqrt(shape[1])
        if "embed" in name or "lm_head" in name:
            deviation = 0.5 / math.sqrt(c.hidden_size)
        elif "o_proj" in name or "down_proj" in name:
            deviation /= math.sqrt(2 * c.num_hidden_layers)
        views.tensors[name][:] = rng.normal(0, deviation, shape)
