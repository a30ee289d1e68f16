"""Pieces of work in processes of their own that take turns: each with the settings its users would have, none side by side."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import record

NAMES = "names"


def serve(pieces: Mapping[str, Callable[[], Any]]) -> None:
    """The process's side: run the piece whose name comes in, tell its CPU-seconds, until the input ends."""
    pieces = {**pieces, record.CALIBRATION: record.calibrate}

    def timed(name: str) -> Sequence[object]:
        if name == NAMES:
            return ["\t".join(pieces)]
        started = time.process_time()
        pieces[name]()
        return [time.process_time() - started]

    answer(timed)


def answer(what: Callable[[str], Sequence[object]], prepare: Callable[[], Any] = lambda: None) -> None:
    """Prepare, then answer every line that comes in with another one, its values apart by blanks."""
    source, sink = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not look like an answer
    prepare()
    for line in source:
        print(*what(line.rstrip("\n")), file=sink, flush=True)


class Worker:
    """The other side. `prefix` goes before the names of its pieces."""

    def __init__(self, prefix: str, argv: Sequence[str], **environment: str) -> None:
        self.prefix = prefix
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  the process has it as long as this one
        self._process = subprocess.Popen(
            [sys.executable, *argv],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def _said(self) -> str:
        """The last of what it said."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-2000:]

    def ask(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(line, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            sys.exit(f"{self.prefix}: ended at {line!r} with {self._process.wait()}: {self._said()}")
        return answer.rstrip("\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._errors.close()


def taken(workers: Sequence[Worker], *, rounds: int) -> dict[str, list[float]]:
    """Seconds of every piece of every worker, in turn. Each runs twice beforehand, unmeasured."""
    pieces = [(worker, name) for worker in workers for name in worker.ask(NAMES).split("\t")]
    found: dict[str, list[float]] = {}
    for round_ in range(rounds + 2):
        for worker, name in pieces:
            seconds = float(worker.ask(name))
            if round_ >= 2:
                key = name if name == record.CALIBRATION else worker.prefix + name
                found.setdefault(key, []).append(seconds)
    return found
