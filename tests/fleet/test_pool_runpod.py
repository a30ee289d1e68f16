"""RunpodCompute against a real server whose pods are real: boot.sh as it is sent, its sshd, its watchdog, one SSH connection each."""

import asyncio
import getpass
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from fake_runpod import KEY
from runpod_server import Server

import nested_rl as nrl
from nested_rl.compute.pool_costs import by_kind
from nested_rl.compute.pool_terms import Terms
from nested_rl.compute.provider import Pod
from nested_rl.compute.runpod import RunpodCompute, start_args
from nested_rl.errors import InfraFault, MachineLost
from nested_rl.rundir import RunDir
from nested_rl.testing import ComputeSuite
from nested_rl.types import Need

asyncssh = pytest.importorskip("asyncssh", reason="asyncssh is not installed: make test-fleet")

GPUS = ["NVIDIA RTX A5000"]
SOON_S = 60


async def no_check(machine, candidate):
    """There are no GPUs here."""


class Compute(RunpodCompute):
    """All pods of a test share one disk, so each has a folder of its own."""

    def _base(self, name):
        return str(self._folder / "pods" / name / "machine")


@pytest.fixture
def folder():
    """Short: the path of a socket has little room."""
    with tempfile.TemporaryDirectory(prefix="nrl-") as folder:
        yield Path(folder)


@pytest.fixture
def server(folder):
    server = Server(folder / "pods")
    yield server
    server.close()


@pytest.fixture
async def make(server, folder):
    made = []

    def make(**more):
        told = {"terms": Terms(look_s=2.0), "max_machines": 2, "patience_s": 5.0, **more}
        compute = Compute(
            GPUS,
            folder=folder,
            key=KEY,
            url=server.url,
            user=getpass.getuser(),
            python=sys.executable,
            preflight=no_check,
            recheck=no_check,
            **told,
        )
        made.append(compute)
        return compute

    yield make
    for one in made:
        await one.close()


async def test_jobs_run_on_pods_that_stay_warm_and_none_is_left(make, server):
    compute = make()

    async def job(name, together):
        async with compute.machine(Need(gpus=1)) as machine:
            await together.wait()
            await machine.put("name", name.encode())
            done = await machine.run(["sh", "-c", 'cat name; echo " $RUNPOD_API_KEY."; env'])
            return machine.id, done.stdout

    two = asyncio.Barrier(2)
    first = await asyncio.gather(job("a", two), job("b", two))
    second = await job("c", asyncio.Barrier(1))
    assert len({machine for machine, _ in first}) == 2
    assert second[0] in {machine for machine, _ in first}
    told = [text for _, text in (*first, second)]
    assert [text.splitlines()[0] for text in told] == ["a .", "b .", "c ."]
    assert not any("pod-key" in text or KEY in text for text in told)
    await compute.close()
    assert server.fake.alive() == []
    assert server.fake.most == 2
    assert sum(by_kind(compute.costs()).values()) >= server.fake.usd()


async def test_no_key_of_the_account_is_sent_to_a_pod(make, server):
    compute = make()
    async with compute.machine(Need()):
        pass
    (pod,) = server.fake.pods.values()
    assert KEY not in str(pod.body)
    assert KEY not in "\n".join(pod.log["container"])
    own = ("NONCE", "PYTHON", "JOB_USER", "DEADLINE", "TTL_S", "LEASE", "LEASE_S", "GRACE_S")
    assert set(pod.body["env"]) == {"PUBLIC_KEY", *(f"NRL_{name}" for name in own)}


async def test_a_pod_that_is_lost_loses_its_job_and_the_next_gets_another(make, server):
    compute = make(max_machines=1)

    async def job():
        async with compute.machine(Need()) as machine:
            used.append(machine.id)
            if len(used) == 1:
                (pod,) = server.fake.alive()
                with server.lock:
                    server.fake.lose(pod)
            await asyncio.wait_for(machine.run(["sleep", "1" if len(used) > 1 else "600"]), SOON_S)

    used = []
    with pytest.raises(InfraFault):
        await job()
    await job()
    assert len(set(used)) == 2
    await compute.close()
    assert server.fake.alive() == []


async def test_another_machine_at_the_same_address_is_not_spoken_to(make, server):
    compute = make(max_machines=1, terms=Terms(look_s=2.0))
    async with compute.machine(Need()) as machine:
        assert (await machine.run(["true"])).returncode == 0
    (name,) = server.fake.pods
    other = asyncssh.generate_private_key("ssh-ed25519")
    compute._host_keys[name] = other.export_public_key().decode().strip()
    (pod,) = server.fake.alive()
    with pytest.raises(MachineLost, match="host key is not the pinned one"):
        await compute._connect(Pod(id=pod.id, name=pod.name, status="running", ssh=pod.ssh))


