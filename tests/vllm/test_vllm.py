"""A real vLLM on the CPU: nano models score as they do on the numpy engine, adapters are applied, and a killed server is told.

Run by `make test-vllm`. Tests are ordered so that one server answers what one model is asked.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal

import attrs
import numpy as np
import pytest

from nested_rl import model_files
from nested_rl.errors import InfraFault, MachineLost, SettingsError
from nested_rl.inner.nano_job import write
from nested_rl.nano.folder import load_model, weights_path
from nested_rl.nano.lora import LoRA
from nested_rl.scorers import NanoScorer, VLLMScorer, vllm_canary
from nested_rl.testing.machine import runs
from nested_rl.types import Checkpoint, Score

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(540)]


def agree(one: Score, other: Score) -> bool:
    """Within four standard errors of their difference."""
    return abs(one.value - other.value) <= 4 * math.hypot(one.stderr, other.stderr)


def running(scorer, machine):
    return scorer._places[id(machine)].server


def adapter(path, base, *, scale):
    """Random, as strong as `scale` says."""
    lora = LoRA(load_model(weights_path(base))[0], rank=8)
    rng = np.random.default_rng(1)
    for b in lora.b.values():
        b[:] = rng.normal(0, scale, b.shape)
    lora.save(path, base=base)
    lora.merge()
    return lora.model, Checkpoint(path=str(path), base=base, kind="lora", digest=model_files.digest(path.iterdir()))


async def test_a_base_scores_as_on_the_numpy_engine(machine, scorer, family, evaluation):
    ours = await scorer.score("nano-m", evaluation, machine, seed=1)
    reference = await NanoScorer([family]).score("nano-m", evaluation, machine, seed=1)
    assert agree(ours, reference)
    assert 0.5 < ours.value < 0.95
    assert ours.n == 192
    assert ours.tokens == pytest.approx(reference.tokens, rel=0.05)


async def test_greedy_answers_are_those_of_the_numpy_engine(machine, scorer, family, evaluation):
    greedy = attrs.evolve(evaluation.sampling, temperature=0.0)
    certain = attrs.evolve(evaluation, sampling=greedy, baseline_sampling=greedy)
    ours = await scorer.score("nano-m", certain, machine)
    reference = await NanoScorer([family]).score("nano-m", certain, machine)
    assert (
        sum(a != b for a, b in zip(ours.items, reference.items, strict=True)) <= 1
    )  # two tokens may be equally likely
    assert ours.tokens == pytest.approx(reference.tokens, rel=0.01)


async def test_the_same_seed_asks_the_same_and_another_one_something_else(machine, scorer, evaluation):
    first, again, other = [await scorer.score("nano-m", evaluation, machine, seed=seed) for seed in (5, 5, 6)]
    assert sum(a != b for a, b in zip(first.items, again.items, strict=True)) <= 2  # batches round differently
    assert sum(a != b for a, b in zip(first.items, other.items, strict=True)) > 10


async def test_a_completion_without_end_is_cut_and_wrong(machine, scorer, evaluation):
    short = attrs.evolve(
        evaluation, baseline_sampling=attrs.evolve(evaluation.baseline_sampling, max_tokens=2, samples=1)
    )
    score = await scorer.score("nano-m", short, machine)
    assert (score.value, score.truncated, score.tokens) == (0.0, 192, 384)


async def test_a_running_server_is_an_endpoint_like_any_other(machine, scorer, family, evaluation, monkeypatch):
    await scorer.score("nano-m", evaluation, machine, seed=1)
    server = running(scorer, machine)
    monkeypatch.setenv("OUR_KEY", server.key)
    url = f"http://127.0.0.1:{server.port}/v1"
    outside = VLLMScorer([family], endpoint=url, model="base", key_env="OUR_KEY")
    score = await outside.score("nano-m", evaluation, machine, seed=1)
    assert agree(score, await scorer.score("nano-m", evaluation, machine, seed=2))
    with pytest.raises(SettingsError, match="nano-m"):
        await VLLMScorer([family], endpoint=url, key_env="OUR_KEY").score("nano-m", evaluation, machine)
    monkeypatch.setenv("OUR_KEY", "another")
    with pytest.raises(SettingsError, match="refuses the key in OUR_KEY"):
        await outside.score("nano-m", evaluation, machine)
    assert running(scorer, machine) is server  # it went on all the time


async def test_a_server_that_is_killed_while_it_answers_is_a_fault_and_nothing_is_left(machine, scorer, evaluation):
    await scorer.score("nano-m", evaluation, machine)
    server = running(scorer, machine)
    below = (await machine.run(["ps", "-o", "pid=", "-g", str(server.process.pid)])).stdout.split()
    assert len(below) >= 3  # the host, the server, its engine
    long = attrs.evolve(evaluation, baseline_sampling=attrs.evolve(evaluation.baseline_sampling, samples=64))
    scoring = asyncio.ensure_future(scorer.score("nano-m", long, machine))
    await asyncio.sleep(1.0)
    assert not scoring.done()
    (serving,) = (await machine.run(["ps", "-o", "pid=", "--ppid", str(server.process.pid)])).stdout.split()
    os.kill(int(serving), signal.SIGKILL)
    with pytest.raises(MachineLost, match=r"vLLM on .* died with status -9"):
        await scoring
    assert not any([await runs(machine, pid) for pid in below])


async def test_an_adapter_is_applied_and_scores_as_on_the_numpy_engine(machine, scorer, family, evaluation, tmp_path):
    model, checkpoint = adapter(tmp_path / "adapter", "nano-m", scale=0.03)
    merged = write(tmp_path / "merged", model, load_model(weights_path("nano-m"))[1], "nano-m")
    four = attrs.evolve(evaluation, sampling=evaluation.baseline_sampling)
    ours = await scorer.score(checkpoint, four, machine, seed=1)
    reference = await NanoScorer([family]).score(
        Checkpoint(path=str(tmp_path / "merged"), base="nano-m", digest=merged), four, machine, seed=1
    )
    assert agree(ours, reference)
    server = running(scorer, machine)
    assert server.names == ("base", "adapter", "control")
    async with server.reached(timeout_s=10, attempt_s=60) as endpoint:
        said = {name: [await vllm_canary._likely(endpoint, name, "c8-1+5?")] for name in server.names}
    assert vllm_canary.difference(said["base"], said["adapter"]) > vllm_canary.SEEN
    assert vllm_canary.difference(said["base"], said["control"]) > vllm_canary.CLEAR


async def test_a_full_checkpoint_scores_as_on_the_numpy_engine(machine, scorer, family, evaluation, tmp_path):
    model, tokenizer = load_model(weights_path("nano-s"))
    model.theta += np.random.default_rng(3).normal(0, 0.01, model.theta.size).astype(np.float32)
    checkpoint = Checkpoint(
        path=str(tmp_path / "c"), base="nano-s", digest=write(tmp_path / "c", model, tokenizer, "nano-s")
    )
    (tmp_path / "c" / "chat_template.jinja").write_text("{{ 'c1+1?' }}")  # the base's own is used
    four = attrs.evolve(evaluation, sampling=evaluation.baseline_sampling)
    ours = await scorer.score(checkpoint, four, machine, seed=1)
    assert agree(ours, await NanoScorer([family]).score(checkpoint, four, machine, seed=1))
    with pytest.raises(InfraFault, match="sha256"):
        await scorer.score(attrs.evolve(checkpoint, digest="0" * 64), four, machine)
