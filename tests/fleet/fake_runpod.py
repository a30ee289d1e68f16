"""A fake of Runpod's REST API v2: strict about what it is sent, with a ledger of its own, and able to fail in every known way.

`FakeRunpod.handle` is the whole server, on a clock that is given to it: behind `httpx.MockTransport` for virtual time, behind a real
HTTP server for pods that are real processes. At /graphql it answers what the official package asks (`fake_runpod_graphql`).
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import fake_runpod_graphql

from nested_rl.testing.provider import Sent

KEY = "rpa_TESTKEY0123456789"
PRICES = {"NVIDIA A40": (None, 0.44), "NVIDIA RTX A5000": (0.16, 0.27), "NVIDIA GeForce RTX 4090": (0.34, 0.74)}
"""Dollars per hour of one GPU: community, secure."""
CREATE = {
    "name": str,
    "image": str,
    "gpu": dict,
    "cloud": str,
    "disk": int,
    "ports": list,
    "env": dict,
    "args": str,
    "startSsh": bool,
}
NEEDED = ("name", "image", "gpu")
GPU = {"id": str, "count": int, "minCudaVersion": str, "allowedCudaVersions": list}
NO_CAPACITY = (
    "There are no longer any instances available with the requested specifications. Please refresh and try again."
)


@attrs.define
class FakePod:
    """One pod, with what it cost so far."""

    id: str
    body: Mapping[str, Any]
    created_at: float
    usd_per_hour: float
    status: str = "PROVISIONING"
    ssh: tuple[str, int] | None = None
    started_at: float | None = None
    ended_at: float | None = None
    data_center: str = "EU-RO-1"
    log: dict[str, list[str]] = attrs.field(factory=lambda: {"container": [], "system": []})

    @property
    def name(self) -> str:
        return self.body["name"]

    def told(self, now: float) -> dict[str, Any]:
        running = self.status == "RUNNING"
        return {
            "id": self.id,
            "name": self.name,
            "status": self.status,
            "actions": ["terminate"],
            "gpu": {"id": self.body["gpu"]["id"], "count": self.body["gpu"].get("count", 1)},
            "cloud": self.body.get("cloud", "SECURE"),
            "dataCenterId": self.data_center,
            "ssh": {"direct": {"host": self.ssh[0], "port": self.ssh[1], "username": "root"} if self.ssh else None},
            "cost": self.usd_per_hour,
            "runtime": {"uptime": now - (self.started_at or now)} if running else None,
            "createdAt": _time(self.created_at),
            "startedAt": _time(self.started_at) if self.started_at is not None else None,
            "env": dict(self.body.get("env", {})),
        }


class FakeRunpod:
    """`faults[call]` holds what goes wrong next in create, list, get, terminate, prices or billing: an HTTP status, "hang", or a name below.

    create: "nocap", "500-after" (made all the same), "hang-after". list: "empty", "partial", "stale". terminate: "accepted" (and
    nothing happens). `boot` is called with each new pod and decides when it runs; by default it runs at once, at `ssh`.
    """

    def __init__(self, now: Callable[[], float], *, boot: Callable[[FakePod], None] | None = None) -> None:
        self.now = now
        self.boot = boot or self.run
        self.end: Callable[[FakePod], None] = lambda pod: None
        self.pods: dict[str, FakePod] = {}
        self.faults: dict[str, list[Any]] = {}
        self.requests: list[tuple[str, str, Any]] = []
        self.most = 0
        self.capacity: dict[tuple[str, str], int] = {}
        self._ids = itertools.count(1)
        self._stale: list[dict[str, Any]] = []

    # ---- the ledger

    def alive(self) -> list[FakePod]:
        return [pod for pod in self.pods.values() if pod.ended_at is None]

    def usd(self) -> float:
        """What all pods cost, by this side's own clock."""
        spent = [(pod.ended_at or self.now()) - pod.created_at for pod in self.pods.values()]
        return sum(s / 3600 * p.usd_per_hour for s, p in zip(spent, self.pods.values(), strict=True))

    def run(self, pod: FakePod, ssh: tuple[str, int] | None = ("127.0.0.1", 22)) -> None:
        pod.status, pod.ssh, pod.started_at = "RUNNING", ssh, self.now()

    def lose(self, pod: FakePod) -> None:
        """The host is lost, or somebody ends the pod in the console."""
        if pod.ended_at is None:
            pod.status, pod.ended_at = "TERMINATED", self.now()
            self.end(pod)

    # ---- the server

    def handle(  # noqa: C901  one line a route
        self, method: str, path: str, params: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body; None as status means that no answer ever comes."""
        told = json.loads(body) if body else None
        self.requests.append((method, path, told))
        if headers.get("authorization") != f"Bearer {KEY}" and not self._own_key(headers, path):
            return self._problem(401, "Unauthorized", "invalid API key")
        if not any(name in headers.get("user-agent", "") for name in ("nested-rl/", "curl", "RunPod-Python-SDK/")):
            return self._problem(403, "Forbidden", "error code: 1010")
        if (method, path) == ("POST", "/graphql"):
            return fake_runpod_graphql.answer(self, told)
        match method, path.strip("/").split("/")[1:]:
            case "POST", ["pods"]:
                return self._create(told)
            case "GET", ["pods"]:
                return self._list()
            case "GET", ["pods", pod_id]:
                return self._get(pod_id)
            case "GET", ["pods", pod_id, "logs"]:
                return self._logs(pod_id, params)
            case "DELETE", ["pods", pod_id]:
                return self._terminate(pod_id)
            case "POST", ["pods", pod_id, "action"]:
                return self._action(pod_id, told)
            case "GET", ["catalog", "gpus"]:
                return self._catalog(params)
            case "GET", ["billing", "pods"]:
                return self._billing(params)
        return self._problem(404, "Not Found", f"no route {method} {path}")

    def _own_key(self, headers: Mapping[str, str], path: str) -> bool:
        """A pod's own key ends that pod, and does nothing else."""
        told = headers.get("authorization", "").removeprefix("Bearer pod-key-")
        return told in self.pods and path in (f"/v2/pods/{told}", f"/v2/pods/{told}/action")

    def _create(self, body: Any) -> tuple[int, dict[str, str], bytes]:
        fault = self._fault("create")
        wrong = _wrong(body)
        if wrong:
            return self._problem(422, "Unprocessable Entity", wrong)
        gpu, count, cloud = body["gpu"]["id"], body["gpu"].get("count", 1), body.get("cloud", "SECURE")
        price = PRICES.get(gpu, (None, None))[cloud == "SECURE"]
        room = self.capacity.get((gpu, cloud), 10**9)
        taken = sum(p.body["gpu"]["id"] == gpu and p.body.get("cloud", "SECURE") == cloud for p in self.alive())
        if price is None or taken >= room or fault == "nocap":
            return self._problem(400, "Bad Request", NO_CAPACITY)
        if bad := self._bad(fault):
            return bad
        pod = FakePod(
            id=f"pod{next(self._ids)}", body=body, created_at=self.now(), usd_per_hour=round(price * count, 4)
        )
        self.pods[pod.id] = pod
        self.most = max(self.most, len(self.alive()))
        answer = pod.told(self.now())
        self.boot(pod)
        if fault == "500-after":
            return self._status(500)
        return (None, {}, b"") if fault == "hang-after" else self._json(201, answer)

    def _list(self) -> tuple[int, dict[str, str], bytes]:
        fault = self._fault("list")
        if bad := self._bad(fault):
            return bad
        now = [pod.told(self.now()) for pod in self.alive()]
        shown = {"empty": [], "partial": now[: len(now) // 2], "stale": self._stale}.get(fault, now)
        self._stale = now
        return self._json(200, {"pods": shown})

    def _get(self, pod_id: str) -> tuple[int, dict[str, str], bytes]:
        fault = self._fault("get")
        if bad := self._bad(fault):
            return bad
        pod = self.pods.get(pod_id)
        if pod is None or pod.ended_at is not None:
            return self._problem(404, "Not Found", f"pod {pod_id} not found")
        return self._json(200, pod.told(self.now()))

    def _logs(self, pod_id: str, params: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
        pod = self.pods.get(pod_id)
        if pod is None:
            return self._problem(404, "Not Found", f"pod {pod_id} not found")
        lines = pod.log[params.get("source", "container")][-int(params.get("tail", "100")) :]
        return 200, {"content-type": "text/event-stream"}, "".join(f"data: {line}\n\n" for line in lines).encode()

    def _terminate(self, pod_id: str) -> tuple[int, dict[str, str], bytes]:
        fault = self._fault("terminate")
        if bad := self._bad(fault):
            return bad
        pod = self.pods.get(pod_id)
        if pod is None or pod.ended_at is not None:
            return self._problem(404, "Not Found", f"pod {pod_id} not found")
        if fault != "accepted":
            self.lose(pod)
        return 204, {}, b""

    def _action(self, pod_id: str, body: Any) -> tuple[int, dict[str, str], bytes]:
        if body != {"action": "terminate"}:
            return self._problem(409, "Conflict", f"not now: {body}")
        status, headers, told = self._terminate(pod_id)
        return (200, headers, b"{}") if status == 204 else (status, headers, told)

    def _catalog(self, params: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
        fault = self._fault("prices")
        if bad := self._bad(fault):
            return bad
        secure = params["cloud"] == "SECURE"
        found = [
            {"id": gpu, "price": {"community": both[0], "secure": both[1]}, "availability": "LOW", "maxCount": 8}
            for gpu, both in PRICES.items()
            if both[secure] is not None
        ]
        return self._json(200, {"gpus": found})

    def _billing(self, params: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
        fault = self._fault("billing")
        if bad := self._bad(fault):
            return bad
        if not {"startTime", "endTime"} <= set(params):
            return self._problem(400, "Bad Request", "endTime is required with startTime")
        rows = [
            {"podId": p.id, "totalAmount": ((p.ended_at or self.now()) - p.created_at) / 3600 * p.usd_per_hour}
            for p in self.pods.values()
        ]
        return self._json(200, {"records": rows})

    def _fault(self, call: str) -> Any:
        waiting = self.faults.get(call)
        return waiting.pop(0) if waiting else None

    def _bad(self, fault: Any) -> tuple[int | None, dict[str, str], bytes] | None:
        """The answer, or none at all, to a request that has no effect."""
        if fault == "hang":
            return None, {}, b""
        return self._status(fault) if isinstance(fault, int) else None

    def _status(self, code: int) -> tuple[int, dict[str, str], bytes]:
        more = {"retry-after": "7"} if code == 429 else {}
        status, headers, body = self._problem(code, "Fault", "as asked for")
        return status, {**headers, **more}, body

    def _problem(self, code: int, title: str, detail: str) -> tuple[int, dict[str, str], bytes]:
        told = {"title": title, "status": code, "detail": detail}
        return code, {"content-type": "application/problem+json"}, json.dumps(told).encode()

    def _json(self, code: int, told: Any) -> tuple[int, dict[str, str], bytes]:
        return code, {"content-type": "application/json"}, json.dumps(told).encode()


_FAULTS = {
    "no capacity": "nocap",
    "forbidden": 403,
    "unauthorised": 401,
    "no money": 402,
    "too many requests": 429,
    "server error": 500,
    "no answer": "hang",
    "made, then a server error": "500-after",
    "made, then no answer": "hang-after",
}


class Backstage:
    """The fake as `ProviderSuite` wants it."""

    def __init__(self, fake: FakeRunpod) -> None:
        self.fake = fake

    def fail(self, call: str, failure: str) -> None:
        self.fake.faults[call] = [_FAULTS[failure]]

    def sent(self, pod_id: str) -> Sent:
        body = self.fake.pods[pod_id].body
        return Sent(name=body["name"], image=body["image"], env=body["env"], args=body["args"])

    def alive(self) -> int:
        return len(self.fake.alive())


def transport(fake: FakeRunpod):
    """The fake without a network: what httpx asks is answered at once, or never."""
    import httpx

    def answer(request: httpx.Request) -> httpx.Response:
        path, params = request.url.path, dict(request.url.params)
        status, headers, body = fake.handle(request.method, path, params, request.headers, request.content)
        if status is None:
            raise httpx.ReadTimeout("no answer", request=request)
        return httpx.Response(status, headers=headers, content=body)

    return httpx.MockTransport(answer)


def _wrong(body: Any) -> str:
    """What a strict server says of a create request; empty when nothing is wrong."""
    for told, known, needed in ((body, CREATE, NEEDED), (body.get("gpu", {}), GPU, ("id",))):
        if unknown := set(told) - set(known):
            return f"unknown field {min(unknown)!r}"
        if missing := set(needed) - set(told):
            return f"field {min(missing)!r} is required"
        for name, value in told.items():
            if not isinstance(value, known[name]):
                return f"field {name!r} must be {known[name].__name__}"
    if any(not isinstance(value, str) for value in body.get("env", {}).values()):
        return "env values must be strings"
    if len(body["name"]) > 60:
        return "name is longer than 60 characters"
    return "" if body.get("cloud", "SECURE") in ("SECURE", "COMMUNITY") else "cloud must be SECURE or COMMUNITY"


def _time(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, tz=dt.UTC).isoformat().replace("+00:00", "Z")
