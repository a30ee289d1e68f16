"""The provider seam of the pool: rent a machine, see what is rented, give it back, and what it costs.

A provider only carries requests; which machine to rent, when, and what to make of a failure is the pool's. An answer that does not tell
whether a pod was made is `Unknown`: it is never asked again, the pool looks for the pod by its name. Two implementations, `runpod_rest`
and `runpod_sdk`, pass one suite.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final, Literal, Protocol, TypeAlias, runtime_checkable

from attrs import evolve, field, frozen

from nested_rl.errors import InfraFault, SettingsError
from nested_rl.types import Need

Cloud: TypeAlias = Literal["community", "secure"]
PodStatus: TypeAlias = Literal["provisioning", "starting", "running", "exited", "error", "terminated"]


class ProviderError(InfraFault):
    """The provider refused, or did not answer as it should."""


class NoCapacity(ProviderError):
    """None of this kind is to be had now: another candidate, this one later. Never a job's failure."""


class Rejected(ProviderError):
    """Refused (400) for a reason that is not plainly a lack of capacity. When every candidate says so, the request is wrong."""


class Refused(ProviderError):
    """This candidate or account may not be used (403): leave the candidate alone for long."""


class Wrong(SettingsError):
    """The request itself is wrong (422, a bad image, a bad key): no second try will mend it."""


class OutOfMoney(ProviderError):
    """The balance is used up or too low (402): make no more, let what runs end."""


class Throttled(ProviderError):
    """Too many requests (429). `after_s` is what the provider asks for."""

    def __init__(self, message: str, *, after_s: float) -> None:
        super().__init__(message)
        self.after_s = after_s


class Unknown(ProviderError):
    """Nobody knows whether it was done: a time-out, a reset, a 5xx after the request was sent."""


class Gone(ProviderError):
    """There is no such pod (404)."""


def lacks_capacity(said: str) -> bool:
    """Whether a refusal speaks of a lack of machines: there is no code for it.

    >>> lacks_capacity("There are no longer any instances available with the requested specifications.")
    True
    """
    return any(words in said.lower() for words in _NO_CAPACITY)


_NO_CAPACITY: Final = (
    "no longer any instances",
    "no instances",
    "not enough",
    "no available",
    "out of stock",
    "capacity",
    "does not have the resources",
)


@frozen(kw_only=True)
class Candidate:
    """One way to rent: so many GPUs of one kind in one cloud. Without `gpu_memory_gib` it has what `GPU_MEMORY_GIB` says of one.

    >>> Candidate.read("2x NVIDIA RTX A5000")[0].gpus
    2
    """

    gpu: str
    gpus: int = 1
    cloud: Cloud = "secure"
    gpu_memory_gib: float = field()
    disk_gib: int = 80

    @gpu_memory_gib.default
    def _known(self) -> float:
        memory = GPU_MEMORY_GIB.get(self.gpu)
        if memory is None:
            raise SettingsError(f"{self.gpu!r}: its memory is not known here; give Candidate(gpu=…, gpu_memory_gib=…)")
        return memory

    @functools.cached_property
    def offer(self) -> Need:
        """What a machine of this kind has."""
        return Need(gpus=self.gpus, gpu_memory_gib=self.gpu_memory_gib, disk_gib=self.disk_gib)

    @property
    def name(self) -> str:
        """As written in tables and settings, with its cloud."""
        return f"{self.gpus}x {self.gpu} ({self.cloud})"

    @classmethod
    def read(cls, text: str) -> tuple[Candidate, Candidate]:
        """Both clouds of `[Nx ]GPU NAME`."""
        count, times, rest = text.strip().partition("x ")
        gpus, gpu = (int(count), rest.strip()) if times and count.isdigit() else (1, text.strip())
        if not gpu or gpus < 1:
            raise SettingsError(f"{text!r} names no GPU; write '2x NVIDIA RTX A5000' or 'NVIDIA A40'")
        one = cls(gpu=gpu, gpus=gpus, cloud="community")
        return one, evolve(one, cloud="secure")


GPU_MEMORY_GIB: Mapping[str, float] = {
    "NVIDIA A40": 48,
    "NVIDIA RTX A5000": 24,
    "NVIDIA RTX A6000": 48,
    "NVIDIA GeForce RTX 3090": 24,
    "NVIDIA GeForce RTX 4090": 24,
    "NVIDIA GeForce RTX 5090": 32,
    "NVIDIA L40": 48,
    "NVIDIA L40S": 48,
    "NVIDIA RTX 6000 Ada Generation": 48,
    "NVIDIA A100 80GB PCIe": 80,
    "NVIDIA A100-SXM4-80GB": 80,
    "NVIDIA H100 80GB HBM3": 80,
    "NVIDIA H100 PCIe": 80,
}
"""GPUs by the provider's id. The memory on the label, of one."""


@frozen(kw_only=True)
class Order:
    """What to rent. `env` holds no secret: providers show it in clear text. `args` replaces the image's command."""

    name: str
    candidate: Candidate
    image: str
    env: Mapping[str, str] = field(factory=dict)
    args: str = ""
    min_cuda: str = "12.8"


@frozen(kw_only=True)
class Pod:
    """A rented machine as the provider tells it. `ssh` is host and port, once it has them; `usd_per_hour` is what it costs now.

    `created_at` and `started_at` are seconds since the epoch, None where the provider does not say.
    """

    id: str
    name: str
    status: PodStatus
    usd_per_hour: float = 0.0
    ssh: tuple[str, int] | None = None
    gpus: int = 0
    gpu: str = ""
    cloud: Cloud = "secure"
    data_center: str = ""
    uptime_s: float | None = None
    created_at: float | None = None
    started_at: float | None = None


@frozen(kw_only=True)
class Price:
    """Per hour of a whole machine, live. `stock` is what the catalog says of its availability, which predicts little."""

    candidate: Candidate
    usd_per_hour: float
    stock: Literal["none", "low", "medium", "high", "unknown"] = "unknown"


class Provider(ABC):
    """Asynchronous, without retries of its own. Every method raises ProviderError or Wrong and nothing else."""

    @abstractmethod
    async def create(self, order: Order) -> Pod:
        """Rent one. Unknown means that it may have been made; every other error, that it was not."""

    @abstractmethod
    async def list(self) -> Sequence[Pod]:
        """Every pod of the account, also those of others: the pool knows its own by their names."""

    @abstractmethod
    async def get(self, pod_id: str) -> Pod:
        """One pod. Raises Gone."""

    @abstractmethod
    async def terminate(self, pod_id: str) -> None:
        """Ask for its end, which only `Gone` from `get` confirms. A pod that is gone already is no error."""

    @abstractmethod
    async def prices(self, candidates: Sequence[Candidate]) -> Sequence[Price]:
        """What they cost now; those that are not offered are left out."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of connections."""


@runtime_checkable
class Logged(Protocol):
    """Optional: the end of a pod's log, for the reasons of a pod that does not come up, and for its host key."""

    async def log(self, pod_id: str, *, source: Literal["container", "system"], lines: int = 200) -> str:
        """The last lines."""


@runtime_checkable
class Billed(Protocol):
    """Optional: what the provider says that pods cost, hours later."""

    async def billed(self, *, since: float, until: float) -> Mapping[str, float]:
        """Dollars by pod id."""
