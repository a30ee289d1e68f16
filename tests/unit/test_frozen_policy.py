"""A large agent behind an OpenAI-compatible server: what it is sent, what is made of its answers, and every way to fail."""

import asyncio
import json
import logging
import threading

import pytest
from frozen_play import ASK, CANARY, Waits, ask, refused
from openai_server import DROP, STALL, TRICKLE, Server, answer, fault, made_call

from nested_rl.describe import describe
from nested_rl.endpoint import (
    KeyRefused,
    MissingKey,
    NoCredit,
    NoSuchModel,
    RateLimited,
    RequestRefused,
    Unavailable,
    Unreachable,
)
from nested_rl.errors import SettingsError, UnknownName
from nested_rl.harness.tools import SCHEMAS
from nested_rl.policies import FrozenPolicy
from nested_rl.policies.openai_wire import MOST_CALLS
from nested_rl.serialize import dumps, loads
from nested_rl.types import Message, ToolCall, Turn, Usage


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


# ---------------------------------------------------------------- what is sent


async def test_the_request_holds_the_conversation_the_tools_and_the_settings():
    said = Turn(
        message=Message(role="assistant", tool_calls=(ToolCall(name="read_file", arguments={"path": "ä"}, id="a"),))
    )
    broken = Message(role="assistant", content="Hm.", tool_calls=(ToolCall(name="", error="not JSON", id="b"),))
    talk = [*ASK, said, Message(role="tool", content="text", tool_call_id="a", name="read_file"), broken]
    talk += [Message(role="tool", content="Error", tool_call_id="b"), Message(role="assistant", content="Done.")]
    with Server(answer("ok")) as server:
        await ask(server, talk, seed=2**40 + 5, temperature=0.5, extra={"top_p": 0.9, "tool_choice": None})
        (body,) = server.seen
    assert server.keys == [f"Bearer {CANARY}"]
    assert body == {
        "model": "small",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Go."},
            {"role": "assistant", "content": None, "tool_calls": [made_call("a", "read_file", '{"path": "ä"}')]},
            {"role": "tool", "tool_call_id": "a", "content": "text"},
            {"role": "assistant", "content": "Hm.", "tool_calls": [made_call("b", "unreadable_call")]},
            {"role": "tool", "tool_call_id": "b", "content": "Error"},
            {"role": "assistant", "content": "Done."},
        ],
        "tools": json.loads(json.dumps(SCHEMAS)),
        "temperature": 0.5,
        "seed": 5,
        "max_tokens": 50,
        "top_p": 0.9,
    }


async def test_fields_nobody_asked_for_are_not_sent():
    with Server(answer("ok")) as server:
        await ask(server, tools=(), token_limit="max_completion_tokens")
    assert server.seen[0].keys() == {"model", "messages", "max_completion_tokens"}


async def test_the_answer_is_capped_by_what_is_left_of_the_context():
    counted = Turn(message=Message(role="assistant", content="…"), usage=Usage(prompt_tokens=900, completion_tokens=50))
    with Server(answer("ok")) as server:
        await ask(server, [*ASK, counted, Message(role="user", content="x" * 60)], max_tokens=500, context_tokens=1000)
        full = await ask(server, [*ASK, counted, Message(role="user", content="x" * 150)], context_tokens=1000)
    assert [body["max_tokens"] for body in server.seen] == [30]  # the second was not asked at all
    assert (full.stop, full.message) == ("length", Message(role="assistant"))


# ---------------------------------------------------------------- what is made of an answer


