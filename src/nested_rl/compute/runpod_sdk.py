"""Runpod through its official package, the second way to the same pods. It speaks GraphQL, which is announced to end in early 2027.

The package waits where it asks, so it is asked in threads. Its own `create_pod` and `terminate_pod` take their key from a variable of
the whole process: here the queries that they make are sent with this account's key, and that variable is left alone. An HTTP status
cannot be seen through it: failures are told apart by what they say, and a failed create that says nothing known is `Unknown`. It has
no logs, no bills, no start times; the address of the API is its own variable, RUNPOD_API_BASE_URL.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from nested_rl import redact
from nested_rl.clock import Clock, SystemClock
from nested_rl.compute.provider import (
    Candidate,
    Gone,
    NoCapacity,
    Order,
    OutOfMoney,
    Pod,
    PodStatus,
    Price,
    Provider,
    ProviderError,
    Refused,
    Throttled,
    Unknown,
    Wrong,
    lacks_capacity,
)
from nested_rl.compute.rate import RateLimit
from nested_rl.compute.runpod_rest import PER_MINUTE, api_key
from nested_rl.errors import MissingExtra

_DEPLOY: Final = "mutations.pods:generate_pod_deployment_mutation"
THREADS: Final = 8
PAUSE_S: Final = 30.0
"""After too many requests: for how long is not to be seen."""
CUDA: Final = tuple(f"{major}.{minor}" for major in (12, 13) for minor in range(10))
"""GraphQL knows no least version, only a list of those that are allowed."""
_STATUS: Final[Mapping[str, PodStatus]] = {
    "EXITED": "exited",
    "PAUSED": "exited",
    "DEAD": "error",
    "TERMINATED": "terminated",
}
_MONEY: Final = re.compile(r"\b(balance|funds|credits?|spend(ing)? limit)\b", re.IGNORECASE)
_BUSY: Final = re.compile(r"too many requests|rate limit", re.IGNORECASE)
_FORBIDDEN: Final = re.compile(r"forbidden|not authorized|permission|error code: 1010", re.IGNORECASE)
_INVALID: Final = re.compile(
    r"cannot query field|is not defined by type|syntax error|is invalid|unknown argument", re.IGNORECASE
)
_NOT_REACHED: Final = ("NewConnectionError", "NameResolutionError", "ConnectTimeoutError")


class RunpodSDK(Provider):
    """The account that `key` belongs to. The package is imported by the first request, which takes about two seconds."""

    def __init__(self, *, key: str | None = None, clock: Clock | None = None, timeout_s: float = 45.0) -> None:
        if importlib.util.find_spec("runpod") is None:
            raise MissingExtra("RunpodSDK", "runpod-sdk")
        self._key = key or api_key()
        redact.know(self._key)
        self._limit = RateLimit(clock or SystemClock(), per_minute=PER_MINUTE)
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="runpod")

    async def create(self, order: Order) -> Pod:
        made = self._ask("podFindAndDeployOnDemand", _DEPLOY, unsure=True, **_asked(order))
        told, one = await made, order.candidate
        if not isinstance(told, dict) or not told.get("id"):
            raise Unknown(f"the provider's answer tells no pod: {str(told)[:200]}")
        return Pod(id=told["id"], name=order.name, status="provisioning", gpus=one.gpus, gpu=one.gpu, cloud=one.cloud)

    async def list(self) -> Sequence[Pod]:
        told = await self._ask("myself", "queries.pods:QUERY_POD")
        if not isinstance(told, dict) or not isinstance(told.get("pods"), list):
            raise ProviderError(f"the provider's answer tells no pods: {str(told)[:200]}")
        return [_pod(row) for row in told["pods"]]

    async def get(self, pod_id: str) -> Pod:
        told = await self._ask("pod", "queries.pods:generate_pod_query", pod_id=_quoted(pod_id))
        if told is None:
            raise Gone(f"there is no pod {pod_id}")
        return _pod(told)

    async def terminate(self, pod_id: str) -> None:
        end = "mutations.pods:generate_pod_terminate_mutation"
        try:
            await self._ask("podTerminate", end, first=True, pod_id=_quoted(pod_id))
        except ProviderError as error:
            if "not found" not in str(error).lower():
                raise

    async def prices(self, candidates: Sequence[Candidate]) -> Sequence[Price]:
        found: list[Price] = []
        for gpu in sorted({candidate.gpu for candidate in candidates}):
            rows = await self._ask("gpuTypes", "queries.gpus:generate_gpu_query", gpu_id=_quoted(gpu))
            row: Mapping[str, Any] = next(iter(rows or ()), {})
            for candidate in (one for one in candidates if one.gpu == gpu):
                each = row.get(f"{candidate.cloud}Price")
                if each and row.get(f"{candidate.cloud}Cloud", True):
                    found.append(Price(candidate=candidate, usd_per_hour=float(each) * candidate.gpus))
        return found

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _ask(self, field: str, query: str, *, unsure: bool = False, first: bool = False, **told: Any) -> Any:
        """What `field` of the answer holds. `query` is where the package has the text, or what makes it of `told`.

        `unsure` is for a request that may have had its effect although no good answer came.
        """

        def work() -> Any:
            from runpod.api.graphql import run_graphql_query

            module, _, name = query.partition(":")
            text = getattr(importlib.import_module(f"runpod.api.{module}"), name)
            return run_graphql_query(text(**told) if told else text, api_key=self._key)["data"][field]

        await self._limit.turn(first=first)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except Exception as error:
            named = _named(error, field, unsure=unsure)
            if isinstance(named, Throttled):
                self._limit.pause(named.after_s)
            raise named from error


def _asked(order: Order) -> dict[str, Any]:
    """An order as the package's function takes it, which puts every text into the query as it is: quotes and all."""
    least = tuple(map(int, order.min_cuda.split(".")))
    return {
        "name": _quoted(order.name),
        "image_name": _quoted(order.image),
        "gpu_type_id": _quoted(order.candidate.gpu),
        "gpu_count": order.candidate.gpus,
        "cloud_type": order.candidate.cloud.upper(),
        "support_public_ip": True,
        "start_ssh": False,
        "volume_in_gb": 0,
        "container_disk_in_gb": order.candidate.disk_gib,
        "docker_args": _quoted(order.args) if order.args else None,
        "ports": "22/tcp",
        "env": {_quoted(name): _quoted(value) for name, value in order.env.items()},
        "allowed_cuda_versions": [version for version in CUDA if tuple(map(int, version.split("."))) >= least],
    }


