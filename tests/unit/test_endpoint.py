"""A server of our own: the key that was made up for it, and no proxy between."""

import pytest
from openai_server import Server, answer

from nested_rl import redact
from nested_rl.endpoint import Endpoint

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