async def test_a_turn_has_calls_and_no_ids():
    with Server(answer("Look.", [("read_file", {"path": "job.toml"}), ("submit_job", "")])) as server:
        turn = await ask(server)
    assert turn.message == Message(
        role="assistant",
        content="Look.",
        tool_calls=(
            ToolCall(name="read_file", arguments={"path": "job.toml"}, id="id0"),
            ToolCall(name="submit_job", id="id1"),
        ),
    )
    assert (turn.ids, turn.prompt_ids, turn.logprobs, turn.stop) == (None, None, None, "stop")


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (
            made_call("a", "read_file", '{"path": '),
            "the arguments of read_file are not JSON: Expecting value at character 9",
        ),
        (made_call("a", "read_file", '["x"]'), "must be an object"),
        (made_call("a", "read_file", '{"path": 7}'), "argument 'path' of read_file must be a string"),
        (made_call("a", "read_file", '{"path": "\\ud800"}'), "holds half a character"),
        (made_call("a", "read_file", "[" * 100_000), "too large to read"),
        (made_call("a", "write_fil", "{}"), "unknown tool 'write_fil'; did you mean 'write_file'?"),
        (made_call("a", "", "{}"), "no name"),
        (made_call(None, "submit_job", "{}"), "no id"),
        (made_call("", "submit_job", "{}"), "no id"),
        ({"id": "a", "type": "function"}, "names no function"),
        ({"id": "a", "function": {"name": ["x"], "arguments": "{}"}}, "no name"),
    ],
)
async def test_a_malformed_call_says_what_is_wrong(raw, error):
    with Server(answer("", [raw])) as server:
        turn = await ask(server)
    (call,) = turn.message.tool_calls
    assert error in call.error
    assert call.name == ""
    assert call.id  # its answer must name it
    assert turn.stop == "malformed"
    assert loads(dumps(turn), Turn) == turn


async def test_two_calls_with_one_id_are_told_apart():
    with Server(answer("", [made_call("a", "submit_job"), made_call("a", "list_files")])) as server:
        turn = await ask(server)
    first, second = turn.message.tool_calls
    assert (first.id, first.error) == ("a", None)
    assert second.id != "a"
    assert "same id" in second.error


async def test_of_very_many_calls_the_first_are_read_and_the_agent_is_told_of_the_rest():
    with Server(answer("", [made_call(f"id{i}", "list_files") for i in range(MOST_CALLS + 2)])) as server:
        turn = await ask(server)
    *read, told = turn.message.tool_calls
    assert [(call.id, call.error) for call in read] == [(f"id{i}", None) for i in range(MOST_CALLS)]
    assert told.id
    assert f"{MOST_CALLS + 2} calls in one answer" in told.error
    assert "2 were not carried out" in told.error


async def test_a_truncated_answer_stops_at_its_length():
    with Server(
        answer("I will", finish="length"), answer("", [("write_file", '{"path": "a')], finish="length")
    ) as server:
        plain, cut = await ask(server), await ask(server)
    assert (plain.stop, cut.stop) == ("length", "length")
    assert "not JSON" in cut.message.tool_calls[0].error


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ([{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}], "ab"),
        ("\ud800x", "?x"),
    ],
)
async def test_content_is_plain_text(content, text):
    given = answer()
    given["choices"][0]["message"]["content"] = content
    with Server(given) as server:
        assert (await ask(server)).message.content == text


@pytest.mark.parametrize(
    ("usage", "prices", "usd"),
    [
        ({"cost": 0.25}, {"input_usd_per_mtok": 2.0, "output_usd_per_mtok": 10.0}, 0.25),
        ({}, {"input_usd_per_mtok": 2.0, "output_usd_per_mtok": 10.0}, (100 * 2 + 20 * 10) / 1e6),
        ({"cost": "free"}, None, 0.0),
        ({}, None, 0.0),
    ],
)
async def test_usage_and_price_are_recorded(usage, prices, usd):
    with Server(answer("ok", **usage)) as server:
        turn = await ask(server, prices=prices)
    assert (turn.usage.prompt_tokens, turn.usage.completion_tokens) == (100, 20)
    assert turn.usage.usd == pytest.approx(usd)


async def test_an_answer_without_usage_counts_nothing():
    given = answer("ok")
    del given["usage"]
    with Server(given) as server:
        assert (await ask(server)).usage == Usage()


# ---------------------------------------------------------------- what is tried again


async def test_429_waits_as_long_as_the_server_asks():
    clock = Waits()
    limited = [fault(429, "slow down", {"retry-after": "7"}), fault(429, "slow down", {"retry-after": "2"})]
    with Server(*limited, answer("ok")) as server:
        assert (await ask(server, clock=clock)).message.content == "ok"
    assert clock.waited == [7.0, 2.0]


async def test_a_server_that_asks_for_no_pause_is_given_growing_ones_all_the_same():
    clock = Waits()
    with Server(*[fault(429, "slow down", {"retry-after": "0"})] * 3, answer("ok")) as server:
        assert (await ask(server, clock=clock)).message.content == "ok"
    assert len(clock.waited) == 3
    assert all(0.5 * 2**i <= waited <= 2**i for i, waited in enumerate(clock.waited))


