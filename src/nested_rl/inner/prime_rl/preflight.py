"""What a machine has, looked at before its first job, and whether full-scale jobs can run there."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from weakref import WeakKeyDictionary

from attrs import field, frozen

from nested_rl import serialize
from nested_rl.errors import InfraFault, MachineLost, SettingsError
from nested_rl.inner.prime_rl import pin
from nested_rl.interfaces import Machine
from nested_rl.pyz import packed

PATIENCE_S = 180.0
DISK_GIB = 20.0
"""Room for the weights, logs and caches of one job."""
FREE_MIB = 600
"""A GPU that holds more than this is in use: a driver with nothing to do holds less."""
GPU_S = 20.0
"""A driver gives memory back within moments."""
PINNED: Mapping[str, str] = {"verifiers": pin.VERIFIERS}

JOB_USER: Final = "nested-rl-job"
"""Who runs jobs on machines where the runner is root. Without such a user a job has a number of its own."""

_RUNNER = Path(__file__).parent / "runner"
_BEGIN = "from runner.main import begin\nbegin()\n"


@frozen(kw_only=True)
class Gpu:
    """One GPU. Memory is in MiB, `ecc` counts uncorrected errors since the driver was loaded."""

    index: int
    name: str
    total_mib: int
    used_mib: int
    ecc: int = 0
    driver: str = ""


@frozen(kw_only=True)
class Facts:
    """A machine as it was found. `versions` are of the packages beside `program`, `image` is what its maker wrote down.

    `open` says why a job there is not kept apart from the runner and from the code that scores it; "" when it is.
    """

    program: str = ""
    versions: Mapping[str, str] = field(factory=dict)
    commit: str = ""
    image: str = ""
    gpus: tuple[Gpu, ...] = ()
    driver_fault: str = ""
    disk_gib: float = 0.0
    user: str = ""
    open: str = "nobody looked"
    python: str = ""
    system: str = ""

    @property
    def told(self) -> str:
        """One line, for the log of a job."""
        cards = ", ".join(f"{gpu.name} {gpu.total_mib} MiB" for gpu in self.gpus) or "no GPU"
        driver = next((gpu.driver for gpu in self.gpus), "none")
        packages = " ".join(f"{name}=={version}" for name, version in sorted(self.versions.items()))
        return (
            f"machine: {cards}; driver {driver}; {packages or 'no packages'}; commit {self.commit or 'not told'}; "
            f"image {self.image or 'not told'}; {self.disk_gib:.0f} GiB of disk; {self.system}"
        )


@functools.cache
def runner() -> bytes:
    """The runner as one file that any Python from 3.10 on can run; the same bytes for the same source."""
    return packed(_BEGIN, {f"runner/{path.name}": path.read_bytes() for path in sorted(_RUNNER.glob("*.py"))})


async def installed(machine: Machine) -> tuple[str, ...]:
    """Put the runner on the machine; the command that starts it."""
    path = f"prime-rl/runner-{hashlib.sha256(runner()).hexdigest()[:16]}.pyz"
    await machine.put(path, runner())
    return ("python3", "-I", f"{machine.root}/{path}")


async def preflight(
    machine: Machine,
    *,
    gpus: str,
    program: str = "rl",
    versions: Mapping[str, str] = PINNED,
    gpu_s: float = GPU_S,
    user: str = JOB_USER,
) -> Facts:
    """What the machine has; it is asked once. Raises InfraFault that names everything missing for a job on the devices `gpus`.

    `versions` are packages that must be there, exactly. GPUs that a program has just left are given `gpu_s` to be free.
    """
    known = _KNOWN.get(machine) or await facts(machine, program, gpus=gpus, gpu_s=gpu_s, user=user)
    forget(machine)
    if problems := list(_missing(known, gpus, program, versions)):
        raise InfraFault(f"{machine.id} cannot run full-scale jobs: {'; '.join(problems)}")
    _KNOWN[machine] = known
    return known


class NotApart(InfraFault):
    """A native taskset is agent-written code outside of any sandbox, and this machine does not keep it apart."""


def require_apart(machine: Machine, facts: Facts) -> None:
    """Raises NotApart unless a job's user on the machine is another than the runner's, and can write no code that runs later."""
    if facts.open:
        raise NotApart(
            f"{machine.id} runs no verifiers tasksets: {facts.open}. Let the runner be root, with prime-rl and the bases where every "
            "user can read and only root can write, or accept the risk with PrimeRLTrainer(allow_weak_sandbox=True)"
        )


def forget(machine: Machine) -> None:
    """Ask this machine again before its next job."""
    _KNOWN.pop(machine, None)


async def facts(
    machine: Machine, program: str = "rl", *, gpus: str = "", gpu_s: float = GPU_S, user: str = JOB_USER
) -> Facts:
    """Ask the machine. Raises MachineLost when it gives no sensible answer."""
    try:
        command = [*await installed(machine), "facts", program, gpus, str(FREE_MIB), str(gpu_s), user]
        told = await machine.run(command, timeout_s=PATIENCE_S + gpu_s)
        if told.returncode != 0:
            raise MachineLost(f"{machine.id} cannot run the runner: {told.stderr.strip()[-500:]}")
        return serialize.loads(told.stdout, Facts)
    except (OSError, TimeoutError, SettingsError) as error:
        raise MachineLost(f"{machine.id} does not say what it has: {error}") from error


def _missing(facts: Facts, gpus: str, program: str, versions: Mapping[str, str]) -> Iterator[str]:
    if not facts.program:
        yield f"{program} is not installed (not on the PATH, not where {pin.IMAGE} has it)"
    for name, version in versions.items():
        found = facts.versions.get(name)
        if facts.program and found != version:
            yield f"{name} is {found or 'not installed'}, jobs are written for {version}"
    if facts.commit and facts.commit != pin.COMMIT:
        yield f"prime-rl is at {facts.commit[:12]}, jobs are written for {pin.COMMIT[:12]}"
    if facts.driver_fault:
        yield facts.driver_fault
    devices = {str(gpu.index): gpu for gpu in facts.gpus}
    for device in sorted({device.strip() for device in gpus.split(",")} - {""}):
        if device not in devices:
            yield f"there is no GPU {device}"
        elif devices[device].used_mib > FREE_MIB:
            yield f"GPU {device} is in use ({devices[device].used_mib} MiB)"
    if facts.disk_gib < DISK_GIB:
        yield f"only {facts.disk_gib:.1f} GiB of disk are free, {DISK_GIB:g} are needed"


_KNOWN: WeakKeyDictionary[Machine, Facts] = WeakKeyDictionary()
