"""What a probe costs: a job's environment.py looked at in a warm sandbox, in both dialects.

    .venvs/verifiers/bin/python benchmarks/probe.py [--rounds 40]

CPU-seconds of one probe: the controller, the warm process that forks, and the fork. Then 16 probes at once: how many a second.
Writes benchmarks/results/probe.json.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import record

from nested_rl import tasks
from nested_rl.inner import NanoInnerTrainer
from nested_rl.inner.prime_rl import probe as prime
from nested_rl.inner.prime_rl import probe_child
from nested_rl.inner.prime_rl.job import surface
from nested_rl.inner.prime_rl.keys.allowed import TABLES
from nested_rl.jobs import nursery
from nested_rl.jobs.folder import JobConfig
from nested_rl.jobs.probe import Findings, probe
from nested_rl.jobs.sandbox import Zygote

AT_ONCE = 16
TARGETS_S = {"plain": 0.03, "verifiers": 1.5}

PLAIN = """\
from nested_rl.jobkit import make, parse

def examples(rng, n):
    return make("calc_chain", rng, n, k=(1, 3))

def reward(prompt, completion, answer):
    return 1.0 if parse(completion) == answer else 0.0
"""
NATIVE = """\
import random
import verifiers.v1 as vf

class Sum(vf.TaskData):
    answer: str

class SumTask(vf.Task[Sum]):
    @vf.stop
    async def once(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= 1

    @vf.reward(weight=1.0)
    async def right(self, trace: vf.Trace) -> float:
        return float((trace.last_reply or "").split()[-1:] == [self.data.answer])

class SumConfig(vf.TasksetConfig):
    n: int = 512
    seed: int = 0

class Sums(vf.Taskset[SumTask, SumConfig]):
    def load(self):
        rng = random.Random(self.config.seed)
        tasks = []
        for i in range(self.config.n):
            a, b = rng.randint(100, 999), rng.randint(100, 999)
            tasks.append(SumTask(Sum(idx=i, prompt=f"What is {a} + {b}?", answer=str(a + b)), self.config.task))
        return tasks

__all__ = ["Sums"]
"""


class Bill:
    """CPU-seconds of this process, of the warm process and of the forks that have ended."""

    def __init__(self) -> None:
        self.forks_s = 0.0
        self._processes: set[int] = set()

    @contextmanager
    def open(self) -> Iterator[None]:
        """While it is open, every fork's usage is counted when it is ended."""
        spawn = nursery.Nursery.spawn

        def counted(warm: nursery.Nursery, request: Mapping[str, Any], descriptors: Any) -> Callable[[], Any]:
            end = spawn(warm, request, descriptors)
            process = warm._process  # noqa: SLF001
            assert process is not None
            self._processes |= {process.pid, *_children(process.pid)}

            def ended() -> Any:
                said = end()
                self.forks_s += said["cpu_s"]
                return said

            return ended

        nursery.Nursery.spawn = counted
        try:
            yield
        finally:
            nursery.Nursery.spawn = spawn

    def parts_s(self) -> tuple[float, float, float]:
        """Controller, warm process, forks."""
        return time.process_time(), sum(map(_scheduled_s, self._processes)), self.forks_s


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _scheduled_s(pid: int) -> float:
    """Finer than the clock ticks of /proc/PID/stat."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def plain(at_once: int) -> tuple[Callable[[], Findings], Callable[[], None]]:
    """A probe of a nano job, and what ends its sandbox."""
    trainer, families = NanoInnerTrainer(), tasks.load(scale="nano")
    zygote = Zygote(at_once=at_once)
    files = {"job.toml": "", "environment.py": PLAIN}
    return lambda: probe(files, trainer.surface.probe, zygote=zygote, families=families), zygote.close


def verifiers(at_once: int) -> tuple[Callable[[], Findings], Callable[[], None]]:
    """A probe of a taskset for verifiers."""
    allowed, families = surface(("Qwen/Qwen3-0.6B",)), tasks.load(scale="full")
    given = {name: {key: rule.default for key, rule in keys.items()} for name, keys in TABLES.items()}
    given["training"] |= {"steps": 10, "learning_rate": 5e-5}
    rules = prime.fitted(allowed.probe, JobConfig(base=allowed.bases[0], tables={**given, "prime_rl": {}}))
    zygote = Zygote(kit=False, at_once=at_once, runner=probe_child.__name__)
    files = {"job.toml": "", "environment.py": NATIVE}
    look = prime._native  # noqa: SLF001
    return lambda: look(files, rules, {}, zygote=zygote, families=families, limits=prime.LIMITS), zygote.close


def measured(make: Callable[[int], tuple[Callable[[], Findings], Callable[[], None]]], rounds: int) -> dict[str, Any]:
    """One after the other, then many at once."""
    work, end = make(AT_ONCE)
    bill = Bill()
    try:
        with bill.open():
            started = time.perf_counter()
            found = work()
            first_s = time.perf_counter() - started
            assert not found.problems, found.problems
            parts, wall, calibration = [], [], []
            for _ in range(rounds):
                before, started = bill.parts_s(), time.perf_counter()
                work()
                wall.append(time.perf_counter() - started)
                parts.append([after - earlier for after, earlier in zip(bill.parts_s(), before, strict=True)])
                before_s = time.process_time()
                record.calibrate()
                calibration.append(time.process_time() - before_s)
        with ThreadPoolExecutor(AT_ONCE) as threads:
            started = time.perf_counter()
            assert all(not found.problems for found in threads.map(lambda _: work(), range(rounds)))
            together_s = time.perf_counter() - started
    finally:
        end()
    return {
        "cpu_s": record.significant(record.median([sum(each) for each in parts]), 3),
        "parts_s": {
            name: record.significant(record.median([each[i] for each in parts]), 2)
            for i, name in enumerate(("controller", "warm process", "fork"))
        },
        "wall_s": record.significant(record.median(wall), 3),
        "first_s": record.significant(first_s, 3),
        "per_s_alone": record.significant(rounds / sum(wall), 3),
        "per_s_at_once": record.significant(rounds / together_s, 3),
        "calibration_s": record.median(calibration),
    }


def main() -> None:
    """Print the table and write it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=40)
    asked = parser.parse_args()
    rows = []
    for dialect, make in {"plain": plain, "verifiers": verifiers}.items():
        rows.append({"dialect": dialect, "target_s": TARGETS_S[dialect], **measured(make, asked.rounds)})
    record.show(
        f"One probe, warm; then {AT_ONCE} at once on {os.cpu_count()} cores",
        (
            "dialect",
            "CPU-s",
            "at most",
            "wall s",
            "the first, with the start",
            "a second, alone",
            f"a second, {AT_ONCE} at once",
        ),
        [
            (r["dialect"], r["cpu_s"], r["target_s"], r["wall_s"], r["first_s"], r["per_s_alone"], r["per_s_at_once"])
            for r in rows
        ],
    )
    try:
        versions = {"verifiers": version("verifiers")}
    except PackageNotFoundError:
        versions = {}
    calibration_s = record.median([r.pop("calibration_s") for r in rows])
    record.write(
        "probe",
        calibration_s=calibration_s,
        seconds={r["dialect"]: r["cpu_s"] for r in rows},
        ratios={f"{r['dialect']}: {AT_ONCE} at once ÷ alone": r["per_s_at_once"] / r["per_s_alone"] for r in rows},
        versions=versions,
        settings={"rounds": asked.rounds, "at_once": AT_ONCE},
        rows=rows,
    )


if __name__ == "__main__":
    main()
