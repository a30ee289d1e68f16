"""The numpy engine against torch, one thread each: a minimal module with the same weights, and transformers' Qwen3.

    .venvs/bench/bin/python benchmarks/engine.py [--rounds 15]

Generation (16 prompts × 8 samples, at most 16 tokens, the same draws) and one GRPO update on those samples. CPU-seconds,
medians over rounds in which all take their turn, each engine in a process of its own. "torch, freed memory kept" has this
package's settings of the allocator. Before anything is timed, the samples and the gradients of all engines are compared with
numpy's. Writes benchmarks/results/engine.json.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import warnings
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import record
import turns
from engine_work import PRODUCTS, flops, parts

from nested_rl import jobkit
from nested_rl.nano.folder import load_model, weights_path
from nested_rl.nano.losses import backward_from_coefficients
from nested_rl.nano.model import Qwen3
from nested_rl.nano.optim import AdamW
from nested_rl.nano.packing import Packed, pack_groups
from nested_rl.nano.sampling import Samples, generate, pad_left
from nested_rl.nano.threads import keep_memory, single_thread

PROMPTS, GROUP, MAX_NEW, FAMILY = 16, 8, 16, "calc_chain"
BASES = ("nano-s", "nano-m")
TARGETS = {"generation": 2.0, "update": 1.2}
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
OURS, STOCK, KEPT, COMPILED = "numpy", "torch", "torch, freed memory kept", "torch, compiled"
MODULE = (STOCK, KEPT, COMPILED)
"""The minimal module's variants: the targets are judged by the fastest of them."""
PEAK_SIDE = 768

Pieces = dict[str, Callable[[], Any]]


class Case:
    """One base with the same questions, draws and samples in every process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.model, text = load_model(weights_path(name))
        rows = jobkit.make(FAMILY, random.Random(0), PROMPTS, k=3)
        self.prompts = pad_left([text.encode(row["prompt"]) for row in rows], text.pad_id)
        self.draws = np.random.default_rng(1).random((PROMPTS * GROUP, MAX_NEW))
        self.samples: Samples = self.generate()
        ids, lengths = self.samples.ids.reshape(PROMPTS, GROUP, -1), self.samples.lengths.reshape(PROMPTS, GROUP)
        self.packed: Packed = pack_groups(self.prompts, ids, lengths, text.pad_id)
        made_up = np.random.default_rng(0).normal(size=len(self.packed)) / len(self.packed)
        self.coefficients = made_up.astype(np.float32)

    def generate(self) -> Samples:
        return generate(self.model, self.prompts, group=GROUP, max_new=MAX_NEW, uniforms=self.draws)

    def updater(self) -> Callable[[], Any]:
        model: Qwen3 = self.model.copy()
        optimiser = AdamW(model, lr=1e-12)

        def update() -> None:
            backward_from_coefficients(model, self.packed, self.coefficients)
            optimiser.step()

        return update

    @property
    def tokens(self) -> dict[str, int]:
        """Sampled, and trained on."""
        return {"generation": int(self.samples.lengths.sum()), "update": int((self.packed.positions > 0).sum())}

    def check_samples(self, found: Any) -> None:
        """Another engine's (ids, logprobs, lengths): nearly all rows the same, and with the same log-probabilities."""
        ids, logprobs, lengths = (tensor.numpy() for tensor in found)
        mine, longest = self.samples, self.samples.ids.shape[1]
        same = (ids[:, :longest] == mine.ids).all(1) & (lengths == mine.lengths)
        assert same.mean() > 0.98, f"only {same.mean():.1%} of the samples are the same in both engines"
        apart = np.abs(logprobs[same, :longest] - mine.logprobs[same]).max()
        assert apart < 1e-3, f"log-probabilities of the same samples are apart by {apart:.2g}"

    def check_gradient(self, engine: Any, update: Any) -> None:
        """Another engine's, within a thousandth of the norm."""
        model: Qwen3 = self.model.copy()
        backward_from_coefficients(model, self.packed, self.coefficients)
        mine = np.concatenate([array.ravel() for array in engine.same_order(model.grad_views)])
        apart = np.linalg.norm(update.gradient() - mine) / np.linalg.norm(mine)
        assert apart < 1e-3, f"the gradients are apart by {apart:.2g} of numpy's norm"


def ours() -> Pieces:
    """The engine; what the machine can do at most; the engine's parts alone."""
    pieces: Pieces = {}
    a = np.random.default_rng(0).random((PEAK_SIDE, PEAK_SIDE), np.float32)
    pieces["peak"] = lambda: a @ a
    for name in BASES:
        case = Case(name)
        pieces |= {f"{name} generation": case.generate, f"{name} update": case.updater()}
        for kind, made in parts(case).items():
            pieces |= {f"{name} {kind}: {part}": piece for part, piece in made.items()}
    return pieces


def torchs(*, all_of_it: bool) -> Pieces:
    """The minimal module, eager; with `all_of_it` compiled, and transformers, too."""
    import torch
    import transformers
    from torch_qwen3 import Minimal, Reference, sample, updater

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    pieces: Pieces = {}

    def add(case: Case, engine: Any, told: str, sampling: Callable[[], Any], update: Any) -> None:
        case.check_samples(sampling())
        case.check_gradient(engine, update)
        pieces[f"{case.name} generation{told}"], pieces[f"{case.name} update{told}"] = sampling, update

    for name in BASES:
        case = Case(name)
        read = torch.tensor(case.prompts), torch.tensor(case.draws), GROUP
        data = case.packed, case.coefficients
        module = Minimal(case.model)
        add(case, module, "", partial(sample, module, *read), updater(module, *data))
        if all_of_it:
            quick, whole = torch.compile(module, dynamic=True), torch.compile(module)
            add(case, module, " compiled", partial(sample, module, *read, quick), updater(module, *data, whole))
            reference = Reference(name)
            add(case, reference, " transformers", partial(reference.sample, *read), reference.updater(*data))
    return pieces


