"""`bench-gpus`: measure one reference job on each kind of machine with each base, and keep the table that pools and plans read."""
# ruff: noqa: T201  printing is what a command is for

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from nested_rl.errors import SettingsError

if TYPE_CHECKING:
    from nested_rl.bench_gpus import Bench, Kind
    from nested_rl.cli.runfile import RunFile

FOLDER = "~/.nested_rl/runpod-bench"
RUNPOD: Mapping[str, Any] = {"name": "runpod"}
"""Where machines come from when no file says it."""


def bench_gpus(
    *gpus: str,
    file: Path | None = None,
    base: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    job: Path | None = None,
    family: str = "calc_chain",
    jobs: int = 1,
    items: int = 256,
    usd: float | None = None,
    out: Path = Path("gpus.json"),
    dry_run: bool = False,
    yes: bool = False,
) -> int:
    """Measure a reference job on each GPU with each base: seconds, dollars a job, success, peak memory.

    Without a file: prime-rl jobs on rented pods, such as `nested-rl bench-gpus "2x NVIDIA RTX A5000" "NVIDIA A40" --job
    examples/jobs/calc_chain`. With one, the parts in its tables [inner], [scorer] and [compute]; any backend will do. It says what it would cost,
    and asks. Rows of other kinds and bases that are in the table stay. Exit code 1 when a job had no score.

    Args:
        gpus: Kinds of pods to rent; of another backend, the name of its machines in the table.
        file: A run file.
        base: Bases, instead of all that the inner trainer has.
        job: The folder of the reference job; its base is replaced. At nano scale there is one already.
        family: The family it is for.
        jobs: How often it is run for each kind and base, each time with another seed.
        items: Questions of the evaluation.
        usd: No job begins that would exceed this.
        out: The table.
        dry_run: Only say what would be run, and what it would cost.
        yes: Do not ask.
    """
    from nested_rl import matrix, sync
    from nested_rl.cli import runfile
    from nested_rl.types import Budget

    Budget(usd=usd)  # refuses what is no amount, before anything else
    if jobs < 1 or items < 1:
        raise SettingsError(f"--jobs {jobs} --items {items}: at least 1 of each")
    known = matrix.read(out) if out.exists() else ()
    asked = runfile.read(file) if file is not None else runfile.RunFile()
    bench = made(asked, gpus, known, family=family, job=job)
    bench.jobs, bench.items, bench.usd, bench.bases = jobs, items, usd, base or bench.bases
    print(bench.plan(), flush=True)
    if dry_run:
        return 0
    require_key(asked.compute or RUNPOD)
    if not (yes or agreed(bench)):
        return 0

    def keep(row: matrix.Row) -> None:  # at once: it was paid for
        matrix.write(out, [row])
        if row not in matrix.read(out):
            print(f"{row.candidate} with {row.base}: no job succeeded; the row of before stays", file=sys.stderr)
        for error in row.errors:
            print(f"{row.candidate} with {row.base}: {error}", file=sys.stderr)

    rows = sync.run(bench.run(keep))
    print(matrix.table(rows), f"Table: {out}", sep="\n")
    return int(len(rows) < len(bench.kinds) * len(bench.bases) or not all(row.succeeded for row in rows))


def agreed(bench: Bench) -> bool:
    """Whether to spend it. Raises SettingsError where nobody can be asked."""
    if not any(kind.usd_per_hour for kind in bench.kinds):
        return True
    if not sys.stdin.isatty():
        raise SettingsError("nobody can be asked here whether to spend that: say yes beforehand (--yes)")
    return input("Go on? [y/N] ").strip().lower() in ("y", "yes")


def require_key(table: Mapping[str, Any]) -> None:
    """Raises SettingsError, or MissingExtra, when pods could not be rented: before anybody is asked, and anything is written."""
    if table.get("name") == "runpod":
        from nested_rl.compute.runpod_rest import api_key
        from nested_rl.compute.ssh_login import library

        if not table.get("key"):
            api_key()
        library()


def made(asked: RunFile, gpus: Sequence[str], known: Sequence[Any], *, family: str, job: Path | None) -> Bench:
    """The bench of these parts. Raises SettingsError for what does not go together."""
    from nested_rl import bench_gpus, parts, tasks
    from nested_rl.cli.jobs import read

    inner = parts.build("inner", asked.inner or {"name": "prime-rl"})
    scorer = parts.build("scorer", asked.scorer or {"name": "vllm" if inner.scale == "full" else "nano"})
    if job is None and inner.scale != "nano":
        raise SettingsError("a full-scale reference job is a folder: --job examples/jobs/calc_chain")
    (chosen,) = tasks.load(family, scale=inner.scale)
    return bench_gpus.Bench(
        kinds=kinds(asked.compute or RUNPOD, gpus, known),
        inner=inner,
        scorer=scorer,
        bases=inner.bases,
        family=chosen,
        files=read(job) if job is not None else bench_gpus.NANO_JOB,
    )


def kinds(table: Mapping[str, Any], gpus: Sequence[str], known: Sequence[Any]) -> list[Kind]:
    """A pool of one pod for each GPU; of another backend, all its machines under one name."""
    from nested_rl import parts
    from nested_rl.bench_gpus import Kind, known_seconds

    name = str(table.get("name", ""))
    if name != "runpod":
        if len(gpus) > 1:
            raise SettingsError(f"[compute] {name} is one kind of machine; {list(gpus)} names {len(gpus)}")
        told = gpus[0] if gpus else name
        return [Kind(name=told, compute=parts.build("compute", table), expected_s=known_seconds(told, known))]
    wanted = list(gpus or table.get("gpus", ()))
    if not wanted:
        raise SettingsError("which GPUs? For example: nested-rl bench-gpus '2x NVIDIA RTX A5000' 'NVIDIA A40'")
    found = []
    for gpu in wanted:
        told = f"{gpu.get('gpus', 1)}x {gpu.get('gpu')}" if isinstance(gpu, dict) else str(gpu)
        folder = Path(str(table.get("folder", FOLDER))) / re.sub(r"\W+", "-", told).lower()
        settings = {**table, "gpus": [gpu], "max_machines": 1, "folder": str(folder)}
        compute = parts.build("compute", settings)
        seconds = known_seconds(told, known)
        found.append(Kind(name=told, compute=compute, usd_per_hour=price(compute), expected_s=seconds))
    return found


def price(compute: Any) -> float:
    """What the dearest of its kinds was said to cost when that was last written down; else what the backend says."""
    from nested_rl.plan.stated import PRICES

    told = [
        PRICES[one.gpu][one.cloud].mid * one.gpus for one in compute.candidates if one.cloud in PRICES.get(one.gpu, {})
    ]
    return max(told, default=float(compute.usd_per_hour))
