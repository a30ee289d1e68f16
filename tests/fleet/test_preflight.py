"""The preflight on real pods, over SSH: what the pod's programs say decides whether it gets a job."""

import asyncio
import sys
import tempfile
from pathlib import Path

import pytest
from fake_runpod import KEY
from pods import GPUS, Compute
from runpod_server import Server

from nested_rl.compute.pool_preflight import Preflight
from nested_rl.compute.pool_terms import Terms
from nested_rl.types import Need

GPU = "NVIDIA RTX A5000, 24564, 1, 570.86.10, [N/A]"
CANARY = '{"torch": "2.13.0", "cuda": "12.8", "gpus": [0.05], "cpu_s": 0.1}'
PYTHON = f"""\
case "$*" in
*"find_spec('torch')"*) exit 0 ;;
*" here") cat "$(dirname "$0")/canary" ;;
*) exec {sys.executable} "$@" ;;
esac
"""
"""A Python that says it has torch, and what that has measured."""


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """In front of those of this computer, on every pod."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    for name, code in {"nvidia-smi": f"cat {tmp_path}/gpus", "python3": PYTHON}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{code}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "gpus").write_text(GPU)
    (tmp_path / "canary").write_text(CANARY)
    return tmp_path


@pytest.fixture
async def rented():
    """A compute with one pod at a time, and the server it is rented from."""
    with tempfile.TemporaryDirectory(prefix="nrl-") as folder:
        server = Server(Path(folder) / "pods")
        compute = Compute(
            GPUS,
            folder=folder,
            key=KEY,
            url=server.url,
            python=sys.executable,
            preflight=Preflight(),
            terms=Terms(look_s=0.5),
            max_machines=1,
        )
        yield compute, server
        await compute.close()
        server.close()


async def test_a_pod_that_shows_what_was_rented_gets_a_job(programs, rented):
    compute, server = rented
    async with compute.machine(Need(gpus=1)) as machine:
        assert (await machine.run(["echo", "hello"])).stdout == "hello\n"
    await compute.close()
    assert server.fake.alive() == []


@pytest.mark.parametrize(
    ("gpus", "canary", "says"),
    [
        (f"{GPU}\n{GPU}", CANARY, "it has 2 GPUs, not 1"),
        (GPU, '{"error": "CUDA fails: CUDA error 804", "torch": "2.13.0"}', "CUDA fails: CUDA error 804"),
    ],
)
async def test_one_that_does_not_is_ended_without_a_job(programs, rented, caplog, gpus, canary, says):
    compute, server = rented
    (programs / "gpus").write_text(gpus)
    (programs / "canary").write_text(canary)

    async def job():
        async with compute.machine(Need(gpus=1)):
            pytest.fail("it got a job")

    waiting = asyncio.ensure_future(job())
    async with asyncio.timeout(60):
        while not any(pod.ended_at for pod in server.fake.pods.values()):  # noqa: ASYNC110  other processes do it
            await asyncio.sleep(0.1)
    assert says in caplog.text
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await compute.close()
    assert server.fake.alive() == []
