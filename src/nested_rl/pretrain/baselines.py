"""What the bases score untrained, measured in this process and recorded next to their weights.

The record is provenance, and what the tests compare the shipped weights with. A run never reads it: it measures its own
baselines on its own items.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from nested_rl import tasks
from nested_rl.interfaces import TaskFamily
from nested_rl.nano.folder import load_model, write_json
from nested_rl.nano.model import Qwen3
from nested_rl.nano.sampling import generate, pad_left
from nested_rl.nano.threads import single_thread
from nested_rl.nano.tokenizer import Tokenizer
from nested_rl.types import EvalSet, EvalSplit, Sampling, Score

SALT = "baselines"
"""The public salt of the recorded items; runs use secret ones."""

SPLITS: tuple[EvalSplit, ...] = ("hidden", "dev")


def measure(model: Qwen3, alphabet: Tokenizer, eval_set: EvalSet, sampling: Sampling, *, seed: int = 0) -> Score:
    """Ask a model the items of an evaluation. An answer that was cut off is wrong."""
    (family,) = tasks.load(eval_set.family, scale="nano")
    with single_thread():
        samples = generate(
            model,
            pad_left([alphabet.encode(item.prompt) for item in eval_set.items], alphabet.pad_id),
            group=sampling.samples,
            max_new=sampling.max_tokens,
            temperature=sampling.temperature,
            rng=np.random.default_rng(seed),
        )
    texts = [alphabet.decode(ids[:n]) for ids, n in zip(samples.ids, samples.lengths, strict=True)]
    asked = [item for item in eval_set.items for _ in range(sampling.samples)]
    right = [
        family.grade(item, text).correct and bool(finished)
        for item, text, finished in zip(asked, texts, samples.finished, strict=True)
    ]
    return Score.of(np.reshape(right, (len(eval_set.items), sampling.samples)).mean(1).tolist())


def record(weights: Path, names: Iterable[str] = ("nano-m", "nano-s")) -> dict[str, Any]:
    """Measure every family on every base under the folder `weights` and write `baselines.json` there."""
    scores: dict[str, Any] = {}
    digests = {}
    for name in names:
        model, alphabet = load_model(weights / name)
        digests[name] = hashlib.sha256((weights / name / "model.safetensors").read_bytes()).hexdigest()
        scores[name] = {family.name: _scores(model, alphabet, family) for family in tasks.load(scale="nano")}
    table = {
        "salt": SALT,
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}",
        "sha256": digests,
        "scores": scores,
    }
    write_json(weights / "baselines.json", table)
    return table


def _scores(model: Qwen3, alphabet: Tokenizer, family: TaskFamily) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for split in SPLITS:
        eval_set = family.eval_set(next(family.tasks()), split, salt=SALT)
        score = measure(model, alphabet, eval_set, eval_set.baseline_sampling)
        out[split] = {
            "accuracy": round(score.value, 4),
            "stderr": round(score.stderr, 4),
            "items": score.n,
            "samples": eval_set.baseline_sampling.samples,
            "digest": eval_set.digest,
        }
    return out
