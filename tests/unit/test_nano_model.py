"""The numpy engine against finite differences and against itself."""

from __future__ import annotations

import numpy as np
import pytest

from nested_rl.errors import SettingsError
from nested_rl.nano.config import Qwen3Config
from nested_rl.nano.lora import LoRA
from nested_rl.nano.losses import backward, backward_from_coefficients, score, token_logprobs
from nested_rl.nano.model import Qwen3, Tape
from nested_rl.nano.packing import causal, left_padded, pack_groups, pack_pairs, pack_rows

SHAPES = {
    "gqa": {"num_attention_heads": 4, "num_key_value_heads": 2},
    "mha untied": {"num_attention_heads": 2, "num_key_value_heads": 2, "tie_word_embeddings": False},
    "one kv head": {"num_attention_heads": 3, "num_key_value_heads": 1},
}


def tiny(dtype=np.float64, seed=0, **changes) -> Qwen3:
    sizes = {"vocab_size": 11, "hidden_size": 6, "intermediate_size": 10, "head_dim": 4, "max_position_embeddings": 64}
    model = Qwen3(Qwen3Config(**(sizes | changes)), seed=seed, dtype=dtype)
    # norms away from 1 and everything larger, so that no gradient is trivially small
    rng = np.random.default_rng(seed + 1)
    model.theta += rng.normal(0, 0.2, model.size).astype(dtype)
    return model


def sequences(rng, n=5, low=3, high=9, vocab=11):
    return [rng.integers(1, vocab, rng.integers(low, high)).tolist() for _ in range(n)]


def all_trained(rows):
    return [[True] * len(row) for row in rows]


def alone(model, row):
    """Log-probabilities of a sequence's tokens from the second on, in a batch of its own."""
    ids = np.array([row])
    x = model.forward(ids, np.arange(len(row))[None], causal(len(row)))
    z = model.logits(x)
    z = z - z.max(1, keepdims=True)
    logp = z - np.log(np.exp(z).sum(1, keepdims=True))
    return logp[np.arange(len(row) - 1), row[1:]]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_gradient_is_the_derivative(shape, temperature):
    model = tiny(**shape)
    rng = np.random.default_rng(3)
    rows = sequences(rng)
    packed = pack_rows(rows, all_trained(rows), 0, capacity=12)
    co = rng.normal(size=len(packed))

    def loss(theta):
        other = Qwen3(model.config, theta, dtype=np.float64)
        return float(co @ token_logprobs(other, packed, temperature=temperature))

    backward_from_coefficients(model, packed, co, temperature=temperature)
    step = 1e-6
    for _ in range(6):  # along random directions: every parameter takes part in each
        direction = rng.normal(size=model.size)
        measured = (loss(model.theta + step * direction) - loss(model.theta - step * direction)) / (2 * step)
        assert measured == pytest.approx(float(model.grad @ direction), rel=1e-6, abs=1e-6)


def test_every_tensor_has_its_own_right_gradient():
    model = tiny()
    rng = np.random.default_rng(4)
    rows = sequences(rng)
    packed = pack_rows(rows, all_trained(rows), 0)
    co = rng.normal(size=len(packed))
    backward_from_coefficients(model, packed, co)
    for name, tensor in model.tensors.items():
        at = tuple(rng.integers(0, n) for n in tensor.shape)
        before = float(tensor[at])
        tensor[at] = before + 1e-5
        above = float(co @ token_logprobs(model, packed))
        tensor[at] = before - 1e-5
        below = float(co @ token_logprobs(model, packed))
        tensor[at] = before
        assert (above - below) / 2e-5 == pytest.approx(float(model.grad_views.tensors[name][at]), rel=1e-5, abs=1e-7), (
            name
        )


def test_the_gradient_through_the_whole_distribution():
    model, other = tiny(), tiny(seed=9)
    rows = sequences(np.random.default_rng(5))
    packed = pack_rows(rows, all_trained(rows), 0)
    reference = score(other, packed).distribution

    def kl(theta):
        s = score(Qwen3(model.config, theta, dtype=np.float64), packed)
        return float((s.probabilities * (s.distribution - reference)).sum())

    s = score(model, packed, tape=True)
    d = s.distribution - reference
    dlogits = s.probabilities * (d - (s.probabilities * d).sum(1, keepdims=True))
    model.zero_grad()
    backward(model, s, np.zeros(len(packed)), dlogits)
    direction = np.random.default_rng(6).normal(size=model.size)
    measured = (kl(model.theta + 1e-5 * direction) - kl(model.theta - 1e-5 * direction)) / 2e-5
    assert measured == pytest.approx(float(model.grad @ direction), rel=1e-6)


def test_the_safe_softmax_gives_the_same_numbers():
    model = tiny()
    rows = sequences(np.random.default_rng(7))
    packed = pack_rows(rows, all_trained(rows), 0)
    model.tensors["model.layers.0.self_attn.q_norm.weight"][:] = 1e-3
    model.tensors["model.layers.0.self_attn.q_norm.weight"][0] = (
        30  # the bound is crossed, the scores stay small enough
    )
    large = token_logprobs(model, packed)
    import nested_rl.nano.layers as layers

    before = layers.SAFE_SCORE
    try:
        layers.SAFE_SCORE = 1e9
        assert np.allclose(token_logprobs(model, packed), large, atol=1e-12)
    finally:
        layers.SAFE_SCORE = before


