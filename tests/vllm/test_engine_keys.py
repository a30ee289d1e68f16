"""prime-rl hands [inference.vllm] on as it is: every key that a job may set there, or that is set for it, is one of vLLM's."""

import dataclasses

import pytest

from nested_rl.inner.prime_rl.keys.allowed import OPEN

pytestmark = pytest.mark.vllm


def test_every_open_key_is_an_argument_of_the_engine():
    arguments = pytest.importorskip("vllm.engine.arg_utils", reason="vLLM is not installed: make test-vllm")
    known = {field.name for field in dataclasses.fields(arguments.AsyncEngineArgs)}
    ours = {"max_model_len", "gpu_memory_utilization", "kv_cache_memory_bytes", "seed"}
    given = {path.rpartition(".")[2] for path in OPEN if path.startswith("inference.vllm.")}
    assert given | ours <= known
