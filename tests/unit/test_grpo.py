"""Advantages, sequences, ratios; and the gradient through the engine against a float64 reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nested_rl import grpo
from nested_rl.errors import SettingsError
from nested_rl.nano.config import Qwen3Config
from nested_rl.nano.losses import backward_from_coefficients
from nested_rl.nano.model import Qwen3
from nested_rl.nano.packing import causal, pack_rows
from nested_rl.types import Episode, Group, Message, Outcome, Task, Transcript, Turn

TASK = Task(id="t", family="calc_chain", difficulty=1)


def turn(prompt, ids, logprobs=None) -> Turn:
    logprobs = tuple(-0.5 - 0.1 * i for i in range(len(ids))) if logprobs is None else tuple(logprobs)
    return Turn(message=Message(role="assistant"), prompt_ids=tuple(prompt), ids=tuple(ids), logprobs=logprobs)


def transcript(*turns) -> Transcript:
    return Transcript(conversation=(Message(role="user", content="go"), *turns), end="stop")


def group(index, members) -> Group:
    """members: (reward or None for masked, transcript)."""
    episodes = tuple(
        Episode(
            group=index,
            member=i,
            task=TASK,
            version=0,
            transcript=said,
            outcome=Outcome(task=TASK),
            reward=0.0 if reward is None else reward,
            masked=reward is None,
        )
        for i, (reward, said) in enumerate(members)
    )
    return Group(index=index, task=TASK, version=0, episodes=episodes)


# ---------------------------------------------------------------- advantages


def test_advantages_are_centred_and_scaled():
    got = grpo.advantages([1.0, 2.0, 3.0, 6.0], std_floor=0.5)
    deviation = np.std([1.0, 2.0, 3.0, 6.0])
    assert got == pytest.approx([(r - 3.0) / (deviation + 0.5) for r in (1.0, 2.0, 3.0, 6.0)])


def test_masked_members_change_nothing():
    plain = grpo.advantages([0.1, 0.9, 0.4])
    masked = grpo.advantages([0.1, None, 0.9, 0.4, None])
    assert [a for a in masked if a is not None] == plain
    assert [i for i, a in enumerate(masked) if a is None] == [1, 4]


def test_equal_rewards_are_no_signal_to_the_last_bit():
    assert grpo.advantages([0.1 + 0.2] * 7, std_floor=0.0) == [0.0] * 7


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=9), st.floats(1e-3, 1))
@settings(deadline=None)
def test_advantages_sum_to_nothing(rewards, floor):
    got = grpo.advantages(rewards, std_floor=floor)
    assert sum(got) == pytest.approx(0, abs=1e-6)
    assert max(map(abs, got)) <= math.sqrt(len(rewards)) + 1e-6


def test_too_few_members_have_no_baseline():
    for rewards in ([], [1.0], [None, 1.0, None]):
        assert grpo.advantages(rewards) == [None] * len(rewards)
    with pytest.raises(SettingsError, match="finite"):
        grpo.advantages([1.0, math.nan])


# ---------------------------------------------------------------- sequences


def test_turns_that_extend_each_other_are_one_sequence():
    said = transcript(turn([1, 2], [3, 4], [-1.0, -2.0]), turn([1, 2, 3, 4, 5, 6], [7], [-3.0]))
    (datum,) = grpo.datums(said, 0.5)
    assert datum.tokens == (1, 2, 3, 4, 5, 6, 7)
    assert datum.inputs == (1, 2, 3, 4, 5, 6)
    assert datum.targets == (2, 3, 4, 5, 6, 7)
    assert datum.sampled == (False, True, True, False, False, True)
    assert datum.logprobs == (0.0, -1.0, -2.0, 0.0, 0.0, -3.0)
    assert datum.advantages == (0.0, 0.5, 0.5, 0.0, 0.0, 0.5)
    assert datum.trained == 3


def test_a_turn_that_does_not_extend_starts_anew():
    said = transcript(turn([1, 2], [3]), turn([1, 9, 3], [4]), turn([1, 9, 3, 4], [5]), turn([1], [2]))
    found = grpo.datums(said, -1.0)
    assert [d.tokens for d in found] == [(1, 2, 3), (1, 9, 3, 4, 5), (1, 2)]
    assert [d.trained for d in found] == [1, 2, 1]


def test_messages_are_not_trained_and_empty_turns_are_left_out():
    assert grpo.datums(transcript(), 1.0) == []
    assert grpo.datums(transcript(turn([1, 2], [])), 1.0) == []
    (datum,) = grpo.datums(transcript(turn([1, 2], [3]), turn([1, 2, 3, 4], [])), 1.0)
    assert datum.tokens == (1, 2, 3)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (Turn(message=Message(role="assistant")), "frozen policy"),
        (turn([1], [2, 3], [-1.0]), "2 ids but 1"),
        (turn([], [2]), "empty prompt"),
        (turn([1], [2], [-math.inf]), "not finite"),
    ],
)
def test_turns_that_cannot_be_trained_are_refused(bad, says):
    with pytest.raises(SettingsError, match=says):
        grpo.datums(transcript(turn([1], [2]), bad), 1.0)


def test_a_skipped_group_has_no_sequences():
    one = transcript(turn([1], [2]))
    assert grpo.group_datums(group(0, [(1.0, one), (None, one)])) == []
    kept = grpo.group_datums(group(0, [(1.0, one), (None, one), (0.0, one)]))
    assert [d.advantages for d in kept] == [(0.5 / 0.55,), (-0.5 / 0.55,)]


# ---------------------------------------------------------------- ratios


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=30))
@settings(deadline=None)
def test_the_effective_share_is_a_share(values):
    share = grpo.effective_sample_size(np.array(values))
    assert 0 < share <= 1 + 1e-12


def test_the_effective_share_counts_equal_weights():
    assert grpo.effective_sample_size(np.full(8, 3.0)) == pytest.approx(1.0)
    assert grpo.effective_sample_size(np.array([1.0] + [1e-12] * 7)) == pytest.approx(1 / 8)
    assert grpo.effective_sample_size(np.array([1.0, 3.0])) == pytest.approx(16 / 20)
    assert grpo.effective_sample_size(np.array([])) == 1.0


def test_ratios_stay_finite_and_are_summed_up():
    r = grpo.ratios(np.array([0.0, -1.0, 0.0, -900.0]), np.array([0.0, -2.0, -900.0, 0.0]))
    assert np.isfinite(r).all()
    assert r[:2] == pytest.approx([1.0, math.e])
    stats = grpo.RatioStats.of(np.array([1.0, 3.0]))
    assert (stats.mean, stats.max, stats.ess) == (2.0, 3.0, pytest.approx(0.8))
    assert grpo.RatioStats.of(np.array([])) == grpo.RatioStats()
    with pytest.raises(SettingsError, match="cap"):
        grpo.truncate(np.ones(2), 0.0)


# ---------------------------------------------------------------- the gradient


def net(dtype=np.float64) -> Qwen3:
    config = Qwen3Config(vocab_size=10, hidden_size=6, intermediate_size=8, head_dim=4, max_position_embeddings=32)
    return Qwen3(config, seed=1, dtype=dtype)


def token_gradient(model, tokens, at):
    """log π(tokens[at] | before) and its gradient, one sequence and one token at a time."""
    row = list(tokens[: at + 1])
    packed = pack_rows([row], [[False] * at + [True]], 0)
    logp = backward_from_coefficients(model, packed, np.ones(1))
    return float(logp[0]), model.grad.copy()


def reference(model, groups, cap, floor):
    """The definition, in float64, loop by loop, from the transcripts themselves."""
    total, count, truncated = np.zeros(model.size), 0, 0
    for g in groups:
        real = [e for e in g.episodes if not e.masked]
        if len(real) < 2:
            continue
        rewards = np.array([e.reward for e in real], np.float64)
        for e in real:
            advantage = (e.reward - rewards.mean()) / (rewards.std() + floor)
            for t in e.transcript.turns:
                for k, (token, old) in enumerate(zip(t.ids, t.logprobs, strict=True)):
                    before = [*t.prompt_ids, *t.ids[:k]]
                    new, gradient = token_gradient(model, [*before, token], len(before))
                    ratio = math.exp(new - old)
                    truncated += ratio > cap
                    total += -min(ratio, cap) * advantage * gradient
                    count += 1
    return total / count, truncated


def through_the_engine(model, groups, cap, floor):
    found = [d for g in groups for d in grpo.group_datums(g, std_floor=floor)]
    packed = pack_rows([d.tokens for d in found], [[False, *d.sampled] for d in found], 0, capacity=20)
    keep = np.concatenate([d.sampled for d in found])
    old = np.concatenate([d.logprobs for d in found])[keep]
    advantage = np.concatenate([d.advantages for d in found])[keep]

    def co(new):
        return grpo.coefficients(grpo.ratios(new, old), advantage, cap=cap, tokens=len(packed))

    backward_from_coefficients(model, packed, co)
    return model.grad


def episode_of(rng, model, shape, drift):
    """A transcript of turns (observation tokens, sampled tokens), its log-probabilities `drift` away from the model's."""
    tokens, turns = [], []
    for observed, sampled in shape:
        prompt = [*tokens, *rng.integers(1, 10, observed).tolist()]
        ids = rng.integers(1, 10, sampled).tolist()
        whole = [*prompt, *ids]
        new = [token_gradient(model, whole, len(prompt) + k)[0] for k in range(sampled)]
        turns.append(turn(prompt, ids, [x - rng.normal(0, drift) for x in new]))
        tokens = whole
    return transcript(*turns)


