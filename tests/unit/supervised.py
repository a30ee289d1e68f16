"""A whole experiment of small parts with a trap in it: at one phase something happens, once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from loop_doubles import Family as _Family
from loop_doubles import Harness as _Harness
from loop_doubles import Inner as _Inner
from loop_doubles import Policy as _Policy

from nested_rl import Experiment
from nested_rl.rundir import RunDir
from nested_rl.types import Checkpoint, Score, UpdateReport
from nested_rl.waiting import uninterrupted


class Trap:
    """`await trap(phase)` does what `set` says, the `number`th time that phase is reached."""

    def __init__(self) -> None:
        self.phase, self.left = "", 0
        self.act: Callable[[], Awaitable[None] | None] = lambda: None
        self.sprung: list[str] = []

    def set(self, phase: str, act: Callable[[], Awaitable[None] | None], *, number: int = 1) -> None:
        self.phase, self.act, self.left = phase, act, number

    async def __call__(self, phase: str) -> None:
        if phase == self.phase:
            self.left -= 1
            if self.left == 0:
                self.sprung.append(phase)
                if (waiting := self.act()) is not None:
                    await waiting


async def forever() -> None:
    await asyncio.Event().wait()


class Family(_Family):
    """Knows that its validation tasks are some."""

    def settings(self):
        return {"name": self.name}


class Policy(_Policy):
    def __init__(self, version: int, trap: Trap) -> None:
        super().__init__(version)
        self.trap = trap

    async def sample(self, conversation, *, tools, max_tokens, seed=None):
        await self.trap("sampling")
        return await super().sample(conversation, tools=tools, max_tokens=max_tokens, seed=seed)


class Trainer:
    """Counts its updates; a checkpoint is the list of what was trained."""

    def __init__(self, trap: Trap) -> None:
        self.trap, self.version, self.history, self.closed = trap, 0, [], False

    def settings(self):
        return {}

    def bind(self, folder: Path) -> None:
        self.folder = folder

    async def policy(self):
        await self.trap("set-up")
        return Policy(self.version, self.trap)

    async def update(self, groups):
        await self.trap("update")
        self.version += 1
        self.history.append([g.index for g in groups])
        return UpdateReport(version=self.version, stepped=True)

    async def save(self, name):
        await self.trap("save")
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(json.dumps([self.version, self.history]))
        return name

    async def load(self, ref):
        self.version, self.history = json.loads((self.folder / ref).read_text())

    async def close(self):
        await self.trap("close")
        self.closed = True


class Harness(_Harness):
    def __init__(self, trap: Trap) -> None:
        super().__init__()
        self.trap = trap

    def settings(self):
        return {}

    async def run(self, task, policy, desk, *, seed=0):
        if "-validation-" in task.id:
            await self.trap("evaluation")
        return await super().run(task, policy, desk, seed=seed)


class Inner(_Inner):
    def __init__(self, trap: Trap) -> None:
        self.trap = trap

    def settings(self):
        return {}

    async def validate(self, draft):
        await self.trap("validation")
        return await super().validate(draft)

    async def train(self, job, machine):
        await self.trap("job")
        return Checkpoint(path="out", base="strong", work=1.0, work_limit=2.0)


class Scorer:
    def __init__(self, trap: Trap) -> None:
        self.trap = trap

    def settings(self):
        return {}

    async def score(self, model, eval_set, machine, *, seed=0):
        await self.trap("baselines" if isinstance(model, str) else "scoring")
        return Score.of([1.0, 0.0, 0.0, 0.0] if isinstance(model, str) else [1.0, 1.0, 0.0, float(seed % 2)])


class Box:
    id = "box"
    usd_per_hour = 0.0


class Compute:
    """Counts the machines that are held."""

    max_machines = 2

    def __init__(self, trap: Trap) -> None:
        self.trap, self.held, self.closed = trap, 0, False

    def settings(self):
        return {}

    @asynccontextmanager
    async def machine(self, need):
        await self.trap("machine")
        self.held += 1
        try:
            yield Box()
        finally:
            await uninterrupted(self._take_back())

    async def _take_back(self):
        await self.trap("release")
        self.held -= 1

    async def close(self):
        self.closed = True


class World:
    """One process on the run directory `path`; another World on the same path is the next one."""

    def __init__(self, path: Path, **settings) -> None:
        self.path, self.trap = path, Trap()
        self.trainer, self.compute = Trainer(self.trap), Compute(self.trap)
        self.experiment = Experiment(
            tasks=[Family("fast")],
            trainer=self.trainer,
            harness=Harness(self.trap),
            inner=Inner(self.trap),
            scorer=Scorer(self.trap),
            compute=self.compute,
            reward=spread,
            **settings,
        )

    def run(self, steps: int = 2) -> None:
        self.experiment.run(steps=steps, groups_per_step=2, group_size=2, eval_every=1, out=self.path, quiet=True)

    @property
    def files(self) -> RunDir:
        return RunDir.open(self.path)

    def assert_all_given_back(self) -> None:
        """Machines, the backend, the trainer, and the run directory."""
        assert self.compute.held == 0
        assert self.compute.closed
        again = RunDir.open(self.path)
        again.own()  # refused while another process, or this one, still has it
        again.close()

    def assert_goes_on(self, steps: int = 2) -> None:
        """The next process finishes the run: every update once, no finished job again."""
        after = World(self.path)
        after.run(steps)
        run = after.files
        assert [event["step"] for event in run.events("step.done")] == list(range(steps))
        assert [row["step"] for row in run.metrics()] == list(range(steps))
        done = [event["key"] for event in run.events("job.done")]
        assert len(done) == len(set(done))
        assert [event["event"] for event in run.events()][-1] == "run.finished"
        assert len(after.trainer.history) == steps


def spread(outcome):
    """Tells most members apart."""
    return 0.5 * outcome.valid + (0.5 * outcome.post.value if outcome.post else 0.0)
