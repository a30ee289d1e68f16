"""The inner trainer and the scorer keep their contracts, on a real machine."""

import pytest
import pytest_asyncio

from nested_rl import tasks
from nested_rl.compute.local import LocalCompute
from nested_rl.inner.nano import NanoInnerTrainer
from nested_rl.scorers.nano import NanoScorer
from nested_rl.testing import InnerTrainerSuite, ScorerSuite
from nested_rl.types import Draft, Need

JOB = """
[model]
base = "nano-s"
[training]
steps = 2
learning_rate = 1e-3
batch_size = 32
"""
ENVIRONMENT = """
from nested_rl.jobkit import make, parse

def examples(rng, n):
    return make("calc_chain", rng, n)

def reward(prompt, completion, answer):
    return float(parse(completion) == answer)
"""
(FAMILY,) = tasks.load("calc_chain", scale="nano")
TASK = next(FAMILY.tasks())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def warm():
    """One warm machine for the whole file: numpy takes its time to load."""
    compute = LocalCompute(1)
    async with compute.machine(Need()) as machine:
        yield machine
    await compute.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def trainer():
    trainer = NanoInnerTrainer()
    yield trainer
    await trainer.close()


@pytest.mark.asyncio(loop_scope="module")
class TestNanoInnerTrainer(InnerTrainerSuite):
    @pytest.fixture
    def inner(self, trainer):
        return trainer

    @pytest.fixture
    def machine(self, warm):
        return warm

    @pytest.fixture
    def draft(self):
        return Draft(task=TASK, files={"job.toml": JOB, "environment.py": ENVIRONMENT})

    @pytest.fixture
    def broken(self, draft):
        code = draft.files["environment.py"].replace("return float(", "return 1 / 0 + float(")
        return Draft(task=TASK, files={**draft.files, "environment.py": code})


@pytest.mark.asyncio(loop_scope="module")
class TestNanoScorer(ScorerSuite):
    @pytest.fixture
    def scorer(self):
        return NanoScorer()

    @pytest.fixture
    def machine(self, warm):
        return warm

    @pytest.fixture
    def base(self):
        return "nano-s"

    @pytest.fixture
    def eval_set(self):
        return FAMILY.eval_set(TASK, "hidden", salt="contract", n=16)
