"""Whether a pod is what was rented, and fit for the next job.

| looked at                | by                                                         | refused                                         |
|--------------------------|------------------------------------------------------------|-------------------------------------------------|
| GPUs: number, name       | `nvidia-smi`                                               | another number; a name that is not the kind's   |
| their memory             | `nvidia-smi`                                               | less than on the label; taken by strangers      |
| driver, ECC              | `nvidia-smi`                                               | older than CUDA 12.8 came with; errors counted  |
| disk                     | `df` of the machine's folder                               | fewer than 5 GiB free                           |
| CUDA, and the right sums | `canary.py`, in the image's Python with torch              | an error, a wrong number                        |
| speed                    | its seconds, for each GPU and the processor                | twice what is usual for the kind                |
| bases' weights           | `nested_rl.weights`: found or downloaded, then hashed      | another hash than was recorded                  |

Whatever is refused says what was found. It counts against the kind and the host, as every pod does that does not come up.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from importlib import resources
from statistics import median
from typing import Final

from attrs import field, frozen

from nested_rl import serialize, weights
from nested_rl.compute.provider import Candidate
from nested_rl.errors import InfraFault, SettingsError
from nested_rl.interfaces import Machine

_FIELDS: Final = "name,memory.total,memory.used,driver_version,ecc.errors.uncorrected.volatile.total"
ASK: Final = ("nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits")
ASK_S: Final = 60.0
CANARY_S: Final = 180.0
"""Torch is imported from a disk that nobody has read yet."""
LABEL: Final = 0.9
"""A GPU shows at least this share of the memory on its label."""
FREE_MIB: Final = 1024
"""At most so much GPU memory may be taken on a pod that has just come up."""
FREE_DISK_GIB: Final = 5.0
DRIVER: Final = 570
"""CUDA 12.8 came with it."""
SLOW: Final = 2.0
USUAL_OF: Final = 3
"""Pods of a kind that must have been seen before one can be called slow; the last so many of each are remembered."""
REMEMBERED: Final = 32


@frozen(kw_only=True)
class _Gpu:
    name: str
    total_mib: float
    used_mib: float
    driver: str
    ecc: int


@frozen(kw_only=True)
class _Canary:
    """What `canary.py` answers: best seconds by GPU, and of the processor."""

    torch: str = ""
    cuda: str = ""
    gpus: Sequence[float] = ()
    cpu_s: float = 0.0
    error: str = ""


@frozen(kw_only=True)
class Preflight:
    """For a pod that has just come up. Raises InfraFault, which says what is wrong with it.

    `bases` are to be there with the recorded weights, before a job needs them: what is missing is downloaded, for which
    `Terms(preflight_s=…)` must leave the time. Without `canary` no CUDA program is run: for images that have no torch.
    """

    bases: Sequence[str] = ()
    canary: bool = True
    _seen: Mapping[str, deque[float]] = field(factory=lambda: defaultdict(lambda: deque(maxlen=REMEMBERED)), init=False)

    async def __call__(self, machine: Machine, candidate: Candidate) -> None:
        await recheck(machine, candidate)
        for gpu in await _gpus(machine):
            if gpu.used_mib > FREE_MIB:
                raise InfraFault(f"{gpu.used_mib:.0f} MiB of the memory of its {gpu.name} are taken")
        if self.canary:
            self._fast_enough(await _canary(machine, candidate), candidate)
        for base in self.bases:
            await weights.locate(machine, base)

    def _fast_enough(self, told: _Canary, candidate: Candidate) -> None:
        slowest = {"a GPU": max(told.gpus), "its processor": told.cpu_s}
        for what, seconds in slowest.items():
            seen = self._seen[f"{what} of {candidate.name}"]
            before, enough = list(seen), len(seen) >= USUAL_OF
            seen.append(seconds)
            if enough and seconds > SLOW * (usual := median(before)):
                raise InfraFault(
                    f"it is slow: {what} takes {seconds:.3g} s for what takes {usual:.3g} s on others of {candidate.name}"
                )


async def recheck(machine: Machine, candidate: Candidate) -> None:
    """The same between two jobs, when a model server that is kept warm may have its share of the memory: without canary and bases."""
    gpus = await _gpus(machine)
    if len(gpus) != candidate.gpus:
        raise InfraFault(f"it has {len(gpus)} GPUs, not {candidate.gpus}")
    for gpu in gpus:
        if not _same(gpu.name, candidate.gpu):
            raise InfraFault(f"its GPU is {gpu.name!r}, not {candidate.gpu!r}")
        if gpu.total_mib / 1024 < LABEL * candidate.gpu_memory_gib:
            raise InfraFault(f"its {gpu.name} has {gpu.total_mib / 1024:.1f} GiB, not {candidate.gpu_memory_gib:g}")
        if gpu.ecc:
            raise InfraFault(f"its {gpu.name} counts {gpu.ecc} memory errors that could not be corrected")
        if int(gpu.driver.partition(".")[0]) < DRIVER:
            raise InfraFault(f"its driver is {gpu.driver}, {DRIVER} or newer is needed for CUDA 12.8")
    told = await _run(machine, "df", "-Pk", machine.root)
    try:
        free_gib = int(told.splitlines()[-1].split()[3]) / 2**20
    except (IndexError, ValueError):
        raise InfraFault(f"df says {told[:200]!r}") from None
    if free_gib < FREE_DISK_GIB:
        raise InfraFault(f"{free_gib:.1f} GiB of its disk are free, {FREE_DISK_GIB:g} are needed")


def _same(found: str, wanted: str) -> bool:
    """The provider's id and the driver's name are mostly the same; either may say more, such as the memory."""
    a, b = (set(re.split(r"[\s-]+", name.lower())) for name in (found, wanted))
    return a <= b or b <= a


async def _gpus(machine: Machine) -> list[_Gpu]:
    told = await _run(machine, *ASK)
    try:
        return [_gpu(line) for line in told.splitlines() if line.strip()]
    except ValueError:
        raise InfraFault(f"nvidia-smi says {told[:200]!r}") from None


def _gpu(line: str) -> _Gpu:
    name, total, used, driver, ecc = (part.strip() for part in line.split(","))
    int(driver.partition(".")[0])
    counted = int(ecc) if ecc.isdigit() else 0  # "[N/A]" where nobody counts
    return _Gpu(name=name, total_mib=float(total), used_mib=float(used), driver=driver, ecc=counted)


async def _canary(machine: Machine, candidate: Candidate) -> _Canary:
    script = resources.files("nested_rl.compute").joinpath("pod/canary.py").read_bytes()
    path = f"preflight/{hashlib.sha256(script).hexdigest()[:16]}.py"
    try:
        await machine.put(path, script)
    except OSError as error:
        raise InfraFault(f"nothing can be written there: {error}") from error
    told = await _run(machine, "python3", "-I", f"{machine.root}/{path}", timeout_s=CANARY_S)
    try:
        canary = serialize.loads(told.strip().splitlines()[-1], _Canary)
    except (IndexError, SettingsError):
        raise InfraFault(f"the canary says {told[-200:]!r}") from None
    if canary.error:
        raise InfraFault(f"{canary.error} (torch {canary.torch or '-'}, CUDA {canary.cuda or '-'})")
    if len(canary.gpus) != candidate.gpus:
        raise InfraFault(f"CUDA sees {len(canary.gpus)} GPUs, not {candidate.gpus}")
    return canary


async def _run(machine: Machine, *argv: str, timeout_s: float = ASK_S) -> str:
    try:
        done = await machine.run(argv, timeout_s=timeout_s)
    except (OSError, TimeoutError) as error:
        raise InfraFault(f"{argv[0]}: {error}") from error
    if done.returncode != 0:
        raise InfraFault(f"{argv[0]} ends with {done.returncode}: {done.stderr[-200:]}")
    return done.stdout
