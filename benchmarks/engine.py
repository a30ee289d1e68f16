"""The numpy engine against torch, one thread each: a minimal module with the same weights, and transformers' Qwen3.

    .venvs/bench/bin/python benchmarks/engine.py [--rounds 15]

Generation (16 prompts × 8 samples, at most 16 tokens, the same draws) and one GRPO update on those samples. CPU-seconds,
medians over rounds in which all take their turn. Writes benchmarks/results/engine.json.
"""

from __future__ import annotations

import os

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

import argparse
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import record
import torch
import transformers
from torch_qwen3 import Minimal, generate, updater

from nested_rl import jobkit
from nested_rl.nano.folder import load_model, weights_path
from nested_rl.nano.losses import backward_from_coefficients
from nested_rl.nano.model import Qwen3
from nested_rl.nano.optim import AdamW
from nested_rl.nano.packing import Packed, pack_groups
from nested_rl.nano.sampling import Samples, pad_left
from nested_rl.nano.sampling import generate as numpy_generate

PROMPTS, GROUP, MAX_NEW = 16, 8, 16
FAMILY = "calc_chain"
TARGETS = {"generation": 2.0, "update": 1.2}


def questions(name: str) -> tuple[Qwen3, np.ndarray]:
    """A base, and prompts of one length."""
    model, text = load_model(weights_path(name))
    rows = jobkit.make(FAMILY, random.Random(0), PROMPTS, k=3)
    prompts = [text.encode(row["prompt"]) for row in rows]
    return model, pad_left(prompts, text.pad_id)


def update_of(model: Qwen3, prompts: np.ndarray, samples: Samples) -> tuple[Packed, np.ndarray]:
    """The samples as the engine packs them, and made-up coefficients of a policy gradient."""
    pad = model.config.pad_token_id
    packed = pack_groups(prompts, samples.ids.reshape(PROMPTS, GROUP, -1), samples.lengths.reshape(PROMPTS, GROUP), pad)
    draws = np.random.default_rng(0).normal(size=len(packed))
    return packed, (draws / len(packed)).astype(np.float32)


def numpy_update(model: Qwen3, packed: Packed, coefficients: np.ndarray) -> Callable[[], Any]:
    optimiser = AdamW(model, lr=1e-12)

    def update() -> None:
        backward_from_coefficients(model, packed, coefficients)
        optimiser.step()

    return update


class Reference:
    """transformers' Qwen3ForCausalLM with a decode loop by hand, the fastest way to sample with it."""

    def __init__(self, name: str) -> None:
        path = str(weights_path(name))
        self.model = transformers.Qwen3ForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="sdpa"
        )

    @torch.inference_mode()
    def generate(self, prompts: torch.Tensor, uniforms: torch.Tensor) -> None:
        cache = transformers.DynamicCache(config=self.model.config)
        out = self.model(prompts.repeat_interleave(GROUP, 0), past_key_values=cache, use_cache=True, logits_to_keep=1)
        done = torch.zeros(len(uniforms), dtype=torch.bool)
        for t in range(MAX_NEW):
            cumulated = torch.softmax(out.logits[:, -1], -1).cumsum(1)
            chosen = (cumulated <= uniforms[:, t : t + 1] * cumulated[:, -1:]).sum(1)
            done |= chosen == self.model.config.eos_token_id
            if bool(done.all()) or t + 1 == MAX_NEW:
                break
            out = self.model(chosen[:, None], past_key_values=cache, use_cache=True)

    def updater(self, packed: Packed, coefficients: np.ndarray) -> Callable[[], Any]:
        ids, positions = torch.tensor(packed.ids), torch.tensor(packed.positions)
        mask = torch.tensor(packed.mask)[:, 0]
        source, targets = torch.tensor(packed.source), torch.tensor(packed.targets)
        weights, parameters = torch.tensor(coefficients), list(self.model.parameters())
        optimiser = torch.optim.AdamW(parameters, lr=1e-12, weight_decay=0.0, fused=True)

        def update() -> None:
            logits = self.model(input_ids=ids, position_ids=positions, attention_mask=mask).logits
            logits = logits.reshape(-1, logits.shape[-1])[source]
            logprobs = torch.log_softmax(logits, -1).gather(-1, targets[:, None])[:, 0]
            optimiser.zero_grad(set_to_none=True)
            (logprobs * weights).sum().backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimiser.step()

        return update


