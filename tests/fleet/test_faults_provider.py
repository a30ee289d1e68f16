"""A provider that errs over real sockets, logins that are refused, watchdogs. The numbers are those of README.md's table."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from attrs import evolve
from pods import GPUS, TERMS

from nested_rl.compute.provider import Candidate
from nested_rl.compute.runpod import start_args
from nested_rl.errors import BudgetExceeded, SettingsError
from nested_rl.types import Need

asyncssh = pytest.importorskip("asyncssh", reason="asyncssh is not installed: make test-fleet")

KINDS = [Candidate(gpu=GPUS[0], gpus=n, cloud="community", gpu_memory_gib=24) for n in (1, 2)]
"""After a failure a kind is left alone for half a minute: these tests have another."""


@pytest.mark.parametrize("fault", ["500-after", "hang-after"])
async def test_01_a_pod_whose_making_was_never_confirmed_is_found_by_its_name(world, fault):
    world.fake.faults["create"] = [fault]
    assert await world.job(world.compute(), "one", 0.1) == ["pod1"]
    await world.settled(most=1)


@pytest.mark.parametrize("fault", [503, "hang"])
async def test_01_a_pod_that_was_not_made_is_asked_for_by_another_name(world, fault):
    world.fake.faults["create"] = [fault]
    assert await world.job(world.compute(gpus=KINDS), "one", 0.1) == ["pod1"]
    asked = [body["name"] for method, path, body in world.fake.requests if (method, path) == ("POST", "/v2/pods")]
    assert len(set(asked)) == len(asked) == 2
    await world.settled(most=1)


async def test_03_without_capacity_another_kind_is_asked_for(world):
    world.fake.faults["create"] = ["nocap"]
    assert await world.job(world.compute(gpus=KINDS), "one", 0.1) == ["pod1"]
    assert world.fake.pods["pod1"].body["gpu"]["count"] == 2
    await world.settled(most=1)


@pytest.mark.parametrize(("status", "asked"), [(401, 1), (422, 1), (400, 2)], ids=["05-key", "05-body", "04-all"])
async def test_what_no_second_try_mends_stops_it(world, status, asked):
    world.fake.faults["create"] = [status] * 5
    with pytest.raises(SettingsError, match=r"401|422|rejects"):
        await world.job(world.compute(gpus=KINDS), "one", 0.1)
    assert sum(method == "POST" for method, _, _ in world.fake.requests) == asked
    await world.settled(most=0)


async def test_06_without_money_what_runs_goes_on(world):
    compute = world.compute()
    first = asyncio.ensure_future(world.job(compute, "one", 2))
    await world.begun("one")
    world.fake.faults["create"] = [402]
    assert await world.job(compute, "two", 0.1) == await first  # when the first has ended
    async with compute.machine(Need()):
        world.lose(world.fake.pods["pod1"])
    with pytest.raises(BudgetExceeded, match="balance"):
        await world.job(compute, "three", 0.1)
    await world.settled(most=1, lost=1)


async def test_07_all_wait_when_the_provider_says_how_long(world):
    world.fake.faults["create"] = [429]
    began = time.monotonic()
    assert await world.job(world.compute(), "one", 0.1) == ["pod1"]
    assert time.monotonic() - began >= 7
    await world.settled(most=1)


async def test_09_a_pod_without_a_port_is_replaced(world):
    boot = world.fake.boot

    def first_without(pod):
        boot(pod)
        pod.ssh = pod.ssh if pod.id != "pod1" else None

    world.fake.boot = first_without
    terms = evolve(TERMS, ssh_s=2.0)
    assert await world.job(world.compute(gpus=KINDS, max_machines=1, terms=terms), "one", 0.1) == ["pod2"]
    await world.settled(most=1)


async def test_10_two_refused_logins_stop_it(world):
    compute = world.compute(gpus=KINDS, max_machines=1)
    stranger, order = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode(), compute._order

    def for_a_stranger(*args):
        told = order(*args)
        return evolve(told, env={**told.env, "PUBLIC_KEY": stranger})

    compute._order = for_a_stranger
    with pytest.raises(SettingsError, match="2 pods refused the login"):
        await world.job(compute, "one", 0.1)
    assert len(world.fake.pods) == 2
    await world.settled(most=1)


async def test_19_odd_lists_lose_no_pod(world):
    compute = world.compute()
    job = asyncio.ensure_future(world.job(compute, "one", 3))
    await world.begun("one")
    world.fake.faults["list"] = ["empty", "partial", 500, "stale"]
    assert await job == ["pod1"]
    assert world.fake.faults["list"] == []
    await world.settled(most=1)


@pytest.mark.parametrize("faults", [["accepted"], [500]])
async def test_24_an_end_is_asked_for_until_it_is_confirmed(world, faults):
    compute = world.compute()
    await world.job(compute, "one", 0.1)
    world.fake.faults["terminate"] = list(faults)
    await world.settled(most=1)
    assert sum(method == "DELETE" for method, _, _ in world.fake.requests) == 2


async def test_26_a_controller_that_stands_still_loses_its_pod_and_goes_on_with_another(world):
    here = Path(__file__).parent
    argv = [sys.executable, str(here / "controller.py"), str(world.folder), world.server.url, "busy", "again", "3"]
    controller = subprocess.Popen(argv, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(here)})  # noqa: ASYNC220
    try:
        assert await asyncio.to_thread(controller.stdout.readline) == b"there\n"
        controller.send_signal(signal.SIGSTOP)
        await world.until(lambda: not world.fake.alive())
        controller.send_signal(signal.SIGCONT)
        assert await asyncio.to_thread(controller.stdout.readline) == b"there\n"
        assert await asyncio.to_thread(controller.wait) == 0
    finally:
        controller.kill()
        controller.communicate()
    assert len(world.fake.pods) == 2
    world.compute()._opened()
    await world.settled(most=1, unseen_s=60)


async def test_27_a_second_controller_of_the_same_folder_is_told_what_to_do(world):
    first, second = world.compute(), world.compute()
    async with first.machine(Need()) as machine:
        with pytest.raises(SettingsError, match=r"folder="):
            second.machine(Need())
        assert (await machine.run(["true"])).returncode == 0
    world.made.reverse()
    await world.settled(most=1)


async def test_a_watchdog_that_is_killed_is_there_again(world):
    env = {
        "PUBLIC_KEY": "ssh-ed25519 AAAA",
        "NRL_DEADLINE": str(int(time.time()) + 4),
        "NRL_LEASE": "/nowhere",
        "NRL_LEASE_S": "600",
        "NRL_GRACE_S": "600",
    }
    body = {"name": "alone", "image": "image:tag", "gpu": {"id": "NVIDIA A40"}, "args": start_args(), "env": env}
    with world.server.lock:
        world.fake._create(body)
    (pod,) = world.fake.pods.values()

    def watching():
        return [pid for pid in world.pids(pod) if world.command(pid).endswith("boot.sh\0watch\0")]

    await world.until(watching)
    world.signal(watching(), signal.SIGKILL)
    await world.until(lambda: not world.fake.alive())
    world.fake.pods.clear()  # nobody but the provider knew of it
    await world.settled(most=1)


@pytest.mark.parametrize("off_s", [-7200, 7200], ids=["behind", "ahead"])
async def test_28_a_pod_whose_clock_is_wrong_works_and_ends_with_its_lease(world, shims, off_s):
    """Its `date` is; the lease is counted by its uptime."""
    shims(
        "date",
        f'[ "$1" = +%s ] && echo $(($(exec {shutil.which("date")} +%s) + {off_s})) || exec {shutil.which("date")} "$@"',
    )
    compute = world.compute(lease_s=3.0, terms=evolve(TERMS, ttl_s=6 * 3600.0))
    assert await world.job(compute, "one", 5) == ["pod1"]
    assert not world.fake.pods["pod1"].ended_at
    await world.settled(most=1)
