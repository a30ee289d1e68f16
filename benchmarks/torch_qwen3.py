"""The same small Qwen3 in torch: what the numpy engine is compared with. A module made for it, and transformers' own.

The module has the scheme of `nested_rl.nano`, so that only the engine differs: fused q/k/v and gate/up, a cache that is written
in place, heads that share keys stacked along the query axis. Both read a prompt once for all its samples, let finished rows
leave the batch, and tell the log-probability of what they chose.
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
from nested_rl.nano.parameters import Views

Forward = Callable[..., Tensor]
Sampled = tuple[Tensor, Tensor, Tensor]
"""Ids [B, max_new], their log-probabilities [B, max_new], lengths [B]."""


_LAYER = ("norm_in", "qkv", "q_norm", "k_norm", "out", "norm_mlp", "gate_up", "down")


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
            for name in _LAYER:
                layer.register_parameter(name, parameter(getattr(views, name)))
            self.layers.append(layer)
        self.register_buffer("cos", torch.tensor(model._cos[:, None, : c.head_dim]))  # noqa: SLF001
        self.register_buffer("sin", torch.tensor(model._sin[:, None, : c.head_dim]))  # noqa: SLF001

    def same_order(self, views: Views) -> list[np.ndarray]:
        """What a numpy model has for each of this module's parameters."""
        layers = [getattr(layer, name) for layer in views.layers for name in _LAYER]
        return [views.embed, views.norm, *layers]

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


