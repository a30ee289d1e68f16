"""What every benchmark of speed shares: interleaved timing, a calibration loop, the machine's name, tables, result files.

A result file has `date`, `machine`, `calibration_s` (seconds of a fixed loop that ran between the measurements, by the same clock:
in the process that did the work, or, where that is another program, in the one that started it), `seconds` (name → seconds of work,
less is better), `ratios` (name → two things measured side by side) and what the script adds. `moved.py` compares two such files:
seconds as multiples of the calibration, ratios as they are. It is written by a script's usual arguments alone, or with `--write`.

Importing this leaves BLAS one thread: those that wait for work would spin, on the account of whatever is measured next.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

threadpool_limits(1, user_api="blas")

RESULTS = Path(__file__).parent / "results"
CALIBRATION = "calibration"


def calibrate() -> None:
    """A fixed piece of work like the package's own: small matrix products, element-wise passes, plain Python. About 10 ms."""
    rng = np.random.default_rng(0)
    x, w = rng.random((128, 64), np.float32), rng.random((64, 192), np.float32)
    for _ in range(60):
        y = x @ w
        np.exp(-y, out=y)
        y.sum(1)
    table: dict[int, int] = {}
    for i in range(20_000):
        table[i & 255] = table.get(i & 255, 0) + i


def interleaved(
    work: Mapping[str, Callable[[], Any]], *, rounds: int, clock: Callable[[], float] = time.process_time
) -> dict[str, list[float]]:
    """Seconds of every piece of work, `rounds` times each, in turn: what slows the machine down slows all of them.

    The calibration loop is one more piece. Each piece runs once beforehand, unmeasured.
    """
    pieces = {**work, CALIBRATION: calibrate}
    taken: dict[str, list[float]] = {name: [] for name in pieces}
    for round_ in range(rounds + 1):
        for name, piece in pieces.items():
            started = clock()
            piece()
            if round_:
                taken[name].append(clock() - started)
    return taken


class Calibration:
    """The loop, for measurements that are not `interleaved`: `take` it between them, by their own clock."""

    def __init__(self, clock: Callable[[], float] = time.process_time) -> None:
        self._clock = clock
        self._taken: list[float] = []
        calibrate()

    def take(self) -> None:
        started = self._clock()
        calibrate()
        self._taken.append(self._clock() - started)

    @property
    def seconds(self) -> float:
        return median(self._taken)


def options(doc: str | None) -> argparse.ArgumentParser:
    """A script's arguments: its own are added to these."""
    parser = argparse.ArgumentParser(description=(doc or "").split("\n", maxsplit=1)[0])
    parser.add_argument(
        "--write", action="store_true", help="write the results although other arguments are not the usual ones"
    )
    return parser


def count(text: str) -> int:
    """A number of rounds, jobs, seeds …: at least 1."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def usual(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> bool:
    """Whether results with these arguments may be published: all as they are without being given, or `--write`."""
    if asked.write or all(parser.get_default(name) == value for name, value in vars(asked).items()):
        return True
    print("Not written: the arguments are not the usual ones (--write writes all the same).")
    return False


def median(values: Sequence[float]) -> float:
    return float(statistics.median(values))


def ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """The median over the rounds of one piece's seconds by another's."""
    return median([a / b for a, b in zip(over, under, strict=True)])


def machine() -> str:
    """Processor, cores, versions."""
    return f"{_processor()}, {os.cpu_count()} cores, Python {platform.python_version()}, numpy {np.__version__}"


def write(
    name: str, *, calibration_s: float, seconds: Mapping[str, float], ratios: Mapping[str, float], **more: Any
) -> None:
    """Write benchmarks/results/NAME.json."""
    told = {
        "date": dt.date.today().isoformat(),  # noqa: DTZ011
        "machine": machine(),
        "calibration_s": significant(calibration_s),
        "seconds": {key: significant(value) for key, value in seconds.items()},
        "ratios": {key: significant(value) for key, value in ratios.items()},
        **more,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def significant(value: float, digits: int = 4) -> float:
    return float(f"{value:.{digits}g}")


def show(title: str, headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table."""
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == headings[0] else "right")
    for row in rows:
        table.add_row(*map(str, row))
    Console().print(table)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
