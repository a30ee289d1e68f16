"""What servers and machines answer, and what is read back from files: a value of the right type, or an error that has a name."""

import asyncio
import json
import math

import attrs
import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from odd import NUMBERS, TEXTS, data, likely, written

from nested_rl.clock import SystemClock
from nested_rl.endpoint import Endpoint, EndpointError
from nested_rl.errors import MachineLost, SettingsError
from nested_rl.nano import lines
from nested_rl.policies import openai_wire
from nested_rl.serialize import dumps, from_json, loads
from nested_rl.types import (
    Checkpoint,
    Episode,
    Job,
    JobResult,
    JobSpec,
    Message,
    Outcome,
    Score,
    ToolCall,
    Transcript,
    Turn,
    Validation,
)

KINDS = (Score, JobResult, JobSpec, Job, Checkpoint, Validation, ToolCall, Message, Turn, Transcript, Outcome, Episode)


def names(*kinds):
    """Every field of these classes, and of those in them."""
    return st.sampled_from(sorted({field.name for kind in kinds for field in attrs.fields(kind)} | {"kind"}))


VALUES = data(names(*KINDS)) | st.sampled_from(["agent", "infra", "message", "turn", "assistant", "nano", "full"])
FIELDS = st.dictionaries(names(*KINDS), VALUES, max_size=8)
RESULT = likely(
    {
        "post": likely({"value": st.floats(0, 1), "n": st.integers(0, 9), "items": st.lists(st.floats(0, 1))}),
        "fault": st.sampled_from(["agent", "infra", None]),
        "error": TEXTS,
        "usd": NUMBERS,
        "curve": st.lists(NUMBERS, max_size=4),
        "deliveries": st.integers(),
    }
)


def finite(value):
    plain = json.loads(dumps(value))
    json.dumps(plain, allow_nan=False)
    return True


@given(
    written(RESULT) | written(FIELDS) | st.binary(max_size=40),
    st.sampled_from([*KINDS, Message | Turn, tuple[Score, ...]]),
)
def test_records(text, kind):
    """A value of that class without NaN or infinity, which reads back as itself; or SettingsError, in a few words."""
    try:
        value = loads(text, kind)
    except SettingsError as error:
        assert len(str(error)) < 8000  # noqa: PT017  either is fine
        return
    assert finite(value)
    assert loads(dumps(value), kind) == value


@given(FIELDS | VALUES, st.sampled_from(KINDS))
def test_plain_data(value, kind):
    try:
        from_json(value, kind)
    except SettingsError:
        return


# ---------------------------------------------------------------- chat completions

CALL = likely(
    {
        "id": TEXTS,
        "type": st.just("function"),
        "function": likely({"name": st.just("write_file"), "arguments": written(data(leaves=3))}),
    }
)
MESSAGE = likely(
    {
        "role": st.just("assistant"),
        "content": TEXTS | st.lists(likely({"type": st.just("text"), "text": TEXTS}), max_size=3),
        "tool_calls": st.lists(CALL, max_size=3),
    }
)
ANSWER = likely(
    {
        "choices": st.lists(likely({"index": st.just(0), "message": MESSAGE, "finish_reason": st.sampled_from(["stop", "length", None])}), max_size=2),
        "usage": likely({"prompt_tokens": NUMBERS, "completion_tokens": NUMBERS, "cost": NUMBERS}),
        "error": likely({"message": TEXTS, "code": st.integers(0, 999) | TEXTS}),
    }
)  # fmt: skip
PRICES = openai_wire.prices({"input_usd_per_mtok": 0.1, "output_usd_per_mtok": 0.4})


@given(ANSWER, st.sampled_from([None, PRICES]))
@example(
    {"choices": [{"message": {}}], "usage": {"prompt_tokens": 10**400, "completion_tokens": 1, "cost": 10**400}}, PRICES
)
@example({"choices": [{"message": {"content": [{"text": [[[]]]}]}}]}, None)
def test_an_answer_is_a_turn_or_none(answer, prices):
    """A Turn can be stored, sent back and paid for."""
    turn = openai_wire.turn(answer, known=("write_file",), prices=prices, number=1)
    if turn is None:
        return
    assert turn.ids is None
    assert loads(dumps(turn), Turn) == turn
    assert 0 <= turn.usage.usd < math.inf
    assert turn.stop in ("stop", "length", "malformed")
    json.dumps(openai_wire.messages([turn]), ensure_ascii=False).encode()


STATUS = st.sampled_from([200, 200, 200, 400, 401, 402, 403, 404, 408, 422, 429, 500, 503])
HEADERS = st.dictionaries(
    st.sampled_from(["retry-after", "content-type", "x"]),
    st.sampled_from(["3", "-1", "9" * 400, "nan", "Thu, 01 Jan 1970 00:01:00 GMT", "Thu, 99 Xxx 0000 00:00:00 GMT", "application/json; charset=utf-7", "text/html; charset=x"]),
)  # fmt: skip


@given(STATUS, HEADERS, written(ANSWER) | written(data()))
def test_a_server_of_any_kind(status, headers, body):
    """What it answers is handed on, or an EndpointError says in a few lines what is wrong."""
    content = body.encode("utf-8", "surrogatepass")

    async def ask():
        server = Endpoint("http://localhost/v1", "", timeout_s=0.0, attempt_s=30.0, concurrency=1, clock=SystemClock())
        with pytest.MonkeyPatch.context() as patch:
            transport = httpx.MockTransport(lambda request: httpx.Response(status, headers=headers, content=content))
            client = httpx.AsyncClient
            patch.setattr(httpx, "AsyncClient", lambda **settings: client(**settings, transport=transport))
            try:
                return await server.ask({"model": "m"})
            finally:
                await server.close()

    try:
        answer = asyncio.run(ask())
    except EndpointError as error:
        assert len(str(error)) < 2000  # noqa: PT017  either is fine
        return
    assert isinstance(answer, dict)
    openai_wire.turn(answer, known=(), prices=PRICES, number=1)


# ---------------------------------------------------------------- lines from a program on a machine


@given(
    written(data() | likely({"nonce": st.just("n"), "digest": TEXTS})).map(lambda t: t.encode("utf-8", "surrogatepass"))
    | st.binary(max_size=40),
    st.booleans(),
)
def test_lines(line, ended):
    line = line.replace(b"\n", b" ") + b"\n" * ended
    try:
        answer = lines._checked(line, "n", "program", process=None)
    except MachineLost as error:
        assert len(str(error)) < 1000  # noqa: PT017  either is fine
        return
    assert "nonce" not in answer
