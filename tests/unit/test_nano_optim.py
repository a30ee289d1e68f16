"""Optimisers against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from attrs import define

from nested_rl.errors import SettingsError
from nested_rl.nano.config import Qwen3Config
from nested_rl.nano.losses import backward_from_coefficients
from nested_rl.nano.model import Qwen3
from nested_rl.nano.optim import AdamW, Muon
from nested_rl.nano.packing import pack_rows


@define
class Vector:
    theta: np.ndarray
    grad: np.ndarray


def test_adamw_is_the_textbook():
    rng = np.random.default_rng(0)
    target = Vector(rng.normal(size=50), np.zeros(50))
    theta, m, v = target.theta.copy(), np.zeros(50), np.zeros(50)
    opt = AdamW(target, lr=0.1, betas=(0.9, 0.99), eps=1e-3, weight_decay=0.2, clip=1.0)
    for t in range(1, 6):
        g = rng.normal(size=50)
        target.grad = g.copy()
        norm = opt.step()
        assert norm == pytest.approx(np.linalg.norm(g))
        g = g * min(1, 1 / (norm + 1e-6))
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        theta = theta * (1 - 0.1 * 0.2) - 0.1 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.99**t)) + 1e-3)
        assert np.allclose(target.theta, theta, rtol=1e-12)


def test_adamw_goes_on_where_it_was():
    rng = np.random.default_rng(1)
    grads = rng.normal(size=(6, 20))
    one, two = Vector(np.ones(20), np.zeros(20)), Vector(np.ones(20), np.zeros(20))
    straight, first = AdamW(one, lr=0.1), AdamW(two, lr=0.1)
    for g in grads:
        one.grad = g
        straight.step()
    for g in grads[:3]:
        two.grad = g
        first.step()
    second = AdamW(two, lr=0.1)
    second.restore(first.state())
    for g in grads[3:]:
        two.grad = g
        second.step()
    assert np.array_equal(one.theta, two.theta)
    with pytest.raises(SettingsError, match="second"):
        second.restore({"first": np.zeros(20), "second": np.zeros(3)})


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_a_small_net_learns_a_sentence(optimiser):
    model = Qwen3(Qwen3Config(vocab_size=12, hidden_size=16, intermediate_size=16, head_dim=8))
    rows = [[3, 7, 4, 9, 1], [5, 2, 8, 8, 6, 1]]
    packed = pack_rows(rows, [[True] * len(r) for r in rows], 0)
    opt = AdamW(model, lr=1e-2) if optimiser == "adamw" else Muon(model, lr=0.02, adam_lr=1e-2)
    losses = []
    for _ in range(60):
        logp = backward_from_coefficients(model, packed, np.full(len(packed), -1 / len(packed)))
        losses.append(-float(logp.mean()))
        assert opt.step() > 0
    assert losses[0] > 2
    # the first target of each row depends on its first token, so everything can be learned
    assert losses[-1] < 0.1


def test_muon_moves_every_matrix_by_its_learning_rate():
    model = Qwen3(Qwen3Config(vocab_size=12, hidden_size=16, intermediate_size=24, head_dim=8))
    packed = pack_rows([[3, 7, 4, 9, 1]], [[True] * 5], 0)
    backward_from_coefficients(model, packed, np.full(len(packed), -1.0))
    before = {n: t.copy() for n, t in model.tensors.items()}
    Muon(model, lr=0.01, weight_decay=0.0).step()
    for name, old in before.items():
        if old.ndim == 2 and ".layers." in name:
            change = model.tensors[name] - old
            spread = np.linalg.svd(change, compute_uv=False) / (0.01 * max(1, old.shape[0] / old.shape[1]) ** 0.5)
            assert spread.max() < 1.5, name
            assert spread.max() > 0.5, name
