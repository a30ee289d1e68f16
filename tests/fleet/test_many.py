"""Sixteen real pods and forty jobs through the queue and its workers, while pods are lost, one freezes and the provider refuses."""

import asyncio
import random

from pods import GPUS

from nested_rl.clock import SystemClock
from nested_rl.compute.provider import Candidate
from nested_rl.queues.memory import MemoryQueue
from nested_rl.testing.values import made_spec
from nested_rl.types import Checkpoint, EvalSet, Item, JobState, Score
from nested_rl.worker import Workers

PODS, JOBS = 16, 40
SHORT_S, LONG_S = (0.3, 4.0)
HURT = ("job3", "job7", "job11")
"""They wait for what happens to them, however long it takes to begin all three."""
ITEMS = EvalSet(family="f", difficulty=1, split="hidden", items=(Item(prompt="1+1?", answer="2", key="k"),), digest="d")


class Waits:
    """Trains by waiting on the pod for as long as the job's file says."""

    def __init__(self, world):
        self.world, self.on = world, {}

    async def train(self, job, machine):
        seconds = 600 if job.key in HURT and job.key not in self.on else job.spec.files["seconds"]
        self.on[job.key] = self.world.pod(machine)
        done = await machine.run(self.world.program(job.key, seconds))
        assert done.returncode == 0, done
        return Checkpoint(path=machine.root, base="nano-s", work=1.0, work_limit=1.0)


class Looks:
    """Scores by asking the pod that trained."""

    async def score(self, model, eval_set, machine, *, seed=0):
        told = await machine.run(["pwd"])
        assert told.stdout.strip() == model.path
        return Score.of([1.0])


def seconds(number):
    """Of mixed length, the same every time."""
    return random.Random(number).uniform(SHORT_S, LONG_S)


async def test_sixteen_pods_forty_jobs_two_lost_one_frozen_and_capacity_refused(world):
    world.fake.faults["create"] = [429, "500-after"]
    world.fake.capacity[GPUS[0], "COMMUNITY"] = 5  # and then it refuses
    kinds = [Candidate.read(name)[0] for name in (*GPUS, "NVIDIA GeForce RTX 4090")]
    compute = world.compute(max_machines=PODS, gpus=kinds, patience_s=2.0)
    queue, inner, events = MemoryQueue(max_deliveries=5), Waits(world), []
    workers = Workers(
        queue=queue,
        compute=compute,
        inner=inner,
        scorer=Looks(),
        eval_set=lambda spec: ITEMS,
        clock=SystemClock(),
        on_event=lambda name, fields: events.append((name, fields["key"])),
        stop_after_faults=100,
    )

    async def trouble():
        for name in HURT:
            await world.begun(name)
        lost, also_lost, wedged = (inner.on[name] for name in HURT)
        world.lose(lost)
        world.lose(also_lost)
        world.freeze(wedged)

    async def batch():
        specs = {f"job{n}": made_spec({"seconds": f"{seconds(n):.2f}"}) for n in range(JOBS)}
        jobs = [await queue.put(spec, key=name) for name, spec in specs.items()]
        hurt = asyncio.ensure_future(trouble())
        done = await asyncio.gather(*(queue.wait(job.id) for job in jobs))
        await hurt
        return done

    async with workers:
        done = await workers.supervise(batch())
    assert [job.state for job in done] == [JobState.DONE] * JOBS
    assert all(job.result.fault is None and job.result.post.value == 1.0 for job in done)
    assert world.count("done") == dict.fromkeys((f"job{n}" for n in range(JOBS)), 1)
    assert [key for name, key in events if name == "job.done"].count("job3") == 1
    assert sum(name == "job.done" for name, _ in events) == JOBS
    assert {key for name, key in events if name == "job.released"} >= set(HURT)
    assert queue.late == 0
    assert world.fake.most >= PODS / 2
    await world.settled(most=PODS, lost=3)
