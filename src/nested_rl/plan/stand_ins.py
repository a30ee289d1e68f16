"""Stand-ins for the parts of a run that take time: what each takes is drawn, what it decides is nothing.

A draw depends on the seed and on whose it is (episode, attempt, job), never on the order of events, so that two simulations that
differ in one thing differ by that thing.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from attrs import define, frozen

from nested_rl.clock import Clock
from nested_rl.errors import InfraFault
from nested_rl.interfaces import AgentHarness, Desk, InnerTrainer, Machine, OuterTrainer, Policy, Scorer, TaskFamily
from nested_rl.plan.figures import Assumptions, End, Guess
from nested_rl.types import (
    Checkpoint,
    Conversation,
    Draft,
    EvalSet,
    EvalSplit,
    Grade,
    Group,
    Item,
    Job,
    Message,
    Need,
    Outcome,
    Scale,
    Score,
    Split,
    Task,
    Transcript,
    Turn,
    UpdateReport,
    Usage,
    Validation,
)

ATTEMPTS = 3
SCORING = 0.15
"""Of a job's time on its machine."""


@frozen(kw_only=True)
class Chance:
    """The assumptions at one end, and seeded draws from them."""

    told: Assumptions
    end: End = "mid"
    seed: int = 0

    def value(self, guess: Guess) -> float:
        """Without a draw."""
        return guess.at(self.end)

    def of(self, *whose: object) -> random.Random:
        """Draws of one thing alone."""
        return random.Random("/".join(map(str, (self.seed, *whose))))

    def around(self, mean: float, sigma: float, rng: random.Random) -> float:
        """Log-normal with this mean."""
        return mean * math.exp(rng.gauss(-sigma * sigma / 2, sigma)) if sigma else mean


@define
class Spent:
    """What the agent and its training took in one simulation."""

    prompt_tokens: float = 0.0
    sample_tokens: float = 0.0
    train_tokens: float = 0.0
    agent_usd: float = 0.0
    train_usd: float = 0.0
    attempts: int = 0


class PlanFamily(TaskFamily):
    """A family by name. One item: nothing here is asked of a model."""

    def __init__(self, name: str) -> None:
        self.name = name

    def tasks(self, split: Split = "train", *, seed: int = 0) -> Iterator[Task]:
        return (Task(id=f"{self.name}-{split}-{seed}-{i}", family=self.name, difficulty=1) for i in itertools.count())

    def key(self, prompt: str) -> str | None:
        return "item" if prompt == "item" else None

    def eval_set(self, task: Task, split: EvalSplit, *, salt: str, n: int = 1) -> EvalSet:  # noqa: ARG002  the seam's
        items = (Item(prompt="item", answer="answer", key="item"),)
        return EvalSet(family=self.name, difficulty=1, split=split, items=items, digest=f"{self.name}-{split}")

    def grade(self, item: Item, text: str) -> Grade:
        return Grade(correct=text == item.answer)


@frozen(kw_only=True)
class PlanPolicy(Policy):
    """Takes the time and the tokens of all turns of one attempt at once."""

    chance: Chance
    clock: Clock
    spent: Spent
    version: int = 0
    context_tokens: int = 1

    async def sample(
        self,
        conversation: Conversation,  # noqa: ARG002  the seam's
        *,
        tools: Sequence[Mapping[str, object]],  # noqa: ARG002
        max_tokens: int,  # noqa: ARG002
        seed: int | None = None,
    ) -> Turn:
        value, told = self.chance.value, self.chance.told
        turns = value(told.turns)
        share = self.chance.around(1.0, 0.3, self.chance.of("turns", seed))
        await self.clock.sleep(share * turns * value(told.turn_s))
        read, written = share * turns * value(told.prompt_tokens), share * turns * value(told.sample_tokens)
        usd = 0.0
        if (prices := told.token_prices) is not None:
            usd = (read * value(prices.prefill) + written * value(prices.sample)) / 1e6
        spent = self.spent
        spent.prompt_tokens, spent.sample_tokens = spent.prompt_tokens + read, spent.sample_tokens + written
        spent.attempts, spent.agent_usd = spent.attempts + 1, spent.agent_usd + usd
        return Turn(message=Message(role="assistant"), version=self.version, usage=Usage(usd=usd))


