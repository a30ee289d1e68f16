"""What the fake of Runpod says to the GraphQL operations that the official package sends: as strict as the real server.

A query is parsed, every field and input that is not in the tables below is refused, and only what was asked for is told.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fake_runpod import FakePod, FakeRunpod

Answer = tuple[int | None, dict[str, str], bytes]
_TOKEN = re.compile(r'[\s,]*(?:(?P<text>"(?:[^"\\\n]|\\.)*")|(?P<word>-?[\w.]+)|(?P<mark>[{}()\[\]:]))')


def _names(text: str) -> dict[str, Any]:
    """Fields that have none below them."""
    return dict.fromkeys(text.split())


_PORT = _names("ip isIpPublic privatePort publicPort type")
_POD = _names(
    "id containerDiskInGb costPerHr desiredStatus dockerArgs dockerId env gpuCount imageName lastStatusChange machineId memoryInGb "
    "name podType port ports uptimeSeconds vcpuCount volumeInGb volumeMountPath"
) | {"runtime": {"ports": _PORT}, "machine": {"gpuDisplayName": None, "podHostId": None}}
_GPU = _names(
    "id displayName memoryInGb maxGpuCount manufacturer cudaCores secureCloud communityCloud securePrice communityPrice oneMonthPrice "
    "threeMonthPrice oneWeekPrice communitySpotPrice secureSpotPrice"
) | {"lowestPrice": {"minimumBidPrice": None, "uninterruptablePrice": None}}
_FIELDS = {
    "query": {"myself": {"pods": _POD}, "pod": _POD, "gpuTypes": _GPU},
    "mutation": {"podFindAndDeployOnDemand": _POD, "podTerminate": None},
}
_INPUTS = {
    "pod": _names("podId"),
    "podTerminate": _names("podId"),
    "gpuTypes": _names("id"),
    "lowestPrice": _names("gpuCount"),
    "podFindAndDeployOnDemand": _names(
        "name imageName cloudType startSsh gpuTypeId supportPublicIp gpuCount volumeInGb minVcpuCount minMemoryInGb allowedCudaVersions "
        "dataCenterId dockerArgs countryCode containerDiskInGb ports volumeMountPath env templateId networkVolumeId minDownload "
        "minUpload"
    ),
}
_LOW = "You do not have enough funds in your account to deploy this pod. Please add credits."


class Refused(Exception):
    """The query is not one that the server knows."""


def answer(fake: FakeRunpod, told: Any) -> Answer:
    """Status, headers and body, as `FakeRunpod.handle` gives them."""
    try:
        kind, fields = _Parser(told["query"]).operation()
        _check(fields, _FIELDS[kind])
    except Refused as error:
        return _told(400, {"errors": [{"message": str(error)}]})
    ((name, args, wanted),) = fields
    status, headers, body = _CALLS[name](fake, args.get("input", {}))
    if status is None:
        return None, {}, b""
    if isinstance(body, bytes):
        return _failed(status, headers, json.loads(body))
    return _told(200, {"data": {name: _only(body, wanted)}})


def _failed(status: int, headers: dict[str, str], problem: Mapping[str, Any]) -> Answer:
    """A failure of the server as the package gets to see it: prose in an answer of status 200, or a page that is no JSON."""
    if status in (400, 402, 422):
        said = {402: _LOW, 422: f"Variable input is invalid: {problem['detail']}"}.get(status, problem["detail"])
        return _told(200, {"errors": [{"message": said}], "data": None})
    pages = {403: "error code: 1010", 429: "Too Many Requests"}
    return status, {**headers, "content-type": "text/html"}, pages.get(status, "<html>Server Error</html>").encode()


def _create(fake: FakeRunpod, args: Mapping[str, Any]) -> tuple[int | None, dict[str, str], Any]:
    rest = {
        "name": args["name"],
        "image": args["imageName"],
        "gpu": {"id": args["gpuTypeId"], "count": args.get("gpuCount", 1)},
        "cloud": args["cloudType"],
        "disk": args["containerDiskInGb"],
        "ports": args["ports"].split(","),
        "env": {one["key"]: one["value"] for one in args.get("env", ())},
        "args": args.get("dockerArgs", ""),
        "startSsh": args.get("startSsh", False),
    }
    status, headers, body = fake._create(rest)
    if status != 201:
        return status, headers, body
    return 200, {}, _pod(fake.pods[json.loads(body)["id"]])


def _terminate(fake: FakeRunpod, args: Mapping[str, Any]) -> tuple[int | None, dict[str, str], Any]:
    status, headers, body = fake._terminate(args["podId"])
    if status == 404:
        return 400, {}, b'{"detail": "pod not found to terminate"}'
    return (status, headers, body) if status != 204 else (200, {}, None)


def _one(fake: FakeRunpod, args: Mapping[str, Any]) -> tuple[int | None, dict[str, str], Any]:
    status, headers, body = fake._get(args["podId"])
    if status == 404:
        return 200, {}, None
    return (status, headers, body) if status != 200 else (200, {}, _pod(fake.pods[args["podId"]]))


def _mine(fake: FakeRunpod, args: Mapping[str, Any]) -> tuple[int | None, dict[str, str], Any]:
    status, headers, body = fake._list()
    if status != 200:
        return status, headers, body
    return 200, {}, {"pods": [_pod(fake.pods[row["id"]]) for row in json.loads(body)["pods"]]}


def _gpus(fake: FakeRunpod, args: Mapping[str, Any]) -> tuple[int | None, dict[str, str], Any]:
    found = []
    for cloud in ("SECURE", "COMMUNITY"):
        status, headers, body = fake._catalog({"cloud": cloud})
        if status != 200:
            return status, headers, body
        found += json.loads(body)["gpus"]
    prices = {row["id"]: row["price"] for row in found if args.get("id", row["id"]) == row["id"]}
    rows = [
        {
            "id": gpu,
            "displayName": gpu.removeprefix("NVIDIA "),
            "secureCloud": price["secure"] is not None,
            "communityCloud": price["community"] is not None,
            "securePrice": price["secure"],
            "communityPrice": price["community"],
            "lowestPrice": {"uninterruptablePrice": price["community"] or price["secure"]},
        }
        for gpu, price in prices.items()
    ]
    return 200, {}, rows


_CALLS = {
    "podFindAndDeployOnDemand": _create,
    "podTerminate": _terminate,
    "pod": _one,
    "myself": _mine,
    "gpuTypes": _gpus,
}


def _pod(pod: FakePod) -> dict[str, Any]:
    """As GraphQL tells it: what is desired, not what is; no times; ports once the container runs."""
    running = pod.status == "RUNNING"
    ports = [{"ip": "100.65.0.9", "isIpPublic": False, "privatePort": 8888, "publicPort": 60001, "type": "http"}]
    if pod.ssh:
        host, port = pod.ssh
        ports += [{"ip": host, "isIpPublic": True, "privatePort": 22, "publicPort": port, "type": "tcp"}]
    return {
        "id": pod.id,
        "name": pod.name,
        "imageName": pod.body["image"],
        "dockerArgs": pod.body.get("args", ""),
        "env": [f"{name}={value}" for name, value in pod.body.get("env", {}).items()],
        "costPerHr": pod.usd_per_hour,
        "desiredStatus": "RUNNING" if pod.status in ("PROVISIONING", "STARTING") else pod.status,
        "gpuCount": pod.body["gpu"].get("count", 1),
        "uptimeSeconds": 0,
        "machineId": "m1",
        "machine": {"gpuDisplayName": pod.body["gpu"]["id"].removeprefix("NVIDIA "), "podHostId": f"{pod.id}-64"},
        "runtime": {"ports": ports} if running else None,
    }


def _only(value: Any, wanted: list[Any] | None) -> Any:
    """The selected fields, null where there is nothing."""
    if wanted is None or value is None:
        return value
    if isinstance(value, list):
        return [_only(one, wanted) for one in value]
    return {name: _only(value.get(name), below) for name, _, below in wanted}


def _check(fields: list[Any], known: Mapping[str, Any]) -> None:
    for name, args, below in fields:
        if name not in known:
            raise Refused(f'Cannot query field "{name}".')
        for given in args:
            if given != "input":
                raise Refused(f'Unknown argument "{given}" on field "{name}".')
            if strange := set(args[given]) - set(_INPUTS.get(name, ())):
                raise Refused(f'Field "{min(strange)}" is not defined by type of {name}.')
        if (below is None) != (known[name] is None):
            raise Refused(f'Field "{name}" must {"not " if below else ""}have a selection of subfields.')
        if below is not None:
            _check(below, known[name])


class _Parser:
    """As much of the language as those queries need."""

    def __init__(self, text: str) -> None:
        self.tokens: list[str] = []
        at, text = 0, text.strip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise Refused(f"Syntax Error: Unexpected character at {at}: {text[at : at + 20]!r}.")
            self.tokens.append(found.group().lstrip(" \t\r\n,"))
            at = found.end()

    def operation(self) -> tuple[str, list[Any]]:
        kind = "query" if self.tokens[0] == "{" else self._next()
        if kind not in _FIELDS:
            raise Refused(f"Syntax Error: Unexpected Name {kind!r}.")
        while self.tokens and self.tokens[0] != "{":
            self._next()
        fields = self._selection()
        if self.tokens:
            raise Refused(f"Syntax Error: Unexpected {self.tokens[0]!r}.")
        return kind, fields

    def _selection(self) -> list[Any]:
        self._next("{")
        fields = []
        while self.tokens[:1] != ["}"]:
            name, args, below = self._next(), {}, None
            if self.tokens[:1] == ["("]:
                args = self._pairs("(", ")")
            if self.tokens[:1] == ["{"]:
                below = self._selection()
            fields.append((name, args, below))
        self._next("}")
        return fields

    def _pairs(self, begin: str, end: str) -> dict[str, Any]:
        self._next(begin)
        found = {}
        while self.tokens[:1] != [end]:
            name = self._next()
            self._next(":")
            found[name] = self._value()
        self._next(end)
        return found

    def _value(self) -> Any:
        if self.tokens[:1] == ["{"]:
            return self._pairs("{", "}")
        if self.tokens[:1] == ["["]:
            self._next("[")
            found = []
            while self.tokens[:1] != ["]"]:
                found.append(self._value())
            self._next("]")
            return found
        token = self._next()
        try:
            return json.loads(token)
        except ValueError:
            return token  # a word of an enumeration

    def _next(self, wanted: str = "") -> str:
        if not self.tokens or (wanted and self.tokens[0] != wanted):
            raise Refused(f"Syntax Error: Expected {wanted or 'more'}, found {(self.tokens or ['<EOF>'])[0]}.")
        return self.tokens.pop(0)


def _told(status: int, body: Any) -> Answer:
    return status, {"content-type": "application/json"}, json.dumps(body).encode()