@pytest.mark.parametrize("capacity", [None, 20, 64])
def test_a_packed_row_is_each_sequence_alone(capacity):
    model = tiny(np.float32)
    rows = sequences(np.random.default_rng(8), n=9)
    packed = pack_rows(rows, all_trained(rows), 0, capacity=capacity)
    expected = np.concatenate([alone(model, row) for row in rows])
    assert np.allclose(token_logprobs(model, packed), expected, atol=2e-5)
    assert [tuple(x) for x in packed.index] == [(i, j) for i, row in enumerate(rows) for j in range(1, len(row))]


def test_pairs_share_a_row_and_train_from_their_start():
    model = tiny(np.float32)
    rows = sequences(np.random.default_rng(9), n=7)
    lengths = np.array([len(r) for r in rows])
    ids = np.zeros((7, lengths.max()), np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
    start = np.minimum(2, lengths - 1)
    packed = pack_pairs(ids, lengths, start, 0)
    assert len(packed.ids) == 4
    expected = np.concatenate([alone(model, row)[s - 1 :] for row, s in zip(rows, start, strict=True)])
    assert np.allclose(token_logprobs(model, packed), expected, atol=2e-5)


def test_a_group_shares_its_prompt():
    model = tiny(np.float32)
    rng = np.random.default_rng(10)
    prompts = np.array([[0, 0, 3, 4], [5, 6, 7, 8]])
    lengths = np.array([[3, 1, 2], [2, 3, 3]])
    completions = rng.integers(1, 11, (2, 3, 3)) * (np.arange(3) < lengths[..., None])
    completions[0, 0, 1] = 0  # a sampled pad inside is a token like any other
    packed = pack_groups(prompts, completions, lengths, 0)
    logp = token_logprobs(model, packed)
    for (i, g, j), value in zip(packed.index, logp, strict=True):
        prompt = [t for t in prompts[i].tolist() if t]
        row = prompt + completions[i, g, : lengths[i, g]].tolist()
        assert value == pytest.approx(alone(model, row)[len(prompt) - 1 + j], abs=2e-5)
    assert len(packed) == lengths.sum()


def test_left_padding_does_not_change_the_row():
    model = tiny(np.float32)
    row = [3, 4, 5, 6]
    ids = np.array([[0, 0, *row], [1, 2, 3, 4, 5, 6]])
    positions, mask, _ = left_padded(ids, 0)
    x = model.forward(ids, positions, mask).reshape(2, 6, -1)
    ref = model.forward(np.array([row]), np.arange(4)[None], causal(4))
    assert np.allclose(x[0, 2:], ref, atol=1e-5)


def test_the_lora_gradient_is_the_derivative():
    model = tiny()
    lora = LoRA(model, rank=3, alpha=5, targets=("q_proj", "o_proj", "up_proj"), seed=2)
    rng = np.random.default_rng(11)
    lora.theta += rng.normal(0, 0.3, lora.size)
    rows = sequences(rng)
    packed = pack_rows(rows, all_trained(rows), 0)
    co = rng.normal(size=len(packed))
    start = lora.theta.copy()

    def loss(theta):
        lora.theta[:] = theta
        lora.merge()
        return float(co @ token_logprobs(model, packed))

    loss(start)
    backward_from_coefficients(model, packed, co)
    lora.pull()
    direction = rng.normal(size=lora.size)
    expected = float(lora.grad @ direction)
    measured = (loss(start + 1e-5 * direction) - loss(start - 1e-5 * direction)) / 2e-5
    assert measured == pytest.approx(expected, rel=1e-6)


def test_a_fresh_adapter_changes_nothing():
    model = tiny(np.float32)
    before = model.theta.copy()
    LoRA(model).merge()
    assert np.array_equal(model.theta, before)


def test_backward_refuses_what_it_cannot_do():
    model = tiny()
    packed = pack_rows([[1, 2, 3]], [[True] * 3], 0)
    with pytest.raises(SettingsError, match="zero_grad"):
        model.backward(np.zeros((2, 6)), Tape())
    model.zero_grad()
    with pytest.raises(SettingsError, match="tape"):
        model.backward(np.zeros((2, 6)), Tape())
    with pytest.raises(ValueError, match="tape=True"):
        backward(model, score(model, packed), np.zeros(2))
    with pytest.raises(SettingsError, match="two tokens"):
        pack_rows([[1]], [[True]], 0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"vocab_size": 0}, "vocab_size"),
        ({"num_attention_heads": 3, "num_key_value_heads": 2}, "multiple"),
        ({"head_dim": 5}, "even"),
        ({"eos_token_id": 99}, "eos_token_id"),
    ],
)
def test_a_config_that_cannot_work_is_refused(changes, says):
    with pytest.raises(SettingsError, match=says):
        Qwen3Config(**changes)


def test_a_config_of_another_model_is_refused():
    good = Qwen3Config().to_hf("float32")
    assert Qwen3Config.from_hf(good) == Qwen3Config()
    for change in (
        {"model_type": "llama"},
        {"attention_bias": True},
        {"use_sliding_window": True},
        {"hidden_act": "gelu"},
        {"rope_parameters": {"rope_type": "yarn"}},
    ):
        with pytest.raises(SettingsError, match="support"):
            Qwen3Config.from_hf(good | change)
