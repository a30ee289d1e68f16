"""Full-scale orders on an SSH host, with a stand-in for prime-rl: the same end as on this computer, and nothing left."""

import asyncio
import sys
from pathlib import Path

import pytest
from attrs import evolve

from nested_rl import process
from nested_rl.compute import SSHCompute
from nested_rl.errors import AgentFault
from nested_rl.inner.prime_rl import artefacts
from nested_rl.inner.prime_rl.launch import launch
from nested_rl.types import Need

sys.path.insert(0, str(Path(__file__).parents[1] / "runner"))

from runner_play import make_base, make_order, make_programs, terms


@pytest.fixture
async def machine(sshds):
    compute = SSHCompute([one.host() for one in await sshds(1)])
    async with compute.machine(Need()) as machine:
        yield machine
    await compute.close()


@pytest.fixture
def order(tmp_path):
    """Orders for a host whose PATH is its own: `rl` by its place, and no GPU."""
    base, programs = make_base(tmp_path / "base"), make_programs(tmp_path / "bin")

    def order(**how):
        return evolve(make_order(base, **how), argv=(f"{programs}/rl", "@", "job.toml"), gpus="")

    return order


def text(path):
    return path.read_text() if path.exists() else ""


async def test_weights_are_made_there_and_fetched(machine, order, tmp_path):
    for kind in ("full", "lora"):
        ended = await launch(machine, order(kind=kind), terms=terms())
        assert (ended.stop, ended.curve) == ("done", (0.1, 0.2, 0.3))
        kept = await artefacts.fetch(machine, ended.path, tmp_path / "kept", digest=ended.digest)
        assert kept.name == ended.digest


async def test_a_crash_there_is_told_here(machine, order):
    with pytest.raises(AgentFault, match="ZeroDivisionError: in reward"):
        await launch(machine, order(at_2=["crash"]), terms=terms())


async def test_called_off_nothing_runs_there(machine, order, tmp_path):
    running = asyncio.ensure_future(
        launch(machine, order(at_1=["leave", "hang"], pid=str(tmp_path / "pid")), terms=terms())
    )
    async with asyncio.timeout(60):
        while not text(tmp_path / "pid"):  # noqa: ASYNC110  other processes send no events
            await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not process.alive(process.identity(int(text(tmp_path / "pid"))))