def child(kind: str) -> None:
    """One process that takes its turns."""
    warnings.simplefilter("ignore")
    if kind == OURS:
        with single_thread():
            turns.serve(ours())
    else:
        if kind == KEPT:
            keep_memory()
        turns.serve(torchs(all_of_it=kind == STOCK))


def rows_of(taken: dict[str, list[float]]) -> list[dict[str, Any]]:
    """One row an engine, base and kind of work."""
    rows = []
    for base in BASES:
        tokens = Case(base).tokens
        for kind in TARGETS:
            mine = taken[f"{OURS} {base} {kind}"]
            for told, key in {
                OURS: f"{OURS} {base} {kind}",
                STOCK: f"{STOCK} {base} {kind}",
                KEPT: f"{KEPT} {base} {kind}",
                COMPILED: f"{STOCK} {base} {kind} compiled",
                "transformers": f"{STOCK} {base} {kind} transformers",
            }.items():
                seconds = record.median(taken[key])
                ratios = [theirs / own for theirs, own in zip(taken[key], mine, strict=True)]
                rows.append(
                    {
                        "base": base,
                        "work": kind,
                        "engine": told,
                        "cpu_ms": record.significant(seconds * 1e3),
                        "tokens_per_s": round(tokens[kind] / seconds),
                        "numpy_faster": record.significant(record.ratio(taken[key], mine), 3),
                        "lowest": record.significant(min(ratios), 3),
                        "highest": record.significant(max(ratios), 3),
                    }
                )
    return rows


def limits_of(taken: dict[str, list[float]]) -> list[dict[str, Any]]:
    """How much of the machine's measured peak the engine uses, and where its time goes."""
    peak = 2 * PEAK_SIDE**3 / min(taken[f"{OURS} peak"])
    limits = []
    for base in BASES:
        done = flops(Case(base))
        for kind in TARGETS:
            key = f"{OURS} {base} {kind}"
            whole = record.median(taken[key])
            alone = {name.removeprefix(f"{key}: "): seconds for name, seconds in taken.items() if f"{key}: " in name}
            shares = {part: 1 / record.ratio(taken[key], seconds) for part, seconds in alone.items()}
            products = shares.pop(PRODUCTS)
            limits.append(
                {
                    "base": base,
                    "work": kind,
                    "gflops": record.significant(done[kind] / whole / 1e9, 3),
                    "peak_gflops": record.significant(peak / 1e9, 3),
                    "of_peak": record.significant(done[kind] / whole / peak, 3),
                    "products": record.significant(products, 3),
                    "products_of_peak": record.significant(done[kind] / whole / peak / products, 3),
                    "shares": {name: record.significant(share, 2) for name, share in shares.items()},
                    "unaccounted": record.significant(1 - products - sum(shares.values()), 2),
                }
            )
    return limits


def show(rows: list[dict[str, Any]], limits: list[dict[str, Any]]) -> None:
    """Print the tables."""
    told = ("base", "work", "engine", "cpu_ms", "tokens_per_s", "numpy_faster", "lowest", "highest")
    record.show(
        "One thread, CPU-seconds",
        ("base", "work", "engine", "ms", "tokens/s", "numpy is faster by", "lowest", "highest round"),
        [[row[key] for key in told] for row in rows],
    )
    parted = [", ".join(f"{name} {share:.0%}" for name, share in row["shares"].items()) for row in limits]
    told = ("base", "work", "gflops", "peak_gflops", "of_peak", "products", "products_of_peak", "unaccounted")
    record.show(
        "The numpy engine and the machine's peak (a product of large matrices, one thread)",
        ("base", "work", "GFLOP/s", "peak", "of peak", "products", "their peak", "unaccounted", "the rest"),
        [[*(row[key] for key in told), rest] for row, rest in zip(limits, parted, strict=True)],
    )


def main() -> None:
    """Measure, print, write."""
    parser = record.options(__doc__)
    parser.add_argument("--rounds", type=record.count, default=15)
    parser.add_argument("--child", choices=(OURS, STOCK, KEPT), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        child(asked.child)
        return
    os.environ |= ONE_THREAD
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(turns.Worker(f"{kind} ", [__file__, "--child", kind])) for kind in (OURS, STOCK, KEPT)
        ]
        taken = turns.taken(workers, rounds=asked.rounds)
    rows, limits = rows_of(taken), limits_of(taken)
    show(rows, limits)
    if not record.usual(parser, asked):
        return
    record.write(
        "engine",
        calibration_s=record.median(taken[record.CALIBRATION]),
        seconds={f"{r['base']} {r['work']}": r["cpu_ms"] / 1e3 for r in rows if r["engine"] == OURS},
        ratios={
            f"{r['base']} {r['work']}: {r['engine']} ÷ numpy": r["numpy_faster"] for r in rows if r["engine"] != OURS
        },
        versions={name: version(name) for name in ("torch", "transformers")},
        targets=TARGETS,
        module=MODULE,
        settings={"prompts": PROMPTS, "group": GROUP, "max_new": MAX_NEW, "family": FAMILY, "rounds": asked.rounds},
        rows=rows,
        limits=limits,
    )


if __name__ == "__main__":
    main()
