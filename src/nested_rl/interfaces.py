"""Every seam of nested_rl on one page.

Abstract base classes for the built-in parts. The loop never checks `isinstance`: a class of yours with the right methods,
or a plain function for a reward, works as it is. Async where there is waiting. `nested_rl.testing` has a conformance
suite for each seam.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

from nested_rl.types import (
    JSON,
    Checkpoint,
    Completed,
    Conversation,
    Draft,
    Episode,
    EvalSet,
    EvalSplit,
    Feedback,
    Grade,
    Group,
    Item,
    Job,
    JobResult,
    JobSpec,
    Message,
    Metrics,
    Need,
    Outcome,
    Scale,
    Score,
    Split,
    Task,
    Transcript,
    Turn,
    UpdateReport,
    Validation,
)

# ---------------------------------------------------------------- tasks


class TaskFamily(ABC):
    """A kind of task: what the agent reads, and the evaluation it never sees."""

    name: str
    held_out: bool = False

    @abstractmethod
    def tasks(self, split: Split = "train", *, seed: int = 0) -> Iterator[Task]:
        """Endless tasks of one split; the same seed gives the same tasks."""

    @abstractmethod
    def key(self, prompt: str) -> str | None:
        """The canonical form of a question of this family, or None if the text is not one."""

    @abstractmethod
    def eval_set(self, task: Task, split: EvalSplit, *, salt: str, n: int = 256) -> EvalSet:
        """The evaluation of a task. Depends on (family, difficulty, split, salt, n) alone."""

    @abstractmethod
    def grade(self, item: Item, text: str) -> Grade:
        """Exact, tolerant of harmless format, and says why an answer is wrong."""


# ---------------------------------------------------------------- the agent


class Policy(ABC):
    """Something that can be asked for the next turn of a conversation, at one fixed version of its weights."""

    version: int = 0
    embedded: bool = False
    """Whether it is one of the small models and scripts of this package, for whose jobs a weak sandbox will do."""
    context_tokens: int = 0
    """At most this many tokens of conversation. Small contexts get the brief guide."""

    @abstractmethod
    async def sample(
        self,
        conversation: Conversation,
        *,
        tools: Sequence[Mapping[str, object]],
        max_tokens: int,
        seed: int | None = None,
    ) -> Turn:
        """The next turn. Messages are rendered, Turns are taken as they were sampled, never rendered again."""


@runtime_checkable
class Lockstep(Protocol):
    """Optional power of a policy: sample the turns of a whole group together, batched by member and never by arrival."""

    def seats(self, n: int) -> Sequence[Seat]:
        """One policy a member. A batch runs when every open seat is waiting; close a seat when its episode ends."""


class Seat(Policy):
    """One member's place in a lockstep group."""

    @abstractmethod
    def close(self) -> None:
        """The episode is over; the others no longer wait for this seat."""


class Renderer(ABC):
    """Text to ids and back for one family of models."""

    stop_ids: tuple[int, ...]

    @abstractmethod
    def render(self, conversation: Conversation, tools: Sequence[Mapping[str, object]] = ()) -> list[int]:
        """Ids of the whole conversation, ready for the next assistant turn. Sampled turns keep their ids."""

    @abstractmethod
    def parse(self, ids: Sequence[int]) -> Message:
        """The assistant message in sampled ids. A malformed call has `ToolCall.error` set."""


class OuterTrainer(ABC):
    """Owns the policy's weights."""

    embedded: bool = False
    """Whether its policies are (see Policy)."""

    @abstractmethod
    async def policy(self) -> Policy:
        """A sampler pinned to the current weights. It stays valid, at its version, after later updates."""

    @abstractmethod
    async def update(self, groups: Sequence[Group]) -> UpdateReport:
        """One step on these groups. The version advances by one, also when there was no signal."""

    @abstractmethod
    async def save(self, name: str) -> str:
        """Write weights and optimiser under `name`; return a reference that `load` takes. All or nothing."""

    @abstractmethod
    async def load(self, ref: str) -> None:
        """Become what was saved: weights, optimiser and version."""


class Forgetful(Protocol):
    """Optional power of an outer trainer: it deletes what it has saved, for a run that keeps only some checkpoints."""

    async def forget(self, ref: str) -> None:
        """Delete what `save` wrote. No error if it is not there."""


