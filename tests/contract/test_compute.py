"""This computer keeps the contract of a backend and of a machine."""

import pytest

from nested_rl.compute.local import LocalCompute
from nested_rl.testing import ComputeSuite, MachineSuite
from nested_rl.types import Need


class TestLocalCompute(ComputeSuite):
    @pytest.fixture
    async def compute(self):
        compute = LocalCompute(2)
        yield compute
        await compute.close()


class TestLocalMachine(MachineSuite):
    @pytest.fixture
    async def machine(self):
        compute = LocalCompute(1)
        async with compute.machine(Need()) as machine:
            yield machine
        await compute.close()
