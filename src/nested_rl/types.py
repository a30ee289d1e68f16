"""Values that cross the seams: frozen, plain, and turned to and from JSON only at the edges.

Words (see docs/concepts.md): a *task* is what the agent is given; a *job* is the folder it writes; an *attempt* is one
submission; a *delivery* is one hand-out of a queued job to a machine; an *episode* is task → transcript → job → result →
reward; a *group* is the episodes of one task under one policy version; a *step* is one outer update.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from attrs import Attribute, field, frozen

from nested_rl.errors import SettingsError

Metrics: TypeAlias = Mapping[str, float]
Scale: TypeAlias = Literal["nano", "full"]
Split: TypeAlias = Literal["train", "validation", "test"]
EvalSplit: TypeAlias = Literal["dev", "hidden"]
Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
Fault: TypeAlias = Literal["agent", "infra"]


# ---------------------------------------------------------------- tasks and evaluations


@frozen(kw_only=True)
class Task:
    """What the agent is given: a family at a difficulty, in one wording. Holds nothing of the evaluation.

    `prompt` is the full text; `brief` is the same for an agent with a very small context.
    """

    id: str
    family: str
    difficulty: int
    variant: int = 0
    seed: int = 0
    prompt: str = ""
    brief: str = ""
    held_out: bool = False


@frozen(kw_only=True)
class Item:
    """One question of an evaluation. `key` is its canonical form, by which it belongs to one split for ever."""

    prompt: str
    answer: str
    key: str


@frozen(kw_only=True)
class Grade:
    """Whether an answer is right, what was read from it, and why not if not."""

    correct: bool
    parsed: str | None = None
    why: str = ""


@frozen(kw_only=True)
class Sampling:
    """How a model is asked. `samples` is per item; a score averages over them."""

    temperature: float = 1.0
    max_tokens: int = 16
    samples: int = 1


@frozen(kw_only=True)
class EvalSet:
    """The questions of one (family, difficulty, split, salt, n), and how they are asked.

    `sampling` is used for a checkpoint, `baseline_sampling` for an untrained base (usually more samples).
    `digest` names the content; it is part of every cache key and never tells the items.
    """

    family: str
    difficulty: int
    split: EvalSplit
    items: tuple[Item, ...] = field(repr=False)
    digest: str
    sampling: Sampling = Sampling()
    baseline_sampling: Sampling = Sampling(samples=4)


@frozen(kw_only=True)
class Score:
    """Mean correctness in [0, 1] over `n` items, with its standard error and the per-item means (in item order)."""

    value: float
    n: int
    stderr: float = 0.0
    items: tuple[float, ...] = field(default=(), repr=False)
    tokens: int = 0
    truncated: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, items: Sequence[float], *, tokens: int = 0, truncated: int = 0, seconds: float = 0.0) -> Score:
        """A score from per-item means.

        >>> Score.of([1.0, 0.0, 1.0, 1.0]).value
        0.75
        """
        n = len(items)
        mean = sum(items) / n if n else 0.0
        var = sum((x - mean) ** 2 for x in items) / (n - 1) if n > 1 else 0.0
        stderr = math.sqrt(var / n) if n else 0.0
        return cls(
            value=mean, n=n, stderr=stderr, items=tuple(items), tokens=tokens, truncated=truncated, seconds=seconds
        )


# ---------------------------------------------------------------- conversation


@frozen(kw_only=True)
class ToolCall:
    """One call of a tool. A malformed one has `error` set and an empty name; it becomes an observation, never a crash."""

    name: str
    arguments: Mapping[str, str] = field(factory=dict)
    id: str = ""
    error: str | None = None


@frozen(kw_only=True)
class Message:
    """One message. `name` is the tool that answered, for role "tool"."""

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""


@frozen(kw_only=True)
class Usage:
    """Tokens and money of one sample."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float = 0.0


@frozen(kw_only=True)
class Turn:
    """What a policy sampled: the message, and the exact ids it came from.

    `prompt_ids` is everything before, `ids` what was sampled, `logprobs` one per sampled id under the sampling policy.
    A frozen policy has `ids=None` and cannot be trained. `stop` is "stop", "length" or "malformed".
    """

    message: Message
    prompt_ids: tuple[int, ...] | None = field(default=None, repr=False)
    ids: tuple[int, ...] | None = field(default=None, repr=False)
    logprobs: tuple[float, ...] | None = field(default=None, repr=False)
    stop: str = "stop"
    version: int = 0
    usage: Usage = Usage()


Conversation: TypeAlias = Sequence[Message | Turn]


