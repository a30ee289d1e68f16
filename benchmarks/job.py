"""A whole job here against the same job in TRL's GRPOTrainer: same base, same rows, same reward, same settings, one thread.

    .venvs/bench/bin/python benchmarks/job.py [--steps 25] [--rounds 3]

16 prompts × 8 samples a step, at most 16 tokens, learning rate 1e-3, the exact-answer reward in plain Python. CPU-seconds of the
training alone, in a warm process, and of a whole process that does one job. Here jobs run in warm processes, so that the start
is paid once a machine; TRL is meant to be started for each job. The hidden accuracy of both models says that both did the
work. Our training is timed in parts, too. Writes benchmarks/results/job.json.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import record
import turns
from job_trainers import FAMILY, GROUP, MAX_NEW, PROMPTS, Parts, Theirs, accuracy, ours

from nested_rl.nano.folder import load_model, read_tensors, save_model, weights_path
from nested_rl.nano.threads import single_thread

BASES = ("nano-s", "nano-m")
OURS, TRL = "nested_rl", "TRL"
TARGET = 10.0
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def child(kind: str, steps: int) -> None:
    """Jobs when asked, `BASE`; tells seconds, hidden accuracy, and of ours the seconds of its parts."""
    warnings.simplefilter("ignore")
    if kind == TRL:
        turns.answer(lambda base: their_job(base, steps), lambda: their_job(BASES[0], 1))
        return
    parts = Parts()

    def job(base: str) -> Sequence[float]:
        parts.taken()
        started = time.process_time()
        model = ours(base, steps)
        return time.process_time() - started, accuracy(model, base), *parts.taken()

    with single_thread():
        turns.answer(job, lambda: ours(BASES[0], 2))


def their_job(base: str, steps: int) -> tuple[float, float]:
    """CPU-seconds of the training, hidden accuracy after it."""
    with tempfile.TemporaryDirectory(prefix="trl-") as folder:
        theirs = Theirs(base, steps, folder)
        started = time.process_time()
        theirs.train()
        taken = time.process_time() - started
        theirs.save()
        trained = load_model(weights_path(base))[0]
        for name, tensor in read_tensors(Path(folder) / "model.safetensors").items():
            trained.tensors[name][...] = tensor
    return taken, accuracy(trained, base)


def alone(kind: str, base: str, steps: int) -> None:
    """One job, from nothing to weights in a folder."""
    with tempfile.TemporaryDirectory() as folder:
        if kind == OURS:
            with single_thread():
                save_model(folder, ours(base, steps), load_model(weights_path(base))[1], "float32")
        else:
            theirs = Theirs(base, steps, folder)
            theirs.train()
            theirs.save()


def whole(kind: str, base: str, steps: int) -> float:
    """CPU-seconds of a process that does one job."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    argv = [sys.executable, "-W", "ignore", __file__, "--alone", kind, "--base", base, "--steps", str(steps)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{kind} on {base} ended with {done.returncode}: {done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


Taken = dict[tuple[str, str], list[list[float]]]
"""By base and trainer, a list a round."""


def measured(steps: int, rounds: int, calibration: record.Calibration) -> tuple[Taken, Taken]:
    """What `child` tells of each job, and [CPU-seconds] of each whole process."""
    warm: Taken = {}
    cold: Taken = {}
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(turns.Worker(kind, [__file__, "--child", kind, "--steps", str(steps)]))
            for kind in (OURS, TRL)
        ]
        for _ in range(rounds):
            for base in BASES:
                for worker in workers:
                    key = base, worker.prefix
                    warm.setdefault(key, []).append([float(value) for value in worker.ask(base).split()])
                    cold.setdefault(key, []).append([whole(worker.prefix, base, steps)])
                    calibration.take()
    return warm, cold


