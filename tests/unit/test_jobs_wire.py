"""Frames, the runner's answers, limits: the small parts of the sandbox."""

from __future__ import annotations

import sys

import pytest

from nested_rl.jobs import runner, wire
from nested_rl.jobs.sandbox import Limits


def test_frames_refuse_what_json_has_not() -> None:
    with pytest.raises(ValueError, match="Out of range"):
        wire.pack(float("nan"))
    with pytest.raises(ValueError, match="not allowed"):
        wire.unpack(b"[Infinity]")
    with pytest.raises(ValueError, match="nested"):
        wire.unpack(b"[" * 100_000)


def test_the_runner_answers_every_request_with_a_value_or_an_error() -> None:
    environment = runner.Environment()
    load = {"op": "load", "source": "def reward(p, c, a): return len(c)\n", "data": {}}
    assert environment.answer(load) == {"value": None}
    assert environment.answer({"op": "rewards", "rows": [["", "abc", ""]]}) == {"value": [3.0]}
    assert environment.answer({"op": "examples", "seed": 0, "n": 1})["error"]["kind"] == "row"
    assert environment.answer({"op": "nonsense"})["error"]["type"] == "AttributeError"
    del sys.modules["environment"]


def test_limits_are_checked() -> None:
    for bad in ({"cpu_s": 0}, {"memory_mib": 1}, {"call_s": 0.0}):
        with pytest.raises(ValueError, match="must be"):
            Limits(**bad)
