"""AdamW on the flat vector, and Muon for pre-training."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from nested_rl.errors import SettingsError
from nested_rl.nano.arrays import Floats, Ints
from nested_rl.nano.model import Qwen3
from nested_rl.nano.parameters import layout


class Trainable(Protocol):
    """A flat vector `theta` and its gradient `grad` of the same shape: a model, or an adapter."""

    theta: Floats
    grad: Floats


class AdamW:
    """Adam with decoupled weight decay. `lr` may be set between steps; `index` restricts it to some of the parameters."""

    def __init__(
        self,
        target: Trainable,
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        clip: float | None = 1.0,
        index: Ints | None = None,
    ) -> None:
        self.target, self.lr, self.betas, self.eps = target, lr, betas, eps
        self.weight_decay, self.clip, self.index = weight_decay, clip, index
        self.steps = 0
        n = len(target.theta) if index is None else len(index)
        self.first = np.zeros(n, target.theta.dtype)
        self.second = np.zeros(n, target.theta.dtype)

    def step(self) -> float:
        """Use the target's gradient (scaled down to norm `clip` if larger); return its norm before that."""
        norm = math.sqrt(float(self.target.grad @ self.target.grad))
        self.apply(1.0 if self.clip is None else min(1.0, self.clip / (norm + 1e-6)))
        return norm

    def apply(self, scale: float) -> None:
        """One step with the gradient times `scale`."""
        theta, (b1, b2) = self.target.theta, self.betas
        self.steps += 1
        g = (self.target.grad if self.index is None else self.target.grad[self.index]) * scale
        self.first += (1 - b1) * (g - self.first)
        g *= g
        g -= self.second
        g *= 1 - b2
        self.second += g
        update = np.sqrt(self.second)
        update *= 1 / math.sqrt(1 - b2**self.steps)
        update += self.eps
        np.divide(self.first, update, out=update)
        update *= self.lr / (1 - b1**self.steps)
        decay = 1 - self.lr * self.weight_decay
        if self.index is None:
            if self.weight_decay:
                theta *= decay
            theta -= update
        else:
            theta[self.index] = theta[self.index] * decay - update

    def state(self) -> dict[str, Floats]:
        """Everything that `restore` needs: first, second [n], steps [1]."""
        return {"first": self.first, "second": self.second, "steps": np.array([self.steps], np.int64)}

    def restore(self, state: dict[str, Floats]) -> None:
        """Go on from a saved state; raises SettingsError when it is of another size."""
        for name in ("first", "second"):
            if name not in state or state[name].shape != self.first.shape:
                raise SettingsError(f"optimiser state: {name} is missing or is not of shape {self.first.shape}")
        if "steps" not in state or state["steps"].shape != (1,):
            raise SettingsError("optimiser state: steps is missing")
        self.first[:], self.second[:] = state["first"], state["second"]
        self.steps = int(state["steps"][0])


class Muon:
    """Orthogonalised momentum on the 2-d weights of the layers (equal shapes in one stack), AdamW on everything else."""

    def __init__(
        self,
        model: Qwen3,
        *,
        lr: float = 0.02,
        adam_lr: float = 4e-3,
        momentum: float = 0.95,
        weight_decay: float = 0.05,
        clip: float = 1.0,
        iterations: int = 5,
    ) -> None:
        self.model, self.lr, self.momentum = model, lr, momentum
        self.weight_decay, self.clip, self.iterations = weight_decay, clip, iterations
        self._stacks: dict[tuple[int, int], list[str]] = {}
        rest = np.ones(model.size, bool)
        at = 0
        for name, shape in layout(model.config):
            end = at + math.prod(shape)
            if len(shape) == 2 and ".layers." in name:
                rest[at:end] = False
                self._stacks.setdefault((min(shape), max(shape)), []).append(name)
            at = end
        index = np.flatnonzero(rest)
        self.adam = AdamW(model, lr=adam_lr, betas=(0.9, 0.98), weight_decay=0.01, clip=None, index=index)
        self._momenta = {
            shape: np.zeros((len(names), *shape), model.theta.dtype) for shape, names in self._stacks.items()
        }

    def step(self) -> float:
        """Use the model's gradient; return its norm before clipping."""
        model = self.model
        if model.grad_views is None:
            raise SettingsError("no gradient yet")
        norm = math.sqrt(float(model.grad @ model.grad))
        scale = min(1.0, self.clip / (norm + 1e-6))
        self.adam.apply(scale)
        for shape, names in self._stacks.items():
            # every matrix lies down, so that one stack holds both orientations
            g = np.stack([_lying(model.grad_views.tensors[name]) for name in names])
            g *= scale
            momentum = self._momenta[shape]
            momentum *= self.momentum
            momentum += g
            for name, update in zip(names, self._orthogonal(g + self.momentum * momentum), strict=True):
                w = model.tensors[name]
                rows, columns = w.shape
                w *= 1 - self.lr * self.weight_decay
                w -= self.lr * math.sqrt(max(1.0, rows / columns)) * (update.T if rows > columns else update)
        return norm

    def _orthogonal(self, x: Floats) -> Floats:
        """Newton-Schulz: all singular values of each matrix in the stack pushed towards 1."""
        x /= np.sqrt((x * x).sum((1, 2), keepdims=True)) + 1e-7
        for _ in range(self.iterations):
            a = x @ x.swapaxes(1, 2)
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
        return x


def _lying(matrix: Floats) -> Floats:
    return matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
