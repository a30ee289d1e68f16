"""What every inner trainer must do."""

from __future__ import annotations

import math

import attrs
import pytest

from nested_rl.errors import AgentFault
from nested_rl.interfaces import InnerTrainer, Machine
from nested_rl.testing.values import made_task
from nested_rl.types import Draft, Job, JobSpec, Need


class InnerTrainerSuite:
    """Override the fixtures `inner`, `machine`, `draft` (a small valid job) and `broken` (one that fails when it is run)."""

    @pytest.fixture
    def inner(self) -> InnerTrainer:
        """A trainer."""
        raise NotImplementedError("override the fixture `inner`")

    @pytest.fixture
    def machine(self) -> Machine:
        """A machine that it can train on."""
        raise NotImplementedError("override the fixture `machine`")

    @pytest.fixture
    def draft(self) -> Draft:
        """A small valid job."""
        raise NotImplementedError("override the fixture `draft`")

    @pytest.fixture
    def broken(self) -> Draft:
        """A job whose code fails."""
        raise NotImplementedError("override the fixture `broken`")

    async def test_it_says_what_a_job_is(self, inner: InnerTrainer) -> None:
        assert inner.scale in ("nano", "full")
        assert inner.bases
        full, brief = (inner.guide(made_task(), brief=brief) for brief in (False, True))
        assert all(base in full for base in inner.bases)
        assert 0 < len(brief) <= len(full)

    async def test_a_valid_job_is_valid_every_time(self, inner: InnerTrainer, draft: Draft) -> None:
        first, again = await inner.validate(draft), await inner.validate(draft)
        assert (first.ok, first.problems) == (True, ()), first.problems
        assert first.base in inner.bases
        assert attrs.evolve(first, seconds=0.0) == attrs.evolve(again, seconds=0.0)
        assert isinstance(inner.need(draft), Need)

    async def test_what_is_wrong_is_said_so_that_it_can_be_mended(
        self, inner: InnerTrainer, draft: Draft, broken: Draft
    ) -> None:
        for files in (
            {},
            {"unknown.txt": "x"},
            dict.fromkeys(draft.files, ""),
            dict.fromkeys(draft.files, "\0("),
            broken.files,
        ):
            verdict = await inner.validate(Draft(task=draft.task, files=files))
            assert not verdict.ok, files
            assert verdict.problems
            for problem in verdict.problems:
                assert problem.code
                assert problem.message
                assert 0 < len(problem.brief) <= 40
                assert "\n" not in problem.brief

    async def test_training_makes_a_checkpoint_of_a_base(
        self, inner: InnerTrainer, machine: Machine, draft: Draft
    ) -> None:
        checkpoint = await inner.train(await self._job(inner, draft), machine)
        assert checkpoint.base == (await inner.validate(draft)).base
        assert checkpoint.path.startswith(machine.root)
        assert checkpoint.seconds > 0
        assert all(math.isfinite(value) for value in checkpoint.curve)
        if inner.scale == "nano":
            assert 0 < checkpoint.work <= checkpoint.work_limit

    async def test_the_same_seed_trains_the_same_at_any_delivery(
        self, inner: InnerTrainer, machine: Machine, draft: Draft
    ) -> None:
        if inner.scale != "nano":
            pytest.skip("GPUs do not promise it")
        runs = [
            await inner.train(await self._job(inner, draft, seed=seed, delivery=delivery), machine)
            for seed, delivery in ((1, 1), (1, 2), (2, 1))
        ]
        assert (runs[0].digest, runs[0].curve, runs[0].work) == (runs[1].digest, runs[1].curve, runs[1].work)
        assert runs[0].digest
        assert runs[0].digest != runs[2].digest

    async def test_code_that_fails_is_the_agents_fault_and_harms_nothing(
        self, inner: InnerTrainer, machine: Machine, draft: Draft, broken: Draft
    ) -> None:
        job = await self._job(inner, draft)
        with pytest.raises(AgentFault):
            await inner.train(attrs.evolve(job, spec=attrs.evolve(job.spec, files=broken.files)), machine)
        assert (await inner.train(job, machine)).path

    async def _job(self, inner: InnerTrainer, draft: Draft, *, seed: int = 0, delivery: int = 1) -> Job:
        verdict = await inner.validate(draft)
        spec = JobSpec(
            task=draft.task,
            files=draft.files,
            digest="0" * 64,
            base=verdict.base or "",
            scale=inner.scale,
            seed=seed,
            need=inner.need(draft),
        )
        return Job(id=f"{seed}", key=f"{seed}", spec=spec, delivery=delivery)
