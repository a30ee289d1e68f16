"""What a model says: tool calls in every dialect, and what they do to a workspace. A call or a reason, a reply or a refusal."""

import asyncio
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from odd import TEXTS, data, likely, written

from nested_rl.clock import SystemClock
from nested_rl.harness.tools import SCHEMAS, Toolbox
from nested_rl.harness.workspace import Limits, Workspace
from nested_rl.interfaces import Desk
from nested_rl.nano.tokenizer import Tokenizer
from nested_rl.renderers import NanoRenderer, Qwen3Renderer, Qwen35Renderer
from nested_rl.renderers.calls import checked
from nested_rl.renderers.nano import SPECIALS as NANO
from nested_rl.serialize import dumps, loads
from nested_rl.types import Message, Task, ToolCall, Turn, Validation

TOOLS = [schema["function"]["name"] for schema in SCHEMAS]
ARGUMENTS = {
    "path": st.sampled_from(["job.toml", "a/b", "../x", "/etc/passwd", "a" * 300, "~", "."]),
    "content": TEXTS,
    "old": TEXTS,
    "new": TEXTS,
}
QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
CHARS = [chr(i) for i in range(32, 127)] + ["\n", "é"]
TOKENS = Tokenizer.pieces(QWEN, CHARS, [], pad="<|endoftext|>", eos="<|im_end|>", unk="<|endoftext|>")
SMALL = Tokenizer.pieces(NANO, CHARS, [], pad="<pad>", eos="<stop>", unk="<unk>")
RENDERERS = {
    "qwen3": (Qwen3Renderer(TOKENS), TOKENS),
    "qwen3_5": (Qwen35Renderer(TOKENS), TOKENS),
    "nano": (NanoRenderer(SMALL), SMALL),
}
PIECES = st.sampled_from(
    [*QWEN, *NANO, "<function=", "write_file>", "</function>", "<parameter=", "path>", "</parameter>", '{"name": "', "write_file", '", "arguments": ',
     '{"path": "job.toml"}', "}", "[" * 2000, "\n", "----", " ", "{", "\\ud800", "1e999", "9" * 5000]
)  # fmt: skip


def sound(message):
    """It can be stored, read back and shown to the next model; a call is whole, or says what is wrong."""
    assert loads(dumps(message), Message) == message
    for call in message.tool_calls:
        assert (call.error is None) or call.name == ""
        assert all(isinstance(k, str) and isinstance(v, str) for k, v in call.arguments.items())
        assert len(call.error or "") < 1000
    json.dumps(dumps(message)).encode()


@given(
    TEXTS | data(leaves=3) | st.sampled_from(TOOLS), data(st.sampled_from(list(ARGUMENTS))) | written(likely(ARGUMENTS))
)
def test_a_call_from_name_and_arguments(name, arguments):
    for known in ((), TOOLS):
        call = checked(name, arguments, id="c", known=known)
        sound(Message(role="assistant", tool_calls=(call,)))
        assert call.id == "c"


@pytest.mark.parametrize("kind", RENDERERS)
@given(pieces=st.lists(PIECES | st.text(max_size=4), max_size=14), cut=st.integers(0, 4))
def test_what_a_model_samples(kind, pieces, cut):
    renderer, tokens = RENDERERS[kind]
    ids = tokens.encode("".join(pieces))[: 6000 - cut]
    message = renderer.parse(ids)
    sound(message)
    again = renderer.render(
        [Message(role="user", content="go"), Turn(message=message), Message(role="tool", content="ok")], SCHEMAS
    )
    assert all(0 <= i < len(tokens) for i in again)
    turn = Turn(message=message, ids=tuple(ids), prompt_ids=(), logprobs=(0.0,) * len(ids))
    kept = renderer.render([Message(role="user", content="go"), turn], SCHEMAS)
    assert _inside(tuple(ids), tuple(kept))


def _inside(part, whole):
    return not part or any(whole[i : i + len(part)] == part for i in range(len(whole) - len(part) + 1))


class Counts(Desk):
    def __init__(self):
        self.task, self.seen = Task(id="t", family="f", difficulty=1), []

    async def baselines(self):
        return {"nano-m": 0.5}

    async def submit(self, files):
        self.seen.append(dict(files))
        return Validation(ok=False)

    async def result(self):
        raise AssertionError

    def guide(self, *, brief):
        return ""


CALLS = st.builds(
    ToolCall,
    name=st.sampled_from(TOOLS) | st.text(max_size=10),
    arguments=likely(ARGUMENTS) | st.dictionaries(TEXTS, TEXTS, max_size=3),
    error=st.none() | TEXTS,
)
LIMITS = Limits(file_bytes=2000, total_bytes=4000, files=5, depth=3, path_chars=100)


@given(st.lists(CALLS, max_size=8))
def test_tools(calls):
    """Whatever is called: a reply in words, at most so many bytes and files, and nothing outside of the folder."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "in"
        folder.mkdir()
        desk = Counts()
        with Workspace(folder, LIMITS) as workspace:
            box = Toolbox(workspace, desk, SystemClock(), max_attempts=3)
            for call in calls:
                reply = asyncio.run(box.use(call))
                assert isinstance(reply, str)
                assert len(reply) < 20_000
                dumps(Message(role="tool", content=reply)).encode()
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in files) <= LIMITS.total_bytes
        assert len(files) <= LIMITS.files
        assert list(Path(place).iterdir()) == [folder]
        assert box.attempts == len(desk.seen) <= len(calls)
