"""What a rented pod must show before it gets a job."""

import pytest
from pool_play import A5000

from nested_rl.compute import runpod
from nested_rl.compute.pool_preflight import preflight, recheck
from nested_rl.errors import InfraFault
from nested_rl.inner.prime_rl import pin
from nested_rl.types import Completed

GPU = "NVIDIA RTX A5000, 24564, 1\n"
DISK = "Filesystem 1024-blocks Used Available Capacity Mounted on\noverlay 83886080 1000 {} 1% /\n"


class Shown:
    """A machine that says what it is told to say."""

    root = "/root/x"

    def __init__(self, gpus=2 * GPU, *, free_gib=70.0, status=0, hangs=False):
        self.told = {"nvidia-smi": gpus, "df": DISK.format(int(free_gib * 2**20))}
        self.status, self.hangs = status, hangs

    async def run(self, argv, *, timeout_s):
        if self.hangs:
            raise TimeoutError(f"{argv[0]}: not done after {timeout_s} s, and killed")
        return Completed(returncode=self.status, stdout=self.told[argv[0]], stderr="Xid 79: GPU has fallen off the bus")


async def test_what_was_rented_passes():
    await preflight(Shown(), A5000)


@pytest.mark.parametrize(
    ("machine", "says"),
    [
        (Shown(GPU), "1 GPUs, not 2"),
        (Shown(""), "0 GPUs, not 2"),
        (Shown(GPU + "NVIDIA RTX A2000, 12282, 1\n"), "12.0 GiB, not 24"),
        (Shown(free_gib=4.5), "4.5 GiB of its disk"),
        (Shown("No devices were found"), "nvidia-smi says 'No devices"),
        (Shown(status=1), "fallen off the bus"),
        (Shown(hangs=True), "not done after 60"),
    ],
)
async def test_what_was_not_does_not(machine, says):
    for check in (preflight, recheck):
        with pytest.raises(InfraFault, match=says):
            await check(machine, A5000)


async def test_memory_may_be_taken_between_jobs_only():
    machine = Shown(GPU + "NVIDIA RTX A5000, 24564, 9000\n")
    await recheck(machine, A5000)
    with pytest.raises(InfraFault, match="9000 MiB"):
        await preflight(machine, A5000)


def test_pods_run_the_image_that_jobs_are_written_for():
    assert runpod.IMAGE == pin.IMAGE
