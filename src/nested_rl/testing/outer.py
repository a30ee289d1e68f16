"""What every outer trainer must do."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import pytest
from attrs import evolve

from nested_rl.interfaces import OuterTrainer, Policy
from nested_rl.testing.values import made_task
from nested_rl.types import Episode, Group, Message, Outcome, Transcript, Turn


class OuterTrainerSuite:
    """Override the fixture `trainer` with a fresh one that can save; it must know the characters of `prompt`."""

    prompt = "task calc_chain k 3"
    max_tokens = 8

    @pytest.fixture
    def trainer(self) -> OuterTrainer:
        """A trainer."""
        raise NotImplementedError("override the fixture `trainer`")

    async def test_a_policy_samples_what_can_be_trained_on(self, trainer: OuterTrainer) -> None:
        policy = await trainer.policy()
        turn = await self._turn(policy, seed=1)
        assert turn.version == policy.version
        assert policy.context_tokens > 0
        assert turn.prompt_ids
        assert turn.ids is not None
        assert turn.logprobs is not None
        assert 0 < len(turn.ids) == len(turn.logprobs) <= self.max_tokens
        assert all(math.isfinite(p) and p <= 0 for p in turn.logprobs)
        assert turn.message.role == "assistant"
        assert turn.usage.completion_tokens == len(turn.ids)

    async def test_what_was_sampled_is_never_rendered_again(self, trainer: OuterTrainer) -> None:
        policy = await trainer.policy()
        first = await self._turn(policy, seed=1)
        talk = (Message(role="user", content=self.prompt), first, Message(role="tool", content="ok"))
        second = await policy.sample(talk, tools=(), max_tokens=self.max_tokens, seed=2)
        assert first.prompt_ids is not None
        assert first.ids is not None
        assert second.prompt_ids is not None
        before = first.prompt_ids + first.ids
        assert second.prompt_ids[: len(before)] == before
        assert len(second.prompt_ids) > len(before)

    async def test_an_update_advances_the_version_by_one(self, trainer: OuterTrainer) -> None:
        start = (await trainer.policy()).version
        report = await trainer.update([await self._group(trainer, [1.0, 0.0])])
        assert report.stepped
        assert report.version == start + 1 == (await trainer.policy()).version
        for value in (report.ratio_mean, report.ratio_max, report.ess, *report.metrics.values()):
            assert math.isfinite(value)
        assert report.ratio_mean == pytest.approx(1.0, abs=0.05)  # on-policy

    async def test_a_policy_stays_what_it_was_after_later_updates(self, trainer: OuterTrainer) -> None:
        old = await trainer.policy()
        before = await self._turn(old, seed=5)
        await self._train(trainer, 2)
        after = await self._turn(old, seed=5)
        assert (after.ids, after.logprobs, after.version) == (before.ids, before.logprobs, before.version)

    @pytest.mark.parametrize("rewards", [[], [1.0], [0.5, 0.5], [None, None], [1.0, None]], ids=str)
    async def test_without_signal_there_is_no_step_but_the_version_advances(
        self, trainer: OuterTrainer, rewards: list[float | None]
    ) -> None:
        start = await trainer.policy()
        before = await self._turn(start, seed=5)
        groups = [await self._group(trainer, rewards)] if rewards else []
        report = await trainer.update(groups)
        assert (report.stepped, report.version) == (False, start.version + 1)
        now = await trainer.policy()
        after = await self._turn(now, seed=5)
        assert (after.ids, after.version) == (before.ids, start.version + 1)

    async def test_masked_members_do_not_count(self, trainer: OuterTrainer) -> None:
        ref = await trainer.save("start")
        group = await self._group(trainer, [1.0, 0.0, None])
        await trainer.update([group])
        with_masked = await self._turn(await trainer.policy(), seed=5)
        await trainer.load(ref)
        await trainer.update([Group(index=0, task=group.task, version=group.version, episodes=group.members)])
        assert (await self._turn(await trainer.policy(), seed=5)).logprobs == with_masked.logprobs

    async def test_what_is_rewarded_becomes_likelier(self, trainer: OuterTrainer) -> None:
        """Judged by the first token that is in doubt, whose log-probability every sample that begins as `wanted` tells."""
        wanted = await self._turn(await trainer.policy(), seed=0)
        assert wanted.ids
        assert wanted.logprobs
        place = next((i for i, p in enumerate(wanted.logprobs) if p < -0.05), 0)
        begin = wanted.ids[: place + 1]
        for _ in range(6):
            policy = await trainer.policy()
            turns = [wanted, *await self._turns(policy, [1000 * policy.version + i for i in range(7)])]
            turns = [evolve(turn, version=policy.version) for turn in turns]
            rewards = [float(turn.ids is not None and turn.ids[: place + 1] == begin) for turn in turns]
            await trainer.update([_group(turns, rewards, self.prompt)])
        policy = await trainer.policy()
        for seed in range(0, 100, 20):
            for turn in await self._turns(policy, range(seed, seed + 20)):
                assert turn.ids
                assert turn.logprobs
                if turn.ids[: place + 1] == begin:
                    assert turn.logprobs[place] > wanted.logprobs[place]
                    return
        pytest.fail("the rewarded token is not among the first of 100 samples")

    async def test_what_was_saved_is_loaded_again_weights_optimiser_and_version(self, trainer: OuterTrainer) -> None:
        await self._train(trainer, 2)
        ref = await trainer.save("two")
        saved = await self._turn(await trainer.policy(), seed=5)
        after = [await self._train_on(trainer, seed=9)]
        await trainer.load(ref)
        loaded = await self._turn(await trainer.policy(), seed=5)
        assert (loaded.ids, loaded.logprobs, loaded.version) == (saved.ids, saved.logprobs, saved.version)
        after.append(await self._train_on(trainer, seed=9))
        assert after[0].logprobs == after[1].logprobs
        assert after[0].version == after[1].version

    async def test_saving_under_a_name_again_replaces_it(self, trainer: OuterTrainer) -> None:
        await trainer.save("name")
        await self._train(trainer, 1)
        ref = await trainer.save("name")
        version = (await trainer.policy()).version
        await self._train(trainer, 1)
        await trainer.load(ref)
        assert (await trainer.policy()).version == version

    async def test_what_was_never_saved_cannot_be_loaded(self, trainer: OuterTrainer) -> None:
        before = (await trainer.policy()).version
        with pytest.raises(Exception, match="never-saved"):
            await trainer.load("never-saved")
        assert (await trainer.policy()).version == before

    async def _turn(self, policy: Policy, *, seed: int) -> Turn:
        talk = (Message(role="user", content=self.prompt),)
        return await policy.sample(talk, tools=(), max_tokens=self.max_tokens, seed=seed)

    async def _turns(self, policy: Policy, seeds: Sequence[int]) -> list[Turn]:
        return await asyncio.gather(*(self._turn(policy, seed=seed) for seed in seeds))

    async def _group(self, trainer: OuterTrainer, rewards: Sequence[float | None], *, seed: int = 1) -> Group:
        turns = await self._turns(await trainer.policy(), range(seed, seed + len(rewards)))
        return _group(turns, rewards, self.prompt)

    async def _train(self, trainer: OuterTrainer, steps: int) -> None:
        for step in range(steps):
            await trainer.update([await self._group(trainer, [1.0, 0.0, 0.5], seed=10 * step)])

    async def _train_on(self, trainer: OuterTrainer, *, seed: int) -> Turn:
        await trainer.update([await self._group(trainer, [1.0, 0.0, 0.5], seed=seed)])
        return await self._turn(await trainer.policy(), seed=seed)


def _group(turns: Sequence[Turn], rewards: Sequence[float | None], prompt: str) -> Group:
    """A group of one-turn episodes. A reward of None is a masked one."""
    task = made_task()
    episodes = tuple(
        Episode(
            group=0,
            member=member,
            task=task,
            version=turn.version,
            transcript=Transcript(conversation=(Message(role="user", content=prompt), turn), end="stop"),
            outcome=Outcome(task=task),
            reward=reward or 0.0,
            masked=reward is None,
        )
        for member, (turn, reward) in enumerate(zip(turns, rewards, strict=True))
    )
    return Group(index=0, task=task, version=turns[0].version, episodes=episodes)