class Desk(ABC):
    """What the harness lets the agent do: its workspace, the baselines, and handing in the job."""

    task: Task
    workspace: Path | None = None
    """The folder to work in; None: a temporary one that goes with the episode."""

    @abstractmethod
    async def baselines(self) -> Mapping[str, float]:
        """Untrained bases' scores on the dev split, two decimals."""

    @abstractmethod
    async def submit(self, files: Mapping[str, str]) -> Validation:
        """Hand in the job. Valid: it is frozen and queued. Not valid: the attempt is used up."""

    @abstractmethod
    async def result(self) -> JobResult:
        """Wait for the submitted job to be trained and scored."""

    async def feedback(self) -> Feedback:
        """Wait for the submitted job; how it did on the dev split. Only asked by a harness with `max_jobs` above 1."""
        return Feedback(error="this desk gives no feedback")

    @abstractmethod
    def guide(self, *, brief: bool) -> str:
        """How to write a job, from the inner trainer."""


class AgentHarness(ABC):
    """Runs one episode: gives the policy its tools until a job is accepted or the caps are reached."""

    @abstractmethod
    async def run(self, task: Task, policy: Policy, desk: Desk, *, seed: int = 0) -> Transcript:
        """One transcript. `seed` makes a sampling policy repeatable."""


# ---------------------------------------------------------------- jobs and machines


class InnerTrainer(ABC):
    """Owns what a job is: the scale, the bases, the guide, the probe, the training."""

    scale: Scale
    bases: tuple[str, ...]

    @abstractmethod
    def guide(self, task: Task, *, brief: bool) -> str:
        """What the agent reads about writing a job."""

    @abstractmethod
    def need(self, draft: Draft) -> Need:
        """The machine this job needs. Only called on valid drafts."""

    @abstractmethod
    async def validate(self, draft: Draft) -> Validation:
        """Static checks and the probe: runs the agent's code in a sandbox, within the limits."""

    @abstractmethod
    async def train(self, job: Job, machine: Machine) -> Checkpoint:
        """Train on the machine. Raises AgentFault or InfraFault; which one is never decided by what the job printed."""


@runtime_checkable
class Walled(Protocol):
    """Optional power of an inner trainer: it knows how strong its sandbox for agent-written code is."""

    async def sandbox_level(self) -> str:
        """The mechanism in use on this computer: "namespaces", "seccomp" or "limits"."""

    async def require_walls(self) -> None:
        """From now on agent-written code runs behind real walls, here and on machines, or not at all.

        Raises SettingsError when there are none here.
        """


class JobQueue(ABC):
    """At-least-once delivery with leases: queued → running → done. Putting is idempotent by key; the first finish wins."""

    @abstractmethod
    async def put(self, spec: JobSpec, *, key: str) -> Job:
        """Queue a job, or return the one that has this key already.

        One that ended with an infra fault has no result to give; it is queued again, with fresh deliveries.
        """

    @abstractmethod
    async def lease(self, owner: str, *, ttl_s: float) -> Job | None:
        """Claim the oldest queued job, or one whose lease ran out. None when there is nothing to do."""

    @abstractmethod
    async def heartbeat(self, job: Job, *, ttl_s: float) -> None:
        """Renew a lease. Raises LeaseLost when another delivery has the job."""

    @abstractmethod
    async def finish(self, job: Job, result: JobResult) -> Job:
        """Record the result. The first finish wins; a late one is logged and ignored. Returns the job as it stands."""

    @abstractmethod
    async def release(self, job: Job, *, error: str = "", counts: bool = True) -> Job:
        """Give a delivery back. Queued again, or done with fault="infra" and `error` when deliveries ran out.

        `counts=False` is for work that was merely called off: it uses up no delivery.
        """

    @abstractmethod
    async def wait(self, job_id: str) -> Job:
        """Wait until the job is done."""

    @abstractmethod
    async def counts(self) -> Mapping[str, int]:
        """Jobs by state."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of files and connections."""


class Process(ABC):
    """A program running on a machine, with lines going in and out."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """To its standard input."""

    @abstractmethod
    async def readline(self) -> bytes:
        """One line of its standard output; b"" at the end."""

    @abstractmethod
    async def wait(self) -> int:
        """Its exit status."""

    @abstractmethod
    async def kill(self) -> None:
        """End it and everything it started."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether it still runs."""