class PlanHarness(AgentHarness):
    """Hands in until a job is accepted or the attempts are used up; some jobs are the same as an earlier one."""

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self._written: dict[str, list[str]] = defaultdict(list)

    async def run(self, task: Task, policy: Policy, desk: Desk, *, seed: int = 0) -> Transcript:
        for attempt in range(1, ATTEMPTS + 1):
            turn = await policy.sample((), tools=(), max_tokens=0, seed=seed + attempt)
            if self._chance.of("try", seed, attempt).random() >= self._chance.value(self._chance.told.tries):
                return Transcript(conversation=(turn,), end="stop")
            if (await desk.submit(self._job(task, seed, attempt))).ok:
                return Transcript(conversation=(turn,), end="submitted")
        return Transcript(conversation=(), end="attempts")

    def _job(self, task: Task, seed: int, attempt: int) -> Mapping[str, str]:
        rng, earlier = self._chance.of("job", seed, attempt), self._written[task.family]
        if rng.random() >= self._chance.value(self._chance.told.valid):
            return {"job.toml": ""}
        if earlier and rng.random() >= self._chance.value(self._chance.told.distinct):
            return {"job.toml": rng.choice(earlier)}
        earlier.append(f"job {seed}-{attempt}")
        return {"job.toml": earlier[-1]}


class PlanInner(InnerTrainer):
    """Jobs that take their time on a machine."""

    def __init__(
        self, chance: Chance, clock: Clock, *, scale: Scale, bases: Sequence[str], timeout_s: float, need: Need
    ) -> None:
        self.scale, self.bases, self.timeout_s = scale, tuple(bases), timeout_s
        self.scoring_need = self._need = need
        self._chance, self._clock = chance, clock

    def guide(self, task: Task, *, brief: bool) -> str:  # noqa: ARG002  the seam's
        return ""

    def need(self, draft: Draft) -> Need:  # noqa: ARG002  the seam's
        return self._need

    async def validate(self, draft: Draft) -> Validation:
        await self._clock.sleep(self._chance.value(self._chance.told.probe_s))
        text = draft.files["job.toml"]
        if not text:
            return Validation(ok=False)
        return Validation(ok=True, base=self._chance.of("base", text).choice(self.bases), families=(draft.task.family,))

    async def train(self, job: Job, machine: Machine) -> Checkpoint:
        rng = self._chance.of("failure", job.key, job.delivery)
        seconds = self._seconds(job, machine)
        if rng.random() < self._chance.value(self._chance.told.job_failure):
            await taken(machine, self._clock, rng.random() * seconds)
            raise InfraFault("the delivery failed")
        await taken(machine, self._clock, (1 - SCORING) * seconds)
        return Checkpoint(path=str(SCORING * seconds), base=job.spec.base, seconds=seconds)

    def _seconds(self, job: Job, machine: Machine) -> float:
        told, value = self._chance.told, self._chance.value
        mean = value(told.seconds(job.spec.base, getattr(machine, "gpu", "")))
        drawn = self._chance.around(mean, value(told.job_spread), self._chance.of("seconds", job.key))
        return min(drawn, 0.74 * job.spec.timeout_s)  # a longer one is ended at its limit


class PlanScorer(Scorer):
    """Takes its time. The scores are nothing."""

    def __init__(self, chance: Chance, clock: Clock) -> None:
        self._chance, self._clock = chance, clock

    async def score(self, model: Checkpoint | str, eval_set: EvalSet, machine: Machine, *, seed: int = 0) -> Score:  # noqa: ARG002
        base = self._chance.value(self._chance.told.baseline_s)
        await taken(machine, self._clock, base if isinstance(model, str) else float(model.path))
        return Score(value=0.0, n=1, items=(0.0,))


async def taken(machine: Machine, clock: Clock, seconds: float) -> None:
    """Time on a machine, which may be lost meanwhile."""
    work = getattr(machine, "work", None)
    await (clock.sleep(seconds) if work is None else work(seconds))


class PlanTrainer(OuterTrainer):
    """Updates that take their time and tokens."""

    embedded = True

    def __init__(self, chance: Chance, clock: Clock, spent: Spent) -> None:
        self._chance, self._clock, self._spent = chance, clock, spent
        self.version = 0

    async def policy(self) -> PlanPolicy:
        return PlanPolicy(chance=self._chance, clock=self._clock, spent=self._spent, version=self.version)

    async def update(self, groups: Sequence[Group]) -> UpdateReport:
        told, value = self._chance.told, self._chance.value
        await self._clock.sleep(value(told.update_s))
        episodes = sum(len(group.episodes) for group in groups)
        tokens, usd = episodes * value(told.train_tokens), 0.0
        if told.token_prices is not None:
            usd = tokens * value(told.token_prices.train) / 1e6
        self.version += 1
        self._spent.train_tokens, self._spent.train_usd = self._spent.train_tokens + tokens, self._spent.train_usd + usd
        return UpdateReport(version=self.version, stepped=True, usd=usd)

    async def save(self, name: str) -> str:
        return name

    async def load(self, ref: str) -> None:
        self.version = int(ref)


def no_reward(outcome: Outcome) -> float:  # noqa: ARG001  a plan says nothing of rewards
    """Nothing."""
    return 0.0
