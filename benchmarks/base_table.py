"""What the bases can do untrained and after the reference job, on every family.

    python benchmarks/base_table.py [--seeds 3]

The reference job is what a good agent would write: 25 steps of 16 prompts x 8 samples, learning rate 1e-3, the exact-answer
reward. Hidden items, temperature 1; untrained 256 items x 4 samples, trained 256 x 1 for each seed.
Writes benchmarks/results/base_table.json.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import random
import statistics
import time
from pathlib import Path

import numpy as np

from nested_rl import jobkit, tasks
from nested_rl.nano.folder import load_model, weights_path
from nested_rl.nano.losses import backward_from_coefficients
from nested_rl.nano.model import Qwen3
from nested_rl.nano.optim import AdamW
from nested_rl.nano.packing import pack_groups
from nested_rl.nano.sampling import generate, pad_left
from nested_rl.nano.threads import single_thread
from nested_rl.pretrain.baselines import measure

STEPS, PROMPTS, GROUP, LR, CLIP = 25, 16, 8, 1e-3, 0.2
SALT = "base table"


def reference_job(path: Path, family: str, seed: int) -> Qwen3:
    """GRPO with the exact-answer reward; one update a batch."""
    model, text = load_model(path)
    rng, draws = random.Random(seed), np.random.default_rng(seed)
    optimiser = AdamW(model, lr=LR)
    for _ in range(STEPS):
        rows = jobkit.make(family, rng, PROMPTS)
        prompts = pad_left([text.encode(row["prompt"]) for row in rows], text.pad_id)
        out = generate(model, prompts, group=GROUP, max_new=16, rng=draws)
        replies = [text.decode(ids[:n]) for ids, n in zip(out.ids, out.lengths, strict=True)]
        wanted = [row["answer"] for row in rows for _ in range(GROUP)]
        right = [float(jobkit.parse(r) == a) for r, a in zip(replies, wanted, strict=True)]
        rewards = np.reshape(right, (PROMPTS, GROUP)) * out.finished.reshape(PROMPTS, GROUP)
        spread = rewards.std(1, ddof=1, keepdims=True)
        advantages = (rewards - rewards.mean(1, keepdims=True)) / (spread + 1e-2)
        keep = spread[:, 0] > 0
        if not keep.any():
            continue
        ids, lengths = out.ids.reshape(PROMPTS, GROUP, -1)[keep], out.lengths.reshape(PROMPTS, GROUP)[keep]
        packed = pack_groups(prompts[keep], ids, lengths, text.pad_id)
        i, g, t = packed.index.T
        old, a = out.logprobs.reshape(PROMPTS, GROUP, -1)[keep][i, g, t], advantages[keep][i, g]

        def coefficients(logprobs: np.ndarray, old: np.ndarray = old, a: np.ndarray = a) -> np.ndarray:
            ratio = np.exp(logprobs - old)
            clipped = ((a > 0) & (ratio > 1 + CLIP)) | ((a < 0) & (ratio < 1 - CLIP))
            return np.where(clipped, 0, -a * ratio) / len(a)

        backward_from_coefficients(model, packed, coefficients)
        optimiser.step()
    return model


def row(path: Path, family: str, seeds: int) -> dict[str, object]:
    """Untrained and trained scores of one base on one family."""
    (loaded,) = tasks.load(family, scale="nano")
    hidden = loaded.eval_set(next(loaded.tasks()), "hidden", salt=SALT)
    dev = loaded.eval_set(next(loaded.tasks()), "dev", salt=SALT)
    base, text = load_model(path)
    untrained = measure(base, text, hidden, hidden.baseline_sampling)
    began = time.process_time()
    after = [
        measure(reference_job(path, family, seed), text, hidden, hidden.sampling, seed=seed).value
        for seed in range(seeds)
    ]
    return {
        "family": family,
        "base": path.name,
        "untrained": round(untrained.value, 4),
        "untrained_stderr": round(untrained.stderr, 4),
        "untrained_dev": round(measure(base, text, dev, dev.baseline_sampling).value, 4),
        "trained": [round(x, 4) for x in after],
        "cpu_s_per_job": round((time.process_time() - began) / seeds, 2),
    }


def main() -> None:
    """Print the table and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="jobs per cell")
    parser.add_argument("--weights", type=Path, nargs="*", help="model folders (default: the shipped bases)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "base_table.json")
    args = parser.parse_args()
    paths = args.weights or [weights_path(name) for name in ("nano-m", "nano-s")]
    rows = []
    print(f"{'family':16} {'base':7} {'untrained':>9} {'dev':>6} {'trained':>8} {'sd':>5} {'CPU-s':>6}")
    with single_thread():
        for family in tasks.names():
            for path in paths:
                rows.append(r := row(path, family, args.seeds))
                mean, sd = statistics.fmean(r["trained"]), statistics.pstdev(r["trained"])
                print(
                    f"{family:16} {path.name:7} {r['untrained']:9.3f} {r['untrained_dev']:6.3f} {mean:8.3f} {sd:5.3f} {r['cpu_s_per_job']:6.2f}",
                    flush=True,
                )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    settings = {"steps": STEPS, "prompts": PROMPTS, "group": GROUP, "learning_rate": LR, "clip": CLIP, "salt": SALT}
    machine = (
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, numpy {np.__version__}"
    )
    told = {"date": dt.date.today().isoformat(), "machine": machine, "settings": settings, "rows": rows}  # noqa: DTZ011
    args.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
