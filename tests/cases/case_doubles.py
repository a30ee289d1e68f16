"""A whole experiment on a virtual clock: the real loop, workers, queue, meter and files, and small parts around them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np

from nested_rl import Experiment
from nested_rl.clock import VirtualClock
from nested_rl.errors import TrainerError
from nested_rl.nano.config import Qwen3Config
from nested_rl.nano.folder import save_model
from nested_rl.nano.model import Qwen3
from nested_rl.nano.tokenizer import Tokenizer
from nested_rl.queues.memory import MemoryQueue
from nested_rl.renderers.nano import SPECIALS
from nested_rl.rundir import RunDir
from nested_rl.trainers.nano import NanoTrainer
from nested_rl.types import (
    Checkpoint,
    EvalSet,
    Item,
    Message,
    Need,
    Score,
    Task,
    ToolCall,
    Transcript,
    Turn,
    UpdateReport,
    Validation,
)

FILES = {"job.toml": "steps = 1\n", "environment.py": "x = 1\n"}


class Killed(BaseException):
    """kill -9, as far as the files can tell."""


def calls(*names: str, **arguments: str) -> Message:
    return Message(role="assistant", tool_calls=tuple(ToolCall(name=n, arguments=arguments, id=n) for n in names))


class Family:
    held_out = False

    def __init__(self, name: str) -> None:
        self.name = name

    def tasks(self, split: str = "train", *, seed: int = 0) -> Iterator[Task]:
        return (Task(id=f"{self.name}-{split}-{i}", family=self.name, difficulty=1) for i in itertools.count())

    def eval_set(self, task, split, *, salt, n=4):
        items = tuple(Item(prompt=f"{split}{i}?", answer=f"secret-{split}-{i}", key=str(i)) for i in range(4))
        return EvalSet(family=self.name, difficulty=1, split=split, items=items, digest=f"{self.name}{split}{salt}")


class Policy:
    context_tokens = 0

    def __init__(self, version: int, say) -> None:
        self.version, self.say = version, say

    async def sample(self, conversation, *, tools, max_tokens, seed=None):
        said = self.say(conversation)
        return Turn(message=said, ids=(1,), prompt_ids=(0,), logprobs=(-0.1,), version=self.version)


class Trainer:
    """Counts its updates and remembers what it trained; a checkpoint is that memory."""

    def __init__(self, say, *, stops_at: int | None = None) -> None:
        self.say, self.stops_at = say, stops_at
        self.version, self.history = 0, []

    def settings(self):
        return {}

    def bind(self, folder: Path) -> None:
        self.folder = folder

    async def policy(self):
        return Policy(self.version, self.say)

    async def update(self, groups):
        if self.version == self.stops_at:
            raise TrainerError("the trainer has ended")
        self.version += 1
        self.history.append([g.index for g in groups])
        rewards = {e.reward for g in groups for e in g.members}
        return UpdateReport(version=self.version, stepped=len(rewards) > 1)

    async def save(self, name):
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(json.dumps([self.version, self.history]))
        return name

    async def load(self, ref):
        self.version, self.history = json.loads((self.folder / ref).read_text())


class Harness:
    """Hands in at once; every member of a group another job."""

    def __init__(self, clock) -> None:
        self.clock = clock
        self.fails = lambda task: None
        self.seconds = 0.0

    def settings(self):
        return {}

    async def run(self, task, policy, desk, *, seed=0):
        turn = await policy.sample([], tools=[], max_tokens=1)
        await self.clock.sleep(self.seconds)
        if (error := self.fails(task)) is not None:
            raise error
        await desk.submit({**FILES, "environment.py": f"seed = {seed}\n"})
        return Transcript(conversation=(Message(role="user", content="go"), turn), end="submitted")


class Inner:
    scale = "nano"
    bases = ("weak", "strong")
    timeout_s = 8.0

    def __init__(self, clock) -> None:
        self.clock = clock
        self.seconds = lambda job: 1.0
        self.ends = lambda job: None
        self.verdict = lambda draft: Validation(ok=True, base="strong", families=(draft.task.family,))
        self.validated, self.started = [], []

    def settings(self):
        return {}

    def guide(self, task, *, brief):
        return "Write job.toml and environment.py."

    def need(self, draft):
        return Need()

    async def validate(self, draft):
        self.validated.append(dict(draft.files))
        return self.verdict(draft)

    async def train(self, job, machine):
        self.started.append((job.key, job.delivery))
        await self.clock.sleep(self.seconds(job))
        if (error := self.ends(job)) is not None:
            raise error
        return Checkpoint(path="out", base="strong", work=1.0, work_limit=4.0)


class Scorer:
    def __init__(self) -> None:
        self.fails = lambda: None
        self.asked = []

    def settings(self):
        return {}

    async def score(self, model, eval_set, machine, *, seed=0):
        self.asked.append((model, eval_set.split))
        if isinstance(model, Checkpoint):
            if (error := self.fails()) is not None:
                raise error
            return Score.of([1.0, 1.0, 1.0, float(seed % 2)])
        return Score.of([1.0, 0.0, 0.0, 0.0] if model == "strong" else [0.0] * 4)


class Boxes:
    """Machines of $36 an hour that do nothing, and a book of which are out."""

    usd_per_hour = 36.0

    def __init__(self, max_machines: int) -> None:
        self.max_machines = max_machines
        self.out, self.lent = set(), 0
        self.fails = lambda: None

    def settings(self):
        return {}

    @asynccontextmanager
    async def machine(self, need):
        if (error := self.fails()) is not None:
            raise error
        self.lent += 1
        self.id, box = f"box-{self.lent}", type("Box", (), {"id": f"box-{self.lent}", "usd_per_hour": 36.0})()
        self.out.add(box)
        try:
            yield box
        finally:
            self.out.discard(box)

    async def close(self):
        """Nothing is kept."""


def even(outcome) -> float:
    """A reward that differs from task to task and member to member."""
    return outcome.post.value if outcome.post else 0.0


class World:
    """One experiment in one folder. `again()` is a new process on the same files and the same queue."""

    def __init__(self, path: Path, *, machines=4, families=("fast",), queue=None, budget=None, **run) -> None:
        self.path, self.families, self.machines, self.run = path, families, machines, run
        self.run = {"steps": 3, "groups_per_step": 1, "group_size": 2, "order": "index", "eval_every": 0} | run
        self.clock = VirtualClock(start=1000.0)
        self.queue = queue(self.clock) if queue else MemoryQueue(clock=self.clock)
        self.budget, self.reward, self.trackers = budget, even, ()
        self._parts()

    def _parts(self) -> None:
        self.inner, self.scorer, self.compute = Inner(self.clock), Scorer(), Boxes(self.machines)
        self.trainer = Trainer(lambda talk: calls("submit_job"))
        self.harness = Harness(self.clock)

    def again(self, **run) -> World:
        other = World(self.path, machines=self.machines, families=self.families, budget=self.budget, **self.run | run)
        other.clock, other.queue, other.reward = self.clock, self.queue, self.reward
        other._parts()
        return other

    def experiment(self) -> Experiment:
        return Experiment(
            tasks=[Family(name) for name in self.families],
            trainer=self.trainer,
            harness=self.harness,
            inner=self.inner,
            queue=self.queue,
            compute=self.compute,
            scorer=self.scorer,
            reward=self.reward,
            trackers=self.trackers,
            budget=self.budget,
            clock=self.clock,
        )

    async def go(self):
        work = self.experiment().run_async(out=self.path, quiet=True, **self.run)
        return await self.clock.run(work)

    @property
    def files(self) -> RunDir:
        return RunDir.open(self.path)

    def events(self, *names):
        return list(self.files.events(*names))

    def trained(self):
        return [g for e in self.events("step.done") for g in e["groups"]]

    def text(self) -> str:
        """Everything the run has written, secrets apart."""
        found = [p for p in sorted(self.path.rglob("*")) if p.is_file() and p.parent.name != "secret"]
        return "\n".join(p.read_bytes().decode(errors="replace") for p in found)


def small_trainer(folder: Path) -> NanoTrainer:
    """The real outer trainer, of a model that is next to nothing."""
    tokenizer = Tokenizer.pieces(SPECIALS, "ab \n", [], pad="<pad>", eos="<stop>", unk="<unk>")
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=12,
        intermediate_size=16,
        head_dim=4,
        max_position_embeddings=32,
        eos_token_id=tokenizer.eos_id,
        pad_token_id=tokenizer.pad_id,
    )
    save_model(folder / "model", Qwen3(config, seed=0, dtype=np.float32), tokenizer, "float32")
    return NanoTrainer(folder / "model", directory=folder / "checkpoints")
