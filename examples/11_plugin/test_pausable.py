"""The backend keeps its seam's contract, and pauses. `pytest examples/11_plugin`, after `pip install -e examples/11_plugin`."""

import asyncio

import pytest
from nested_rl_pausable import LOOK_S, PausableCompute

from nested_rl.clock import VirtualClock
from nested_rl.testing import ComputeSuite
from nested_rl.types import Need


class TestPausableCompute(ComputeSuite):
    @pytest.fixture
    async def compute(self, tmp_path):
        compute = PausableCompute("local", file=tmp_path / "PAUSE", max_machines=2)
        yield compute
        await compute.close()


async def test_no_machine_is_lent_while_the_file_is_there(tmp_path):
    clock, pause = VirtualClock(), tmp_path / "PAUSE"
    pause.touch()
    compute = PausableCompute("local", file=pause, clock=clock, max_machines=1)
    lent_s = []

    async def lend():
        async with compute.machine(Need()):
            lent_s.append(clock.monotonic())

    async def owner():
        lending = asyncio.ensure_future(lend())
        await clock.sleep(3600)
        assert lent_s == []
        pause.unlink()
        await lending

    try:
        await clock.run(owner())
    finally:
        await compute.close()
    assert 3600 <= lent_s[0] <= 3600 + LOOK_S
