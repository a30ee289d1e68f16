"""What happens when an actor, a node, the cluster's room or the controller goes."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nested_rl import tasks
from nested_rl.clock import SystemClock
from nested_rl.compute import ray_actor, ray_host
from nested_rl.compute.ray import RayCompute
from nested_rl.errors import MachineLost, SettingsError
from nested_rl.inner.nano import NanoInnerTrainer
from nested_rl.queues.memory import MemoryQueue
from nested_rl.scorers.nano import NanoScorer
from nested_rl.types import JobSpec, Need
from nested_rl.worker import Workers

SOON_S = 30
JOB = {
    "job.toml": '[model]\nbase = "nano-s"\n[training]\nsteps = 2\nlearning_rate = 1e-3\nbatch_size = 32\ngroup_size = 4\n',
    "environment.py": "from nested_rl.jobkit import make, parse\ndef examples(rng, n):\n    return make('calc_chain', rng, n)\n"
    "def reward(prompt, completion, answer):\n    return float(parse(completion) == answer)\n",
}
TREE = ["sh", "-c", "sleep 300 & sleep 300 & echo $$ $!; wait"]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def gone(*pids):
    async with asyncio.timeout(SOON_S):
        while any(alive(pid) for pid in pids):  # noqa: ASYNC110  processes of others
            await asyncio.sleep(0.02)


async def absent(folder):
    async with asyncio.timeout(SOON_S):
        while Path(folder).exists():  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.02)


@pytest.fixture
async def compute(cluster):
    made = []

    def make(*args, **settings):
        made.append(RayCompute(*args, address=cluster.address, **settings))
        return made[-1]

    yield make
    for one in made:
        await one.close()


@pytest.fixture
async def node(cluster):
    """Makes nodes that only those reach who ask for their resource; they are removed with the test."""
    made = []

    async def make(**has):
        made.append(cluster.add(**has))  # Ray does this in the main thread only
        return made[-1]

    yield make
    for one in made:
        if one in cluster.cluster.worker_nodes:
            await asyncio.to_thread(cluster.kill, one)


class Held(NanoInnerTrainer):
    """Its first delivery does not get past a program that runs for long."""

    def __init__(self):
        super().__init__()
        self.holding = asyncio.Event()
        self.root, self.pids = "", ()

    async def train(self, job, machine):
        if not self.holding.is_set():
            process = await machine.start(TREE)
            self.root, self.pids = machine.root, tuple(map(int, (await process.readline()).split()))
            self.holding.set()
            await process.wait()
        return await super().train(job, machine)


async def test_a_node_is_killed_under_a_job_and_the_job_completes_on_another(compute, node, cluster):
    (family,) = tasks.load("calc_chain", scale="nano")
    task = next(family.tasks())
    first = await node(num_cpus=1, resources={"spot": 1})
    backend, inner, scorer, queue = compute(1, resources={"spot": 1}), Held(), NanoScorer(), MemoryQueue()
    events = []
    workers = Workers(
        queue=queue,
        compute=backend,
        inner=inner,
        scorer=scorer,
        eval_set=lambda spec: family.eval_set(spec.task, "hidden", salt="s", n=16),
        clock=SystemClock(),
        on_event=lambda name, fields: events.append((name, fields)),
    )
    spec = JobSpec(task=task, files=JOB, digest="d", base="nano-s", scale="nano")
    async with workers:
        job = await queue.put(spec, key="one")
        await asyncio.wait_for(inner.holding.wait(), SOON_S)
        await node(num_cpus=1, resources={"spot": 1})
        await asyncio.to_thread(cluster.kill, first)
        done = await asyncio.wait_for(queue.wait(job.id), 2 * SOON_S)
        await gone(*inner.pids)
    assert [name for name, _ in events] == ["job.started", "job.released", "job.started", "job.done"]
    assert "MachineLost" in events[1][1]["error"]
    assert done.result.post is not None
    assert (done.result.deliveries, done.result.fault) == (2, None)
    await absent(inner.root)
    await inner.close()


async def test_jobs_that_need_a_gpu_on_a_node_with_one_run_one_after_the_other(compute, node):
    await node(num_cpus=4, num_gpus=1, resources={"here": 4})
    backend = compute(3, gpus=1, resources={"here": 1})
    holding, most, seen = 0, 0, []

    async def job():
        nonlocal holding, most
        async with backend.machine(Need(gpus=1)) as machine:
            holding += 1
            most = max(most, holding)
            seen.append((await machine.run(["printenv", "CUDA_VISIBLE_DEVICES"])).stdout)
            await asyncio.sleep(2)  # time enough for the others' actors, had they room
            holding -= 1

    await asyncio.wait_for(asyncio.gather(job(), job(), job()), 2 * SOON_S)
    assert (most, seen) == (1, ["0\n"] * 3)


async def test_machines_on_one_node_have_gpus_of_their_own(compute, node):
    await node(num_cpus=2, num_gpus=2, resources={"pair": 2})
    backend = compute(2, gpus=1, resources={"pair": 1})
    async with backend.machine(Need(gpus=1)) as one, backend.machine(Need(gpus=1)) as two:
        assert {one.gpu_ids, two.gpu_ids} == {(0,), (1,)}
        for machine in (one, two):
            told = (await machine.run(["printenv", "CUDA_VISIBLE_DEVICES"])).stdout
            assert told == f"{machine.gpu_ids[0]}\n"


async def test_a_machine_that_asked_for_no_gpu_sees_none(compute):
    async with compute(1).machine(Need()) as machine:
        assert (await machine.run(["printenv", "CUDA_VISIBLE_DEVICES"])).stdout == "\n"
        assert machine.gpu_ids == ()


async def test_an_actor_that_is_killed_takes_everything_with_it_and_the_next_lease_gets_another(compute):
    backend = compute(1)
    with pytest.raises(MachineLost):  # noqa: PT012
        async with backend.machine(Need()) as machine:
            process = await machine.start(TREE)
            pids = [int(pid) for pid in (await process.readline()).split()]
            actor = await _actor()
            os.kill(actor, signal.SIGKILL)
            await machine.run(["sleep", "300"])
    assert not process.alive
    await gone(actor, *pids)
    await absent(machine.root)
    async with backend.machine(Need()) as machine:
        assert (await machine.run(["echo", "on"])).stdout == "on\n"
        actor = await _actor()
    os.kill(actor, signal.SIGKILL)  # while it is idle: nobody's job is lost with it
    async with backend.machine(Need()) as machine:
        assert (await machine.run(["echo", "on"])).stdout == "on\n"


async def test_a_host_program_that_is_killed_is_a_machine_lost(compute):
    with pytest.raises(MachineLost, match="host program"):  # noqa: PT012
        async with compute(1).machine(Need()) as machine:
            process = await machine.start(TREE)
            pids = [int(pid) for pid in (await process.readline()).split()]
            parent = (await machine.run(["sh", "-c", "echo $PPID"])).stdout
            os.kill(int(parent), signal.SIGKILL)
            await machine.run(["true"])
    await gone(int(parent), *pids)
    left = Path(machine.root).parent  # nobody was there to remove it: the next host program does, when it is old
    ray_host.sweep(left.parent)
    assert left.exists()
    ray_host.sweep(left.parent, left_s=0.0)
    await absent(left)


async def test_the_folder_of_a_host_program_that_runs_is_left_alone(compute):
    async with compute(1).machine(Need()) as machine:
        await machine.put("mine", b"1")
        ray_host.sweep(Path(machine.root).parent.parent, left_s=0.0)
        assert await machine.get("mine") == b"1"


DRIVER = """
import asyncio, sys
from nested_rl.compute.ray import RayCompute
from nested_rl.types import Need

