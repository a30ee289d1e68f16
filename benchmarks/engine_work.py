"""What the engine's work consists of: floating-point operations, the matrix products alone, shares of the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from nested_rl.nano import decode, layers, losses, model, optim, sampling

Shape = tuple[tuple[int, ...], tuple[int, ...]]
"""Of the two sides of a product."""


def flops(case: Any) -> dict[str, float]:
    """Floating-point operations of the matrix products of one generation and one update."""
    found = {}
    for kind, shapes in _shapes(case).items():
        found[kind] = float(sum(2 * np.prod(left[:-1]) * left[-1] * right[-1] for left, right in shapes))
    return found


def products(case: Any) -> dict[str, Callable[[], Any]]:
    """The same products, one after the other, and nothing else."""
    return {kind: _replay(shapes) for kind, shapes in _shapes(case).items()}


def _replay(shapes: list[Shape]) -> Callable[[], Any]:
    rng = np.random.default_rng(0)
    pairs = {shape: tuple(rng.random(side, np.float32) for side in shape) for shape in set(shapes)}
    order = [pairs[shape] for shape in shapes]

    def work() -> None:
        for left, right in order:
            left @ right

    return work


def _shapes(case: Any) -> dict[str, list[Shape]]:
    c = case.model.config
    prompts, tp = case.prompts.shape
    live = _live_rows(case)
    generation = _forward(c, prompts, tp, tp)
    for t, rows in enumerate(live):
        generation += _forward(c, rows, 1, tp + t + 1)
        generation.append(((rows, c.hidden_size), (c.hidden_size, c.vocab_size)))
    rows, length = case.packed.ids.shape
    forward = _forward(c, rows, length, length)
    head: list[Shape] = [((len(case.packed), c.hidden_size), (c.hidden_size, c.vocab_size))]
    return {"generation": generation, "update": [*forward, *head, *_backward([*forward, *head])]}


def _live_rows(case: Any) -> list[int]:
    """Rows that each step of the generation reads: finished ones leave when they are a quarter."""
    lengths, rows, live = case.samples.lengths, [], np.arange(len(case.samples.lengths))
    for t in range(1, case.samples.ids.shape[1]):
        done = lengths[live] <= t
        if done.all():
            break
        if 4 * done.sum() >= len(done):
            live = live[~done]
        rows.append(len(live))
    return rows


def _forward(c: Any, batch: int, length: int, seen: int) -> list[Shape]:
    n, d, f, hd = batch * length, c.hidden_size, c.intermediate_size, c.head_dim
    Hq, Hk = c.num_attention_heads, c.num_key_value_heads
    folded = Hq // Hk * length
    layer: list[Shape] = [
        ((n, d), (d, (Hq + 2 * Hk) * hd)),
        ((batch, Hk, folded, hd), (batch, Hk, hd, seen)),
        ((batch, Hk, folded, seen), (batch, Hk, seen, hd)),
        ((n, Hq * hd), (Hq * hd, d)),
        ((n, d), (d, 2 * f)),
        ((n, f), (f, d)),
    ]
    return layer * c.num_hidden_layers


def _backward(forward: list[Shape]) -> list[Shape]:
    """Of left @ right: the gradients of both sides."""
    back: list[Shape] = []
    for left, right in forward:
        *outer, n, k = left
        m = right[-1]
        many = tuple(outer)
        back += [((*many, n, m), (*many, m, k)), ((*many, k, n), (*many, n, m))]
    return back


_PARTS = {
    "norms": [(layers, "rms"), (decode, "rms"), (model, "rms"), (layers, "rms_backward"), (model, "rms_backward")],
    "rotary": [(layers, "rotate"), (decode, "_rotate")],
    "softmax": [(layers, "_softmax"), (losses, "log_softmax")],
    "choosing tokens": [(sampling, "_choose")],
    "optimiser": [(optim.AdamW, "step")],
}


def shares(case: Any, *, times: int = 20) -> dict[str, dict[str, float]]:
    """Shares of wall-clock in some parts that are no products, from runs in which just those are timed."""
    told: dict[str, dict[str, float]] = {}
    for kind, work in {"generation": case.generate, "update": case.updater()}.items():
        with _timed() as spent:
            work()
            spent.clear()
            started = time.perf_counter()
            for _ in range(times):
                work()
            whole = time.perf_counter() - started
        told[kind] = {part: seconds / whole for part, seconds in spent.items()}
    return told


@contextmanager
def _timed() -> Iterator[dict[str, float]]:
    spent: dict[str, float] = {}
    before = [(owner, name, getattr(owner, name)) for places in _PARTS.values() for owner, name in places]
    for part, places in _PARTS.items():
        for owner, name in places:
            setattr(owner, name, _clocked(getattr(owner, name), part, spent))
    try:
        yield spent
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


def _clocked(function: Callable[..., Any], part: str, spent: dict[str, float]) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent[part] = spent.get(part, 0.0) + time.perf_counter() - started

    return timed
