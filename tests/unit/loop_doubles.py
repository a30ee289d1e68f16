"""Small stand-ins for the parts of a run, on a virtual clock: the loop under test is the real one."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from nested_rl.baselines import Baselines
from nested_rl.clock import VirtualClock
from nested_rl.episode import Parts
from nested_rl.loop import Loop, Schedule
from nested_rl.meter import Meter
from nested_rl.queues.memory import MemoryQueue
from nested_rl.rundir import RunDir
from nested_rl.session import _charge
from nested_rl.types import (
    Budget,
    EvalSet,
    Item,
    JobResult,
    Message,
    Need,
    Score,
    Task,
    ToolCall,
    Transcript,
    Turn,
    UpdateReport,
    Usage,
    Validation,
)


class Family:
    held_out = False

    def __init__(self, name: str = "fast") -> None:
        self.name = name

    def tasks(self, split: str = "train", *, seed: int = 0) -> Iterator[Task]:
        return (Task(id=f"{self.name}-{split}-{seed}-{i}", family=self.name, difficulty=1) for i in itertools.count())

    def key(self, prompt):
        return prompt

    def eval_set(self, task, split, *, salt, n=4):
        items = tuple(Item(prompt=str(i), answer="1", key=str(i)) for i in range(4))
        return EvalSet(family=self.name, difficulty=1, split=split, items=items, digest=f"{self.name}{split}{salt}")


class Policy:
    context_tokens = 100
    usd = 0.0

    def __init__(self, version: int) -> None:
        self.version = version

    async def sample(self, conversation, *, tools, max_tokens, seed=None):
        message = Message(role="assistant", tool_calls=(ToolCall(name="submit_job"),))
        usage = Usage(usd=self.usd)
        return Turn(message=message, ids=(1,), prompt_ids=(0,), logprobs=(-0.1,), version=self.version, usage=usage)


class Trainer:
    """Counts its updates, which take `seconds`; a checkpoint is the list of what was trained."""

    def __init__(self, folder: Path, *, clock: VirtualClock | None = None, seconds: float = 0.0) -> None:
        self.folder, self.version, self.history = folder, 0, []
        self.clock, self.seconds = clock, seconds

    async def policy(self):
        return Policy(self.version)

    async def update(self, groups):
        if self.clock is not None:
            await self.clock.sleep(self.seconds)
        self.version += 1
        self.history.append([g.index for g in groups])
        return UpdateReport(version=self.version, stepped=True)

    async def save(self, name):
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(json.dumps([self.version, self.history]))
        return name

    async def load(self, ref):
        self.version, self.history = json.loads((self.folder / ref).read_text())


class Harness:
    """Hands in at once, or fails the way it is told to."""

    def __init__(self, fail: Callable[[Task, int], Exception | None] = lambda task, seed: None) -> None:
        self.fail = fail

    async def run(self, task, policy, desk, *, seed=0):
        turn = await policy.sample([], tools=[], max_tokens=1)
        if (error := self.fail(task, seed)) is not None:
            raise error
        await desk.submit({"job.toml": f"seed = {seed}"})
        return Transcript(conversation=(Message(role="user", content="go"), turn), end="submitted")


class Inner:
    scale = "nano"
    bases = ("weak", "strong")
    timeout_s = 100.0

    def guide(self, task, *, brief):
        return ""

    def need(self, draft):
        return Need()

    async def validate(self, draft):
        return Validation(ok=True, base="strong", families=(draft.task.family,))


class Scorer:
    def __init__(self) -> None:
        self.asked = 0

    async def score(self, model, eval_set, machine, *, seed=0):
        self.asked += 1
        return Score.of([1.0, 0.0, 0.0, 0.0] if model == "strong" else [0.0] * 4)


class Compute:
    max_machines = 1

    @asynccontextmanager
    async def machine(self, need):
        yield None


class Rig:
    """Everything for one loop in one folder; `open()` again after a crash is a new process on the same files."""

    def __init__(
        self,
        path: Path,
        *,
        families=("fast",),
        seconds=None,
        update_s=0.0,
        poll_s=0.1,
        fail=lambda task, seed: None,
        **schedule,
    ) -> None:
        self.path, self.families, self.fail = path, [Family(n) for n in families], fail
        self.seconds, self.update_s, self.poll_s = seconds or (lambda spec: 1.0), update_s, poll_s
        self.schedule = Schedule(**({"steps": 4, "groups_per_step": 2, "group_size": 2} | schedule))
        self.reward = lambda outcome: float(len(outcome.task.id) % 3) / 3 + (outcome.task.family == "slow") * 0.1
        self.clock = VirtualClock()
        self.queue = MemoryQueue(clock=self.clock)
        self.finished: list[str] = []
        self.events: list[tuple[str, dict]] = []

    def loop(self) -> Loop:
        self.run = RunDir.create(self.path, {"steps": self.schedule.steps}, may_change=("steps",))
        self.trainer = Trainer(self.path / "checkpoints", clock=self.clock, seconds=self.update_s)
        self.scorer = Scorer()
        meter = Meter(Budget(), clock=self.clock, write=self.run.costs_log.append)
        parts = Parts(
            harness=Harness(self.fail),
            inner=Inner(),
            queue=self.queue,
            reward=self.reward,
            clock=self.clock,
            job_seeds=2,
            charge=functools.partial(_charge, meter, self.clock),
        )
        baselines = Baselines(self.run, self.families, bases=Inner.bases, scorer=self.scorer, compute=Compute(), n=4)
        self.failed = asyncio.get_running_loop().create_future()
        return Loop(
            run=self.run,
            families=self.families,
            trainer=self.trainer,
            parts=parts,
            baselines=baselines,
            meter=meter,
            schedule=self.schedule,
            clock=self.clock,
            workers_failed=self.failed,
            on_event=lambda name, fields: self.events.append((name, dict(fields))),
            on_row=lambda step, row, episodes: None,
        )

    async def _serve(self) -> None:
        """As many machines as there are jobs; stopped, it gives back what it holds."""
        running = {}
        try:
            while True:
                job = await self.queue.lease("w", ttl_s=1e9)
                if job is None:
                    await self.clock.sleep(self.poll_s)
                    continue
                running[job.id] = job, asyncio.create_task(self._finish(job))
        finally:
            for job, task in running.values():
                if not task.done():
                    task.cancel()
                    await self.queue.release(job)

    async def _finish(self, job) -> None:
        await self.clock.sleep(self.seconds(job.spec))
        self.finished.append(job.key)
        await self.queue.finish(job, JobResult(post=Score.of([1.0, 1.0, 0.0, 0.0])))

    async def go(self, loop: Loop | None = None) -> None:
        loop = loop or self.loop()
        server = asyncio.create_task(self._serve())
        try:
            await self.clock.run(loop.run())
        finally:
            server.cancel()
            await asyncio.gather(server, return_exceptions=True)
            self.run.close()

    def after(self, earlier: Rig) -> Rig:
        """A new process on the same queue."""
        self.queue, self.clock = earlier.queue, earlier.clock
        return self
