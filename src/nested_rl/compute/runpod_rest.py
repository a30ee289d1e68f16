"""Runpod's REST API, version 2: requests carried, answers read with tolerance, failures named.

Version 1 was retired in November 2026 and GraphQL is announced to end in early 2027; version 2 has no idempotency key, no time limit
for a pod and no list of alternatives, so all of these are the pool's. What a pod's `env` holds is shown in clear text by the
provider: nothing secret goes there.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Literal, cast

import httpx

from nested_rl import redact
from nested_rl.clock import Clock, SystemClock
from nested_rl.compute.provider import (
    Candidate,
    Cloud,
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
    Rejected,
    Throttled,
    Unknown,
    Wrong,
    lacks_capacity,
)
from nested_rl.compute.rate import RateLimit
from nested_rl.errors import SettingsError
from nested_rl.types import JSON

URL: Final = "https://api.runpod.io"
CONFIG: Final = "~/.runpod/config.toml"
"""Where the provider's own tools keep the key."""
PER_MINUTE: Final = 50
"""The provider's example policy is 60; others of the account need some too."""
_STATUS: Final[Mapping[str, PodStatus]] = {
    "PROVISIONING": "provisioning",
    "STARTING": "starting",
    "RUNNING": "running",
    "EXITED": "exited",
    "ERROR": "error",
    "TERMINATED": "terminated",
}


def api_key(env: Mapping[str, str] = os.environ, *, config: str = CONFIG) -> str:
    """From RUNPOD_API_KEY, or what `runpod config` wrote. Raises SettingsError, which says how to set it."""
    if key := env.get("RUNPOD_API_KEY", "").strip():
        return key
    path = Path(config).expanduser()
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError:
        told = {}
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not TOML ({error}); set RUNPOD_API_KEY instead") from None
    for table in (told, told.get("default", {})):
        for name in ("apikey", "apiKey", "api_key"):
            if isinstance(table, dict) and isinstance(found := table.get(name), str) and found:
                return found
    raise SettingsError(f"no key for Runpod: set RUNPOD_API_KEY, or run `runpod config` ({path} has none)")


class RunpodRest(Provider):
    """The account that `key` belongs to. One connection pool, one rate limit; no retries. `transport` is httpx's, for tests."""

    def __init__(
        self,
        *,
        key: str | None = None,
        url: str = URL,
        clock: Clock | None = None,
        timeout_s: float = 30.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        key = key or api_key()
        redact.know(key)
        self._clock = clock or SystemClock()
        self._limit = RateLimit(self._clock, per_minute=PER_MINUTE)
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {key}", "User-Agent": f"nested-rl/{version('nested-rl')}"},
            timeout=timeout_s,
            transport=transport,
        )

    async def create(self, order: Order) -> Pod:
        candidate = order.candidate
        body = {
            "name": order.name,
            "image": order.image,
            "gpu": {"id": candidate.gpu, "count": candidate.gpus, "minCudaVersion": order.min_cuda},
            "cloud": candidate.cloud.upper(),
            "disk": candidate.disk_gib,
            "ports": ["22/tcp"],
            "env": dict(order.env),
            "startSsh": False,
            **({"args": order.args} if order.args else {}),
        }
        return _pod(await self._ask("POST", "/v2/pods", body=body, unsure=True))

    async def list(self) -> Sequence[Pod]:
        found: list[Pod] = []
        params: dict[str, str] = {}
        while True:
            answer = await self._ask("GET", "/v2/pods", params=params)
            found += [_pod(row) for row in _rows(answer, "pods")]
            page = answer.get("pagination") if isinstance(answer, dict) else None
            if not (isinstance(page, dict) and page.get("hasNextPage") and page.get("nextCursor")):
                return found
            params = {"cursor": str(page["nextCursor"])}

    async def get(self, pod_id: str) -> Pod:
        return _pod(await self._ask("GET", f"/v2/pods/{pod_id}"))

    async def terminate(self, pod_id: str) -> None:
        try:
            await self._ask("DELETE", f"/v2/pods/{pod_id}", first=True)
        except Gone:
            return

    async def prices(self, candidates: Sequence[Candidate]) -> Sequence[Price]:
        found: list[Price] = []
        for count, cloud in sorted({(c.gpus, c.cloud) for c in candidates}):
            params = {"include": "AVAILABILITY", "product": "POD", "count": str(count), "cloud": cloud.upper()}
            rows = {
                str(r.get("id")): r for r in _rows(await self._ask("GET", "/v2/catalog/gpus", params=params), "gpus")
            }
            for candidate in candidates:
                row = rows.get(candidate.gpu)
                if (candidate.gpus, candidate.cloud) == (count, cloud) and row is not None:
                    found += _price(candidate, row)
        return found

    async def log(self, pod_id: str, *, source: Literal["container", "system"], lines: int = 200) -> str:
        """The end of a pod's log. The provider streams it; what has come when it falls silent is the answer."""
        await self._limit.turn()
        said: list[str] = []
        params = {"source": source, "tail": str(lines)}
        try:
            async with self._http.stream("GET", f"/v2/pods/{pod_id}/logs", params=params, timeout=3.0) as answer:
                if answer.status_code != httpx.codes.OK:
                    await answer.aread()
                    _raise(answer, unsure=False)
                async for line in answer.aiter_lines():
                    if line.startswith("data:"):
                        said.append(line.removeprefix("data:").strip())
                        if len(said) >= lines:
                            break
        except httpx.ReadTimeout:
            pass  # nothing more comes for now
        except httpx.HTTPError as error:
            raise ProviderError(f"the log of {pod_id} cannot be read: {_told(error)}") from error
        return "\n".join(said)

    async def billed(self, *, since: float, until: float) -> Mapping[str, float]:
        """Dollars by pod id, as the provider has billed them so far."""
        params = {"startTime": _time(since), "endTime": _time(until), "bucketSize": "hour"}
        spent: dict[str, float] = {}
        for row in _rows(await self._ask("GET", "/v2/billing/pods", params=params), "records"):
            pod = str(row.get("podId", ""))
            spent[pod] = spent.get(pod, 0.0) + _number(row.get("totalAmount"))
        return spent

    async def close(self) -> None:
        await self._http.aclose()

    async def _ask(
        self,
        method: str,
        path: str,
        *,
        body: JSON = None,
        params: Mapping[str, str] | None = None,
        unsure: bool = False,
        first: bool = False,
    ) -> JSON:
        """The answer as JSON. `unsure` is for requests that may have had their effect although no good answer came."""
        await self._limit.turn(first=first)
        try:
            answer = await self._http.request(method, path, json=body, params=params)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise ProviderError(f"{method} {path}: not reached ({_told(error)})") from error
        except httpx.HTTPError as error:
            raise (Unknown if unsure else ProviderError)(f"{method} {path}: no answer ({_told(error)})") from error
        if answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
            self._limit.pause(_retry_after_s(answer))
        if not answer.is_success:
            _raise(answer, unsure=unsure)
        if not answer.content:
            return {}
        try:
            return answer.json()
        except ValueError as error:
            raise (Unknown if unsure else ProviderError)(f"{method} {path}: the answer is no JSON") from error