async def test_faults_that_pass_are_tried_again_with_growing_pauses():
    clock = Waits()
    faults = [
        fault(500, "oops"),
        (503, "<html>busy</html>", {}),
        DROP,
        (200, {"error": {"code": 502, "message": "x"}}, {}),
    ]
    with Server(*faults, (200, "not JSON", {}), answer("ok")) as server:
        assert (await ask(server, clock=clock)).message.content == "ok"
    assert len(clock.waited) == 5
    assert all(0.5 * 2**i <= waited <= 2**i for i, waited in enumerate(clock.waited))


@pytest.mark.parametrize("how", [STALL, TRICKLE])
async def test_a_stalled_answer_is_given_up_and_asked_for_again(how):
    with Server(how, answer("ok")) as server:
        assert (await ask(server, clock=Waits(), attempt_s=0.5)).message.content == "ok"
        assert len(server.seen) >= 2
    error = await refused(how, attempt_s=0.1, timeout_s=1.5)
    assert isinstance(error, Unavailable)
    assert "no whole answer within attempt_s=0.1" in str(error)
    assert "within timeout_s=1.5" in str(error)


async def test_so_many_requests_at_a_time_and_no_more():
    together, inside, peak = threading.Barrier(2, timeout=30), [], []

    def slow(body):
        inside.append(1)
        peak.append(len(inside))
        together.wait()  # nobody goes on alone
        inside.pop()
        return answer("ok")

    with Server(slow) as server:
        policy = FrozenPolicy("small", base_url=server.url, concurrency=2)
        turns = await asyncio.gather(*(policy.sample(ASK, tools=SCHEMAS, max_tokens=5) for _ in range(6)))
        await policy.aclose()
    assert [turn.message.content for turn in turns] == ["ok"] * 6
    assert max(peak) == 2


async def test_retries_end_at_the_deadline():
    error = await refused(fault(429, "slow down", {"retry-after": "100"}), timeout_s=250)
    assert isinstance(error, RateLimited)
    assert "slow down" in str(error)
    assert "tried 3 times within timeout_s=250" in str(error)


async def test_nothing_listens():
    with Server(answer("ok")) as server:
        pass
    with pytest.raises(Unavailable, match=r"ConnectError.*tried"):
        await ask(server, clock=Waits(), timeout_s=20)
    clock = Waits()
    policy = FrozenPolicy("small", base_url=server.url, clock=clock)
    with pytest.raises(Unreachable, match="is the server running, and base_url right") as caught:
        await policy.check()  # before anything is started: the address may be wrong
    assert "tried" not in str(caught.value)
    assert clock.waited == []
    await policy.aclose()


@pytest.mark.parametrize("where", ["content", "refusal"])
async def test_an_answer_far_longer_than_what_was_asked_for_is_not_read_to_its_end(where):
    many = "x" * 5 * 2**20
    given = answer(many) if where == "content" else fault(500, many)
    error = await refused(given, timeout_s=3)
    assert isinstance(error, Unavailable)
    assert "more than 4.0 MiB" in str(error)
    with Server(given, answer("ok")) as server:
        assert (await ask(server, clock=Waits())).message.content == "ok"


async def test_an_answer_may_be_as_long_as_what_was_asked_for():
    many = "x" * 5 * 2**20
    with Server(answer(many)) as server:
        assert (await ask(server, max_tokens=8_192)).message.content == many


async def test_a_packed_answer_is_not_unpacked():
    packed = (200, "anything", {"content-encoding": "gzip"})
    with Server(packed, answer("ok")) as server:
        assert (await ask(server, clock=Waits())).message.content == "ok"
    assert "compressed" in str(await refused(packed, timeout_s=2))


# ---------------------------------------------------------------- what is not


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        (fault(401, f"Incorrect API key provided: {CANARY}"), KeyRefused, "the key in OPENAI_API_KEY"),
        (fault(403, "no access"), KeyRefused, "no access"),
        (fault(402, "Insufficient credits"), NoCredit, "top up"),
        (fault(429, "quota", code="insufficient_quota"), NoCredit, "top up"),
        (fault(404, "The model does not exist"), NoSuchModel, "no model 'small'; there are small, large"),
        (fault(400, "smal is not a valid model ID"), NoSuchModel, "there are small, large"),
        (fault(400, "temperature must be below 2"), RequestRefused, "400 (temperature must be below 2)"),
        ((301, "", {"location": "https://elsewhere/v1"}), RequestRefused, "301"),
    ],
)
async def test_a_refusal_is_told_once_and_says_what_to_do(given, kind, words):
    error = await refused(given)
    assert type(error) is kind
    assert words in str(error)
    assert "tried" not in str(error)