async def _until_gone(server):
    async with asyncio.timeout(SOON_S):
        while server.fake.alive():  # noqa: ASYNC110  a process of another's
            await asyncio.sleep(0.1)


def _argv(folder, server, *, lease_s):
    """A controller of its own, which holds a machine until it is killed."""
    script = (
        "import asyncio, sys; sys.path[:0] = [sys.argv[1]]\n"
        "import test_pool_runpod as t\n"
        "from nested_rl.types import Need\n"
        "async def main():\n"
        "    compute = t.Compute(t.GPUS, folder=sys.argv[2], key=t.KEY, url=sys.argv[3], user=t.getpass.getuser(),\n"
        "        python=sys.executable, preflight=t.no_check, recheck=t.no_check, lease_s=float(sys.argv[4]),\n"
        "        terms=t.Terms(look_s=2.0))\n"
        "    async with compute.machine(Need()):\n"
        "        print('there', flush=True)\n"
        "        await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    return [sys.executable, "-c", script, str(Path(__file__).parent), str(folder), server.url, str(lease_s)]


async def test_without_a_controller_a_pod_ends_itself(make, server, folder):
    """kill -9 of the controller: the lease runs out, and the pod's own key ends it."""
    controller = subprocess.Popen(_argv(folder, server, lease_s=4), stdout=subprocess.PIPE)  # noqa: ASYNC220
    try:
        assert await asyncio.to_thread(controller.stdout.readline) == b"there\n"
        await asyncio.sleep(6)  # longer than the lease: it is being renewed
        assert len(server.fake.alive()) == 1
    finally:
        controller.kill()
        controller.wait()
        controller.stdout.close()
    await _until_gone(server)
    assert any(
        "nobody has touched its lease" in line for pod in server.fake.pods.values() for line in pod.log["container"]
    )
    compute = make()
    await compute.close()  # nothing to take over: it is noted, and that is all
    assert server.fake.alive() == []


async def test_the_next_controller_takes_over_the_pods_of_a_killed_one(make, server, folder):
    controller = subprocess.Popen(_argv(folder, server, lease_s=60), stdout=subprocess.PIPE)  # noqa: ASYNC220
    try:
        assert await asyncio.to_thread(controller.stdout.readline) == b"there\n"
    finally:
        controller.kill()
        controller.wait()
        controller.stdout.close()
    compute = make()
    async with compute.machine(Need()) as machine:
        assert (await machine.run(["true"])).returncode == 0
    await compute.close()
    assert len(server.fake.pods) == 1
    assert server.fake.alive() == []


@pytest.mark.parametrize(("faults", "curl"), [([500] * 5, "exec /usr/bin/curl"), ([], "exit 1")])
async def test_past_its_deadline_a_pod_ends_itself_whatever_fails(server, folder, monkeypatch, faults, curl):
    server.fake.faults["terminate"] = list(faults)
    shim = folder / "bin" / "curl"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\n{curl} "$@"\n')
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{shim.parent}:{os.environ['PATH']}")
    body = {
        "name": "alone",
        "image": "image:tag",
        "gpu": {"id": "NVIDIA A40"},
        "args": start_args(),
        "env": {
            "PUBLIC_KEY": "ssh-ed25519 AAAA",
            "NRL_DEADLINE": str(int(time.time()) + 2),
            "NRL_LEASE": "/nowhere",
            "NRL_LEASE_S": "600",
            "NRL_GRACE_S": "600",
        },
    }
    with server.lock:
        server.fake._create(body)
    await _until_gone(server)
    assert server.fake.pods["pod1"].ended_at - server.fake.pods["pod1"].created_at >= 1


async def test_a_run_on_rented_pods_leaves_none_and_its_meter_is_right(make, server, folder):
    compute = make()
    families = nrl.tasks.load("calc_chain")
    asked = {"groups_per_step": 1, "group_size": 2, "eval_every": 0, "quiet": True}
    run = await nrl.Experiment(families, compute=compute).run_async(1, out=folder / "out", **asked)
    episodes = list(run.episodes)
    assert len(episodes) == 2
    assert all(episode.result.machine.startswith(f"{getpass.getuser()}@127.0.0.1:") for episode in episodes)
    assert server.fake.alive() == []
    assert server.fake.most <= 2
    paid = [row for row in RunDir.open(run.path).costs() if row["kind"].startswith("pod/")]
    assert {row.get("job") for row in paid} - {None} == {episode.job_key for episode in episodes}
    ledger, meter = server.fake.usd(), sum(row["usd"] for row in paid)
    assert meter == pytest.approx(sum(row.usd for row in compute.costs()))
    requests_s = 2.0  # of a pod that lives for seconds, the time of two requests is a share
    assert ledger <= meter <= ledger * 1.02 + requests_s * len(server.fake.pods) / 3600 * 0.27


class TestRunpodCompute(ComputeSuite):
    @pytest.fixture
    def compute(self, make):
        return make()