def _quoted(text: str) -> str:
    """As it stands between the quotes of a GraphQL string, whose escapes are those of JSON."""
    return json.dumps(text)[1:-1]


def _named(error: Exception, field: str, *, unsure: bool) -> ProviderError | Wrong:
    """The failure by its name."""
    import requests
    from runpod.error import AuthenticationError, QueryError

    page = str(getattr(error, "doc", ""))  # an answer that is no JSON
    message = f"{field}: {type(error).__name__}: {(page or str(error))[:400]}"
    if isinstance(error, AuthenticationError):
        return Wrong(f"{message}; the key is not accepted: check RUNPOD_API_KEY")
    if isinstance(error, requests.ConnectionError) and _not_reached(error):
        return ProviderError(f"{field}: not reached ({type(error).__name__})")
    said = page or (str(error) if isinstance(error, QueryError) else "")
    if _BUSY.search(said):
        return Throttled(message, after_s=PAUSE_S)
    if _FORBIDDEN.search(said):
        return Refused(message)
    if isinstance(error, QueryError):
        if _MONEY.search(said):
            return OutOfMoney(message)
        if lacks_capacity(said):
            return NoCapacity(message)
        if _INVALID.search(said):
            return Wrong(message)
    return (Unknown if unsure else ProviderError)(message)


def _not_reached(error: Exception) -> bool:
    """Nothing was sent: there was no connection."""
    reason = getattr(error.args[0], "reason", None) if error.args else None
    return type(reason).__name__ in _NOT_REACHED


def _pod(row: Mapping[str, Any]) -> Pod:
    """A pod as told. `desiredStatus` is what is wanted of it: it runs once it has a runtime. `uptimeSeconds` is often 0 and left out."""
    if not isinstance(row, Mapping) or not row.get("id"):
        raise ProviderError(f"the provider's answer tells no pod: {str(row)[:200]}")
    runtime, desired = row.get("runtime"), str(row.get("desiredStatus"))
    up: PodStatus = "running" if runtime else "starting"
    ports = (runtime or {}).get("ports") or ()
    ssh = [(str(p["ip"]), int(p["publicPort"])) for p in ports if p.get("privatePort") == 22 and p.get("isIpPublic")]
    return Pod(
        id=str(row["id"]),
        name=str(row.get("name") or ""),
        status=_STATUS.get(desired, up),
        usd_per_hour=float(row.get("costPerHr") or 0.0),
        ssh=ssh[0] if ssh else None,
        gpus=int(row.get("gpuCount") or 0),
        gpu=str((row.get("machine") or {}).get("gpuDisplayName") or ""),
    )