def _raise(answer: httpx.Response, *, unsure: bool) -> None:
    """The named failure of an answer that is not a success."""
    code, said = answer.status_code, _detail(answer)
    message = f"{answer.request.method} {answer.request.url.path}: {code} {said}"
    match code:
        case 400:
            raise (NoCapacity if lacks_capacity(said) else Rejected)(message)
        case 401:
            raise Wrong(f"{message}; the key is not accepted: check RUNPOD_API_KEY")
        case 402:
            raise OutOfMoney(message)
        case 403:
            raise Refused(message)
        case 404:
            raise Gone(message)
        case 422:
            raise Wrong(message)
        case 429:
            raise Throttled(message, after_s=_retry_after_s(answer))
    raise (Unknown if unsure and code >= httpx.codes.INTERNAL_SERVER_ERROR else ProviderError)(message)


def _detail(answer: httpx.Response) -> str:
    """What a problem report says, cut to a line."""
    try:
        told = answer.json()
    except (ValueError, UnicodeDecodeError):
        return answer.text[:200].replace("\n", " ")
    if not isinstance(told, dict):
        return str(told)[:200]
    said = [str(told[name]) for name in ("title", "detail", "error", "message") if told.get(name)]
    return "; ".join([*said, *(json.dumps(one) for one in told.get("errors") or ())])[:400]


def _retry_after_s(answer: httpx.Response) -> float:
    try:
        return min(600.0, max(1.0, float(answer.headers.get("Retry-After", "5"))))
    except ValueError:  # a date: clocks differ, a while will do
        return 30.0


def _pod(row: JSON) -> Pod:
    """A pod as told, whatever is missing in it; without an id it is none."""
    if not isinstance(row, dict) or not row.get("id"):
        raise Unknown(f"the provider's answer tells no pod: {str(row)[:200]}")
    direct = (row.get("ssh") or {}).get("direct") or {}
    gpu, runtime = row.get("gpu") or {}, row.get("runtime") or {}
    port = direct.get("port")
    return Pod(
        id=str(row["id"]),
        name=str(row.get("name") or ""),
        status=_STATUS.get(str(row.get("status")), "provisioning"),
        usd_per_hour=_number(row.get("cost")),
        ssh=(str(direct["host"]), int(port)) if direct.get("host") and port else None,
        gpus=int(_number(gpu.get("count"))),
        gpu=str(gpu.get("id") or ""),
        cloud=cast("Cloud", str(row.get("cloud") or "secure").lower()),
        data_center=str(row.get("dataCenterId") or ""),
        uptime_s=_number(runtime["uptime"]) if runtime.get("uptime") is not None else None,
        created_at=_seconds(row.get("createdAt")),
        started_at=_seconds(row.get("startedAt")),
    )


def _price(candidate: Candidate, row: Mapping[str, Any]) -> list[Price]:
    each = (row.get("price") or {}).get(candidate.cloud)
    if each is None:
        return []
    stock = str(row.get("availability") or "unknown").lower()
    known = stock if stock in ("none", "low", "medium", "high") else "unknown"
    return [Price(candidate=candidate, usd_per_hour=_number(each) * candidate.gpus, stock=cast("Any", known))]


def _rows(answer: JSON, name: str) -> list[dict[str, Any]]:
    rows = answer.get(name, ()) if isinstance(answer, dict) else answer
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _number(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return 0.0


def _seconds(value: object) -> float | None:
    try:
        return dt.datetime.fromisoformat(str(value)).timestamp()
    except ValueError:
        return None


def _time(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, tz=dt.UTC).isoformat().replace("+00:00", "Z")


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
