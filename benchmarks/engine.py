"""The numpy engine against torch, one thread each: a minimal module with the same weights, and transformers' Qwen3.

    .venvs/bench/bin/python benchmarks/engine.py [--rounds 15]

Generation (16 prompts × 8 samples, at most 16 tokens, the same draws) and one GRPO update on those samples. CPU-seconds,
medians over rounds in which all take their turn, each engine in a process of its own. "torch, freed memory kept" has this
package's settings of the allocator, which speed torch up as well. Writes benchmarks/results/engine.json.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import record
import turns
from engine_work import flops, products, shares

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
OURS, STOCK, KEPT = "numpy", "torch", "torch, freed memory kept"
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


def ours() -> Pieces:
    """The engine; what the machine can do at most; the engine's matrix products alone."""
    pieces: Pieces = {}
    a = np.random.default_rng(0).random((PEAK_SIDE, PEAK_SIDE), np.float32)
    pieces["peak"] = lambda: a @ a
    for name in BASES:
        case = Case(name)
        pieces |= {f"{name} generation": case.generate, f"{name} update": case.updater()}
        for kind, made in products(case).items():
            pieces[f"{name} {kind} products"] = made
    return pieces


def torchs(*, all_of_it: bool) -> Pieces:
    """The minimal module, eager; with `all_of_it` compiled, and transformers, too."""
    import torch
    import transformers
    from torch_qwen3 import Minimal, Reference, sample, updater

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    pieces: Pieces = {}
    for name in BASES:
        case, prompts, draws = (c := Case(name)), torch.tensor(c.prompts), torch.tensor(c.draws)
        module = Minimal(case.model)
        ids, _ = sample(module, prompts, group=GROUP, max_new=MAX_NEW, uniforms=draws)
        same = (ids.numpy()[:, : case.samples.ids.shape[1]] == case.samples.ids).all(1).mean()
        assert same > 0.98, f"only {same:.1%} of the samples are the same in both engines"

        def generation(step: Any = None, module: Minimal = module, prompts: Any = prompts, draws: Any = draws) -> Any:
            return sample(module, prompts, group=GROUP, max_new=MAX_NEW, uniforms=draws, forward=step)

        pieces |= {f"{name} generation": generation, f"{name} update": updater(module, case.packed, case.coefficients)}
        if not all_of_it:
            continue
        quick, whole = torch.compile(module, dynamic=True), torch.compile(module)
        reference = Reference(name)
        pieces |= {
            f"{name} generation compiled": lambda quick=quick, generation=generation: generation(quick),
            f"{name} update compiled": updater(module, case.packed, case.coefficients, whole),
            f"{name} generation transformers": lambda r=reference, p=prompts, d=draws: r.sample(p, d, GROUP),
            f"{name} update transformers": reference.updater(case.packed, case.coefficients),
        }
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
        case = Case(base)
        for kind in TARGETS:
            mine = taken[f"{OURS} {base} {kind}"]
            for told, key in {
                OURS: f"{OURS} {base} {kind}",
                STOCK: f"{STOCK} {base} {kind}",
                KEPT: f"{KEPT} {base} {kind}",
                "torch, compiled": f"{STOCK} {base} {kind} compiled",
                "transformers": f"{STOCK} {base} {kind} transformers",
            }.items():
                seconds = record.median(taken[key])
                rows.append(
                    {
                        "base": base,
                        "work": kind,
                        "engine": told,
                        "cpu_ms": record.significant(seconds * 1e3),
                        "tokens_per_s": round(case.tokens[kind] / seconds),
                        "numpy_faster": record.significant(record.ratio(taken[key], mine), 3),
                    }
                )
    return rows


def limits_of(taken: dict[str, list[float]]) -> list[dict[str, Any]]:
    """How much of the machine's measured peak the engine uses, and where the rest goes."""
    peak = 2 * PEAK_SIDE**3 / min(taken[f"{OURS} peak"])
    limits = []
    for base in BASES:
        case = Case(base)
        done, where = flops(case), shares(case)
        for kind in TARGETS:
            whole = record.median(taken[f"{OURS} {base} {kind}"])
            alone = record.median(taken[f"{OURS} {base} {kind} products"])
            limits.append(
                {
                    "base": base,
                    "work": kind,
                    "gflops": record.significant(done[kind] / whole / 1e9, 3),
                    "peak_gflops": record.significant(peak / 1e9, 3),
                    "of_peak": record.significant(done[kind] / whole / peak, 3),
                    "products": record.significant(alone / whole, 3),
                    "shares": {name: record.significant(share, 2) for name, share in where[kind].items()},
                }
            )
    return limits


def main() -> None:
    """Print the tables and write them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--child", choices=(OURS, STOCK, KEPT))
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
    with single_thread():
        rows, limits = rows_of(taken), limits_of(taken)
    record.show(
        "One thread, CPU-seconds",
        ("base", "work", "engine", "ms", "tokens/s", "numpy is faster by"),
        [(r["base"], r["work"], r["engine"], r["cpu_ms"], r["tokens_per_s"], r["numpy_faster"]) for r in rows],
    )
    record.show(
        "The numpy engine and the machine's peak (a product of large matrices, one thread)",
        ("base", "work", "GFLOP/s", "peak", "of peak", "its products alone", "the rest"),
        [
            (r["base"], r["work"], r["gflops"], r["peak_gflops"], r["of_peak"], r["products"], str(r["shares"]))
            for r in limits
        ],
    )
    from importlib.metadata import version

    record.write(
        "engine",
        calibration_s=record.median(taken[record.CALIBRATION]),
        seconds={f"{r['base']} {r['work']}": r["cpu_ms"] / 1e3 for r in rows if r["engine"] == OURS},
        ratios={
            f"{r['base']} {r['work']}: {r['engine']} ÷ numpy": r["numpy_faster"] for r in rows if r["engine"] != OURS
        },
        versions={name: version(name) for name in ("torch", "transformers")},
        targets=TARGETS,
        settings={"prompts": PROMPTS, "group": GROUP, "max_new": MAX_NEW, "family": FAMILY, "rounds": asked.rounds},
        rows=rows,
        limits=limits,
    )


if __name__ == "__main__":
    main()
