"""What every scorer must do."""

from __future__ import annotations

import attrs
import pytest

from nested_rl.errors import InfraFault, NestedRLError, SettingsError
from nested_rl.interfaces import Machine, Scorer
from nested_rl.types import Checkpoint, EvalSet


class ScorerSuite:
    """Override the fixtures `scorer`, `machine`, `base` (an untrained model's name) and `eval_set` (a few items)."""

    @pytest.fixture
    def scorer(self) -> Scorer:
        """A scorer."""
        raise NotImplementedError("override the fixture `scorer`")

    @pytest.fixture
    def machine(self) -> Machine:
        """A machine that can run the models."""
        raise NotImplementedError("override the fixture `machine`")

    @pytest.fixture
    def base(self) -> str:
        """The name of an untrained model."""
        raise NotImplementedError("override the fixture `base`")

    @pytest.fixture
    def eval_set(self) -> EvalSet:
        """A few items."""
        raise NotImplementedError("override the fixture `eval_set`")

    async def test_a_base_gets_a_score_in_0_to_1_with_one_value_an_item(
        self, scorer: Scorer, machine: Machine, base: str, eval_set: EvalSet
    ) -> None:
        score = await scorer.score(base, eval_set, machine, seed=1)
        assert score.n == len(score.items) == len(eval_set.items)
        assert score.value == pytest.approx(sum(score.items) / score.n)
        assert all(0 <= item <= 1 for item in score.items)
        assert score.tokens > 0
        samples = eval_set.baseline_sampling.samples
        assert all(item * samples == pytest.approx(round(item * samples)) for item in score.items)

    async def test_the_same_seed_gives_the_same_score(
        self, scorer: Scorer, machine: Machine, base: str, eval_set: EvalSet
    ) -> None:
        first, again = [await scorer.score(base, eval_set, machine, seed=7) for _ in range(2)]
        assert attrs.evolve(first, seconds=0.0) == attrs.evolve(again, seconds=0.0)

    async def test_answers_do_not_reach_the_machine(
        self, scorer: Scorer, machine: Machine, base: str, eval_set: EvalSet
    ) -> None:
        """With impossible answers everything is wrong, and nothing else about the score changes."""
        impossible = tuple(attrs.evolve(item, answer="impossible") for item in eval_set.items)
        score = await scorer.score(base, eval_set, machine, seed=1)
        none = await scorer.score(base, attrs.evolve(eval_set, items=impossible), machine, seed=1)
        assert (none.value, none.tokens) == (0.0, score.tokens)

    async def test_an_unknown_base_is_refused_by_name(
        self, scorer: Scorer, machine: Machine, eval_set: EvalSet
    ) -> None:
        """Or told to be nowhere, by a scorer that looks for bases on the machine."""
        with pytest.raises((SettingsError, InfraFault), match="no-such-base"):
            await scorer.score("no-such-base", eval_set, machine)

    async def test_a_checkpoint_that_is_not_there_is_an_error_and_not_a_score(
        self, scorer: Scorer, machine: Machine, base: str, eval_set: EvalSet
    ) -> None:
        missing = Checkpoint(path=f"{machine.root}/nothing", base=base, digest="0" * 64)
        with pytest.raises(NestedRLError):
            await scorer.score(missing, eval_set, machine)
        assert (await scorer.score(base, eval_set, machine)).n == len(eval_set.items)