class Machine(ABC):
    """The only way to touch hardware: {local, SSH, Runpod, Ray} look the same from here."""

    id: str
    usd_per_hour: float = 0.0
    root: str
    """A folder on the machine that is this lease's own; emptied when the lease ends."""

    @abstractmethod
    async def run(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float | None = None
    ) -> Completed:
        """Run to the end. Past `timeout_s` it is killed with all its children and TimeoutError is raised."""

    @abstractmethod
    async def start(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Process:
        """Start and go on. The environment is only what is given, plus PATH and HOME."""

    @abstractmethod
    async def put(self, path: str, data: bytes) -> None:
        """Write a file under `root`, all or nothing."""

    @abstractmethod
    async def get(self, path: str) -> bytes:
        """Read a file under `root`."""

    @abstractmethod
    def forward(self, port: int) -> AbstractAsyncContextManager[int]:
        """A local port that leads to `port` on the machine."""

    @abstractmethod
    async def resident(self, key: str, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Process:
        """A process kept warm for this machine under `key`, started on first use and killed on recycle."""


class ComputeBackend(ABC):
    """Where machines come from."""

    @abstractmethod
    def offers(self) -> Sequence[Need]:
        """What its machines have. A job that no offer fits is refused before it is queued."""

    @abstractmethod
    def machine(self, need: Need) -> AbstractAsyncContextManager[Machine]:
        """A machine for as long as the `async with` lasts; leaving gives it back, however it is left."""

    @property
    @abstractmethod
    def max_machines(self) -> int:
        """How many machines may be held at once."""

    @abstractmethod
    async def close(self) -> None:
        """Give every machine back and end what was kept warm."""


@runtime_checkable
class ForJob(Protocol):
    """Optional power of a backend: it is told whose a machine is, to say what each job cost and to stop one that kills machines."""

    def machine_for(self, need: Need, *, job: str) -> AbstractAsyncContextManager[Machine]:
        """As `machine`; `job` is the key of a job, the same at each of its deliveries."""


class Account(Protocol):
    """What a backend that pays for itself asks of a meter; `nested_rl.meter.Meter` is one."""

    @property
    def most_usd_per_hour(self) -> float:
        """What all that runs at once may cost; infinite without a limit."""

    def reserved_for(self, key: str) -> float:
        """What is set aside for `key`."""

    def reserve(self, key: str, usd: float, *, instead: str = "") -> None:
        """Set `usd` aside for `key` in place of what it had and of what `instead` has. Raises BudgetExceeded: all is as it was."""

    def release(self, key: str) -> None:
        """Give it back."""

    def settle(self, key: str, usd: float, *, kind: str, **fields: JSON) -> None:
        """It was spent. A key that was paid before is not paid again."""


@runtime_checkable
class Metered(Protocol):
    """Optional power of a backend: it pays for whole machines, from their making to their end, so that nobody else has to."""

    def metered(self, account: Account, *, ledger: str) -> None:
        """From now on into `account`. `ledger` names it, for ever: what another one has paid for, or owes, is not for this one."""


class Scorer(ABC):
    """Asks a model the items of an evaluation. The answers stay on the controller."""

    @abstractmethod
    async def score(self, model: Checkpoint | str, eval_set: EvalSet, machine: Machine, *, seed: int = 0) -> Score:
        """Score a checkpoint (with `eval_set.sampling`) or an untrained base by name (with `baseline_sampling`)."""


# ---------------------------------------------------------------- reward and records

RewardFn: TypeAlias = Callable[[Outcome], "float | Metrics | Awaitable[float | Metrics]"]
"""Any callable: an Outcome to a finite float, or to named parts that are added up and shown one by one. Sync or async."""


class Tracker(ABC):
    """A side channel. It never hurts a run: what it raises is warned about once and dropped."""

    @abstractmethod
    def metrics(self, step: int, values: Metrics) -> None:
        """One row a step."""

    @abstractmethod
    def episode(self, step: int, episode: Episode) -> None:
        """One episode, after its reward is known."""

    @abstractmethod
    def close(self) -> None:
        """Flush and let go."""
