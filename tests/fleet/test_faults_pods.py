"""Rented pods that fail while they work: lines, sshd, hosts, GPUs, disks, leftovers. The numbers are those of README.md's table."""

import asyncio
import shutil
import signal

import pytest
from attrs import evolve
from pods import GPU, GPUS, TERMS

from nested_rl.compute.pool_preflight import Preflight, recheck
from nested_rl.compute.provider import Candidate
from nested_rl.errors import MachineLost
from nested_rl.types import Need

KINDS = [Candidate(gpu=GPUS[0], gpus=n, cloud="community", gpu_memory_gib=24) for n in (1, 2)]
"""After a failure a kind is left alone for half a minute: these tests have another."""


async def test_20_a_job_goes_on_when_the_line_breaks_long_after_it_was_asked_for(world):
    compute = world.compute(patience_s=1.5)
    job = asyncio.ensure_future(world.job(compute, "one", 4))
    await world.begun("one")
    (pod,) = world.fake.alive()
    await asyncio.sleep(2)  # more than the patience with a broken line: that has not begun yet
    world.cut(pod)
    assert await job == [pod.id]
    assert world.count("begun") == {"one": 1}
    await world.settled(most=1)


async def test_20_a_job_goes_on_when_sshd_ends_and_is_started_again(world):
    compute = world.compute(patience_s=10.0)
    job = asyncio.ensure_future(world.job(compute, "one", 3))
    await world.begun("one")
    (pod,) = world.fake.alive()
    world.signal(world.sshd(pod), signal.SIGKILL)
    assert await job == [pod.id]
    assert world.count("begun") == {"one": 1}
    await world.settled(most=1)


async def test_22_the_job_of_a_frozen_pod_moves(world):
    compute = world.compute(patience_s=1.0)
    job = asyncio.ensure_future(world.job(compute, "one", 3))
    await world.begun("one")
    (pod,) = world.fake.alive()
    world.freeze(pod)
    first, second = await job
    assert first == pod.id != second
    await world.settled(most=2)


async def test_18_the_job_of_a_lost_pod_moves(world):
    compute = world.compute(max_machines=1)
    job = asyncio.ensure_future(world.job(compute, "one", 3))
    await world.begun("one")
    (pod,) = world.fake.alive()
    world.lose(pod)
    first, second = await job
    assert first == pod.id != second
    await world.settled(most=1, lost=1)


async def test_12_the_job_of_a_container_that_started_again_moves(world):
    compute = world.compute(max_machines=2)
    job = asyncio.ensure_future(world.job(compute, "one", 3))
    await world.begun("one")
    (pod,) = world.fake.alive()
    world.restart(pod)
    first, second = await job
    assert first == pod.id != second
    await world.settled(most=2)


async def test_23_another_tenant_at_the_address_gets_nothing(world):
    from sshd import CONFIG, Sshd

    compute = world.compute(patience_s=1.0)
    job = asyncio.ensure_future(world.job(compute, "one", 3))
    await world.begun("one")
    (pod,) = world.fake.alive()
    other = Sshd(world.folder / "other", key=world.folder / "login")  # it would let us in
    other.port = pod.ssh[1]
    (other.folder / "config").write_text(CONFIG.format(port=other.port, folder=other.folder))
    world.freeze(pod)
    world.signal(world.sshd(pod), signal.SIGKILL)
    try:
        await other.start()
        first, second = await job
        assert first == pod.id != second
        assert "Accepted" not in (other.folder / "log").read_text()
    finally:
        other.kill()
    await world.settled(most=2)


async def test_33_what_a_job_leaves_running_ends_with_it(world):
    compute = world.compute(max_machines=1)
    async with compute.machine(Need()) as machine:
        process = await machine.start(["sh", "-c", "setsid sh -c 'echo $$; exec sleep 600' & wait"])
        left = int(await process.readline())
    async with compute.machine(Need()):
        assert not world.alive(left)
    assert len(world.fake.pods) == 1
    await world.settled(most=1)


async def test_21_a_program_past_its_limit_is_ended_and_its_pod_goes_on(world):
    compute = world.compute(max_machines=1)
    async with compute.machine(Need()) as machine:
        with pytest.raises(TimeoutError):
            await machine.run(world.program("long", 600), timeout_s=1.0)
        pod = world.pod(machine)
        assert not [pid for pid in world.pids(pod) if "sleep\0600" in world.command(pid)]
    assert await world.job(compute, "one", 0.1) == [pod.id]
    await world.settled(most=1)


@pytest.mark.parametrize("times", [1, 2])
async def test_29_what_arrives_damaged_is_fetched_again_and_then_its_pod_is_lost(world, times):
    compute = world.compute(max_machines=1)
    damaged = []

    async def fetch():
        async with compute.machine(Need()) as machine:
            await machine.put("result", b"right")
            asked = machine._link.ask

            async def ask(op, data=b"", **fields):
                told, body = await asked(op, data, **fields)
                if op == "get" and len(damaged) < times:
                    damaged.append(op)
                    body = body[:-1]
                return told, body

            machine._link.ask = ask
            return await machine.get("result")

    if times == 2:
        with pytest.raises(MachineLost, match="damaged"):
            await fetch()
    assert await fetch() == b"right"
    await world.settled(most=2)


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ("true", "0 GPUs"),
        (f"echo '{GPU.replace('570', '535')}'", "driver"),
        ("echo 'Xid 79: GPU has fallen off the bus' >&2; exit 1", "off the bus"),
        ("sleep 600", "not done after"),
        (f"echo '{GPU.replace('A5000', 'A2000')}'", "A2000"),
    ],
    ids=["14-none", "13-driver", "15-xid", "15-hang", "16-another"],
)
async def test_a_pod_whose_gpu_is_not_what_was_rented_never_joins(world, shims, caplog, says, why):
    shims("nvidia-smi", says)
    terms = evolve(TERMS, preflight_s=5.0)
    compute = world.compute(gpus=KINDS, max_machines=1, preflight=Preflight(canary=False), terms=terms)
    job = asyncio.ensure_future(world.job(compute, "one", 0.1))
    await world.until(lambda: [pod for pod in world.fake.pods.values() if pod.ended_at])
    shims("nvidia-smi", f"echo '{GPU}'; echo '{GPU}'")
    (used,) = await job
    assert used == "pod2"
    assert why in caplog.text
    await world.settled(most=1)


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("nvidia-smi", "echo 'Unable to determine the device handle' >&2; exit 1"),
        ("df", "echo 'Filesystem 1024-blocks Used Available Capacity'; echo '/dev/sda 9999999 9000000 999999 91% /'"),
    ],
    ids=["15-gpu", "32-disk"],
)
async def test_a_pod_that_has_become_unfit_gets_no_second_job(world, shims, program, says):
    compute = world.compute(gpus=KINDS[:1], max_machines=1, recheck=recheck)
    async with compute.machine(Need()) as machine:
        first = world.pod(machine)
        shims(program, says)
    await world.until(lambda: first.ended_at)
    shims(program, f"echo '{GPU}'" if program == "nvidia-smi" else f'exec {shutil.which("df", path=world.path)} "$@"')
    assert await world.job(compute, "one", 0.1) == ["pod2"]
    await world.settled(most=1)
