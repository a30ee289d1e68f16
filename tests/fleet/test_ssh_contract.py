"""Hosts behind real sshd processes keep the contract of a backend and of a machine."""

import pytest

from nested_rl.compute.ssh import SSHCompute
from nested_rl.testing import ComputeSuite, MachineSuite
from nested_rl.types import Need


class TestSSHCompute(ComputeSuite):
    @pytest.fixture
    async def compute(self, sshds):
        compute = SSHCompute([one.host() for one in await sshds(2)])
        yield compute
        await compute.close()


class TestSSHMachine(MachineSuite):
    @pytest.fixture
    async def machine(self, sshds):
        (one,) = await sshds(1)
        compute = SSHCompute([one.host()])
        async with compute.machine(Need()) as machine:
            yield machine
        await compute.close()
