"""Whether a pod is what was rented, and fit for the next job: GPUs, their memory, and disk."""

from __future__ import annotations

from typing import Final

from nested_rl.compute.provider import Candidate
from nested_rl.errors import InfraFault
from nested_rl.interfaces import Machine

ASK: Final = ("nvidia-smi", "--query-gpu=name,memory.total,memory.used", "--format=csv,noheader,nounits")
ASK_S: Final = 60.0
LABEL: Final = 0.9
"""A GPU shows at least this share of the memory on its label."""
FREE_MIB: Final = 1024
"""At most so much GPU memory may be taken on a pod that has just come up."""
FREE_DISK_GIB: Final = 5.0


async def preflight(machine: Machine, candidate: Candidate) -> None:
    """Raises InfraFault, which says what is wrong: fewer GPUs, less memory, memory that is taken, or a disk that is full."""
    await recheck(machine, candidate)
    for gpu, _, used_mib in await _gpus(machine):
        if used_mib > FREE_MIB:
            raise InfraFault(f"{used_mib:.0f} MiB of the memory of its {gpu} are taken")


async def recheck(machine: Machine, candidate: Candidate) -> None:
    """The same between two jobs, when a model server that is kept warm may have its share of the memory."""
    gpus = await _gpus(machine)
    if len(gpus) != candidate.gpus:
        raise InfraFault(f"it has {len(gpus)} GPUs, not {candidate.gpus}")
    for gpu, total_mib, _ in gpus:
        if total_mib / 1024 < LABEL * candidate.gpu_memory_gib:
            raise InfraFault(f"its {gpu} has {total_mib / 1024:.1f} GiB, not {candidate.gpu_memory_gib:g}")
    told = await _run(machine, "df", "-Pk", machine.root)
    try:
        free_gib = int(told.splitlines()[-1].split()[3]) / 2**20
    except (IndexError, ValueError):
        raise InfraFault(f"df says {told[:200]!r}") from None
    if free_gib < FREE_DISK_GIB:
        raise InfraFault(f"{free_gib:.1f} GiB of its disk are free, {FREE_DISK_GIB:g} are needed")


async def _gpus(machine: Machine) -> list[tuple[str, float, float]]:
    """Name, MiB in all and MiB taken of each."""
    told = await _run(machine, *ASK)
    try:
        rows = [line.rsplit(",", 2) for line in told.splitlines() if line.strip()]
        return [(name.strip(), float(total), float(used)) for name, total, used in rows]
    except ValueError:
        raise InfraFault(f"nvidia-smi says {told[:200]!r}") from None


async def _run(machine: Machine, *argv: str) -> str:
    try:
        done = await machine.run(argv, timeout_s=ASK_S)
    except (OSError, TimeoutError) as error:
        raise InfraFault(f"{argv[0]}: {error}") from error
    if done.returncode != 0:
        raise InfraFault(f"{argv[0]} ends with {done.returncode}: {done.stderr[-200:]}")
    return done.stdout
