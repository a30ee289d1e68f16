"""Sampling: what it records is what the model says, whatever else is in the batch."""

from __future__ import annotations

import numpy as np
import pytest

from nested_rl.errors import SettingsError
from nested_rl.nano.cache import Cache
from nested_rl.nano.config import Qwen3Config
from nested_rl.nano.decode import Decoder
from nested_rl.nano.folder import load_model, weights_path
from nested_rl.nano.losses import token_logprobs
from nested_rl.nano.model import Qwen3
from nested_rl.nano.packing import left_padded, pack_groups
from nested_rl.nano.sampling import _prefill, generate, pad_left


def net(positions=64, seed=0) -> Qwen3:
    config = Qwen3Config(
        vocab_size=13, hidden_size=8, intermediate_size=12, head_dim=4, max_position_embeddings=positions
    )
    model = Qwen3(config, seed=seed)
    model.theta *= np.float32(2)  # far from uniform
    return model


PROMPTS = pad_left([[3, 4, 5], [6], [7, 8, 9, 10, 11], [2, 2]], 0)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.5])
def test_recorded_logprobs_are_those_of_a_full_forward(temperature):
    model = net()
    s = generate(model, PROMPTS, group=5, max_new=12, temperature=temperature, stop_ids=(1, 12))
    shape = (4, 5)
    packed = pack_groups(PROMPTS, s.ids.reshape(*shape, -1), s.lengths.reshape(shape), 0)
    i, g, j = packed.index.T
    recorded = s.logprobs.reshape(*shape, -1)[i, g, j]
    assert np.allclose(token_logprobs(model, packed, temperature=temperature), recorded, atol=2e-5)
    assert len(packed) == s.lengths.sum()


def test_a_row_depends_on_its_own_draws_alone():
    model = net()
    u = np.random.default_rng(1).random((4, 12))
    together = generate(model, PROMPTS, max_new=12, uniforms=u)
    for i in range(4):
        single = generate(model, PROMPTS[i : i + 1], max_new=12, uniforms=u[i : i + 1])
        n = together.lengths[i]
        assert single.lengths[0] == n
        assert single.ids[0, :n].tolist() == together.ids[i, :n].tolist()
        assert np.allclose(single.logprobs[0, :n], together.logprobs[i, :n], atol=1e-5)


def test_rows_end_at_any_stop_id_and_are_padded_after_it():
    s = generate(net(), PROMPTS, group=50, max_new=15, stop_ids=(1, 5, 9))
    assert s.finished.any()
    assert not s.finished.all()
    for ids, logprobs, n, finished in zip(s.ids, s.logprobs, s.lengths, s.finished, strict=True):
        assert not set(ids[: n - 1].tolist()) & {1, 5, 9}
        assert finished == (ids[n - 1] in {1, 5, 9})
        assert finished or n == 15
        assert not ids[n:].any()
        assert not logprobs[n:].any()
        assert (logprobs[:n] < 0).all()


def test_no_row_outgrows_the_model():
    model = net(positions=8)
    s = generate(model, PROMPTS, group=20, max_new=30, stop_ids=())
    assert s.lengths.reshape(4, 20).tolist() == [[5] * 20, [7] * 20, [3] * 20, [6] * 20]
    assert not s.finished.any()
    full = generate(model, np.arange(1, 9)[None], max_new=4)
    assert (full.lengths.tolist(), full.finished.tolist()) == ([0], [False])
    with pytest.raises(SettingsError, match="has 9 tokens, the model reads 8"):
        generate(model, np.arange(1, 10)[None], max_new=4)


def test_every_prompt_may_have_its_own_cap():
    model, u = net(), np.random.default_rng(3).random((8, 9))
    caps = np.array([2, 9, 1, 5])
    s = generate(model, PROMPTS, group=2, max_new=caps, uniforms=u, stop_ids=())
    assert s.lengths.tolist() == np.repeat(caps, 2).tolist()
    free = generate(model, PROMPTS, group=2, max_new=9, uniforms=u, stop_ids=())
    for row, full, n in zip(s.ids, free.ids, s.lengths, strict=True):
        assert row[:n].tolist() == full[:n].tolist()


