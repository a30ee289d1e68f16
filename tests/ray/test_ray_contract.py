"""Actors of a real Ray cluster keep the contract of a backend and of a machine."""

import pytest

from nested_rl.compute.ray import RayCompute
from nested_rl.testing import ComputeSuite, MachineSuite
from nested_rl.types import Need


@pytest.fixture(scope="module", autouse=True)
def _connected(cluster):
    """The program's own connection to the cluster, which a backend uses and leaves alone; in the other tests it makes one."""
    import ray

    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield
    assert ray.is_initialized()
    ray.shutdown()


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
