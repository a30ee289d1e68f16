"""The parts that the examples make keep the contracts of their seams."""

import importlib.util
from pathlib import Path

import pytest
import pytest_asyncio

from nested_rl import tasks
from nested_rl.compute import LocalCompute
from nested_rl.testing import ComputeSuite, FamilySuite, RewardSuite

EXAMPLES = Path(__file__).parents[2] / "examples"


def part(script: str, name: str):
    """Something defined in an example. The script's own run at its end is cut off."""
    text = (EXAMPLES / script).read_text(encoding="utf-8")
    source, _, rest = text.partition("\nsteps = ")
    assert rest
    spec = importlib.util.spec_from_loader(Path(script).stem, loader=None)
    module = importlib.util.module_from_spec(spec)
    exec(compile(source, script, "exec"), module.__dict__)
    return getattr(module, name)


class TestFamilyOfTheExample(FamilySuite):
    @pytest.fixture
    def family(self):
        return tasks.load(EXAMPLES / "03_custom_family" / "paper_chain")[0]

    def right(self, item):
        return f"1>{item.answer}."


class TestRewardOfTheExample(RewardSuite):
    @pytest.fixture
    def reward(self):
        return part("02_custom_reward.py", "thrifty")


class TestBackendOfTheExample(ComputeSuite):
    @pytest_asyncio.fixture
    async def compute(self):
        compute = part("04_custom_backend.py", "Announced")(LocalCompute(max_machines=2))
        yield compute
        await compute.close()
