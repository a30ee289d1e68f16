"""Batches, truncation, the KL to the start and the canary, against plain float64 arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from attrs import evolve

from nested_rl import grpo
from nested_rl.errors import SettingsError, TrainerError
from nested_rl.testing.outer import _group
from nested_rl.trainers.tinker_canary import judge
from nested_rl.trainers.tinker_datums import Batch
from nested_rl.trainers.tinker_policy import renderer_for
from nested_rl.trainers.tinker_service import parsed
from nested_rl.types import Group, Message, Transcript, Turn

CAP = 2.0


def said(prompt, ids, rng) -> Turn:
    logprobs = tuple(-rng.random(len(ids)))
    return Turn(message=Message(role="assistant"), prompt_ids=tuple(prompt), ids=tuple(ids), logprobs=logprobs)


def group(rewards, rng, *, version: int = 0) -> Group:
    """Two turns a member: the second goes on after the first, or starts anew; of uneven lengths; None is masked."""
    made = _group([said([1, 2], [3], rng)] * len(rewards), rewards, "task")
    episodes = []
    for i, episode in enumerate(made.episodes):
        first = said([1, 2], range(3, 4 + i), rng)
        history = [*first.prompt_ids, *first.ids] if i % 2 == 0 else [9]
        second = said([*history, 5, 6], [7, 8], rng)
        transcript = Transcript(conversation=(first, Message(role="tool", content="ok"), second), end="stop")
        episodes.append(evolve(episode, transcript=transcript, version=version))
    return evolve(made, episodes=tuple(episodes), version=version)


@pytest.fixture
def groups() -> list[Group]:
    rng = np.random.default_rng(0)
    return [
        group([1.0, 0.0, None, 0.3, 0.7], rng, version=3),
        group([0.5, 0.5, 0.5], rng, version=2),  # no advantage
        group([0.0, 1.0], rng, version=1),
    ]


def test_what_has_no_gradient_is_not_sent_and_every_sequence_knows_its_staleness(groups) -> None:
    batch = Batch.of(groups, version=3, std_floor=0.05)
    assert all(any(d.advantages) for d in batch.datums)
    assert batch.staleness() == {"stale_0": 6.0, "stale_2": 3.0}
    with_flat = Batch.of(groups, version=3, std_floor=0.05, flat=True)
    assert with_flat.staleness() == {"stale_0": 6.0, "stale_1": 4.0, "stale_2": 3.0}
    assert Batch.of(groups[1:2], version=3, std_floor=0.05, flat=True).datums == ()
    assert Batch.of([], version=3, std_floor=0.05).tokens == 0


def test_the_weight_of_every_token_is_its_truncated_ratio_times_its_advantage(groups) -> None:
    """What the loss makes of the wire: exp(new − logprobs) · advantage. It must be min(ratio, cap) · advantage."""
    rng = np.random.default_rng(1)
    batch = Batch.of(groups, version=3, std_floor=0.05)
    new = [np.array(d.logprobs) + rng.normal(0, 1.5, len(d.targets)) for d in batch.datums]
    sent = batch.truncated(new, CAP)
    wanted, found = [], []
    for datum, wire, now in zip(batch.datums, sent.datums, new, strict=True):
        mine = np.array(datum.sampled)
        ratio = np.exp(now - np.array(datum.logprobs))
        wanted.append(np.where(mine, np.minimum(ratio, CAP) * np.array(datum.advantages), 0.0))
        found.append(np.exp(now - np.array(wire.logprobs)) * np.array(wire.advantages))
    wanted, found = np.concatenate(wanted), np.concatenate(found)
    assert (np.abs(found - wanted) < 1e-12).all()
    ratios = batch.ratios(new)
    assert (ratios > CAP).any()
    advantage = np.concatenate([np.array(d.advantages)[list(d.sampled)] for d in batch.datums])
    shared = grpo.coefficients(ratios, advantage, cap=CAP, tokens=1)  # what the nano trainer uses
    mine = np.concatenate([d.sampled for d in batch.datums])
    assert np.abs(found[mine] + shared).max() < 1e-12


def test_the_kl_moves_advantages_towards_the_start_and_favours_nobody(groups) -> None:
    batch = Batch.of(groups, version=3, std_floor=0.05)
    start = [np.array(d.logprobs) - np.arange(len(d.targets)) / 10 for d in batch.datums]
    pulled = batch.pulled(start, 0.5)
    change = [np.array(b.advantages) - np.array(a.advantages) for a, b in zip(batch.datums, pulled.datums, strict=True)]
    for moved, datum in zip(change, batch.datums, strict=True):
        assert not moved[~np.array(datum.sampled)].any()
    assert abs(batch.sampled(change).sum()) < 1e-12
    apart = batch.sampled([np.array(d.logprobs) - s for d, s in zip(batch.datums, start, strict=True)])
    assert batch.start_kl(start) == pytest.approx(apart.mean())
    assert np.abs(batch.sampled(change) - 0.5 * (apart.mean() - apart)).max() < 1e-12


def test_the_gap_is_of_what_was_sampled_at_this_version(groups) -> None:
    batch = Batch.of(groups, version=3, std_floor=0.05)
    new = [np.array(d.logprobs) + (0.5 if lag else 1e-5) for d, lag in zip(batch.datums, batch.lags, strict=True)]
    assert batch.gap(new) == pytest.approx(1e-5)


def test_a_sampler_that_leaves_tokens_out_is_refused(groups) -> None:
    batch = Batch.of(groups, version=3, std_floor=0.05)
    rows = [[None] + [-1.0] * (len(d.targets) - 1) for d in batch.datums]  # the first target is never sampled here
    assert [len(row) for row in batch.complete(rows)] == [len(d.targets) for d in batch.datums]
    with pytest.raises(TrainerError, match="every token"):
        batch.complete([[None] * len(d.targets) for d in batch.datums])


@pytest.mark.parametrize("noise", [0.0, 1e-3, 1e-2])
def test_a_canary_tells_new_from_old_through_noise(noise: float) -> None:
    rng = np.random.default_rng(0)
    old = -rng.random(60)
    new = old + rng.normal(0, 0.05, 60)
    jitter = rng.normal(0, noise, 60)
    assert judge(old, new, new + jitter).verdict == "new"
    assert judge(old, new, old + jitter).verdict == "stale"


def test_a_move_smaller_than_the_noise_proves_nothing() -> None:
    rng = np.random.default_rng(0)
    old = -rng.random(60)
    new = old + rng.normal(0, 1e-4, 60)
    verdicts = {judge(old, new, new + rng.normal(0, 0.05, 60)).verdict for _ in range(20)}
    assert "stale" not in verdicts


def test_a_reference_that_is_none_is_refused() -> None:
    assert parsed("tinker://run/weights/a?version=12") == ("tinker://run/weights/a", 12)
    for ref in ("never-saved", "tinker://run/weights/a", "tinker://run/weights/a?version=x", "00003"):
        with pytest.raises(TrainerError, match="no checkpoint of this trainer"):
            parsed(ref)


def test_the_renderer_follows_the_model() -> None:
    from nested_rl.nano.folder import weights_path

    assert type(renderer_for(str(weights_path("nano-agent")), lambda: None)).__name__ == "NanoRenderer"
    with pytest.raises(SettingsError, match="renderer="):
        renderer_for("meta-llama/Llama-3.1-8B", lambda: None)
