"""The same small Qwen3 in torch, as short and as fast as torch makes it: what the numpy engine is compared with.

Fused q/k/v and gate/up, a cache that is written in place, heads that share keys stacked along the query axis, one read of a
prompt for all its samples, finished rows leave the batch: the scheme of `nested_rl.nano`, so that only the engine differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from nested_rl.nano.folder import weights_path
from nested_rl.nano.model import Qwen3
from nested_rl.nano.packing import Packed, causal

Forward = Callable[..., Tensor]


class Minimal(nn.Module):
    """A copy of a numpy model's weights. Prompts without padding only."""

    def __init__(self, model: Qwen3) -> None:
        super().__init__()
        self.config = c = model.config

        def parameter(array: np.ndarray) -> nn.Parameter:
            return nn.Parameter(torch.tensor(np.array(array)))

        self.embed, self.norm = parameter(model.views.embed), parameter(model.views.norm)
        self.layers = nn.ModuleList()
        for views in model.views.layers:
            layer = nn.Module()
            for name in ("norm_in", "qkv", "q_norm", "k_norm", "out", "norm_mlp", "gate_up", "down"):
                layer.register_parameter(name, parameter(getattr(views, name)))
            self.layers.append(layer)
        self.register_buffer("cos", torch.tensor(model._cos[:, None, : c.head_dim]))  # noqa: SLF001
        self.register_buffer("sin", torch.tensor(model._sin[:, None, : c.head_dim]))  # noqa: SLF001

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        mask: Tensor | None,
        keys: Tensor | None,
        values: Tensor | None,
        filled: int,
    ) -> Tensor:
        """ids [B, T] -> normed states [B, T, d]; with keys and values [layers, B, kv heads, capacity, hd] as the cache."""
        c = self.config
        B, T = ids.shape
        Hq, Hk, hd, f = c.num_attention_heads, c.num_key_value_heads, c.head_dim, c.intermediate_size
        x = F.embedding(ids, self.embed)
        cos, sin = self.cos[positions], self.sin[positions]
        for i, w in enumerate(self.layers):
            z = F.linear(F.rms_norm(x, (c.hidden_size,), w.norm_in, c.rms_norm_eps), w.qkv).view(B, T, Hq + 2 * Hk, hd)
            q = F.rms_norm(z[:, :, :Hq], (hd,), w.q_norm, c.rms_norm_eps)
            k = F.rms_norm(z[:, :, Hq : Hq + Hk], (hd,), w.k_norm, c.rms_norm_eps)
            v = z[:, :, Hq + Hk :].transpose(1, 2)
            y = torch.cat([q, k], 2)
            y = y * cos + y.roll(hd // 2, -1) * sin
            q = y[:, :, :Hq].reshape(B, T, Hk, Hq // Hk, hd).permute(0, 2, 3, 1, 4).reshape(B, Hk, -1, hd)
            k = y[:, :, Hq:].transpose(1, 2)
            if keys is not None and values is not None:
                keys[i, :, :, filled : filled + T] = k
                values[i, :, :, filled : filled + T] = v
                k, v = keys[i, :, :, : filled + T], values[i, :, :, : filled + T]
            a = q @ k.transpose(-1, -2) * hd**-0.5
            if mask is not None:
                a = (a.view(B, Hk, Hq // Hk, T, -1) + mask).view(B, Hk, -1, a.shape[-1])
            mixed = torch.softmax(a, -1) @ v
            mixed = mixed.view(B, Hk, Hq // Hk, T, hd).permute(0, 3, 1, 2, 4).reshape(B, T, -1)
            x = x + F.linear(mixed, w.out)
            g = F.linear(F.rms_norm(x, (c.hidden_size,), w.norm_mlp, c.rms_norm_eps), w.gate_up)
            x = x + F.linear(F.silu(g[..., :f]) * g[..., f:], w.down)
        return F.rms_norm(x, (c.hidden_size,), self.norm, c.rms_norm_eps)


@torch.inference_mode()
def sample(
    model: Minimal, prompts: Tensor, *, group: int, max_new: int, uniforms: Tensor, forward: Forward | None = None
) -> tuple[Tensor, Tensor]:
    """Ids [B, max_new] and lengths [B] by the same draws as the numpy engine, temperature 1.

    `forward` is what reads one more token; the model itself, or a compiled form of it.
    """
    step, c = model if forward is None else forward, model.config
    n, tp = prompts.shape
    batch = n * group
    shape = (c.num_hidden_layers, n, c.num_key_value_heads, tp, c.head_dim)
    keys, values = torch.empty(shape), torch.empty(shape)
    mask = torch.tensor(causal(tp))
    x = model(prompts, torch.arange(tp).expand(n, tp), mask, keys, values, 0)[:, -1]

    def spread(old: Tensor) -> Tensor:
        new = torch.empty(shape[0], batch, shape[2], tp + max_new, shape[4])
        new[:, :, :, :tp] = old.repeat_interleave(group, 1)
        return new

    keys, values = spread(keys), spread(values)
    logits = F.linear(x, model.embed).repeat_interleave(group, 0)
    ids = torch.zeros(batch, max_new, dtype=torch.int64)
    lengths = torch.zeros(batch, dtype=torch.int64)
    live = torch.arange(batch)
    done = torch.zeros(batch, dtype=torch.bool)
    for t in range(max_new):
        z = logits - logits.amax(1, keepdim=True)
        cumulated = torch.exp(z).cumsum(1)
        chosen = (cumulated.double() <= uniforms[live, t][:, None] * cumulated[:, -1:].double()).sum(1)
        # the log-probability is part of the work: training needs it
        torch.log_softmax(z, 1).gather(1, chosen[:, None])
        going = live[~done]
        ids[going, t] = chosen[~done]
        lengths[going] = t + 1
        done = done | (chosen == c.eos_token_id)
        if bool(done.all()) or t + 1 == max_new:
            break
        if int(done.sum()) * 4 >= len(done):
            keep = (~done).nonzero()[:, 0]
            keys, values, live, chosen, done = keys[:, keep], values[:, keep], live[keep], chosen[keep], done[keep]
        positions = torch.full((len(live), 1), tp + t)
        logits = F.linear(step(chosen[:, None], positions, None, keys, values, tp + t)[:, 0], model.embed)
    return ids, lengths


def updater(
    model: Minimal, packed: Packed, coefficients: np.ndarray, forward: Forward | None = None
) -> Callable[[], Any]:
    """One GRPO update of the module; `forward` is the module, or a compiled form of it."""
    ids, positions, mask = torch.tensor(packed.ids), torch.tensor(packed.positions), torch.tensor(packed.mask)
    source = torch.tensor(packed.source)
    run = model if forward is None else forward

    def logits() -> Tensor:
        states = run(ids, positions, mask, None, None, 0).reshape(-1, model.config.hidden_size)[source]
        return F.linear(states, model.embed)

    return _updater(logits, list(model.parameters()), packed, coefficients)


def _updater(
    logits: Callable[[], Tensor], parameters: list[nn.Parameter], packed: Packed, coefficients: np.ndarray
) -> Callable[[], Any]:
    """Forward, loss, backward, clipping, AdamW. The learning rate is too small to change the weights."""
    targets, weights = torch.tensor(packed.targets), torch.tensor(coefficients)
    optimiser = torch.optim.AdamW(parameters, lr=1e-12, weight_decay=0.0, fused=True)

    def update() -> None:
        logprobs = torch.log_softmax(logits(), -1).gather(-1, targets[:, None])[:, 0]
        optimiser.zero_grad(set_to_none=True)
        (logprobs * weights).sum().backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()

    return update


class Reference:
    """transformers' Qwen3ForCausalLM with a decode loop by hand, the fastest way to sample with it."""

    def __init__(self, name: str) -> None:
        self.model = transformers.Qwen3ForCausalLM.from_pretrained(
            str(weights_path(name)), dtype=torch.float32, attn_implementation="sdpa"
        )

    @torch.inference_mode()
    def sample(self, prompts: Tensor, uniforms: Tensor, group: int) -> None:
        cache = transformers.DynamicCache(config=self.model.config)
        out = self.model(prompts.repeat_interleave(group, 0), past_key_values=cache, use_cache=True, logits_to_keep=1)
        done = torch.zeros(len(uniforms), dtype=torch.bool)
        for t in range(uniforms.shape[1]):
            cumulated = torch.softmax(out.logits[:, -1], -1).cumsum(1)
            chosen = (cumulated <= uniforms[:, t : t + 1] * cumulated[:, -1:]).sum(1)
            done |= chosen == self.model.config.eos_token_id
            if bool(done.all()) or t + 1 == uniforms.shape[1]:
                break
            out = self.model(chosen[:, None], past_key_values=cache, use_cache=True)

    def updater(self, packed: Packed, coefficients: np.ndarray) -> Callable[[], Any]:
        """One GRPO update."""
        ids, positions = torch.tensor(packed.ids), torch.tensor(packed.positions)
        mask, source = torch.tensor(packed.mask)[:, 0], torch.tensor(packed.source)

        def logits() -> Tensor:
            found = self.model(input_ids=ids, position_ids=positions, attention_mask=mask).logits
            return found.reshape(-1, found.shape[-1])[source]

        return _updater(logits, list(self.model.parameters()), packed, coefficients)