def rows_of(warm: Taken, cold: Taken) -> list[dict[str, Any]]:
    """One row a base and trainer."""
    rows = []
    for base, kind in warm:
        seconds, mine = ([job[0] for job in warm[base, trainer]] for trainer in (kind, OURS))
        process, my_process = ([job[0] for job in cold[base, trainer]] for trainer in (kind, OURS))
        as_used = process if kind == TRL else seconds
        ratios = [theirs / own for theirs, own in zip(seconds, mine, strict=True)]
        rows.append(
            {
                "base": base,
                "trainer": kind,
                "cpu_s": record.significant(record.median(seconds)),
                "faster": record.significant(record.ratio(seconds, mine), 3),
                "lowest": record.significant(min(ratios), 3),
                "highest": record.significant(max(ratios), 3),
                "process_cpu_s": record.significant(record.median(process)),
                "process_faster": record.significant(record.ratio(process, my_process), 3),
                "as_used_faster": record.significant(record.ratio(as_used, mine), 3),
                "hidden": record.significant(float(np.mean([job[1] for job in warm[base, kind]])), 3),
            }
        )
    return rows


def parts_of(warm: Taken) -> list[dict[str, Any]]:
    """Shares of our training: one row a base."""
    rows = []
    for base in BASES:
        shares = np.median([[sampling / job, updates / job] for job, _, sampling, updates in warm[base, OURS]], 0)
        sampling, updates = map(float, shares)
        rows.append(
            {
                "base": base,
                "sampling": record.significant(sampling, 3),
                "updates": record.significant(updates, 3),
                "rest": record.significant(1 - sampling - updates, 3),
            }
        )
    return rows


def main() -> None:
    """Measure, print, write."""
    parser = record.options(__doc__)
    parser.add_argument("--steps", type=record.count, default=25)
    parser.add_argument("--rounds", type=record.count, default=3)
    parser.add_argument("--child", choices=(OURS, TRL), help=argparse.SUPPRESS)
    parser.add_argument("--alone", choices=(OURS, TRL), help=argparse.SUPPRESS)
    parser.add_argument("--base", choices=BASES, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        child(asked.child, asked.steps)
        return
    os.environ |= ONE_THREAD
    if asked.alone:
        alone(asked.alone, asked.base, asked.steps)
        return
    calibration = record.Calibration()
    warm, cold = measured(asked.steps, asked.rounds, calibration)
    rows, parts = rows_of(warm, cold), parts_of(warm)
    show(rows, parts, asked.steps)
    if not record.usual(parser, asked):
        return
    theirs = [row for row in rows if row["trainer"] == TRL]
    record.write(
        "job",
        calibration_s=calibration.seconds,
        seconds={r["base"]: r["cpu_s"] for r in rows if r["trainer"] == OURS},
        ratios={f"{r['base']}: TRL ÷ nested_rl": r["faster"] for r in theirs}
        | {f"{r['base']}: whole processes, TRL ÷ nested_rl": r["process_faster"] for r in theirs},
        versions={name: version(name) for name in ("torch", "transformers", "trl")},
        target=TARGET,
        settings={
            "steps": asked.steps, "prompts": PROMPTS, "group": GROUP, "max_new": MAX_NEW, "family": FAMILY,
            "rounds": asked.rounds,
        },
        rows=rows,
        parts=parts,
    )  # fmt: skip


def show(rows: list[dict[str, Any]], parts: list[dict[str, Any]], steps: int) -> None:
    """Print the tables."""
    headings = (
        "base", "trainer", "training", "× ours", "lowest", "highest round", "a whole process", "× ours", "as used, × ours",
        "hidden accuracy after",
    )  # fmt: skip
    title = f"One job of {steps} steps on {FAMILY}, one thread, CPU-seconds"
    record.show(title, headings, [tuple(row.values()) for row in rows])
    record.show(
        "Shares of our training", ("base", "sampling", "updates", "the rest"), [tuple(row.values()) for row in parts]
    )


if __name__ == "__main__":
    main()
