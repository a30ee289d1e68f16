"""Values survive JSON unchanged, and everything else is refused with the place where it is wrong."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nested_rl.errors import SettingsError, UnknownName
from nested_rl.serialize import dumps, from_json, loads, to_json
from nested_rl.types import (
    Budget,
    Checkpoint,
    Episode,
    Group,
    Job,
    JobResult,
    JobSpec,
    JobState,
    Message,
    Need,
    Outcome,
    Problem,
    Score,
    Task,
    ToolCall,
    Transcript,
    Turn,
    Usage,
    Validation,
)

TEXT = st.text(max_size=8)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
SMALL = st.integers(-(2**40), 2**40)
IDS = st.none() | st.lists(SMALL, max_size=4).map(tuple)
FLOATS = st.lists(NUMBER, max_size=4).map(tuple)


def of(cls, **fields):
    return st.builds(cls, **fields)


TASK = of(Task, id=TEXT, family=TEXT, difficulty=SMALL, prompt=TEXT, held_out=st.booleans())
CALL = of(ToolCall, name=TEXT, arguments=st.dictionaries(TEXT, TEXT, max_size=2), error=st.none() | TEXT)
MESSAGE = of(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=TEXT,
    tool_calls=st.lists(CALL, max_size=2).map(tuple),
)
TURN = of(Turn, message=MESSAGE, prompt_ids=IDS, ids=IDS, logprobs=st.none() | FLOATS, usage=of(Usage, usd=NUMBER))
TRANSCRIPT = of(Transcript, conversation=st.lists(MESSAGE | TURN, max_size=3).map(tuple), end=TEXT)
SCORE = of(Score, value=NUMBER, n=SMALL, items=FLOATS)
FAULT = st.sampled_from([None, "agent", "infra"])
RESULT = of(JobResult, post=st.none() | SCORE, fault=FAULT, cost=NUMBER, curve=FLOATS, log=TEXT)
SPEC = of(
    JobSpec,
    task=TASK,
    files=st.dictionaries(TEXT, TEXT, max_size=2),
    digest=TEXT,
    base=TEXT,
    scale=st.sampled_from(["nano", "full"]),
    need=of(Need, gpus=SMALL, disk_gib=NUMBER),
    timeout_s=NUMBER,
)
JOB = of(Job, id=TEXT, key=TEXT, spec=SPEC, state=st.sampled_from(JobState), result=st.none() | RESULT)
OUTCOME = of(Outcome, task=TASK, baselines=st.dictionaries(TEXT, SCORE, max_size=2), post=st.none() | SCORE)
VALIDATION = of(
    Validation,
    ok=st.booleans(),
    problems=st.lists(of(Problem, code=TEXT, where=TEXT, message=TEXT), max_size=2).map(tuple),
    notes=st.dictionaries(TEXT, NUMBER, max_size=2),
)
EPISODE = of(
    Episode,
    group=SMALL,
    member=SMALL,
    task=TASK,
    version=SMALL,
    transcript=TRANSCRIPT,
    outcome=OUTCOME,
    validations=st.lists(VALIDATION, max_size=1).map(tuple),
    result=st.none() | RESULT,
    parts=st.dictionaries(TEXT, NUMBER, max_size=2),
)
GROUP = of(Group, index=SMALL, task=TASK, version=SMALL, episodes=st.lists(EPISODE, max_size=1).map(tuple))
CHECKPOINT = of(Checkpoint, path=TEXT, base=TEXT, kind=st.sampled_from(["full", "lora"]), curve=FLOATS)
BUDGET = of(Budget, usd=st.none() | st.floats(min_value=0, allow_infinity=False))


@settings(max_examples=100, deadline=None)
@given(TASK | MESSAGE | TURN | TRANSCRIPT | RESULT | JOB | VALIDATION | GROUP | CHECKPOINT | BUDGET)
def test_every_value_comes_back_equal(value):
    text = dumps(value)
    assert "\n" not in text
    assert loads(text, type(value)) == value


def test_a_conversation_tells_messages_from_turns():
    said = (Message(role="user", content="hi"), Turn(message=Message(role="assistant"), ids=(1, 2)))
    data = to_json(said)
    assert [entry["kind"] for entry in data] == ["message", "turn"]
    assert from_json(data, tuple[Message | Turn, ...]) == said
    assert from_json(data[1], Message | Turn) == said[1]


def test_missing_keys_take_their_defaults_and_whole_numbers_are_floats():
    assert from_json({"usd": 3}, Budget) == Budget(usd=3.0)
    assert isinstance(from_json({"usd": 3}, Budget).usd, float)


def test_an_unknown_key_is_refused_with_its_place_and_the_nearest_right_one():
    call = {"name": "write_file", "argumants": {}}
    turn = {"kind": "turn", "message": {"role": "assistant", "tool_calls": [call]}}
    with pytest.raises(
        UnknownName, match=r"\(in conversation\[0\]\.message\.tool_calls\[0\]\) 'argumants'.*'arguments'"
    ):
        from_json({"conversation": [turn], "end": "stop"}, Transcript)


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        ([], Task, "Task: expected an object"),
        ({"id": "t"}, Task, "family: missing"),
        ({"id": 1, "family": "f", "difficulty": 1}, Task, "id: expected text, got 1"),
        ({"id": "t", "family": "f", "difficulty": 1.5}, Task, "difficulty: expected a whole number, got 1.5"),
        ({"id": "t", "family": "f", "difficulty": True}, Task, "difficulty: expected a whole number, got true"),
        ({"usd": True}, Budget, "usd: expected a number, got true"),
        ({"usd": "3"}, Budget, 'usd: expected a number, got "3"'),
        ({"usd": math.nan}, Budget, "usd: expected a finite number"),
        ({"usd": 10**400}, Budget, "usd: expected a finite number"),
        ({"value": 0, "n": 2, "items": [0.5, math.inf]}, Score, r"items\[1\]: expected a finite number"),
        ({"value": 0, "n": 2, "items": "ab"}, Score, "items: expected a list"),
        ({"fault": "agnt"}, JobResult, 'fault: expected one of "agent", "infra", got "agnt"'),
        ({"ok": 1}, Validation, "ok: expected true or false, got 1"),
        ({"ok": True, "notes": {"rows": "x"}}, Validation, "notes.rows: expected a number"),
        ({"conversation": [{"kind": "trun"}], "end": ""}, Transcript, r"conversation\[0\].kind: expected one of"),
        ({"conversation": [{"role": "user"}], "end": ""}, Transcript, r"conversation\[0\].kind: expected one of"),
        ({"kind": "turn", "message": {"role": "user"}}, Message, "expected a Message, got a Turn"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(data, kind, message):
    with pytest.raises(SettingsError, match=message):
        from_json(data, kind)


def test_what_is_not_json_is_refused():
    with pytest.raises(SettingsError, match="not valid JSON"):
        loads('{"usd": ', Budget)
    with pytest.raises(SettingsError, match="not valid JSON"):
        loads("[" * 100_000, Budget)
    with pytest.raises(SettingsError, match="usd: expected a finite number"):
        loads('{"usd": 1e999}', Budget)


def test_numbers_that_json_cannot_hold_are_not_written():
    with pytest.raises(SettingsError, match=r"notes\.rows: only finite numbers can be stored, got nan"):
        dumps(Validation(ok=True, notes={"rows": math.nan}))
    with pytest.raises(SettingsError, match=r"value: only finite numbers"):
        dumps(math.inf)


def test_the_json_is_plain():
    data = to_json(Job(id="1", key="k", spec=from_json(_SPEC, JobSpec)))
    assert json.loads(json.dumps(data)) == data
    assert data["state"] == "queued"


_SPEC = {
    "task": {"id": "t", "family": "f", "difficulty": 1},
    "files": {"job.toml": ""},
    "digest": "d",
    "base": "nano-s",
    "scale": "nano",
}
