"""What the driver says about the GPUs. On a machine without nvidia-smi there are none."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_FIELDS = "index,name,memory.total,memory.used,ecc.errors.uncorrected.volatile.total,driver_version"
_PATIENCE_S = 20.0


class DriverLost(Exception):
    """nvidia-smi fails or does not answer: nothing on this machine can be trusted to train."""


@dataclass(frozen=True)
class Gpu:
    """One GPU. Memory is in MiB; `ecc` counts uncorrected errors since the driver was loaded (0 where that is not counted)."""

    index: int
    name: str
    total_mib: int
    used_mib: int
    ecc: int
    driver: str


def query() -> list[Gpu]:
    """Every GPU. Raises DriverLost."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        told = subprocess.run(
            [program, f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DriverLost(f"nvidia-smi: {error}") from None
    if told.returncode != 0:
        raise DriverLost(f"nvidia-smi ends with {told.returncode}: {(told.stdout + told.stderr).strip()[:300]}")
    try:
        return [_gpu(line) for line in told.stdout.splitlines() if line.strip()]
    except (ValueError, IndexError):
        raise DriverLost(f"nvidia-smi tells something else than was asked: {told.stdout[:300]!r}") from None


def named(gpus: Sequence[Gpu], ids: str) -> list[Gpu]:
    """Those that CUDA_VISIBLE_DEVICES means with `ids`; one card may be named twice."""
    wanted = {part.strip() for part in ids.split(",")}
    return [gpu for gpu in gpus if str(gpu.index) in wanted]


def freed(ids: str, free_mib: int, patience_s: float, *, pause: Callable[[], object]) -> list[Gpu]:
    """Those named, when their memory has been given back: after the end of a program that takes moments, or never comes.

    Raises DriverLost.
    """
    deadline_s = time.monotonic() + patience_s
    while True:
        mine = named(query(), ids)
        if all(gpu.used_mib <= free_mib for gpu in mine) or time.monotonic() >= deadline_s:
            return mine
        pause()


def _gpu(line: str) -> Gpu:
    index, name, total, used, ecc, driver = (part.strip() for part in line.split(","))
    return Gpu(int(index), name, int(float(total)), int(float(used)), int(ecc) if ecc.isdigit() else 0, driver)