@frozen(kw_only=True)
class Transcript:
    """Everything said in one episode, in order. `end` is why it ended.

    `end`: "submitted" (a job was accepted), "attempts" (all used), "stop" (the agent gave up), "turns", "tokens",
    "malformed", "deadline".
    """

    conversation: tuple[Message | Turn, ...] = field(repr=False)
    end: str
    truncated: bool = False
    asked_baselines: bool = False

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The sampled part."""
        return tuple(t for t in self.conversation if isinstance(t, Turn))


# ---------------------------------------------------------------- jobs


@frozen(kw_only=True)
class Problem:
    """One reason why a job is not valid. `brief` is at most 40 characters, for agents with small contexts."""

    code: str
    where: str
    message: str
    hint: str = ""
    brief: str = ""


@frozen(kw_only=True)
class Need:
    """What a job needs of a machine. All zeros: any machine will do."""

    gpus: int = 0
    gpu_memory_gib: float = 0.0
    disk_gib: float = 0.0

    def fits(self, offer: Need) -> bool:
        """Whether a machine with `offer` can run this.

        >>> Need(gpus=1).fits(Need(gpus=2, gpu_memory_gib=48, disk_gib=100))
        True
        """
        return (
            self.gpus <= offer.gpus and self.gpu_memory_gib <= offer.gpu_memory_gib and self.disk_gib <= offer.disk_gib
        )


@frozen(kw_only=True)
class Draft:
    """A job as the agent submits it: the task it is for and its files (relative path → text)."""

    task: Task
    files: Mapping[str, str]


@frozen(kw_only=True)
class Validation:
    """What the checks and the probe found. `ok` means no problems.

    `families` are the families whose data the job's examples were recognised as; `advanced` says whether the optional
    table was used; `notes` are counted, harmless remarks (rows dropped from held-out buckets, slow rewards …).
    """

    ok: bool
    problems: tuple[Problem, ...] = ()
    base: str | None = None
    advanced: bool = False
    families: tuple[str, ...] = ()
    notes: Mapping[str, float] = field(factory=dict)
    seconds: float = 0.0


@frozen(kw_only=True)
class JobSpec:
    """A valid job, frozen: what runs is this copy. `digest` covers job.toml and every file.

    `dev` says that its checkpoint is scored on the dev split too, for an agent that may hand in several.
    """

    task: Task
    files: Mapping[str, str] = field(repr=False)
    digest: str
    base: str
    scale: Scale
    seed: int = 0
    need: Need = Need()
    timeout_s: float = 600.0
    dev: bool = False


class JobState(enum.StrEnum):
    """queued → running → done."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"


@frozen(kw_only=True)
class Checkpoint:
    """What training made, on the machine it was made on.

    `path` is a folder there; `kind` "full" or "lora"; `work` counts (sampled + trained tokens) × parameters, `work_limit`
    is what the job was allowed. `curve` is the job's own reward by training step. `peak_memory_gib` is the most that one GPU held, None
    where nobody looked.
    """

    path: str
    base: str
    kind: Literal["full", "lora"] = "full"
    digest: str = ""
    work: float = 0.0
    work_limit: float = 0.0
    seconds: float = 0.0
    curve: tuple[float, ...] = field(default=(), repr=False)
    log: str = field(default="", repr=False)
    peak_memory_gib: float | None = None


@frozen(kw_only=True)
class JobResult:
    """How one job ended. `post` is None when no checkpoint was scored. Infra faults are never finished, but delivered again.

    `dev` is the score on the dev split, for jobs that ask for it. An agent sees it; `post` it never sees.

    `cost` and `cost_limit` are in the inner trainer's unit (seconds at full scale, counted work at nano scale).
    """

    post: Score | None = None
    dev: Score | None = None
    fault: Fault | None = None
    error: str = ""
    cost: float = 0.0
    cost_limit: float = 0.0
    seconds: float = 0.0
    train_s: float = 0.0
    score_s: float = 0.0
    usd: float = 0.0
    machine: str = ""
    started_at: float = 0.0
    deliveries: int = 1
    curve: tuple[float, ...] = field(default=(), repr=False)
    log: str = field(default="", repr=False)


@frozen(kw_only=True)
class Job:
    """A job in the queue. `delivery` is the fencing token: only the newest delivery may finish it."""

    id: str
    key: str
    spec: JobSpec
    state: JobState = JobState.QUEUED
    delivery: int = 0
    owner: str = ""
    result: JobResult | None = None


@frozen(kw_only=True)
class Submitted:
    """One job of an episode: which attempt it was (from 1), its key, its result, and whether the episode is scored by it.

    Of a job that was not chosen, `result.post` is None: its hidden score stays sealed.
    """

    attempt: int
    key: str
    result: JobResult
    chosen: bool = True


