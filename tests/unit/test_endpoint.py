"""A server of our own: the key that was made up for it, and no proxy between."""

import httpx
import pytest
from frozen_play import Waits
from openai_server import Server, answer, fault

from nested_rl import redact
from nested_rl.endpoint import Endpoint, Unreachable

BODY = {"model": "small", "messages": []}


@pytest.fixture
def server():
    with Server(answer("hello")) as running:
        yield running


def endpoint(server, **settings):
    return Endpoint(server.url, "", timeout_s=1, attempt_s=5, concurrency=2, **settings)


async def test_a_key_that_was_made_up_is_sent_and_never_told(server):
    own = endpoint(server, key="made-up-for-this-server")
    await own.ask(BODY)
    await own.close()
    assert server.keys == ["Bearer made-up-for-this-server"]
    assert "made-up" not in repr(own)
    assert "made-up" not in redact.text("it said made-up-for-this-server")


async def test_what_is_asked_on_this_computer_goes_through_no_proxy(server, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody is there
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    asked = endpoint(server)
    assert (await asked.ask(BODY))["choices"]
    await asked.close()


async def test_what_a_first_request_waits_for_is_said_once(caplog):
    with Server(fault(503, "loading the model"), fault(503, "loading the model"), answer("hello")) as server:
        asked = Endpoint(server.url, "", timeout_s=60, attempt_s=5, concurrency=2, clock=Waits())
        await asked.ask(BODY, patient=False)
        assert caplog.messages == [f"{server.url}: 503 (loading the model); trying again, for up to 60 s"]
        await asked.ask(BODY)
        await asked.close()
    assert len(caplog.messages) == 1


async def test_a_first_request_does_not_wait_for_a_host_that_never_answers(monkeypatch):
    async def silent(self, request):
        raise httpx.ConnectTimeout("", request=request)

    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", silent)
    clock = Waits()
    asked = Endpoint("http://127.0.0.1:9/v1", "", timeout_s=60, attempt_s=5, concurrency=2, clock=clock)
    with pytest.raises(Unreachable, match=r"127.0.0.1:9/v1: ConnectTimeout; is the server running"):
        await asked.ask(BODY, patient=False)
    assert clock.waited == []
    await asked.close()
