"""What the engine's work consists of: floating-point operations, and its parts, each one's calls repeated alone.

Alone, a part finds its arrays in the processor's cache more often than in its place, and takes a little less. So what the parts
do not account for is more than what the other passes, allocations and the calls themselves take.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from nested_rl.nano import cache, decode, layers, losses, model, optim, sampling
from nested_rl.nano.packing import causal

PRODUCTS = "matrix products"

Shape = tuple[tuple[int, ...], tuple[int, ...]]
"""Of the two sides of a product."""
Read = tuple[int, int, int]
"""One forward: rows, new positions of each, keys that each sees."""
Call = Callable[[], Any]


def flops(case: Any) -> dict[str, float]:
    """Floating-point operations of the matrix products of one generation and one update."""
    found = {}
    for kind, shapes in _shapes(case).items():
        found[kind] = float(sum(2 * np.prod(left[:-1]) * left[-1] * right[-1] for left, right in shapes))
    return found


def parts(case: Any) -> dict[str, dict[str, Call]]:
    """Of generation and update: what repeats the calls of each part, and nothing else."""
    reads, shapes = _reads(case), _shapes(case)
    found = {}
    for kind, work in {"generation": case.generate, "update": case.updater()}.items():
        calls = {PRODUCTS: _products(shapes[kind]), **_recorded(work)}
        if kind == "generation":
            calls["softmax"] = _softmaxes(case, reads[kind])
        calls["SiLU"] = _silus(case, reads[kind], backward=kind == "update")
        found[kind] = {part: partial(_repeat, called) for part, called in calls.items()}
    return found


def _repeat(calls: list[Call]) -> None:
    for call in calls:
        call()


# ---------------------------------------------------------------- what is multiplied


def _reads(case: Any) -> dict[str, list[Read]]:
    prompts, tp = case.prompts.shape
    rows, length = case.packed.ids.shape
    steps = [(live, 1, tp + t + 1) for t, live in enumerate(_live_rows(case))]
    return {"generation": [(prompts, tp, tp), *steps], "update": [(rows, length, length)]}


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


def _shapes(case: Any) -> dict[str, list[Shape]]:
    c, reads = case.model.config, _reads(case)
    generation: list[Shape] = []
    for read in reads["generation"]:
        generation += [*_forward(c, read), ((read[0], c.hidden_size), (c.hidden_size, c.vocab_size))]
    head: Shape = ((len(case.packed), c.hidden_size), (c.hidden_size, c.vocab_size))
    forward = [*_forward(c, reads["update"][0]), head]
    n = case.packed.ids.size
    embedding: Shape = ((c.vocab_size, n), (n, c.hidden_size))
    return {"generation": generation, "update": [*forward, *_backward(forward), embedding]}


def _forward(c: Any, read: Read) -> list[Shape]:
    batch, length, seen = read
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


def _products(shapes: list[Shape]) -> list[Call]:
    rng = np.random.default_rng(0)
    calls = {shape: partial(np.matmul, *(rng.random(side, np.float32) for side in shape)) for shape in set(shapes)}
    return [calls[shape] for shape in shapes]


# ---------------------------------------------------------------- passes that are no functions of their own


def _softmaxes(case: Any, reads: list[Read]) -> list[Call]:
    """Those of `decode`, which does the passes of `layers` inside its attention."""
    c, rng = case.model.config, np.random.default_rng(0)
    Hk = c.num_key_value_heads
    rep = c.num_attention_heads // Hk
    bounds = [layers.score_bound(w, c.head_dim) for w in case.model.views.layers]
    calls = []
    for batch, length, seen in reads:
        scores = rng.random((batch, Hk, rep * length, seen), np.float32)
        mask = causal(length)[None, None, None] if length > 1 else None
        calls += [partial(layers._softmax, scores, mask, (rep, length), bound=bound) for bound in bounds]  # noqa: SLF001
    return calls


def _silus(case: Any, reads: list[Read], *, backward: bool) -> list[Call]:
    c, rng = case.model.config, np.random.default_rng(0)
    calls: list[Call] = []
    for batch, length, _ in reads:
        both = rng.random((batch * length, 2 * c.intermediate_size), np.float32)
        gate, up = both[:, : c.intermediate_size], both[:, c.intermediate_size :]
        call = partial(_silu_and_gradient, gate, up, np.copy(up)) if backward else partial(_silu, gate, up)
        calls += [call] * c.num_hidden_layers
    return calls


def _silu(gate: Any, up: Any) -> None:
    """The passes of `Decoder._think`."""
    silu = np.negative(gate)
    with np.errstate(over="ignore"):
        np.exp(silu, out=silu)
    silu += 1
    np.divide(1, silu, out=silu)
    silu *= gate
    silu *= up


def _silu_and_gradient(gate: Any, up: Any, dproduct: Any) -> None:
    """The passes of `layers.mlp` and `layers.mlp_backward`."""
    with np.errstate(over="ignore"):
        sigmoid = np.exp(-gate)
    sigmoid += 1
    np.divide(1, sigmoid, out=sigmoid)
    silu = gate * sigmoid
    _ = silu * up
    both = np.empty((len(gate), 2 * gate.shape[1]), gate.dtype)
    np.multiply(dproduct, silu, out=both[:, gate.shape[1] :])
    u = 1 - sigmoid
    u *= gate
    u += 1
    u *= sigmoid
    u *= up
    np.multiply(u, dproduct, out=both[:, : gate.shape[1]])


# ---------------------------------------------------------------- passes that are functions

_PARTS = {
    "norms": [(layers, "rms"), (decode, "rms"), (model, "rms"), (layers, "rms_backward"), (model, "rms_backward")],
    "rotary": [(layers, "rotate"), (decode, "_rotate")],
    "softmax": [(layers, "_softmax"), (losses, "log_softmax")],
    "cache": [(cache.Cache, "append"), (cache.Cache, "expand"), (cache.Cache, "take")],
    "choosing tokens": [(sampling, "_choose")],
    "optimiser": [(optim.AdamW, "step")],
}


def _recorded(work: Call) -> dict[str, list[Call]]:
    """The calls of one run of the work, by part."""
    with _recording() as calls:
        work()
    return calls


@contextmanager
def _recording() -> Iterator[dict[str, list[Call]]]:
    calls: dict[str, list[Call]] = {}
    before = [(owner, name, getattr(owner, name)) for places in _PARTS.values() for owner, name in places]
    for part, places in _PARTS.items():
        for owner, name in places:
            setattr(owner, name, _noted(getattr(owner, name), part, calls))
    try:
        yield calls
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


def _noted(function: Callable[..., Any], part: str, calls: dict[str, list[Call]]) -> Callable[..., Any]:
    alike: dict[Any, Call] = {}

    def noting(*args: Any, **kwargs: Any) -> Any:
        # calls on equal shapes share their arrays; a cache's count of positions moves on, so that is kept as it is now
        key = tuple(getattr(arg, "shape", getattr(arg, "filled", None)) for arg in args)
        kept = [copy.copy(arg) if isinstance(arg, cache.Cache) else arg for arg in args]
        calls.setdefault(part, []).append(alike.setdefault(key, partial(function, *kept, **kwargs)))
        return function(*args, **kwargs)

    return noting
