"""The gate before training, with verifiers itself and an engine that says what a test wants."""

import json
import re
import sys
import types
from pathlib import Path

import pytest
from tasksets import NATIVE, PLAIN

from nested_rl.inner.prime_rl import gate

REQUEST = {
    "base_path": "/base",
    "prompts": 4,
    "samples": 3,
    "temperature": 0.7,
    "max_tokens": 16,
    "max_model_len": 256,
    "gpu_memory_utilization": 0.8,
    "template": {"enable_thinking": False},
}


@pytest.fixture
def engine(monkeypatch):
    """A module `vllm` whose model adds: right in the first sample, one too many in the others. What it was asked is in it."""
    seen = types.SimpleNamespace()

    class SamplingParams:
        def __init__(self, **sampling):
            seen.sampling = sampling

    class LLM:
        def __init__(self, **settings):
            seen.settings = settings

        def chat(self, conversations, sampling, **how):
            seen.conversations, seen.how = conversations, how
            return [types.SimpleNamespace(outputs=self.answers(messages)) for messages in conversations]

        def answers(self, messages):
            total = sum(map(int, re.findall(r"\d+", messages[-1]["content"])))
            return [types.SimpleNamespace(text=str(total + min(1, k))) for k in range(seen.sampling["n"])]

    monkeypatch.setitem(sys.modules, "vllm", types.SimpleNamespace(LLM=LLM, SamplingParams=SamplingParams))
    return seen


@pytest.mark.parametrize("code", [PLAIN, NATIVE], ids=["plain", "native"])
def test_rewards_by_prompt_and_answer(installed, engine, tmp_path, monkeypatch, code):
    (tmp_path / "scratch").mkdir()
    monkeypatch.chdir(tmp_path)
    settings = {"rows": 8} if code is PLAIN else {"n": 8}
    request = {**REQUEST, "taskset": {"id": installed(code), **settings}}
    Path("gate-request.json").write_text(json.dumps(request), encoding="utf-8")
    gate.main()
    assert json.loads(Path("scratch/gate.json").read_text("utf-8"))["rewards"] == [[1.0, 0.0, 0.0]] * 4
    assert engine.sampling == {"n": 3, "temperature": 0.7, "max_tokens": 16}
    assert engine.how["chat_template_kwargs"] == {"enable_thinking": False}
    assert [[message["role"] for message in messages] for messages in engine.conversations] == [["user"]] * 4


def test_a_system_prompt_is_asked_too(installed, engine, tmp_path, monkeypatch):
    (tmp_path / "scratch").mkdir()
    monkeypatch.chdir(tmp_path)
    code = NATIVE.replace("prompt=f", 'system_prompt="Be brief.", prompt=f')
    request = {**REQUEST, "taskset": {"id": installed(code)}}
    Path("gate-request.json").write_text(json.dumps(request), encoding="utf-8")
    gate.main()
    assert engine.conversations[0][0] == {"role": "system", "content": "Be brief."}