def choose(logits: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
    """One token a row, and its log-probability: as in `nested_rl.nano.sampling`, with one pass of exp."""
    z = logits - logits.amax(1, keepdim=True)
    cumulated = torch.exp(z).cumsum(1)
    total = cumulated[:, -1:]
    chosen = torch.searchsorted(cumulated, draws[:, None] * total, right=True)
    return chosen[:, 0], (z.gather(1, chosen) - total.log())[:, 0]


class Batch:
    """The rows of a generation: what was chosen, and which of them are still going. The bookkeeping of the numpy engine."""

    def __init__(self, uniforms: Tensor, stop: int) -> None:
        batch, self.steps = uniforms.shape
        # in float32 u · total < total up to this u, so there is always a token above
        self._draws, self._stop = uniforms.float().clamp(max=1 - 2**-24), stop
        self.ids = torch.zeros(batch, self.steps, dtype=torch.int64)
        self.logprobs = torch.zeros(batch, self.steps)
        self.lengths = torch.zeros(batch, dtype=torch.int64)
        self.live, self._done = torch.arange(batch), torch.zeros(batch, dtype=torch.bool)
        self._ended = 0

    def advance(self, t: int, logits: Tensor) -> tuple[Tensor, Tensor | None] | None:
        """Choose the t-th tokens -> those to read next and, when rows leave, which ones stay; None: all have ended."""
        chosen, logprobs = choose(logits, self._draws[self.live, t])
        going: Any = ~self._done if self._ended else slice(None)
        rows = self.live[going]
        self.ids[rows, t], self.logprobs[rows, t] = chosen[going], logprobs[going]
        self.lengths[rows] = t + 1
        self._done = self._done | (chosen == self._stop)
        self._ended = int(self._done.sum())
        if self._ended == len(self._done) or t + 1 == self.steps:
            return None
        if self._ended * 4 < len(self._done):
            return chosen, None
        keep = (~self._done).nonzero()[:, 0]
        self.live, self._done, self._ended = self.live[keep], self._done[keep], 0
        return chosen[keep], keep

    @property
    def sampled(self) -> Sampled:
        return self.ids, self.logprobs, self.lengths


@torch.inference_mode()
def sample(model: Minimal, prompts: Tensor, uniforms: Tensor, group: int, forward: Forward | None = None) -> Sampled:
    """By the same draws as the numpy engine, temperature 1.

    `forward` is what reads one more token; the model itself, or a compiled form of it.
    """
    step, c = model if forward is None else forward, model.config
    n, tp = prompts.shape
    batch = Batch(uniforms, c.eos_token_id)
    shape = (c.num_hidden_layers, n, c.num_key_value_heads, tp, c.head_dim)
    keys, values = torch.empty(shape), torch.empty(shape)
    mask = torch.tensor(causal(tp))
    x = model(prompts, torch.arange(tp).expand(n, tp), mask, keys, values, 0)[:, -1]

    def spread(old: Tensor) -> Tensor:
        new = torch.empty(shape[0], n * group, shape[2], tp + batch.steps, shape[4])
        new[:, :, :, :tp] = old.repeat_interleave(group, 1)
        return new

    keys, values = spread(keys), spread(values)
    logits = F.linear(x, model.embed).repeat_interleave(group, 0)
    for t in range(batch.steps):
        if (going := batch.advance(t, logits)) is None:
            break
        chosen, keep = going
        if keep is not None:
            keys, values = keys[:, keep], values[:, keep]
        positions = torch.full((len(chosen), 1), tp + t)
        logits = F.linear(step(chosen[:, None], positions, None, keys, values, tp + t)[:, 0], model.embed)
    return batch.sampled


class Update:
    """One GRPO update: forward, loss, backward, clipping, AdamW. The learning rate is too small to change the weights."""

    def __init__(
        self, logits: Callable[[], Tensor], parameters: list[nn.Parameter], packed: Packed, coefficients: np.ndarray
    ) -> None:
        self._logits, self._parameters = logits, parameters
        self._targets, self._weights = torch.tensor(packed.targets), torch.tensor(coefficients)
        self._optimiser = torch.optim.AdamW(parameters, lr=1e-12, weight_decay=0.0, fused=True)

    def backward(self) -> None:
        logprobs = torch.log_softmax(self._logits(), -1).gather(-1, self._targets[:, None])[:, 0]
        self._optimiser.zero_grad(set_to_none=True)
        (logprobs * self._weights).sum().backward()

    def gradient(self) -> np.ndarray:
        """Of all parameters, one after the other, before clipping."""
        self.backward()
        return np.concatenate([p.grad.numpy().ravel() for p in self._parameters if p.grad is not None])

    def __call__(self) -> None:
        self.backward()
        nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimiser.step()


def updater(model: Minimal, packed: Packed, coefficients: np.ndarray, forward: Forward | None = None) -> Update:
    """The module's; `forward` is the module, or a compiled form of it."""
    ids, positions, mask = torch.tensor(packed.ids), torch.tensor(packed.positions), torch.tensor(packed.mask)
    source = torch.tensor(packed.source)
    run = model if forward is None else forward

    def logits() -> Tensor:
        states = run(ids, positions, mask, None, None, 0).reshape(-1, model.config.hidden_size)[source]
        return F.linear(states, model.embed)

    return Update(logits, list(model.parameters()), packed, coefficients)


class Reference:
    """transformers' Qwen3ForCausalLM. Its `generate` samples by draws of its own, so the loop is one by hand."""

    def __init__(self, name: str) -> None:
        self.model = transformers.Qwen3ForCausalLM.from_pretrained(
            str(weights_path(name)), dtype=torch.float32, attn_implementation="sdpa"
        )

    def same_order(self, views: Views) -> list[np.ndarray]:
        """What a numpy model has for each of the model's parameters."""
        return [views.tensors[name] for name, _ in self.model.named_parameters()]

    @torch.inference_mode()
    def sample(self, prompts: Tensor, uniforms: Tensor, group: int) -> Sampled:
        """By the same draws as the numpy engine, temperature 1; the cache is transformers' own."""
        batch = Batch(uniforms, self.model.config.eos_token_id)
        cache = transformers.DynamicCache(config=self.model.config)
        out = self.model(prompts, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache.batch_repeat_interleave(group)
        logits = out.logits[:, -1].repeat_interleave(group, 0)
        for t in range(batch.steps):
            if (going := batch.advance(t, logits)) is None:
                break
            chosen, keep = going
            if keep is not None:
                cache.batch_select_indices(keep)
            logits = self.model(chosen[:, None], past_key_values=cache, use_cache=True).logits[:, -1]
        return batch.sampled

    def updater(self, packed: Packed, coefficients: np.ndarray) -> Update:
        """transformers' side of `updater`."""
        ids, positions = torch.tensor(packed.ids), torch.tensor(packed.positions)
        mask, source = torch.tensor(packed.mask)[:, 0], torch.tensor(packed.source)

        def logits() -> Tensor:
            found = self.model(input_ids=ids, position_ids=positions, attention_mask=mask).logits
            return found.reshape(-1, found.shape[-1])[source]

        return Update(logits, list(self.model.parameters()), packed, coefficients)
