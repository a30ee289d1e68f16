"""What a job takes on each kind of machine: the table that `nested-rl bench-gpus` writes, and that pools and plans read.

One JSON file, one row for each kind of machine and base, every row with its date and its source, so that tables can grow together.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from attrs import field, frozen, validators

from nested_rl.errors import RunDirError, SettingsError
from nested_rl.serialize import loads, to_json

FORMAT: Final = 1


@frozen(kw_only=True)
class Row:
    """One reference job, `jobs` times, on one kind of machine with one base.

    `candidate` is the kind without its cloud, such as "2x NVIDIA RTX A5000" or "this computer". `seconds` is what was paid for a job that
    succeeded, from getting the machine to its score, on average; None when none did. `usd` is what one success cost, failures
    included. `usd_per_hour` is the price that was paid. `peak_memory_gib` is the most that one GPU held, None where nobody told.
    """

    candidate: str = field(validator=validators.min_len(1))
    base: str = field(validator=validators.min_len(1))
    jobs: int = field(validator=validators.ge(1))
    succeeded: int = field(validator=validators.ge(0))
    seconds: float | None = None
    usd: float | None = None
    usd_per_hour: float = 0.0
    peak_memory_gib: float | None = None
    measured: str = ""
    source: str = ""
    machines: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()

    @property
    def success(self) -> float:
        """Share of the jobs that ended with a score, in [0, 1]."""
        return self.succeeded / self.jobs


@frozen(kw_only=True)
class _Table:
    """The file."""

    format: int
    rows: tuple[Row, ...]


def read(path: str | os.PathLike[str]) -> tuple[Row, ...]:
    """The rows of a table. Raises SettingsError when it is no such table, or cannot be read."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}; `nested-rl bench-gpus --out {path}` writes one") from None
    try:
        table = loads(text, _Table)
    except SettingsError as error:
        raise SettingsError(f"{path} is no table of `nested-rl bench-gpus`: {error}") from None
    except ValueError as error:  # a value that no row can have
        raise SettingsError(f"{path}: {error}") from None
    if table.format != FORMAT:
        raise SettingsError(f"{path}: format {table.format} is not known here (known: {FORMAT}); update nested-rl")
    return table.rows


def write(path: str | os.PathLike[str], rows: Sequence[Row]) -> None:
    """Write a table, all or nothing. Rows of a table that is there stay, but for those of the same kind and base.

    A row of which no job succeeded takes the place of none of which one did: that was paid for, and is what pools start from.
    """
    place = Path(path)
    old = read(place) if place.exists() else ()
    known = {(row.candidate, row.base) for row in old if row.succeeded}
    new = {(row.candidate, row.base): row for row in rows if row.succeeded or (row.candidate, row.base) not in known}
    kept = [row for row in old if (row.candidate, row.base) not in new]
    table = _Table(format=FORMAT, rows=tuple(sorted([*kept, *new.values()], key=lambda r: (r.candidate, r.base))))
    draft = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(to_json(table), indent=2) + "\n", encoding="utf-8")
        draft.replace(place)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise RunDirError(f"{place} cannot be written: {error}") from error


def paid_seconds(rows: Sequence[Row]) -> dict[str, float]:
    """Seconds of a job by kind of machine, the mean over bases, weighted by jobs that succeeded: the prior of a pool.

    >>> paid_seconds([Row(candidate="NVIDIA A40", base="a", jobs=2, succeeded=2, seconds=600.0)])
    {'1x NVIDIA A40': 600.0}
    """
    sums: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for row in rows:
        if row.seconds is not None and row.succeeded:
            sums[kind(row.candidate)].append((row.seconds, row.succeeded))
    return {name: sum(s * n for s, n in told) / sum(n for _, n in told) for name, told in sums.items()}


def kind(candidate: str) -> str:
    """How a kind of machine is written in full, without its cloud.

    >>> kind("NVIDIA A40"), kind("2x NVIDIA RTX A5000 (secure)")
    ('1x NVIDIA A40', '2x NVIDIA RTX A5000')
    """
    bare = candidate.strip().removesuffix(" (community)").removesuffix(" (secure)")
    count, times, _ = bare.partition("x ")
    return bare if times and count.isdigit() else f"1x {bare}"


def table(rows: Sequence[Row]) -> str:
    """The rows as a table in Markdown."""
    head = ("machine", "base", "jobs", "succeeded", "seconds a job", "$ a job", "$ an hour", "peak GiB", "measured")
    lines = [head, tuple("---" for _ in head), *(_cells(row) for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cells(row: Row) -> tuple[str, ...]:
    def told(value: float | None, form: str) -> str:
        return "?" if value is None else format(value, form)

    return (
        row.candidate,
        row.base,
        str(row.jobs),
        f"{row.success:.0%}",
        told(row.seconds, ".0f") if row.seconds is None or row.seconds >= 10 else told(row.seconds, ".1f"),
        told(row.usd, ".4f"),
        f"{row.usd_per_hour:.3f}",
        told(row.peak_memory_gib, ".1f"),
        row.measured[:10],
    )
