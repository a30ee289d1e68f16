"""The algorithm of a nano job, on a tiny random model and an environment in this process."""

import random

import numpy as np
import pytest

from nested_rl import jobkit
from nested_rl.errors import AgentFault
from nested_rl.inner.nano_grpo import Grpo, Recipe, centred, gradient
from nested_rl.nano.config import Qwen3Config
from nested_rl.nano.model import Qwen3
from nested_rl.nano.tokenizer import Tokenizer

CHARS = [">", "?", *"0123456789abcdefghijklmnopqrstuvwxyzRLXN+-*<| \n:,=/()[]{}!$"]
TOKENIZER = Tokenizer.characters(CHARS)
CONFIG = Qwen3Config(hidden_size=16, intermediate_size=16, num_hidden_layers=1, head_dim=8)
RECIPE = {
    "steps": 8,
    "learning_rate": 1e-2,
    "batch_size": 64,
    "group_size": 8,
    "temperature": 1.0,
    "max_tokens": 8,
    "epochs": 1,
    "clip": 0.2,
    "kl": 0.0,
    "std_normalize": True,
    "weight_decay": 0.0,
    "beta2": 0.95,
    "grad_clip": 1.0,
    "lora_rank": 0,
}


class Env:
    """Asks calc_chain questions and likes short replies, unless told otherwise."""

    def __init__(self, reward=lambda row: -len(row["completion"]) / 8, examples=None):
        self.reward, self.given = reward, examples
        self.asked = []

    def examples(self, seed, n):
        return self.given or jobkit.make("calc_chain", random.Random(seed), n)

    def rewards(self, rows):
        self.asked += rows
        return [self.reward(row) for row in rows]


def job(env=None, *, seed=0, work_limit=1e12, held_out=lambda prompt: False, **recipe) -> Grpo:
    return Grpo(
        Qwen3(CONFIG, seed=0),
        TOKENIZER,
        Recipe(**(RECIPE | recipe)),
        env or Env(),
        seed=seed,
        work_limit=work_limit,
        held_out=held_out,
    )


@pytest.mark.parametrize("recipe", [{}, {"epochs": 2}, {"kl": 0.01}, {"std_normalize": False}, {"lora_rank": 4}])
def test_what_is_rewarded_becomes_more_frequent(recipe):
    curve = job(**recipe).run().curve
    assert len(curve) == 8
    assert curve[-1] > curve[0] + 0.1


def test_same_seed_same_weights():
    first, second, other = (job(seed=seed, steps=3) for seed in (1, 1, 2))
    for each in (first, second, other):
        each.run()
    assert np.array_equal(first.model.theta, second.model.theta)
    assert first.account == second.account
    assert not np.array_equal(first.model.theta, other.model.theta)


@pytest.mark.parametrize(
    "change",
    [{"clip": 0.0}, {"kl": 0.5}, {"std_normalize": False}, {"weight_decay": 0.5}, {"beta2": 0.5}, {"grad_clip": 0.01}],
)
def test_every_advanced_key_changes_what_is_learnt(change):
    plain, changed = job(steps=3, epochs=2), job(steps=3, epochs=2, **change)
    plain.run()
    changed.run()
    assert not np.array_equal(plain.model.theta, changed.model.theta)


def test_a_strong_kl_keeps_the_model_near_its_base():
    start = Qwen3(CONFIG, seed=0).theta
    free, held = job(epochs=4, steps=4), job(epochs=4, steps=4, kl=10.0)
    free.run()
    held.run()
    assert np.abs(held.model.theta - start).sum() < np.abs(free.model.theta - start).sum()


def test_rows_of_an_evaluation_are_dropped_and_counted():
    env = Env()
    given = jobkit.make("calc_chain", random.Random(0), 8)
    env.given = given
    hidden = {given[0]["prompt"], given[5]["prompt"]}
    account = job(env, steps=2, held_out=hidden.__contains__).run()
    assert (account.rows, account.held_out) == (16, 4)
    assert not hidden & {row["prompt"] for row in env.asked}
    nothing = job(Env(), steps=2, held_out=lambda prompt: True)
    assert nothing.run().curve == [0.0, 0.0]
    assert np.array_equal(nothing.model.theta, Qwen3(CONFIG, seed=0).theta)


def test_groups_without_a_difference_teach_nothing_and_are_counted():
    constant = job(Env(reward=lambda row: 1.0), steps=2)
    assert constant.run().silent_groups == 16
    assert np.array_equal(constant.model.theta, Qwen3(CONFIG, seed=0).theta)
    assert constant.account.trained == 0


def test_work_counts_sampled_and_trained_tokens_and_has_a_limit():
    whole = job(steps=4, work_limit=1e12)
    account = whole.run()
    assert account.sampled > 0
    assert account.trained > account.sampled / 2
    assert account.work == (account.sampled + account.trained) * whole.model.size
    with pytest.raises(AgentFault, match="work limit"):
        job(steps=4, work_limit=account.work - 1).run()
    assert job(steps=4, work_limit=account.work).run().work == account.work


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("é?", "does not know: 'é'"),
        ("", "empty"),
        ("1" * 125, "more than the 128"),
        ("1" * 200, "200 tokens"),
        ("a.?", r"'\.'"),
    ],
)
def test_prompts_the_model_cannot_read_are_the_jobs_fault(prompt, words):
    with pytest.raises(AgentFault, match=words):
        job(Env(examples=[{"prompt": prompt, "answer": "1"}])).run()


def test_weights_that_blow_up_are_the_jobs_fault():
    with pytest.raises(AgentFault, match="diverged at step"):
        job(Env(reward=lambda row: 1e300 * len(row["completion"])), std_normalize=False).run()


def test_rewards_too_large_to_average_are_the_jobs_fault():
    with pytest.raises(AgentFault, match=r"as large as 1e\+307"):
        job(Env(reward=lambda row: 1e307)).run()


def test_rewards_see_the_text_with_its_end_mark_and_the_row_it_belongs_to():
    env = Env()
    job(env, steps=1).run()
    assert len(env.asked) == 64
    assert len({row["prompt"] for row in env.asked[:8]}) == 1
    assert any(row["completion"].endswith(".") for row in env.asked)
    assert all(len(row["completion"]) <= 8 for row in env.asked if "<|" not in row["completion"])


def test_advantages_are_centred_in_each_group():
    rewards = np.array([[0.0, 1.0, 1.0, 0.0], [2.0, 2.0, 2.0, 2.0]])
    advantages, kept = centred(rewards, normalize=True)
    assert advantages.sum(1).tolist() == [0.0, 0.0]
    assert kept.tolist() == [True, False]
    assert np.abs(advantages[0]).max() == pytest.approx(0.5 / (rewards[0].std(ddof=1) + 1e-2))


def test_gradient_is_clipped_only_in_the_direction_of_the_advantage():
    before = np.zeros(4)
    logprobs = np.log([1.5, 1.5, 0.5, 0.5])
    advantages = np.array([1.0, -1.0, 1.0, -1.0])
    found = gradient(logprobs, before, advantages, clip=0.2) * 4
    assert found.tolist() == pytest.approx([0.0, 1.5, -0.5, 0.0])
    pulled = gradient(logprobs, before, advantages * 0, clip=0.2, reference=before, kl=2.0) * 4
    assert pulled.tolist() == pytest.approx([2 / 3, 2 / 3, -2.0, -2.0])