def compared(name: str, rounds: int) -> tuple[dict[str, dict[str, list[float]]], dict[str, int]]:
    """Seconds of every engine on both kinds of work, and how many tokens each is."""
    model, prompts = questions(name)
    draws = np.random.default_rng(1).random((PROMPTS * GROUP, MAX_NEW))
    ours = lambda: numpy_generate(model, prompts, group=GROUP, max_new=MAX_NEW, uniforms=draws)  # noqa: E731
    samples = ours()
    packed, coefficients = update_of(model, prompts, samples)
    minimal, compiled, reference = Minimal(model), Minimal(model), Reference(name)
    quick = torch.compile(compiled, dynamic=True)
    tprompts, tdraws = torch.tensor(prompts), torch.tensor(draws)
    told, lengths = generate(minimal, tprompts, group=GROUP, max_new=MAX_NEW, uniforms=tdraws)
    same = (told.numpy()[:, : samples.ids.shape[1]] == samples.ids).all(1).mean()
    assert same > 0.98, f"only {same:.1%} of the samples are the same in both engines"
    assert int(lengths.sum()) > 0
    work = {
        "generation": {
            "numpy": ours,
            "torch": lambda: generate(minimal, tprompts, group=GROUP, max_new=MAX_NEW, uniforms=tdraws),
            "torch compiled": lambda: generate(
                compiled, tprompts, group=GROUP, max_new=MAX_NEW, uniforms=tdraws, forward=quick
            ),
            "transformers": lambda: reference.generate(tprompts, tdraws),
        },
        "update": {
            "numpy": numpy_update(model, packed, coefficients),
            "torch": updater(minimal, packed, coefficients),
            "torch compiled": updater(compiled, packed, coefficients, torch.compile(compiled)),
            "transformers": reference.updater(packed, coefficients),
        },
    }
    tokens = {"generation": int(samples.lengths.sum()), "update": int((packed.ids != 0).sum())}
    return {kind: record.interleaved(pieces, rounds=rounds) for kind, pieces in work.items()}, tokens


def main() -> None:
    """Print the table and write it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=15)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    rows, seconds, ratios, calibration = [], {}, {}, []
    for name in ("nano-s", "nano-m"):
        found, tokens = compared(name, asked.rounds)
        for kind, taken in found.items():
            calibration += taken.pop(record.CALIBRATION)
            for engine, times in taken.items():
                by = record.ratio(times, taken["numpy"])
                rows.append(
                    {
                        "base": name,
                        "work": kind,
                        "engine": engine,
                        "cpu_ms": record.significant(record.median(times) * 1e3),
                        "tokens_per_s": round(tokens[kind] / record.median(times)),
                        "numpy_faster": record.significant(by, 3),
                    }
                )
                if engine == "numpy":
                    seconds[f"{name} {kind}"] = record.median(times)
                else:
                    ratios[f"{name} {kind}: {engine} ÷ numpy"] = by
    record.show(
        "One thread, CPU-seconds",
        ("base", "work", "engine", "ms", "tokens/s", "numpy is faster by"),
        [(r["base"], r["work"], r["engine"], r["cpu_ms"], r["tokens_per_s"], r["numpy_faster"]) for r in rows],
    )
    record.write(
        "engine",
        calibration_s=record.median(calibration),
        seconds=seconds,
        ratios=ratios,
        versions=f"torch {torch.__version__}, transformers {transformers.__version__}",
        targets=TARGETS,
        settings={"prompts": PROMPTS, "group": GROUP, "max_new": MAX_NEW, "family": FAMILY, "rounds": asked.rounds},
        rows=rows,
    )


if __name__ == "__main__":
    main()
