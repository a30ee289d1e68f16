"""job.toml, environment.py as text, and what the process around agent-written code may send: a clean value or a typed fault, always."""

import json
import secrets
import socket
import tempfile

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from odd import DEEP, TEXTS, data, written

from nested_rl.errors import AgentFault
from nested_rl.inner.nano import NanoInnerTrainer
from nested_rl.jobs import wire
from nested_rl.jobs.check import check
from nested_rl.jobs.environment import Environment, Limits
from nested_rl.jobs.faults import SandboxError
from nested_rl.jobs.folder import JobConfig, digest, parse
from nested_rl.serialize import dumps, loads
from nested_rl.types import Problem

SURFACE = NanoInnerTrainer().surface
CODE = "def examples(rng, n):\n    return []\n\ndef reward(prompt, completion, answer):\n    return 0.0\n"


def clean(problems):
    """Problems that can be told to any agent, and stored."""
    assert all(len(p.brief) <= 40 for p in problems)
    for problem in problems:
        dumps(problem).encode()
        (problem.where + problem.message + problem.hint).encode()
    return True


# ---------------------------------------------------------------- job.toml

NAMES = [name for name, keys in SURFACE.keys.items() for name in (name, *keys)]
KEYS = st.sampled_from(NAMES) | st.sampled_from(["[", "]", "a.b", '"', "é", "x" * 300, "stepss", "eval", '"\\ud800"'])
VALUES = st.sampled_from(
    ['"nano-m"', "1", "-1", "1e9", "1_000", "nan", "inf", "true", "[]", "{}", "[1, 2]", "0x10", "1979-05-27", '"""', "'x'", "9" * 5000]
) | DEEP.filter(lambda text: len(text) < 5000)  # fmt: skip
LINES = st.one_of(
    st.sampled_from(NAMES).map(lambda name: f"[{name}]"),
    KEYS.map(lambda name: f"[{name}]"),
    st.tuples(KEYS, VALUES).map(" = ".join),
    TEXTS,
)


@given(st.lists(LINES, max_size=12).map("\n".join) | TEXTS)
@example("a" + ".a" * 1500 + " = 1")
@example("[" + "a." * 1500 + "a]")
@example("x = " + "[" * 3000)
@example("x = " + "{a = " * 1000 + "1" + "}" * 1000)
@example("x = 1" + "0" * 4000)
def test_job_toml(text):
    files = {"job.toml": text, "environment.py": CODE}
    config, problems = parse(files, SURFACE)
    assert isinstance(config, JobConfig) == (not problems)
    assert all(isinstance(p, Problem) for p in problems)
    assert len(problems) <= 30
    assert clean(problems)
    assert len(digest(files)) == 64


@given(
    st.dictionaries(
        TEXTS | st.sampled_from(["job.toml", "environment.py", "data/a.jsonl", "data/../x.jsonl"]), TEXTS, max_size=5
    )
)
def test_any_set_of_files(files):
    config, problems = parse(files, SURFACE)
    assert (config is None) == bool(problems)
    assert clean(problems)
    digest(files)


# ---------------------------------------------------------------- environment.py and data, unread by any machine yet

PIECES = st.sampled_from(
    ["def examples(rng, n):\n", "def reward(p, c, a):\n", "    return ", "import os\n", "from nested_rl.jobkit import make\n", "lambda: ",
     "x = ", "(", ")", "[", "]", "{", "}", "\\\n", "'", '"""', "f'{", "}'", "0", "9" * 5000, "**", " * ", "@", "async ", "yield ", "\n", "    ",
     "\t", "é", "\0", "\ud800", "__import__", ".__globals__", "range(10**9)", "class A:\n", "match x:\n", ":=", "...", "# coding: utf-7\n"]
)  # fmt: skip


@given(st.lists(PIECES | st.text(max_size=5), max_size=25).map("".join))
@example("x = " + "(" * 5000)
@example("x = " + "-" * 20_000 + "1")
@example("x = " + " + ".join(["1"] * 5000))
@example("x" + ".a" * 5000)
@example("x" + "[0]" * 5000)
@example("if x:\n" + "".join(" " * i + "if x:\n" for i in range(1, 150)))
@example("x = '''" + "\\N{" * 1000)
def test_environment_as_text(code):
    assert clean(check({"environment.py": CODE + code}, SURFACE))
    assert clean(check({"environment.py": code}, SURFACE))


