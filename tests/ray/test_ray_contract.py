"""Actors of a real Ray cluster keep the contract of a backend and of a machine."""

import pytest

from nested_rl.compute.ray import RayCompute
from nested_rl.testing import ComputeSuite, MachineSuite
from nested_rl.types import Need


class TestRayCompute(ComputeSuite):
    @pytest.fixture
    async def compute(self, cluster):
        compute = RayCompute(2, gpus=1, address=cluster.address)
        yield compute
        await compute.close()


class TestRayMachine(MachineSuite):
    @pytest.fixture
    async def machine(self, cluster):
        compute = RayCompute(1, address=cluster.address)
        async with compute.machine(Need()) as machine:
            yield machine
        await compute.close()
