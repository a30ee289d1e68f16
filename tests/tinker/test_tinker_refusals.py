"""The real client and servers that are not what they should be: what they get to see, and what the user is told."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from nested_rl.errors import NestedRLError, SettingsError
from nested_rl.trainers import TinkerTrainer

pytestmark = [pytest.mark.tinker, pytest.mark.timeout(120)]

CONFIG = {"pjwt_auth_enabled": True, "credential_default_source": "credential_cmd"}


def _part(said: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(said).encode()).decode().rstrip("=")


JWT = f"{_part({'alg': 'none'})}.{_part({'sub': 'me', 'exp': 4e9})}.c2lnbmF0dXJl"


class Server(ThreadingHTTPServer):
    """Answers each path with (status, body), 404 where none is given; `seen` has paths and keys."""

    def __init__(self, answers: dict[str, tuple[int, Any]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers, self.seen = answers, list[tuple[str, str]]()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.server.seen.append((self.path, self.headers.get("x-api-key", "")))
        status, said = self.server.answers.get(self.path, (404, {"detail": "Not Found"}))
        body = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[Server]:
    pytest.importorskip("tinker", reason="needs the tinker package: make test-tinker")
    made = Server({})
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TINKER_API_KEY", "TINKER_CREDENTIAL_CMD", "TINKER_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TINKER_TELEMETRY", "0")


async def refused(server: Server, **settings: Any) -> NestedRLError:
    made = TinkerTrainer("Qwen/Qwen3-8B", base_url=server.url, **settings)
    with pytest.raises(NestedRLError) as caught:
        await made.policy()
    await made.close()
    return caught.value


@pytest.mark.parametrize("key_env", ["", "LAB_KEY"])
async def test_a_server_that_asks_for_the_command_does_not_get_what_it_prints(
    server: Server, monkeypatch: pytest.MonkeyPatch, key_env: str
) -> None:
    server.answers["/api/v1/client/config"] = (200, CONFIG)
    monkeypatch.setenv("LAB_KEY", "tml-lab")
    monkeypatch.setenv("TINKER_API_KEY", "tml-hosted")
    monkeypatch.setenv("TINKER_CREDENTIAL_CMD", f"echo {JWT}")
    error = await refused(server, key_env=key_env)
    assert {key for _, key in server.seen} <= {"tml-no-key", "tml-lab"}
    assert isinstance(error, SettingsError)
    assert "unset it for this run" in str(error)
    monkeypatch.delenv("TINKER_CREDENTIAL_CMD")
    await refused(server, key_env=key_env)
    assert {key for _, key in server.seen} == {"tml-lab" if key_env else "tml-no-key"}


@pytest.mark.parametrize(
    ("status", "key_env", "told"),
    [
        (402, "", "the account has no credit, or no billing is set up"),
        (404, "", "there is no Tinker API at http://127.0.0.1"),
        (401, "", "the server wants a key; put it into an environment variable and name that with key_env="),
        (401, "LAB_KEY", "the key is refused; set LAB_KEY to a valid one"),
        (403, "LAB_KEY", "the key may not do this"),
    ],
)
@pytest.mark.parametrize("at", ["config", "dynamic_config"])
async def test_what_is_refused_before_anything_else_is_told_as_what_it_is(
    server: Server, monkeypatch: pytest.MonkeyPatch, at: str, status: int, key_env: str, told: str
) -> None:
    monkeypatch.setenv("LAB_KEY", "tml-lab")
    server.answers["/api/v1/client/config"] = (200, {})
    server.answers[f"/api/v1/client/{at}"] = (status, {"detail": "these are the server's own words"})
    error = await refused(server, key_env=key_env)
    assert told in str(error)
    assert "AttributeError" not in str(error)
    assert "lifetime" not in str(error)
