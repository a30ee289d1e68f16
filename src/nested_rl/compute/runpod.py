"""Machines rented from Runpod: a warm pool of pods, each reached over SSH with a pinned host key, each with its own dead-man switch."""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from importlib import resources
from pathlib import Path
from typing import Final, Literal

from nested_rl.clock import Clock, SystemClock
from nested_rl.compute.pool import PodPool
from nested_rl.compute.pool_costs import PodCost
from nested_rl.compute.pool_life import Check
from nested_rl.compute.pool_name import PodName
from nested_rl.compute.pool_preflight import Preflight, recheck
from nested_rl.compute.pool_roster import Journal, PodMachine
from nested_rl.compute.pool_terms import Terms
from nested_rl.compute.provider import Candidate, Order, Pod, Provider
from nested_rl.compute.runpod_proof import nonce, proven_host_key
from nested_rl.compute.runpod_rest import URL, RunpodRest
from nested_rl.compute.runpod_sdk import RunpodSDK
from nested_rl.compute.ssh_link import Link
from nested_rl.compute.ssh_login import Host, WrongHostKey, library
from nested_rl.compute.ssh_machine import SSHMachine
from nested_rl.errors import MachineLost, SettingsError
from nested_rl.interfaces import Account, ComputeBackend, Machine
from nested_rl.matrix import paid_seconds, read
from nested_rl.types import Need
from nested_rl.waiting import uninterrupted

IMAGE: Final = "ghcr.io/primeintellect-ai/prime-rl:commit-559b44772"
"""What full-scale jobs are written for. The same everywhere, so that hosts have it already."""
FOLDER: Final = "~/.nested_rl/runpod"
USD_PER_HOUR: Final = 0.5
"""Taken for the price of a machine until the catalog has been read."""
BASE: Final = "/var/lib/nested_rl/machine"
JOB_USER: Final = "nested-rl-job"
"""Whom full-scale jobs run as; a pod makes this user when it starts."""


