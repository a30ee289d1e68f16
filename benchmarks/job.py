"""A whole job here against the same job in TRL's GRPOTrainer: same base, same rows, same reward, same settings, one thread.

    .venvs/bench/bin/python benchmarks/job.py [--steps 25] [--rounds 3]

16 prompts × 8 samples a step, at most 16 tokens, learning rate 1e-3, the exact-answer reward in plain Python. CPU-seconds of the
training alone, in a warm process, and of a whole process that does one job. Here jobs run in warm processes, so that the start
is paid once a machine; TRL is meant to be started for each job. The hidden accuracy of both models says that both did the
work. Writes benchmarks/results/job.json.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import record
import turns

from nested_rl import jobkit, tasks
from nested_rl.inner.nano_grpo import Grpo, Recipe
from nested_rl.nano.folder import load_model, read_tensors, save_model, weights_path
from nested_rl.nano.model import Qwen3
from nested_rl.nano.threads import single_thread
from nested_rl.pretrain.baselines import measure

FAMILY, PROMPTS, GROUP, MAX_NEW, LR = "calc_chain", 16, 8, 16, 1e-3
BASES = ("nano-s", "nano-m")
OURS, TRL = "nested_rl", "TRL"
TARGET = 10.0
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def rows(steps: int) -> list[Mapping[str, str]]:
    return list(jobkit.make(FAMILY, random.Random(0), PROMPTS * steps))


def right(completion: str, answer: str) -> float:
    """The kit's parser wants the full stop, which TRL's decoding leaves out with the other special tokens."""
    return float(jobkit.parse(completion if completion.endswith(".") else f"{completion}.") == answer)


def accuracy(model: Qwen3, base: str) -> float:
    """On hidden items."""
    (family,) = tasks.load(FAMILY, scale="nano")
    hidden = family.eval_set(next(family.tasks()), "hidden", salt="job")
    return float(measure(model, load_model(weights_path(base))[1], hidden, hidden.sampling).value)


class Here:
    """The job's environment without its sandbox: TRL has none either."""

    def __init__(self, steps: int) -> None:
        self._rows = rows(steps)

    def examples(self, seed: int, n: int) -> Sequence[Mapping[str, str]]:  # noqa: ARG002 - rows come in order
        taken, self._rows = self._rows[:n], self._rows[n:]
        return taken

    def rewards(self, asked: Sequence[Mapping[str, str]]) -> Sequence[float]:
        return [right(row["completion"], row["answer"]) for row in asked]


def ours(base: str, steps: int) -> Qwen3:
    model, text = load_model(weights_path(base))
    recipe = Recipe(
        steps=steps, learning_rate=LR, batch_size=PROMPTS * GROUP, group_size=GROUP, temperature=1.0, max_tokens=MAX_NEW,
        epochs=1, clip=0.2, kl=0.0, std_normalize=True, weight_decay=0.0, beta2=0.95, grad_clip=1.0, lora_rank=0,
    )  # fmt: skip
    Grpo(model, text, recipe, Here(steps), seed=0, work_limit=1e12).run()
    return model


class Theirs:
    """TRL's trainer, built for each job; only `train` is timed."""

    def __init__(self, base: str, steps: int) -> None:
        import torch
        import transformers
        from datasets import Dataset, disable_progress_bars
        from trl import GRPOConfig, GRPOTrainer

        torch.set_num_threads(1)
        transformers.logging.set_verbosity_error()
        disable_progress_bars()
        path = str(weights_path(base))
        settings = GRPOConfig(
            output_dir=tempfile.mkdtemp(prefix="trl-"),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            max_steps=steps,
            per_device_train_batch_size=PROMPTS * GROUP,
            num_generations=GROUP,
            max_completion_length=MAX_NEW,
            learning_rate=LR,
            lr_scheduler_type="constant",
            adam_beta2=0.95,
            beta=0.0,
            epsilon=0.2,
            loss_type="dapo",  # a mean over tokens, as here
            temperature=1.0,
            shuffle_dataset=False,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )

        def reward(completions: list[str], answer: list[str], **_: Any) -> list[float]:
            return [right(text, wanted) for text, wanted in zip(completions, answer, strict=True)]

        self._trainer = GRPOTrainer(
            model=transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32),
            reward_funcs=reward,
            args=settings,
            train_dataset=Dataset.from_list([dict(row) for row in rows(steps)]),
            processing_class=transformers.AutoTokenizer.from_pretrained(path, padding_side="left"),
        )

    def train(self) -> None:
        self._trainer.train()

    def save(self, folder: str) -> None:
        self._trainer.save_model(folder)