async def main():
    async with RayCompute(1, address=sys.argv[1]).machine(Need()) as machine:
        process = await machine.start(["sh", "-c", "sleep 300 & sleep 300 & echo $$ $! $PPID; wait"])
        print(machine.root, (await process.readline()).decode(), flush=True)
        await process.wait()

asyncio.run(main())
"""


async def test_a_controller_that_is_killed_leaves_nothing(cluster):
    driver = await asyncio.create_subprocess_exec(
        sys.executable, "-c", DRIVER, cluster.address, stdout=asyncio.subprocess.PIPE
    )
    try:
        root, *pids = (await asyncio.wait_for(driver.stdout.readline(), SOON_S)).decode().split()
        actor = await _actor()
        assert all(alive(pid) for pid in pids)
    finally:
        driver.kill()
        await driver.wait()
    await gone(actor, *pids)
    await absent(Path(root).parent)


async def test_what_is_idle_is_given_back_to_the_cluster(compute):
    backend = compute(1, idle_s=0.2)
    async with backend.machine(Need()) as machine:
        actor = await _actor()
    await gone(actor)
    async with backend.machine(Need()) as another:
        assert another.id != machine.id


def test_a_backend_serves_one_event_loop_after_the_other(cluster):
    backend = RayCompute(1, address=cluster.address)

    async def lease():
        async with backend.machine(Need()) as machine:
            return (await machine.run(["echo", "on"])).stdout

    async def both():
        told = await asyncio.gather(lease(), lease())  # the second one waits
        await backend.close()
        return told

    for _ in range(2):
        assert asyncio.run(both()) == ["on\n", "on\n"]


async def test_whoever_waits_when_it_is_closed_is_told(compute):
    backend = compute(1)

    async def lease():
        async with backend.machine(Need()):
            pass

    async with backend.machine(Need()):
        waiting = asyncio.ensure_future(lease())
        await asyncio.sleep(0.1)
        await backend.close()
        with pytest.raises(MachineLost, match="let go"):
            await asyncio.wait_for(waiting, SOON_S)


async def test_a_cluster_without_room_is_told_and_waited_for_and_is_no_host_to_blame(compute, caplog):
    with pytest.raises(MachineLost, match="no room"):
        async with compute(1, gpus=64, start_s=0.5).machine(Need()):
            pass
    assert "no node of the Ray cluster has" in caplog.text


async def test_an_interpreter_that_is_not_there_is_told(compute):
    with pytest.raises(SettingsError, match=r"/no/python"):
        async with compute(1, python="/no/python").machine(Need()):
            pass


async def test_a_port_where_nobody_listens_is_a_closed_connection(compute):
    async with compute(1).machine(Need()) as machine, machine.forward(9) as here:
        reader, writer = await asyncio.open_connection("127.0.0.1", here)
        assert await reader.read() == b""
        writer.close()


async def test_megabytes_go_through_a_forwarded_port_both_ways(compute):
    echo = (
        "import socket\nwith socket.create_server(('127.0.0.1', 0)) as s:\n  print(s.getsockname()[1], flush=True)\n"
        "  c, _ = s.accept()\n  data = b''\n  while more := c.recv(1 << 20): data += more\n  c.sendall(data[::-1])\n"
    )
    data = os.urandom(5_000_000)
    async with compute(1).machine(Need()) as machine:
        server = await machine.start(["python3", "-c", echo])
        async with machine.forward(int(await server.readline())) as here:
            reader, writer = await asyncio.open_connection("127.0.0.1", here)
            writer.write(data)
            writer.write_eof()
            assert await reader.read() == data[::-1]
            writer.close()


def test_nodes_need_not_have_this_package(cluster):
    import ray

    ray.cloudpickle.register_pickle_by_value(ray_actor)
    sent = ray.cloudpickle.dumps(ray_actor.Holder)
    code = (
        "import sys; sys.modules['nested_rl'] = None; import ray.cloudpickle as p; "
        "print(p.loads(sys.stdin.buffer.read())().base == '')"
    )
    told = subprocess.run([sys.executable, "-c", code], input=sent, capture_output=True, check=True)
    assert told.stdout == b"True\n"


async def test_where_there_is_no_cluster_it_is_told_what_to_do():
    with pytest.raises(SettingsError, match="ray start --head"):
        async with RayCompute(1, address="127.0.0.1:1").machine(Need()):
            pass
    with pytest.raises(SettingsError, match="Ray client"):
        RayCompute(1, address="ray://head:10001")
    with pytest.raises(SettingsError, match="at least 1"):
        RayCompute(0)


async def _actor():
    """The only one. Its title is written anew with every call, and sometimes read in between."""
    async with asyncio.timeout(SOON_S):
        while len(found := _actors()) != 1:  # noqa: ASYNC110  processes of others
            await asyncio.sleep(0.02)
    return found[0]


def _actors():
    """Processes of actors that have started a host program."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and alive(entry.name) and re.match(rb"ray::Holder", _command(entry)):
            found.append(int(entry.name))
    return found


def _command(entry):
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""
