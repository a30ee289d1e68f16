"""How a base, a way to train it and the GPUs at hand go together.

The figures are estimates from the shapes of the models and from upstream's published measurements (Qwen3-0.6B on one A6000:
12.5 GiB for all weights and 5.1 GiB for a rank 16 adapter, both at 16 thousand tokens). They lean to the safe side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

from attrs import frozen

from nested_rl.types import Need

Kind: TypeAlias = Literal["full", "lora"]

_GIB: Final = 2**30
_CONTEXT_GIB: Final = 0.6
"""CUDA itself, in every process that uses a GPU."""
_USABLE: Final = 0.92
"""The share of a GPU that is planned with; the rest is what allocators lose."""
_LEAST_TOKENS: Final = 32_768
_MOST_SEQUENCES: Final = 64
"""The server's cache holds at least so many tokens, and gains nothing from more than so many full-length sequences."""
_BYTES: Final[Mapping[Kind, float]] = {"full": 16.0, "lora": 4.0}
"""Bytes a parameter while training: fp32 weights, and for all of them also gradients and two moments of Adam."""


@frozen(kw_only=True)
class Shape:
    """What of a model decides the memory that it takes."""

    parameters: float
    hidden: int
    layers: int
    kv_heads: int = 8
    head_dim: int = 128
    context: int = 40_960

    @property
    def token_bytes(self) -> int:
        """What the server's cache keeps of one token, in bfloat16."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim


SHAPES: Final[Mapping[str, Shape]] = {
    "Qwen/Qwen3-0.6B": Shape(parameters=0.596e9, hidden=1024, layers=28),
    "Qwen/Qwen3-1.7B": Shape(parameters=1.72e9, hidden=2048, layers=28),
}
"""The bases whose memory is known; a further one is given to the trainer with its `Shape`."""


@frozen(kw_only=True)
class Placement:
    """Which GPUs train and serve, as CUDA_VISIBLE_DEVICES takes them, and how much of one the server may use.

    `cache_bytes` fixes the server's cache where both share a GPU: measuring what is free would race with the trainer.
    """

    devices: str
    utilization: float
    cache_bytes: int | None = None


def trainer_gib(shape: Shape, kind: Kind, seq_len: int) -> float:
    """GiB that the training process takes at the optimiser step, with activation checkpointing.

    >>> round(trainer_gib(SHAPES["Qwen/Qwen3-0.6B"], "full", 16_384), 1)
    13.0
    """
    activations = (1.5 + seq_len / 8192) * shape.hidden / 1024
    return _BYTES[kind] * shape.parameters / _GIB + activations + _CONTEXT_GIB


def server_gib(shape: Shape, seq_len: int) -> float:
    """GiB that vLLM takes at least: bfloat16 weights, graphs and buffers, and its cache."""
    return 2 * shape.parameters / _GIB + 1.5 + _CONTEXT_GIB + _cache_gib(shape, seq_len)


def _cache_gib(shape: Shape, seq_len: int) -> float:
    return max(_LEAST_TOKENS, 4 * seq_len) * shape.token_bytes / _GIB


def least(shape: Shape, kind: Kind, seq_len: int, gpus: int) -> Need:
    """The smallest machine with `gpus` GPUs (1 or 2) that trains this."""
    trainer, server = trainer_gib(shape, kind, seq_len), server_gib(shape, seq_len)
    gib = trainer + server if gpus == 1 else max(trainer, server)
    return Need(gpus=gpus, gpu_memory_gib=math.ceil(10 * gib / _USABLE) / 10, disk_gib=disk_gib(shape, kind))


def disk_gib(shape: Shape, kind: Kind) -> float:
    """Three versions of what is broadcast, the artefact, and logs."""
    each = 2 * shape.parameters / _GIB if kind == "full" else 0.3
    return round(4 * each + 2.0, 1)


def place(shape: Shape, kind: Kind, seq_len: int, gpu_gib: Sequence[float]) -> Placement | None:
    """A placement on GPUs of these sizes, one or two of them; None when it does not fit.

    Two GPUs: the server has the first and the trainer the second, as prime-rl hands them out.
    """
    if not gpu_gib:
        return None
    trainer, server = trainer_gib(shape, kind, seq_len), server_gib(shape, seq_len)
    if len(gpu_gib) > 1:
        fits = server <= _USABLE * gpu_gib[0] and trainer <= _USABLE * gpu_gib[1]
        return Placement(devices="0,1", utilization=0.9) if fits else None
    slack = _USABLE * gpu_gib[0] - trainer - server
    if slack < 0:
        return None
    least_cache, most_cache = _cache_gib(shape, seq_len), _MOST_SEQUENCES * seq_len * shape.token_bytes / _GIB
    cache = max(least_cache, min(least_cache + slack / 2, most_cache))
    share = (server - least_cache + cache) / gpu_gib[0]
    return Placement(
        devices="0,0", utilization=math.ceil(100 * share) / 100, cache_bytes=int(cache * 64) * (_GIB // 64)
    )