async def test_a_wrong_address_is_told_even_without_a_list_of_models():
    with Server(fault(404, "nothing here"), models=()) as server, pytest.raises(NoSuchModel, match="ends in /v1"):
        await ask(server)


async def test_a_conversation_that_is_too_long_ends_the_episode_and_not_the_run():
    with Server(fault(400, "This model's maximum context length is 4096 tokens")) as server:
        assert (await ask(server)).stop == "length"


# ---------------------------------------------------------------- keys and settings


async def test_the_key_is_nowhere(caplog):
    caplog.set_level(logging.DEBUG)
    with Server(fault(500, f"{CANARY} broke it"), answer("ok")) as server:
        policy = FrozenPolicy("small", base_url=server.url, clock=Waits())
        turn = await policy.sample(ASK, tools=SCHEMAS, max_tokens=5)
        seen = f"{policy!r} {describe(policy)} {policy.label} {policy._endpoint!r} {dumps(turn)}"
        await policy.aclose()
    assert server.keys == [f"Bearer {CANARY}"] * 2
    assert CANARY not in seen + caplog.text
    assert describe(policy)["model"] == "small"


def test_a_missing_key_is_told_when_the_policy_is_made(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(MissingKey, match="set the environment variable OPENAI_API_KEY"):
        FrozenPolicy("m", base_url="https://api.example.com/v1")
    with pytest.raises(SettingsError, match="OTHER_KEY"):
        FrozenPolicy("m", base_url="https://api.example.com/v1", key_env="OTHER_KEY")
    monkeypatch.setenv("OPENAI_API_KEY", f"{CANARY}\nx")
    with pytest.raises(MissingKey, match="odd characters") as caught:
        FrozenPolicy("m", base_url="https://api.example.com/v1")
    assert CANARY not in str(caught.value)


async def test_a_local_server_needs_no_key(monkeypatch):
    with Server(answer("ok")) as server:
        await ask(server, key_env="")
        monkeypatch.delenv("OPENAI_API_KEY")
        await ask(server)
    assert server.keys == [None, None]


@pytest.mark.parametrize(
    "url", ["", "api.example.com/v1", "ftp://x/v1", f"https://u:{CANARY}@x/v1", "https://x/v1?key=1", "https://x\n/v1"]
)
def test_an_address_that_cannot_work_is_refused(url):
    with pytest.raises(SettingsError, match="base_url") as caught:
        FrozenPolicy("m", base_url=url)
    assert CANARY not in str(caught.value)


def test_prices_have_two_keys():
    with pytest.raises(UnknownName, match="did you mean 'input_usd_per_mtok'"):
        FrozenPolicy("m", base_url="http://localhost/v1", prices={"input_usd_per_mtk": 1.0, "output_usd_per_mtok": 1.0})
    with pytest.raises(SettingsError, match="also needs output_usd_per_mtok"):
        FrozenPolicy("m", base_url="http://localhost/v1", prices={"input_usd_per_mtok": 1.0})


def test_a_policy_has_a_name(monkeypatch):
    monkeypatch.setenv("OPENROUTER_API_KEY", CANARY)
    policy = FrozenPolicy.named("openai:qwen/qwen3@https://openrouter.ai/api/v1")
    assert (policy.model, policy.base_url, policy.key_env) == (
        "qwen/qwen3",
        "https://openrouter.ai/api/v1",
        "OPENROUTER_API_KEY",
    )
    assert policy.label == "openai:qwen/qwen3@https://openrouter.ai/api/v1"
    assert FrozenPolicy.named("openai:m@http://localhost:8000/v1/").key_env == "OPENAI_API_KEY"
    for wrong in ("openai:m", "openai:@http://x", "gpt@http://x/v1", "openai:http://localhost/v1"):
        with pytest.raises(SettingsError, match="openai:MODEL@URL"):
            FrozenPolicy.named(wrong)


async def test_a_check_asks_for_a_few_tokens():
    with Server(answer("ok")) as server:
        policy = FrozenPolicy("small", base_url=server.url)
        await policy.check()
        await policy.aclose()
    assert server.seen[0]["max_tokens"] == 16