@given(st.lists(written(data(st.sampled_from(["prompt", "answer"]))), max_size=6).map("\n".join))
def test_data_files(text):
    assert clean(check({"environment.py": CODE, "data/a.jsonl": text}, SURFACE))


# ---------------------------------------------------------------- frames from a process that is not to be trusted


@given(st.binary(max_size=60) | written(data()).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_frames(frame):
    try:
        value = wire.unpack(frame)
    except ValueError:
        return
    json.dumps(value, allow_nan=False)


@given(data())
def test_what_is_packed_is_unpacked(value):
    try:
        frame = wire.pack(value)
    except (ValueError, TypeError):
        return
    assert wire.size(frame[: wire.HEADER]) == len(frame) - wire.HEADER
    assert wire.unpack(frame[wire.HEADER :]) == value


NONCE = "00"
REPLIES = st.fixed_dictionaries(
    {"nonce": st.just(NONCE) | st.just(NONCE) | data(leaves=2)},
    optional={
        "value": data() | st.lists(st.floats() | st.booleans() | st.integers(), min_size=2, max_size=2) | st.lists(st.lists(TEXTS, min_size=2, max_size=2), max_size=3),
        "error": st.fixed_dictionaries({"kind": st.sampled_from(["raised", "number", "row"]) | data(leaves=3)}, optional={"type": TEXTS | data(leaves=3), "message": TEXTS | data(leaves=3), "line": data(leaves=2), "row": data(leaves=2)}) | data(leaves=3),
    },
)  # fmt: skip


def _frame(value):
    data = json.dumps(value).encode()
    return len(data).to_bytes(4, "big") + data


SENT = st.one_of(
    st.one_of(written(REPLIES), written(data()), REPLIES.map(json.dumps)).map(lambda text: text.encode("utf-8", "surrogatepass")).map(lambda b: len(b).to_bytes(4, "big") + b),
    st.binary(max_size=40),
    st.tuples(st.integers(0, 2**32 - 1), st.binary(max_size=20)).map(lambda pair: pair[0].to_bytes(4, "big") + pair[1]),
)  # fmt: skip


@given(SENT, st.sampled_from(["examples", "rewards"]))
@example(_frame({"nonce": "\ud800"}), "rewards")
@example(
    _frame(
        {"nonce": NONCE, "error": {"kind": "raised", "type": "\ud800", "message": [[]], "line": 10**400, "row": -1}}
    ),
    "rewards",
)
@pytest.mark.timeout(600)
def test_an_environment_that_lies(sent, op):
    """Its answer is what was asked for, or it is the job's own fault: never ours, which would call off an episode it is losing."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    log = tempfile.TemporaryFile()  # noqa: SIM115  closed with the environment
    environment = Environment(lambda: {"status": -9, "cpu_s": 0.0}, ours, log, Limits(call_s=30.0, reply_bytes=100_000))
    with pytest.MonkeyPatch.context() as patch, theirs:
        patch.setattr(secrets, "token_hex", lambda n: NONCE)
        theirs.sendall(sent[:100_000])
        theirs.shutdown(socket.SHUT_WR)
        try:
            if op == "examples":
                rows = environment.examples(0, 3)
                assert len(rows) <= 3
                assert all(
                    set(row) == {"prompt", "answer"} and "".join(row.values()).encode() is not None for row in rows
                )
            else:
                values = environment.rewards([{"prompt": "p", "completion": "c", "answer": "a"}] * 2)
                assert len(values) == 2
                assert all(type(v) is float and abs(v) < float("inf") for v in values)
        except SandboxError as fault:
            assert isinstance(fault, AgentFault)  # noqa: PT017  either is fine
            str(fault).encode()
            assert len(str(fault)) < 1000  # noqa: PT017
        finally:
            environment.close()
    assert loads(dumps("x"), str) == "x"
