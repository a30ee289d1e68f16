"""TinkerTrainer against a real Tinker-API server: the conformance suite, and what only this trainer promises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import numpy as np
import pytest
from attrs import evolve

from nested_rl import grpo
from nested_rl.errors import TrainerError, UnknownName
from nested_rl.testing import OuterTrainerSuite
from nested_rl.testing.outer import _group
from nested_rl.trainers import TinkerTrainer
from nested_rl.types import Group, Message, Turn

pytestmark = [
    pytest.mark.tinker,
    pytest.mark.timeout(600),
    # the SDK leaves its connections to the garbage collector
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

PROMPT = "task calc_chain k 3"
LR = 2e-3


@pytest.fixture
async def trainer(server: str, agent: str) -> AsyncIterator[TinkerTrainer]:
    made = TinkerTrainer(agent, base_url=server, lr=LR)
    yield made
    await made.close()


class TestTinkerTrainer(OuterTrainerSuite):
    """What every outer trainer must do."""

    @pytest.fixture
    async def trainer(self, server: str, agent: str) -> AsyncIterator[TinkerTrainer]:
        made = TinkerTrainer(agent, base_url=server, lr=LR)
        yield made
        await made.close()


async def turns(trainer: TinkerTrainer, n: int, *, seed: int = 0) -> list[Turn]:
    policy = await trainer.policy()
    talk = (Message(role="user", content=PROMPT),)
    return await asyncio.gather(*(policy.sample(talk, tools=(), max_tokens=12, seed=seed + i) for i in range(n)))


async def group(trainer: TinkerTrainer, rewards: Sequence[float], *, seed: int = 0) -> Group:
    return _group(await turns(trainer, len(rewards), seed=seed), rewards, PROMPT)


async def logprobs(trainer: TinkerTrainer, groups: Sequence[Group]) -> np.ndarray:
    """Of every sampled token of the groups, under the weights of now."""
    policy = await trainer.policy()
    found = []
    for datum in [d for g in groups for d in grpo.group_datums(g)]:
        told = await policy._sampler.compute_logprobs(policy._sdk.ModelInput.from_ints(list(datum.tokens)))
        found.append(np.array(told[-len(datum.targets) :])[list(datum.sampled)])
    return np.concatenate(found)


async def test_sampler_and_trainer_agree_and_the_canary_proves_the_new_weights(trainer: TinkerTrainer) -> None:
    for step in range(3):
        report = await trainer.update([await group(trainer, [1.0, 0.0, 0.5, 0.2], seed=10 * step)])
        print(f"update {report.version}: {dict(report.metrics)}")
        assert 0 <= report.metrics["logprob_gap"] < 1e-4
        assert report.metrics["canary_proven"] == 1.0
        assert report.metrics["stale_0"] == 4.0
        assert report.ess == pytest.approx(1.0, abs=1e-3)


async def test_a_sampler_without_the_new_weights_is_noticed(
    trainer: TinkerTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await trainer.policy()
    training = await trainer._training()
    real, old = training.client.save_weights_and_get_sampling_client, training.sampler

    class Late:
        """A snapshot that arrives, but is not the one that is handed out."""

        def __await__(self):
            yield from asyncio.wrap_future(real(kind="snapshot").future()).__await__()
            return old

    monkeypatch.setattr(training.client, "save_weights_and_get_sampling_client", lambda **_: Late())
    with pytest.raises(TrainerError, match="does not have the new weights"):
        await trainer.update([await group(trainer, [1.0, 0.0, 0.5, 0.2])])
    with pytest.raises(TrainerError, match="load a checkpoint"):
        await trainer.policy()


async def test_after_a_resume_the_same_batches_give_the_same_log_probabilities(
    trainer: TinkerTrainer, server: str, agent: str
) -> None:
    await trainer.update([await group(trainer, [1.0, 0.0, 0.3])])
    ref = await trainer.save("two")
    batches = [[await group(trainer, [1.0, 0.0, 0.3], seed=20 + i)] for i in range(2)]
    resumed = TinkerTrainer(agent, base_url=server, lr=LR)
    await resumed.load(ref)
    try:
        for batch in batches:
            await trainer.update(batch)
            await resumed.update(batch)
            apart = np.abs(await logprobs(trainer, batch) - await logprobs(resumed, batch)).max()
            print(f"largest difference after update {resumed.version}: {apart:.1e}")
            assert apart < 1e-6
        assert resumed.version == trainer.version == 3
    finally:
        await resumed.close()


@pytest.mark.parametrize(
    ("settings", "bounded"),
    [
        ({"ratio_cap": 2.0}, True),
        ({"loss": "ppo", "clip_range": (0.5, 2.0)}, True),
        ({"loss": "cispo", "clip_range": (0.5, 2.0)}, True),
        ({"ratio_cap": None}, False),
    ],
    ids=str,
)
async def test_ratios_of_stale_groups_are_bounded(server: str, agent: str, settings, bounded: bool) -> None:
    """A turn that claims to be far less likely than it is counts no more than one just beyond the bound.

    One turn of three: a factor that all of them share would not be seen, for Adam's first step has no scale.
    """
    weights = []
    for drop in (np.log(2.0) + 0.05, 5.0):
        trainer = TinkerTrainer(agent, base_url=server, lr=LR, **settings)
        sampled = await group(trainer, [1.0, 0.0, 0.3])
        first, *others = sampled.episodes
        report = await trainer.update([evolve(sampled, episodes=(_less_likely(first, drop), *others))])
        assert report.ratio_max == pytest.approx(np.exp(drop), rel=1e-3)
        weights.append(await logprobs(trainer, [sampled]))
        await trainer.close()
    apart = np.abs(weights[0] - weights[1]).max()
    print(f"{settings}: largest difference between the two {apart:.1e}")
    assert apart < 1e-5 if bounded else apart > 1e-3


def _less_likely(episode, drop: float):
    conversation = tuple(
        evolve(said, logprobs=tuple(x - drop for x in said.logprobs)) if isinstance(said, Turn) else said
        for said in episode.transcript.conversation
    )
    return evolve(episode, transcript=evolve(episode.transcript, conversation=conversation))


@pytest.mark.parametrize("settings", [{"loss": "ppo"}, {"loss": "cispo"}, {"kl": 0.1}], ids=str)
async def test_other_losses_and_the_kl_to_the_start_train_too(server: str, agent: str, settings) -> None:
    trainer = TinkerTrainer(
        agent,
        base_url=server,
        lr=LR,
        prices={"prefill_usd_per_mtok": 1.0, "sample_usd_per_mtok": 2.0, "train_usd_per_mtok": 3.0},
        **settings,
    )
    before = await logprobs(trainer, [batch := await group(trainer, [1.0, 0.0, 0.3])])
    report = await trainer.update([batch])
    assert report.stepped
    assert report.usd > 0
    assert np.abs(await logprobs(trainer, [batch]) - before).max() > 1e-4
    if "kl" in settings:
        assert abs(report.metrics["kl"]) < 1e-5  # the adapter starts as nothing
        report = await trainer.update([await group(trainer, [1.0, 0.0, 0.3], seed=50)])
        assert report.metrics["kl"] != 0.0
    await trainer.close()


async def test_a_prompt_that_fills_the_context_gets_an_empty_turn(trainer: TinkerTrainer) -> None:
    policy = await trainer.policy()
    assert policy.context_tokens == 256  # from the folder: the server does not say
    turn = await policy.sample((Message(role="user", content="k 3 " * 200),), tools=(), max_tokens=8, seed=1)
    assert (turn.ids, turn.stop) == ((), "length")


async def test_an_unknown_model_is_refused_with_those_there_are(server: str, agent: str) -> None:
    trainer = TinkerTrainer("Qwen/Qwen3-8C", base_url=server)
    with pytest.raises(UnknownName, match="nano-agent"):
        await trainer.policy()
    await trainer.close()


async def test_a_forgotten_checkpoint_is_gone(trainer: TinkerTrainer) -> None:
    ref, kept = await trainer.save("gone"), await trainer.save("kept")
    await trainer.forget(ref)
    await trainer.forget(ref)  # twice is once
    with pytest.raises(TrainerError, match="no such checkpoint"):
        await trainer.load(ref)
    await trainer.load(kept)
