"""LoRA by the chain rule: W = W₀ + s·B·A, so dA = s·Bᵀ·dW and dB = s·dW·Aᵀ, with the dW that the model's backward gives.

Reads and writes PEFT folders (adapter_config.json, adapter_model.safetensors).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nested_rl.errors import SettingsError
from nested_rl.nano.arrays import Floats
from nested_rl.nano.folder import read_json, read_tensors, write_json, write_tensors
from nested_rl.nano.model import Qwen3
from nested_rl.nano.parameters import layout

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class LoRA:
    """An adapter on `model`: `theta` and `grad` are flat, as an optimiser wants them.

    Call `merge` after `theta` changed and before the model is run; `pull` after the model's backward.
    """

    def __init__(
        self, model: Qwen3, *, rank: int = 8, alpha: float = 16, targets: tuple[str, ...] = TARGETS, seed: int = 0
    ) -> None:
        if rank < 1:
            raise SettingsError(f"lora rank must be at least 1, not {rank}")
        unknown = sorted(set(targets) - set(TARGETS))
        if unknown or not targets:
            raise SettingsError(f"lora targets {unknown or targets} are not among {', '.join(TARGETS)}")
        self.model, self.rank, self.alpha, self.targets = model, rank, alpha, targets
        self.scale = alpha / rank
        self.names = [name for name, _ in layout(model.config) if name.split(".")[-2] in targets]
        self.base = {name: model.tensors[name].copy() for name in self.names}
        shapes = [self.base[name].shape for name in self.names]
        self._shapes = [(rank, columns) for _, columns in shapes] + [(rows, rank) for rows, _ in shapes]
        self.size = sum(a * b for a, b in self._shapes)
        self.theta: Floats = np.zeros(self.size, model.theta.dtype)
        self.grad: Floats = np.zeros(self.size, model.theta.dtype)
        self.a, self.b = self._views(self.theta)
        self._grad_a, self._grad_b = self._views(self.grad)
        rng = np.random.default_rng(seed)
        for a in self.a.values():  # kaiming_uniform(sqrt 5) and B = 0, as PEFT begins
            bound = 1 / math.sqrt(a.shape[1])
            a[:] = rng.uniform(-bound, bound, a.shape)

    def _views(self, flat: Floats) -> tuple[dict[str, Floats], dict[str, Floats]]:
        views, at = [], 0
        for rows, columns in self._shapes:
            views.append(flat[at : at + rows * columns].reshape(rows, columns))
            at += rows * columns
        n = len(self.names)
        return dict(zip(self.names, views[:n], strict=True)), dict(zip(self.names, views[n:], strict=True))

    def merge(self) -> None:
        """Write W₀ + s·B·A into the model."""
        for name in self.names:
            w = self.model.tensors[name]
            np.matmul(self.b[name], self.a[name], out=w)
            w *= self.scale
            w += self.base[name]

    def pull(self) -> None:
        """Turn the model's gradient into the adapter's."""
        if self.model.grad_views is None:
            raise SettingsError("the model has no gradient yet")
        for name in self.names:
            dw = self.model.grad_views.tensors[name]
            self._grad_a[name][:] = self.scale * (self.b[name].T @ dw)
            self._grad_b[name][:] = self.scale * (dw @ self.a[name].T)

    def save(self, path: str | Path, *, base: str) -> None:
        """Write a PEFT folder; `base` is the name or path of the model it belongs to."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        tensors: dict[str, Floats] = {}
        for name in self.names:
            tensors[_peft(name, "A")] = self.a[name]
            tensors[_peft(name, "B")] = self.b[name]
        write_json(
            folder / "adapter_config.json",
            {
                "peft_type": "LORA",
                "task_type": "CAUSAL_LM",
                "base_model_name_or_path": base,
                "r": self.rank,
                "lora_alpha": self.alpha,
                "lora_dropout": 0.0,
                "bias": "none",
                "target_modules": list(self.targets),
                "fan_in_fan_out": False,
                "inference_mode": True,
                "use_rslora": False,
                "use_dora": False,
                "modules_to_save": None,
                "init_lora_weights": True,
            },
        )
        write_tensors(folder / "adapter_model.safetensors", tensors, "float32")

    @classmethod
    def load(cls, path: str | Path, model: Qwen3) -> LoRA:
        """Read a PEFT folder and merge it into the model; raises SettingsError naming the file that is wrong."""
        folder = Path(path)
        config = read_json(folder / "adapter_config.json")
        _check(config, folder / "adapter_config.json")
        lora = cls(model, rank=config["r"], alpha=config["lora_alpha"], targets=tuple(config["target_modules"]))
        where = folder / "adapter_model.safetensors"
        tensors = read_tensors(where)
        expected = {_peft(n, "A"): lora.a[n] for n in lora.names} | {_peft(n, "B"): lora.b[n] for n in lora.names}
        for name in sorted(set(tensors) ^ set(expected)):
            raise SettingsError(f"{where}: tensor {name} is {'unknown' if name in tensors else 'missing'}")
        for name, view in expected.items():
            if tensors[name].shape != view.shape:
                raise SettingsError(f"{where}: {name} has shape {tensors[name].shape}, {view.shape} is needed")
            if not np.isfinite(tensors[name]).all():
                raise SettingsError(f"{where}: {name} has values that are not finite")
            view[...] = tensors[name]
        lora.merge()
        return lora


def _check(config: Mapping[str, Any], where: Path) -> None:
    if config.get("peft_type") != "LORA":
        raise SettingsError(f"{where}: peft_type is {config.get('peft_type')!r}, only 'LORA' is supported")
    for name in ("use_rslora", "use_dora", "modules_to_save", "rank_pattern", "alpha_pattern", "fan_in_fan_out"):
        if config.get(name):
            raise SettingsError(f"{where}: {name} is not supported")
    for name, kind in (("r", int), ("lora_alpha", (int, float)), ("target_modules", list)):
        if not isinstance(config.get(name), kind):
            raise SettingsError(f"{where}: {name} is missing or of the wrong type")


def _peft(name: str, side: str) -> str:
    return f"base_model.model.{name.removesuffix('.weight')}.lora_{side}.weight"