@frozen(kw_only=True)
class Feedback:
    """What an agent that may hand in several jobs is told of one: its dev score in two decimals, or why there is none."""

    score: float | None = None
    error: str = ""


@frozen(kw_only=True)
class Completed:
    """A finished command on a machine. Output is decoded with replacement; log trouble never changes a verdict."""

    returncode: int
    stdout: str = ""
    stderr: str = ""


# ---------------------------------------------------------------- episodes


@frozen(kw_only=True)
class Outcome:
    """Everything a RewardFn may look at.

    `attempts` is how many submissions the job took; `valid` whether one was accepted; `jobs` how many jobs were run (more than
    one only with `max_jobs`: all else is of the one that did best on dev, `usd` of all together); `baselines` the untrained bases'
    hidden scores; `post` the trained checkpoint's, on the same items. `cost / cost_limit` is the share of its allowance
    that the job used. `usd` and `seconds` are the job's.
    """

    task: Task
    valid: bool = False
    attempts: int = 0
    jobs: int = 0
    base: str | None = None
    first_base: str | None = None
    advanced: bool = False
    families: tuple[str, ...] = ()
    baselines: Mapping[str, Score] = field(factory=dict, repr=False)
    post: Score | None = None
    cost: float = 0.0
    cost_limit: float = 0.0
    seconds: float = 0.0
    usd: float = 0.0
    fault: Fault | None = None
    error: str = ""
    asked_baselines: bool = False
    reused: bool = False

    @property
    def best_baseline(self) -> Score | None:
        """The best untrained score of the task."""
        return max(self.baselines.values(), key=lambda s: s.value, default=None)

    @property
    def uplift(self) -> float:
        """post − best baseline, clipped to [0, 1]; 0 without a scored checkpoint."""
        best = self.best_baseline
        if self.post is None or best is None:
            return 0.0
        return min(1.0, max(0.0, self.post.value - best.value))

    @property
    def noise(self) -> float:
        """Standard error of the paired per-item difference between `post` and the best baseline (inf if unpaired)."""
        best = self.best_baseline
        if self.post is None or best is None or len(self.post.items) != len(best.items) or len(best.items) < 2:
            return math.inf
        return Score.of([a - b for a, b in zip(self.post.items, best.items, strict=True)]).stderr


@frozen(kw_only=True)
class Episode:
    """One member of a group: task → transcript → job → reward. A masked episode never enters a group's mean.

    `result` and `job_key` are of the job that the reward is for, which is one of `jobs`.
    """

    group: int
    member: int
    task: Task
    version: int
    transcript: Transcript = field(repr=False)
    outcome: Outcome
    validations: tuple[Validation, ...] = field(default=(), repr=False)
    reward: float = 0.0
    parts: Metrics = field(factory=dict)
    masked: bool = False
    result: JobResult | None = field(default=None, repr=False)
    jobs: tuple[Submitted, ...] = field(default=(), repr=False)
    job_key: str = ""
    agent_s: float = 0.0
    agent_usd: float = 0.0


@frozen(kw_only=True)
class Group:
    """Episodes of one task under one policy version: what a baseline is taken over."""

    index: int
    task: Task
    version: int
    episodes: tuple[Episode, ...]

    @property
    def members(self) -> tuple[Episode, ...]:
        """The unmasked episodes."""
        return tuple(e for e in self.episodes if not e.masked)


@frozen(kw_only=True)
class UpdateReport:
    """What one update did. `stepped` is False when there was no signal; the version advances all the same."""

    version: int
    stepped: bool
    ratio_mean: float = 1.0
    ratio_max: float = 1.0
    ess: float = 1.0
    metrics: Metrics = field(factory=dict)
    usd: float = 0.0


def _limit(_: object, attribute: Attribute[float | None], value: float | None) -> None:
    if value is None:
        return
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 <= value < math.inf or (attribute.name == "hours" and value == 0):
        least = "more than 0" if attribute.name == "hours" else "0 or more"
        raise SettingsError(f"budget: {attribute.name} must be a finite number, {least}, not {value!r}")


@frozen(kw_only=True)
class Budget:
    """What a run may spend. None means no limit. Reached, it stops new work and lets reserved work finish.

    `usd` and `usd_per_hour` are 0 or more, `hours` is more than 0; anything else raises SettingsError.
    """

    usd: float | None = field(default=None, validator=_limit)
    usd_per_hour: float | None = field(default=None, validator=_limit)
    hours: float | None = field(default=None, validator=_limit)


JSON: TypeAlias = Any
