"""A machine with a real vLLM, for the whole tier. Its server takes tens of seconds to start, so tests share what is served."""

import importlib.util
import sys

import pytest
import pytest_asyncio

from nested_rl import tasks
from nested_rl.compute.local import LocalCompute
from nested_rl.scorers import VLLMScorer
from nested_rl.types import Need


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def machine():
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:  # this folder has that name too
        pytest.skip("vLLM is not installed; `make test-vllm` makes an environment that has it")
    compute = LocalCompute(max_machines=1, python=sys.executable)
    async with compute.machine(Need()) as lent:
        yield lent
    await compute.close()


@pytest.fixture(scope="session")
def family():
    (found,) = tasks.load("calc_chain", scale="nano")
    return found


@pytest.fixture(scope="session")
def evaluation(family):
    return family.eval_set(next(family.tasks()), "hidden", salt="vllm", n=192)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def scorer(family):
    """In 32 bits, as the numpy engine computes."""
    made = VLLMScorer([family], engine={"dtype": "float32"})
    yield made
    await made.close()
