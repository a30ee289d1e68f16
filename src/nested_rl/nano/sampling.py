"""Batched sampling with a cache: each prompt is read once for all its samples, finished rows leave the batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import frozen

from nested_rl.errors import SettingsError
from nested_rl.nano.arrays import Floats, Ints
from nested_rl.nano.cache import Cache
from nested_rl.nano.decode import Decoder
from nested_rl.nano.model import Qwen3
from nested_rl.nano.packing import left_padded, padded_left


@frozen(kw_only=True)
class Samples:
    """What was sampled, B = n · group rows; the samples of one prompt are next to each other.

    ids [B, t] right padded; logprobs [B, t] under the sampling temperature (greedy: under temperature 1), 0 where padded;
    lengths [B] with the stop token; finished [B]: False when a row was cut at `max_new` or at the model's last position.
    """

    ids: Ints
    logprobs: Floats
    lengths: Ints
    finished: Floats


def pad_left(prompts: Sequence[Sequence[int]], pad_id: int) -> Ints:
    """Prompts of any lengths -> [n, longest].

    >>> pad_left([[5], [6, 7]], 0).tolist()
    [[0, 5], [6, 7]]
    """
    if not prompts or not all(len(p) for p in prompts):
        raise SettingsError("a prompt needs at least one token")
    out = np.full((len(prompts), max(map(len, prompts))), pad_id, np.int64)
    for row, prompt in zip(out, prompts, strict=True):
        row[len(row) - len(prompt) :] = prompt
    return out


def generate(
    model: Qwen3,
    prompts: Ints,
    *,
    group: int = 1,
    max_new: int | Ints,
    temperature: float = 1.0,
    uniforms: Floats | None = None,
    rng: np.random.Generator | None = None,
    stop_ids: Sequence[int] | None = None,
) -> Samples:
    """Sample `group` continuations of each prompt [n, tp] (left padded), of at most `max_new` tokens.

    `max_new` may be one number a prompt [n]. `uniforms` [n · group, max_new] in [0, 1) are the draws, one a token: what a row samples then depends on its own draws
    alone. Without them they come from `rng` (default: seed 0). Temperature 0 takes the most probable token.
    `stop_ids` default to the config's end of sequence. No row outgrows `max_position_embeddings`.
    """
    c = model.config
    n, tp = prompts.shape
    batch = n * group
    limits = np.repeat(_room(model, prompts, max_new), group)
    steps = int(limits.max())
    if temperature > 0 and uniforms is None:
        uniforms = (rng or np.random.default_rng(0)).random((batch, int(np.max(max_new))))
    if uniforms is not None and (uniforms.shape[0] != batch or uniforms.shape[1] < steps):
        raise SettingsError(f"uniforms have shape {uniforms.shape}, [{batch}, {steps}] are needed")
    stops = np.zeros(c.vocab_size, bool)
    stops[list((c.eos_token_id,) if stop_ids is None else stop_ids)] = True

    decoder = Decoder(model)
    logits, cache, position = _prefill(model, decoder, prompts, group, tp + steps)
    ids = np.full((batch, steps), c.pad_token_id, np.int64)
    logprobs = np.zeros((batch, steps), model.theta.dtype)
    lengths = np.zeros(batch, np.int64)
    finished = np.zeros(batch, bool)
    live = np.arange(batch)  # the rows still in the cache; `done` are those of them that have ended
    done = limits[live] == 0
    for t in range(steps):
        chosen, logp = _choose(logits, temperature, None if uniforms is None else uniforms[live, t])
        going, fresh = (live[~done], ~done) if done.any() else (live, slice(None))
        ids[going, t], logprobs[going, t] = chosen[fresh], logp[fresh]
        lengths[going] = t + 1
        finished[going] = stops[chosen[fresh]]
        done = finished[live] | (t + 1 >= limits[live])
        ended = np.count_nonzero(done)
        if ended == len(done):
            break
        if ended * 4 >= len(done):
            keep = np.flatnonzero(~done)
            cache, live, position = cache.take(keep), live[keep], position[keep]
            chosen, done = chosen[keep], done[keep]
        hidden = None if cache.hidden is None else cache.hidden[..., : cache.filled + 1]
        # a row that is done but still in the batch is fed on, at its last legal position
        at = np.minimum(position + t, c.max_position_embeddings - 1)
        logits = decoder.logits(decoder.step(chosen[:, None], at[:, None], hidden, cache))
    longest = max(1, int(lengths.max()))
    return Samples(ids=ids[:, :longest], logprobs=logprobs[:, :longest], lengths=lengths, finished=finished)


def _room(model: Qwen3, prompts: Ints, max_new: int | Ints) -> Ints:
    """How many tokens each row may still get [n]."""
    c = model.config
    if np.min(max_new) < 1:
        raise SettingsError(f"max_new must be at least 1, not {max_new}")
    real = prompts.shape[1] - padded_left(prompts, c.pad_token_id)
    if (real == 0).any():
        raise SettingsError("a prompt needs at least one token that is not padding")
    if (real > c.max_position_embeddings).any():
        raise SettingsError(f"a prompt has {int(real.max())} tokens, the model reads {c.max_position_embeddings}")
    if prompts.min() < 0 or prompts.max() >= c.vocab_size:
        raise SettingsError(f"prompt ids must lie in [0, {c.vocab_size})")
    room: Ints = np.minimum(max_new, c.max_position_embeddings - real)
    return room


def _prefill(model: Qwen3, decoder: Decoder, prompts: Ints, group: int, capacity: int) -> tuple[Floats, Cache, Ints]:
    """Read the prompts once -> logits of the first new token [B, vocab], the expanded cache, its position [B]."""
    n, tp = prompts.shape
    positions, mask, hidden = left_padded(prompts, model.config.pad_token_id)
    cache = Cache.empty(model.config, n, tp, model.theta.dtype)
    x = decoder.step(prompts, positions, mask, cache).reshape(n, tp, -1)[:, -1]
    cache.hidden = hidden
    logits = np.repeat(decoder.logits(x), group, 0)
    return logits, cache.expand(group, capacity), np.repeat(positions[:, -1] + 1, group)


def _choose(logits: Floats, temperature: float, uniforms: Floats | None) -> tuple[Ints, Floats]:
    """One token a row, and its log-probability."""
    z = logits / temperature if temperature not in {0, 1} else logits
    z = z - z.max(1, keepdims=True)
    cumulated = np.cumsum(np.exp(z), 1)
    total = cumulated[:, -1:]
    if temperature == 0 or uniforms is None:
        chosen = z.argmax(1)
    else:
        # in float64 u · total < total, so there is a first one above, and its token has a probability above 0
        chosen = (cumulated > uniforms[:, None] * total.astype(np.float64)).argmax(1)
    return chosen, z[np.arange(len(z)), chosen] - np.log(total[:, 0])