class RunpodCompute(ComputeBackend):
    """Up to `max_machines` pods of the given kinds, such as "2x NVIDIA RTX A5000" or "NVIDIA A40", in both clouds.

    The key of the account is `RUNPOD_API_KEY` or the provider's own config file; it never reaches a pod. `folder` holds the journal of
    the pods, the run's name and its SSH key; one controller at a time may have it, and one that was killed is followed by the next
    with the same folder, which takes over its pods. A pod ends itself when nobody has been heard of for `lease_s` (`grace_s` before the
    first time), or after `terms.ttl_s`. `account` (a `Meter`) limits what the pods may cost. The pods' figures are in `costs()`.
    `bases` are looked for, or downloaded, and hashed before a pod gets its first job. `provider` "sdk" is the official package, with
    the extra `runpod-sdk`. `matrix` is a table of `nested-rl bench-gpus`: what jobs are expected to take on each kind, until some have run.

    >>> compute = RunpodCompute(["2x NVIDIA RTX A5000", "NVIDIA A40"], max_machines=16)   # doctest: +SKIP
    >>> [f"{offer.gpus} x {offer.gpu_memory_gib:g} GiB" for offer in compute.offers()]    # doctest: +SKIP
    ['2 x 24 GiB', '2 x 24 GiB', '1 x 48 GiB', '1 x 48 GiB']
    """

    def __init__(
        self,
        gpus: Sequence[str | Candidate],
        *,
        max_machines: int = 16,
        image: str = IMAGE,
        folder: str | os.PathLike[str] = FOLDER,
        key: str | None = None,
        url: str = URL,
        user: str = "root",
        python: str = "python3",
        lease_s: float = 600.0,
        grace_s: float = 600.0,
        patience_s: float = 120.0,
        keepalive_s: float = 15.0,
        terms: Terms | None = None,
        account: Account | None = None,
        bases: Sequence[str] = (),
        matrix: str | os.PathLike[str] | None = None,
        preflight: Check | None = None,
        recheck: Check = recheck,
        provider: Provider | Literal["rest", "sdk"] = "rest",
        clock: Clock | None = None,
    ) -> None:
        if isinstance(gpus, str) or not gpus:
            raise SettingsError(f"RunpodCompute needs a list of GPUs, such as ['2x NVIDIA RTX A5000'], not {gpus!r}")
        if max_machines < 1:
            raise SettingsError(f"RunpodCompute(max_machines={max_machines}): at least 1 machine is needed")
        told = [one if isinstance(one, Candidate) else Candidate.read(one) for one in gpus]
        self._candidates = tuple(dict.fromkeys(c for one in told for c in (one if isinstance(one, tuple) else (one,))))
        self._max_machines, self._image, self._url = max_machines, image, url
        self._folder, self._key = Path(folder).expanduser(), key
        if provider not in ("rest", "sdk") and not isinstance(provider, Provider):
            raise SettingsError(f"RunpodCompute(provider={provider!r}): 'rest', 'sdk' or a Provider")
        self._asked, self._provider = provider, None if isinstance(provider, str) else provider
        self._user, self._python = user, python
        self._lease_s, self._grace_s = lease_s, grace_s
        self._patience_s, self._keepalive_s = patience_s, keepalive_s
        self._terms, self._account, self._ledger = terms or Terms(), account, ""
        self._job_s = paid_seconds(read(matrix)) if matrix is not None else {}
        self._preflight, self._recheck = preflight or Preflight(bases=tuple(bases)), recheck
        self._clock = clock or SystemClock()
        self._pool: PodPool | None = None
        self._journal: Journal | None = None
        self._host_keys: dict[str, str] = {}
        self._costs: list[PodCost] = []

    @property
    def max_machines(self) -> int:
        return self._max_machines

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """What it may rent."""
        return self._candidates

    @property
    def terms(self) -> Terms:
        """How long things may take."""
        return self._terms

    @property
    def usd_per_hour(self) -> float:
        """The dearest kind, for reservations."""
        return (self._pool.usd_per_hour if self._pool is not None else 0.0) or USD_PER_HOUR

    def settings(self) -> dict[str, object]:
        """What is recorded with a run."""
        return {
            "gpus": [one.name for one in self._candidates],
            "image": self._image,
            "max_machines": self._max_machines,
        }

    def offers(self) -> Sequence[Need]:
        return [candidate.offer for candidate in self._candidates]

    def machine(self, need: Need) -> AbstractAsyncContextManager[Machine]:
        return self.machine_for(need, job="")

    def machine_for(self, need: Need, *, job: str) -> AbstractAsyncContextManager[Machine]:
        if not any(need.fits(offer) for offer in self.offers()):
            raise SettingsError(f"no GPU of {[one.name for one in self._candidates]} has {need}")
        return self._opened().machine_for(need, job=job)

    def metered(self, account: Account, *, ledger: str) -> None:
        self._account, self._ledger = account, ledger
        if self._pool is not None:
            self._pool.metered(account, ledger=ledger)

    def costs(self) -> list[PodCost]:
        """What each pod has cost and what for."""
        return self._pool.costs() if self._pool is not None else self._costs

    async def close(self) -> None:
        await uninterrupted(self._close())

    async def _close(self) -> None:
        pool, provider, journal = self._pool, self._provider, self._journal
        if pool is None or provider is None or journal is None:
            return
        try:
            await pool.close()
        finally:
            self._costs = pool.costs()
            self._pool = self._journal = self._provider = None
            journal.release()
            await provider.close()

    def _opened(self) -> PodPool:
        """The pool; the first lease makes it."""
        if self._pool is None:
            library()
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._provider = self._provider or self._own_provider()
            self._journal = Journal(self._folder / "pods.jsonl")
            self._pool = PodPool(
                self._provider,
                self._candidates,
                run=self._run(),
                journal=self._journal,
                order=self._order,
                connect=self._connect,
                preflight=self._preflight,
                recheck=self._recheck,
                max_machines=self._max_machines,
                terms=self._terms,
                alone_s=max(self._lease_s, self._grace_s),
                account=self._account,
                job_s=self._job_s,
                clock=self._clock,
            )
            if self._account is not None:
                self._pool.metered(self._account, ledger=self._ledger)
        return self._pool

    def _own_provider(self) -> Provider:
        if self._asked == "sdk":
            return RunpodSDK(key=self._key, clock=self._clock)
        return RunpodRest(key=self._key, url=self._url, clock=self._clock)

    def _run(self) -> str:
        """Eight letters that the pods of this folder are named after."""
        path = self._folder / "name"
        if not path.exists():
            path.write_text(secrets.token_hex(4), encoding="ascii")
        return path.read_text(encoding="ascii").strip()

    def _login(self) -> Path:
        """The private key that opens the pods, made once for this folder."""
        path = self._folder / "login"
        if not path.exists():
            made = library().generate_private_key("ssh-ed25519")
            draft = path.with_name("login.new")
            draft.touch(mode=0o600)
            made.write_private_key(str(draft))
            made.write_public_key(f"{path}.pub")
            draft.replace(path)
        return path

    def _base(self, name: str) -> str:  # noqa: ARG002  one pod has one folder
        """Where the host program lives on a pod; its lock is touched while the controller is heard of."""
        return BASE

    def _order(self, name: PodName, candidate: Candidate) -> Order:
        env = {
            "PUBLIC_KEY": Path(f"{self._login()}.pub").read_text(encoding="ascii").strip(),
            "NRL_NONCE": self._nonce(str(name)),
            "NRL_PYTHON": self._python,
            "NRL_JOB_USER": JOB_USER,
            "NRL_DEADLINE": str(name.deadline),
            "NRL_TTL_S": str(max(0, int(name.deadline - self._clock.now()))),
            "NRL_LEASE": f"{self._base(str(name))}/lock",
            "NRL_LEASE_S": str(int(self._lease_s)),
            "NRL_GRACE_S": str(int(self._grace_s)),
        }
        return Order(name=str(name), candidate=candidate, image=self._image, env=env, args=start_args())

    async def _connect(self, pod: Pod) -> tuple[Machine, PodMachine]:
        if pod.ssh is None:
            raise MachineLost(f"{pod.name} has no port for SSH")
        address, port = pod.ssh
        host = Host(
            address=f"{self._user}@{address}:{port}",
            key=str(self._login()),
            host_key=await self._host_key(pod.id, pod.name, pod.ssh),
            python=self._python,
            folder=self._base(pod.name),
            usd_per_hour=pod.usd_per_hour,
        )
        link = Link(
            host,
            clock=self._clock,
            patience_s=self._patience_s,
            lease_s=self._lease_s,
            keepalive_s=self._keepalive_s,
        )
        try:
            await link.open()
        except WrongHostKey as error:  # the address may still be another's, which is no fault of the request
            await uninterrupted(link.close())
            raise MachineLost(str(error)) from error
        except BaseException:
            await uninterrupted(link.close())
            raise
        machine = SSHMachine(link)
        return machine, machine

    def _nonce(self, name: str) -> str:
        return nonce(self._login().read_bytes(), name)

    async def _host_key(self, pod_id: str, name: str, address: tuple[str, int]) -> str:
        """Learnt once. Not there yet: MachineLost, to be asked again."""
        if pod_id not in self._host_keys:
            self._host_keys[pod_id] = await proven_host_key(*address, self._nonce(name))
        return self._host_keys[pod_id]


def start_args() -> str:
    """The command of a pod: `boot.sh`, encoded, because quotes do not survive every way there."""
    script = resources.files("nested_rl.compute").joinpath("pod/boot.sh").read_bytes()
    told = base64.b64encode(script).decode()
    home = "${NRL_HOME:-/var/lib/nested_rl}"
    return f"bash -c 'mkdir -p {home} && echo {told} | base64 -d > {home}/boot.sh && exec bash {home}/boot.sh'"