def test_greedy_takes_the_most_probable_and_repeats_itself():
    model = net()
    a = generate(model, PROMPTS, max_new=10, temperature=0)
    b = generate(model, PROMPTS, max_new=10, temperature=0, rng=np.random.default_rng(5))
    assert np.array_equal(a.ids, b.ids)
    row = PROMPTS[2].tolist()
    for token in a.ids[2, : a.lengths[2]].tolist():
        ids = np.array([row])
        x = model.forward(ids, np.arange(len(row))[None], np.triu(np.full((len(row),) * 2, -1e4, np.float32), 1))
        assert int(model.logits(x)[-1].argmax()) == token
        row.append(token)


def test_frequencies_are_the_probabilities():
    model = net()
    prompt = np.array([[3, 4]])
    n = 20_000
    s = generate(model, prompt, group=n, max_new=1, temperature=1.3, rng=np.random.default_rng(2))
    x = model.forward(prompt, np.arange(2)[None], np.triu(np.full((2, 2), -1e4, np.float32), 1))
    z = model.logits(x)[-1].astype(np.float64) / 1.3
    p = np.exp(z) / np.exp(z).sum()
    counts = np.bincount(s.ids[:, 0], minlength=13)
    assert (np.abs(counts / n - p) < 5 * np.sqrt(p * (1 - p) / n) + 1e-4).all()


def test_extreme_draws_pick_possible_tokens():
    model = net()
    model.tensors["model.norm.weight"][:] *= 40  # some probabilities are exactly 0 in float32
    u = np.full((4, 6), np.nextafter(1.0, 0.0))
    s = generate(model, PROMPTS, max_new=6, uniforms=u)
    assert np.isfinite(s.logprobs).all()
    assert (s.logprobs > -80).all()


@pytest.mark.parametrize(
    ("prompts", "settings", "says"),
    [
        (PROMPTS, {"max_new": 0}, "max_new"),
        (np.zeros((1, 3), np.int64), {"max_new": 2}, "not padding"),
        (np.array([[1, 99]]), {"max_new": 2}, "prompt ids"),
        (PROMPTS, {"max_new": 5, "uniforms": np.zeros((4, 2))}, "uniforms"),
    ],
)
def test_wrong_use_is_refused(prompts, settings, says):
    with pytest.raises(SettingsError, match=says):
        generate(net(), prompts, **settings)


def test_an_empty_prompt_is_refused():
    with pytest.raises(SettingsError, match="at least one token"):
        pad_left([[1], []], 0)


def test_many_rows_at_once_are_read_bit_by_bit_too():
    model, _ = load_model(weights_path("nano-m"))
    decoder, rng = Decoder(model), np.random.default_rng(0)
    rows, ours = rng.integers(3, 60, (160, 3)), Cache.empty(model.config, 160, 3, np.dtype(np.float32))
    whole = Cache.empty(model.config, 160, 3, np.dtype(np.float32))
    for t in range(3):
        ids, at = rows[:, t : t + 1], np.full((160, 1), t)
        expected = model.logits(model.forward(ids, at, cache=whole))
        assert np.array_equal(decoder.logits(decoder.step(ids, at, None, ours)), expected)


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("sharp", [1, 30])
def test_what_sampling_reads_is_read_as_by_the_whole_model_bit_by_bit(padded, sharp):
    model = net()
    model.tensors["model.layers.1.self_attn.q_norm.weight"][0] = sharp  # large: scores need their maximum taken off
    prompts = PROMPTS if padded else np.arange(1, 13).reshape(3, 4)
    decoder = Decoder(model)
    logits, mine, at = _prefill(model, decoder, prompts, 2, 10)
    positions, mask, _ = left_padded(prompts, 0)
    whole = Cache.empty(model.config, *prompts.shape, np.dtype(np.float32))
    x = model.forward(prompts, positions, mask, cache=whole).reshape(*prompts.shape, -1)[:, -1]
    assert np.array_equal(logits, np.repeat(model.logits(x), 2, 0))
    whole, ids = whole.expand(2, 10), np.arange(len(at)) + 3
    for t in range(3):
        hidden = None if mine.hidden is None else mine.hidden[..., : mine.filled + 1]
        expected = model.logits(model.forward(ids[:, None], (at + t)[:, None], hidden, cache=whole))
        found = decoder.logits(decoder.step(ids[:, None], (at + t)[:, None], hidden, mine))
        assert np.array_equal(found, expected)
        assert mine.filled == whole.filled