def child(kind: str, steps: int) -> None:
    """Jobs when asked, `BASE`; tells seconds and hidden accuracy."""
    warnings.simplefilter("ignore")

    def job(base: str) -> tuple[float, float]:
        if kind == OURS:
            started = time.process_time()
            model = ours(base, steps)
            return time.process_time() - started, accuracy(model, base)
        theirs = Theirs(base, steps)
        started = time.process_time()
        theirs.train()
        taken = time.process_time() - started
        with tempfile.TemporaryDirectory() as folder:
            theirs.save(folder)
            trained = load_model(weights_path(base))[0]
            for name, tensor in read_tensors(Path(folder) / "model.safetensors").items():
                trained.tensors[name][...] = tensor
        return taken, accuracy(trained, base)

    if kind == OURS:
        with single_thread():
            turns.answer(job, lambda: ours(BASES[0], 2))
    else:
        turns.answer(job, lambda: Theirs(BASES[0], 1).train())


def alone(kind: str, base: str, steps: int) -> None:
    """One job, from nothing to weights in a folder."""
    with tempfile.TemporaryDirectory() as folder:
        if kind == OURS:
            with single_thread():
                save_model(folder, ours(base, steps), load_model(weights_path(base))[1], "float32")
        else:
            theirs = Theirs(base, steps)
            theirs.train()
            theirs.save(folder)


def whole(kind: str, base: str, steps: int) -> float:
    """CPU-seconds of a process that does one job."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    argv = [sys.executable, "-W", "ignore", __file__, "--alone", kind, "--base", base, "--steps", str(steps)]
    subprocess.run(argv, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measured(steps: int, rounds: int) -> list[dict[str, Any]]:
    """One row a base and trainer."""
    warm: dict[tuple[str, str], list[tuple[float, float]]] = {}
    cold: dict[tuple[str, str], list[float]] = {}
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(turns.Worker(kind, [__file__, "--child", kind, "--steps", str(steps)]))
            for kind in (OURS, TRL)
        ]
        for _ in range(rounds):
            for base in BASES:
                for worker in workers:
                    seconds, score = map(float, worker.ask(base).split())
                    warm.setdefault((base, worker.prefix), []).append((seconds, score))
                    cold.setdefault((base, worker.prefix), []).append(whole(worker.prefix, base, steps))
    rows = []
    for (base, kind), jobs in warm.items():
        seconds, mine = [taken for taken, _ in jobs], [taken for taken, _ in warm[base, OURS]]
        rows.append(
            {
                "base": base,
                "trainer": kind,
                "cpu_s": record.significant(record.median(seconds)),
                "faster": record.significant(record.ratio(seconds, mine), 3),
                "process_cpu_s": record.significant(record.median(cold[base, kind])),
                "process_faster": record.significant(record.ratio(cold[base, kind], cold[base, OURS]), 3),
                "as_used_faster": record.significant(
                    record.ratio(cold[base, kind] if kind == TRL else seconds, mine), 3
                ),
                "hidden": record.significant(float(np.mean([score for _, score in jobs])), 3),
            }
        )
    return rows


def main() -> None:
    """Print the table and write it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", choices=(OURS, TRL))
    parser.add_argument("--alone", choices=(OURS, TRL))
    parser.add_argument("--base", choices=BASES)
    asked = parser.parse_args()
    if asked.child:
        child(asked.child, asked.steps)
        return
    os.environ |= ONE_THREAD
    if asked.alone:
        alone(asked.alone, asked.base, asked.steps)
        return
    told = measured(asked.steps, asked.rounds)
    record.show(
        f"One job of {asked.steps} steps on {FAMILY}, one thread, CPU-seconds",
        (
            "base",
            "trainer",
            "training",
            "× ours",
            "a whole process",
            "× ours",
            "as used, × ours",
            "hidden accuracy after",
        ),
        [tuple(row.values()) for row in told],
    )
    theirs = [row for row in told if row["trainer"] == TRL]
    record.write(
        "job",
        calibration_s=record.median(record.interleaved({}, rounds=9)[record.CALIBRATION]),
        seconds={r["base"]: r["cpu_s"] for r in told if r["trainer"] == OURS},
        ratios={f"{r['base']}: TRL ÷ nested_rl": r["faster"] for r in theirs}
        | {f"{r['base']}: whole processes, TRL ÷ nested_rl": r["process_faster"] for r in theirs},
        versions={name: version(name) for name in ("torch", "transformers", "trl")},
        target=TARGET,
        settings={"steps": asked.steps, "prompts": PROMPTS, "group": GROUP, "max_new": MAX_NEW, "family": FAMILY},
        rows=told,
    )


if __name__ == "__main__":
    main()