@pytest.mark.parametrize(
    ("drift", "cap", "truncation"), [(0.0, 2.0, False), (0.4, 1e9, False), (1.0, 1.5, True), (0.4, 0.9, True)]
)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_gradient_is_that_of_the_definition(drift, cap, truncation, dtype):
    rng = np.random.default_rng(7)
    model = net()

    def said(*shape):
        return episode_of(rng, model, shape, drift)

    groups = [
        group(0, [(0.9, said((3, 2), (2, 3))), (0.1, said((3, 4))), (None, said((2, 2))), (0.4, said((2, 1), (1, 1)))]),
        group(1, [(0.5, said((2, 3))), (0.5, said((4, 2), (1, 2)))]),  # no advantage, but its tokens count in N
        group(2, [(1.0, said((2, 2))), (None, said((2, 2)))]),  # skipped
        group(3, [(0.0, said((1, 5))), (1.0, said((5, 1)))]),
    ]
    # one episode whose context was rewritten: two sequences
    broken = transcript(turn([4, 5], [6, 7], [-2.0, -2.5]), turn([4, 8, 6], [3], [-1.9]))
    groups.append(group(4, [(0.2, broken), (0.7, said((2, 2)))]))

    expected, truncated = reference(model, groups, cap, 0.05)
    assert (truncated > 0) == truncation
    engine = Qwen3(model.config, model.theta, dtype=dtype)
    got = through_the_engine(engine, groups, cap, 0.05)
    tolerance = 1e-10 if dtype is np.float64 else 1e-4
    assert np.abs(got - expected).max() <= tolerance * np.abs(expected).max()


def test_the_reference_itself_is_a_derivative():
    model = net()
    tokens = [3, 4, 5, 6]
    logp, gradient = token_gradient(model, tokens, 3)
    x = model.forward(np.array([tokens]), np.arange(4)[None], causal(4))
    z = model.logits(x)[2]
    assert logp == pytest.approx(float(z[6] - np.log(np.exp(z).sum())))
    direction = np.random.default_rng(0).normal(size=model.size)
    at = [
        token_gradient(Qwen3(model.config, model.theta + s * direction, dtype=np.float64), tokens, 3)[0]
        for s in (1e-6, -1e-6)
    ]
    assert (at[0] - at[1]) / 2e-6 == pytest.approx(float(gradient @ direction), rel=1e-6)
