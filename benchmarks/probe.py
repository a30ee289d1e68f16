"""What a probe costs: a job's environment.py looked at in a warm sandbox, in both dialects.

    .venvs/verifiers/bin/python benchmarks/probe.py [--rounds 5]

A round is 8 probes one by one, then 48 of them 16 at once. CPU-seconds of one probe: the controller, the warm process that forks,
and the fork, all their threads. Then how many a second, one by one and at once. Writes benchmarks/results/probe.json.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
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

ALONE, AT_ONCE = 8, 16
BATCH = 3 * AT_ONCE
"""Probes of a round: a multiple of those at once, so that no thread is idle for long before its end."""
PARTS = ("controller", "warm process", "fork")
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
        self._adding = threading.Lock()
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
                with self._adding:
                    self.forks_s += said["cpu_s"]
                return said

            return ended

        nursery.Nursery.spawn = counted
        try:
            yield
        finally:
            nursery.Nursery.spawn = spawn

    def parts_s(self) -> tuple[float, float, float]:
        """As PARTS are."""
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


Make = Callable[[int], tuple[Callable[[], Findings], Callable[[], None]]]


class Measured:
    """One dialect: what is taken in every round."""

    def __init__(self, work: Callable[[], Findings], calibration: record.Calibration) -> None:
        self._work, self._calibration = work, calibration
        self._bill = Bill()
        self.first_s = 0.0
        self.wall: list[float] = []
        self.parts: list[list[float]] = []
        self.alone: list[float] = []
        self.together: list[float] = []
        self.busy: list[float] = []

    def take(self, rounds: int) -> None:
        with self._bill.open(), ThreadPoolExecutor(AT_ONCE) as threads:
            (self.first_s, _) = self._billed(self._sound)
            for _ in range(rounds):
                for _ in range(ALONE):
                    self._calibration.take()  # before the account of a probe is opened
                    wall, parts = self._billed(self._sound)
                    self.wall.append(wall)
                    self.parts.append(parts)
                self.alone.append(sum(self.wall[-ALONE:]) / ALONE)
                wall, parts = self._billed(lambda: [*threads.map(lambda _: self._sound(), range(BATCH))])
                self.together.append(wall / BATCH)
                self.busy.append(sum(parts) / wall)

    def _sound(self) -> None:
        found = self._work()
        assert not found.problems, found.problems

    def _billed(self, what: Callable[[], object]) -> tuple[float, list[float]]:
        """Wall-clock and CPU-seconds."""
        before, started = self._bill.parts_s(), time.perf_counter()
        what()
        wall = time.perf_counter() - started
        return wall, [after - earlier for after, earlier in zip(self._bill.parts_s(), before, strict=True)]

    def row(self) -> dict[str, Any]:
        parts = [record.median(each) for each in zip(*self.parts, strict=True)]
        return {
            "cpu_s": record.significant(record.median([sum(each) for each in self.parts]), 3),
            "parts_s": {name: record.significant(part, 2) for name, part in zip(PARTS, parts, strict=True)},
            "wall_s": record.significant(record.median(self.wall), 3),
            "first_s": record.significant(self.first_s, 3),
            "per_s_alone": record.significant(1 / record.median(self.alone), 3),
            "per_s_at_once": record.significant(1 / record.median(self.together), 3),
            "busy_at_once": record.significant(record.median(self.busy), 3),
        }


def measured(make: Make, rounds: int, calibration: record.Calibration) -> Measured:
    work, end = make(AT_ONCE)
    try:
        found = Measured(work, calibration)
        found.take(rounds)
    finally:
        end()
    return found


def main() -> None:
    """Print the table and write it."""
    parser = record.options(__doc__)
    parser.add_argument("--rounds", type=record.count, default=5)
    asked = parser.parse_args()
    calibration = record.Calibration(time.process_time)
    dialects = {"plain": plain, "verifiers": verifiers}
    found = {name: measured(make, asked.rounds, calibration) for name, make in dialects.items()}
    rows = [{"dialect": name, "target_s": TARGETS_S[name], **each.row()} for name, each in found.items()]
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
    if record.usual(parser, asked):
        record.write(
            "probe",
            calibration_s=calibration.seconds,
            seconds={r["dialect"]: r["cpu_s"] for r in rows},
            ratios={
                f"{name}: {AT_ONCE} at once ÷ alone": record.ratio(each.alone, each.together)
                for name, each in found.items()
            },
            versions={"verifiers": version("verifiers")},
            settings={
                "rounds": asked.rounds, "alone": ALONE, "at_once": AT_ONCE, "batch": BATCH, "cores": os.cpu_count(),
            },
            rows=rows,
        )  # fmt: skip


if __name__ == "__main__":
    main()
