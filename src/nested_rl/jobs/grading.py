"""A job's environment.py as a program: rows and rewards as JSON lines on its input and output.

It is shipped with a packaged environment and runs beside the training, in a process of its own: agent-written code runs in the
sandbox below it, and whatever that code does, a question is answered within the limits.

    {"id": 0, "op": "rows", "n": 512, "seed": 1}                              -> {"id": 0, "rows": [...], "dropped": 3}
    {"id": 1, "op": "reward", "prompt": …, "completion": …, "answer": …}      -> {"id": 1, "value": 1.0, "fault": ""}
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

from attrs import frozen

from nested_rl import tasks
from nested_rl.errors import AgentFault, InfraFault
from nested_rl.interfaces import TaskFamily
from nested_rl.jobs.runner import CODE
from nested_rl.jobs.sandbox import Environment, EnvironmentCrashed, EnvironmentTimeout, Limits, Zygote

LIMITS = Limits(cpu_s=3_600, memory_mib=1_024, call_s=3.0, reply_bytes=1 << 26)
"""Of one sandboxed process over a whole training. A reward that takes longer than `call_s` is killed and counts as 0."""
ROWS_S = 240.0
FEW = 32
"""A validated job gives so many rows in one call; one that draws from a small file may give no more."""
CAP = 100.0
"""Rewards are cut to ±CAP, the bound that validation sets."""
HANGS = 32
"""After so many rewards that had to be killed no more are asked: each would hold the training for `call_s`."""


@frozen(kw_only=True)
class Graded:
    """A reward that can be trained on. `fault` says why it is not what the job's function returned."""

    value: float
    fault: str = ""


class Grading:
    """environment.py in up to `at_once` sandboxed processes. Thread-safe.

    `rows` are examples without those that belong to an evaluation; a reward is always a finite number within ±CAP.
    """

    def __init__(
        self,
        files: Mapping[str, str],
        families: Sequence[TaskFamily],
        zygote: Zygote,
        *,
        at_once: int = 2,
        limits: Limits = LIMITS,
    ) -> None:
        self.at_once = at_once
        self._files = files
        self._limits = limits
        self._held_out = tasks.held_out(families)
        self._zygote = zygote
        self._idle: queue.LifoQueue[Environment | None] = queue.LifoQueue()
        for _ in range(at_once):
            self._idle.put(None)
        self._hangs = 0
        self._counting = threading.Lock()

    def rows(self, n: int, seed: int) -> tuple[list[dict[str, str]], int]:
        """At most `n` rows, and how many more were dropped. Raises AgentFault when environment.py fails."""
        with self._zygote.spawn(self._files, self._limits) as environment:
            asked = _rows(environment, n + n // 2, seed)  # one in four belongs to an evaluation by chance
        kept = [row for row in asked if not self._held_out(row["prompt"])]
        return kept[:n], len(asked) - len(kept)

    def reward(self, prompt: str, completion: str, answer: str) -> Graded:
        """What the job's reward gives, or 0 with the reason why it gives nothing that can be used."""
        if self._hangs >= HANGS:
            return Graded(value=0.0, fault=f"{HANGS} rewards took too long; no more are asked")
        environment = self._idle.get()
        try:
            environment = environment or self._zygote.spawn(self._files, self._limits)
            (value,) = environment.rewards([{"prompt": prompt, "completion": completion, "answer": answer}])
        except (AgentFault, InfraFault) as fault:
            if isinstance(fault, EnvironmentTimeout):
                with self._counting:
                    self._hangs += 1
            return Graded(value=0.0, fault=str(fault)[:300])
        finally:
            self._idle.put(environment if environment is not None and environment.alive else None)
        if abs(value) > CAP:
            return Graded(value=max(-CAP, min(CAP, value)), fault=f"a reward of {value:g} was cut to {CAP:g}")
        return Graded(value=value)

    def close(self) -> None:
        """End the sandboxed processes."""
        for _ in range(self.at_once):
            if (environment := self._idle.get()) is not None:
                environment.close()


def _rows(environment: Environment, n: int, seed: int) -> list[dict[str, str]]:
    """All in one call, or few at a time when that raises: rng.sample(ROWS, n) does for more than there are."""
    try:
        return environment.examples(seed, n, timeout_s=ROWS_S)
    except EnvironmentCrashed:
        if not environment.alive:
            raise
    seeds = random.Random(seed)
    calls = (environment.examples(seeds.randrange(2**31), FEW) for _ in range(-(-n // FEW)))
    return [row for rows in calls for row in rows]


def read(folder: Path) -> dict[str, str]:
    """environment.py and the data of a job in a folder: relative path → text."""
    paths = [folder / CODE, *sorted((folder / "data").glob("*.jsonl"))]  # an installer leaves other files there
    return {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in paths}


def serve(grading: Grading, lines: BinaryIO, out: BinaryIO) -> None:
    """Answer until the input ends, several questions at once, each answer under its question's id."""
    writing = threading.Lock()

    def answer(question: Mapping[str, Any]) -> None:
        try:
            reply = _answer(grading, question)
        except (AgentFault, InfraFault) as fault:
            reply = {"error": str(fault)}
        line = json.dumps({"id": question["id"], **reply}).encode() + b"\n"
        with writing, contextlib.suppress(BrokenPipeError):
            out.write(line)
            out.flush()

    with ThreadPoolExecutor(grading.at_once, thread_name_prefix="grading") as pool:
        for line in lines:
            pool.submit(answer, json.loads(line))


def _answer(grading: Grading, question: Mapping[str, Any]) -> dict[str, Any]:
    if question["op"] == "rows":
        rows, dropped = grading.rows(question["n"], question["seed"])
        return {"rows": rows, "dropped": dropped}
    graded = grading.reward(question["prompt"], question["completion"], question["answer"])
    return {"value": graded.value, "fault": graded.fault}


def main() -> None:
    """`FOLDER`: the job's files. Serve on the standard input and output, which nothing else here writes to."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    files = read(Path(sys.argv[1]))
    with Zygote(kit=False) as zygote, contextlib.closing(Grading(files, tasks.load(), zygote)) as grading:
        serve(grading, sys.stdin.buffer, out)


if __name__ == "__main__":
    main()
