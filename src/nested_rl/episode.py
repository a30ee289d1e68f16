"""One episode: the desk the agent works at, and the way from a task to a reward.

What the agent can learn here is bounded: untrained scores come from the dev split in two decimals, and so do those of its
jobs if it may hand in several; a submission answers only with the problems of its form; the hidden score goes to the reward
and nowhere else, and that of a job which was not chosen stays sealed.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from attrs import define, evolve, field, frozen

from nested_rl import redact, rewards
from nested_rl.clock import Clock
from nested_rl.errors import BudgetExceeded, NestedRLError, RewardError, RunDirError, SupervisionError
from nested_rl.interfaces import AgentHarness, Desk, InnerTrainer, JobQueue, Policy, RewardFn
from nested_rl.jobs.folder import digest
from nested_rl.jobs.secrets import secret
from nested_rl.types import (
    Conversation,
    Draft,
    Episode,
    Feedback,
    Job,
    JobResult,
    JobSpec,
    JobState,
    Outcome,
    Score,
    Submitted,
    Task,
    Transcript,
    Turn,
    Validation,
)
from nested_rl.waiting import within

T = TypeVar("T")


def derived(*parts: object) -> int:
    """A seed that depends on all the parts and nothing else.

    >>> derived(0, "episode", 3) == derived(0, "episode", 3)
    True
    """
    text = "/".join(str(p) for p in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


@frozen(kw_only=True)
class Place:
    """Which episode this is, and the seed all its randomness comes from."""

    group: int
    member: int
    version: int
    seed: int


@define(kw_only=True)
class Parts:
    """What every episode of a run shares."""

    harness: AgentHarness
    inner: InnerTrainer
    queue: JobQueue
    reward: RewardFn
    clock: Clock
    job_seeds: int
    max_jobs: int = 1
    """Jobs an episode may hand in. With more than one, each is scored on the dev split too."""
    queued: set[str] = field(factory=set)
    """Keys of jobs that some episode has put in the queue already: the next one reuses the result."""
    valid: dict[str, Validation] = field(factory=dict)
    """Accepted drafts by digest and family. A probe's verdict is a function of the bytes, so it is asked once."""
    admit: Callable[[str, float], Awaitable[None]] | None = None
    """Reserves the worst case of a job (its key, its seconds) before it is queued; waits for room, or raises BudgetExceeded."""
    charge: Callable[[Place, float], None] = lambda place, usd: None  # noqa: ARG005
    """Is told what the agent's turns cost, however its episode ends."""
    waive: Callable[[str], None] = lambda key: None  # noqa: ARG005
    """Gives the reservation back, for a job that an earlier process has had done already."""


class Metered(Policy):
    """A policy whose turns are counted in dollars, also those that a failed episode has no transcript of."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.version, self.context_tokens = policy.version, policy.context_tokens
        self.usd = 0.0

    async def sample(
        self,
        conversation: Conversation,
        *,
        tools: Sequence[Mapping[str, object]],
        max_tokens: int,
        seed: int | None = None,
    ) -> Turn:
        turn = await self._policy.sample(conversation, tools=tools, max_tokens=max_tokens, seed=seed)
        self.usd += turn.usage.usd
        return turn

    def __getattr__(self, name: str) -> object:  # what a harness of one's own knows its policy by
        return getattr(self._policy, name)


class EpisodeDesk(Desk):
    """What one agent may do: look at dev baselines, hand in, wait."""

    def __init__(self, task: Task, place: Place, parts: Parts, *, dev: Mapping[str, Score]) -> None:
        self.task = task
        self.validations: list[Validation] = []
        self.files: dict[int, Mapping[str, str]] = {}
        self.asked_baselines = False
        self.accepted: list[Accepted] = []
        self._place = place
        self._waited_s = 0.0
        self._waiting_since: float | None = None
        self._parts = parts
        self._dev = dev

    async def baselines(self) -> Mapping[str, float]:
        self.asked_baselines = True
        return {base: round(score.value, 2) for base, score in self._dev.items()}

    def guide(self, *, brief: bool) -> str:
        return self._parts.inner.guide(self.task, brief=brief)

    async def submit(self, files: Mapping[str, str]) -> Validation:
        files = dict(files)
        draft = Draft(task=self.task, files=files)
        known = f"{digest(files)}:{self.task.family}:{self.task.difficulty}"
        validation = secret(files) or self._parts.valid.get(known) or await self._parts.inner.validate(draft)
        if validation.ok:
            self._parts.valid[known] = validation
        self.validations.append(validation)
        self.files[len(self.validations)] = files
        if validation.ok:
            await self._queue(draft, validation)
        return validation

    async def _queue(self, draft: Draft, validation: Validation) -> None:
        seed = derived(self._place.seed, "job") % self._parts.job_seeds
        spec = JobSpec(
            task=self.task,
            files=draft.files,
            digest=digest(draft.files),
            base=validation.base or "",
            scale=self._parts.inner.scale,
            seed=seed,
            need=self._parts.inner.need(draft),
            timeout_s=getattr(self._parts.inner, "timeout_s", 3600.0),
            dev=self._parts.max_jobs > 1,
        )
        key = f"{self.task.family}-k{self.task.difficulty}-{spec.digest[:24]}-s{seed}{'-dev' if spec.dev else ''}"
        if self._parts.admit is not None and key not in self._parts.queued:
            await self._excused(self._parts.admit(key, spec.timeout_s))
        reused = key in self._parts.queued
        self._parts.queued.add(key)
        try:
            job = await self._parts.queue.put(spec, key=key)
        except BaseException:  # what nobody knows to be queued would keep its money for ever
            self._parts.queued.discard(key)
            self._parts.waive(key)
            raise
        if job.state is JobState.DONE:
            self._parts.waive(key)
        self.accepted.append(Accepted(job=job, attempt=len(self.validations), reused=reused))

    async def result(self) -> JobResult:
        if not self.accepted:
            raise NestedRLError("no job was accepted, so there is no result to wait for")
        return await self._result(self.accepted[-1])

    async def _result(self, accepted: Accepted) -> JobResult:
        job = await self._parts.queue.wait(accepted.job.id)
        assert job.result is not None
        return job.result

    async def feedback(self) -> Feedback:
        result = await self._excused(self.result())
        if result.dev is not None:
            return Feedback(score=round(result.dev.value, 2))
        return Feedback(
            error="it could not be run, which is no fault of yours" if result.fault == "infra" else result.error
        )

    async def _excused(self, waiting: Awaitable[T]) -> T:
        """What `waiting` gives; the time until then is not the agent's."""
        self._waiting_since = self._parts.clock.monotonic()
        try:
            return await waiting
        finally:
            self._waited_s, self._waiting_since = self.waited_s, None

    @property
    def waited_s(self) -> float:
        """How long the agent has waited for its jobs and for the money for them, which is not its time."""
        since = self._waiting_since
        return self._waited_s + (self._parts.clock.monotonic() - since if since is not None else 0.0)

    async def submitted(self) -> tuple[Submitted, ...]:
        """Every accepted job with its result, the hidden score of the chosen one opened.

        Chosen is the one that did best on dev, the first of equals; one that failed for reasons of ours only for want of another.
        """
        results = [await self._result(accepted) for accepted in self.accepted]
        ranks = [(result.fault != "infra", result.dev.value if result.dev else -1.0) for result in results]
        best = ranks.index(max(ranks)) if ranks else 0
        return tuple(
            Submitted(
                attempt=accepted.attempt,
                key=accepted.job.key,
                result=result if place == best else evolve(result, post=None),
                chosen=place == best,
            )
            for place, (accepted, result) in enumerate(zip(self.accepted, results, strict=True))
        )


@frozen(kw_only=True)
class Accepted:
    """A job in the queue, the attempt that it was (from 1), and whether another episode had put it there already."""

    job: Job
    attempt: int
    reused: bool


@frozen(kw_only=True)
class Told:
    """One finished episode and the files of its attempts."""

    episode: Episode
    files: Mapping[int, Mapping[str, str]]


async def run_episode(
    task: Task,
    policy: Policy,
    place: Place,
    parts: Parts,
    *,
    hidden: Mapping[str, Score],
    dev: Mapping[str, Score],
    deadline_s: float,
    leave: Callable[[], None] = lambda: None,
) -> Told:
    """Task → transcript → job → result → reward. `leave` is called when the agent has said its last word.

    A fault of ours on the way (the sampler, the probe, a machine) masks the episode; what the agent does wrong scores.
    Only cancellation, a used-up budget, a full or broken disk, a dead background task and errors of the reward function come out
    as exceptions.
    """
    desk, metered = EpisodeDesk(task, place, parts, dev=dev), Metered(policy)
    start_s = parts.clock.monotonic()
    fault, transcript = "", Transcript(conversation=(), end="infra")
    try:
        work = parts.harness.run(task, metered, desk, seed=derived(place.seed, "agent"))
        transcript = await within(parts.clock, deadline_s, work, excused_s=lambda: desk.waited_s)
    except (RewardError, BudgetExceeded, RunDirError, SupervisionError):
        raise
    except asyncio.CancelledError as error:
        if (here := asyncio.current_task()) is None or here.cancelling():
            raise
        fault = f"CancelledError: {error or 'something below the agent cancelled itself'}"
    except Exception as error:  # noqa: BLE001  third-party policies raise anything; the episode is masked and says why
        fault = redact.text(f"{type(error).__name__}: {error}")
    finally:
        leave()
        if metered.usd:
            parts.charge(place, metered.usd)
    agent_s = parts.clock.monotonic() - start_s - desk.waited_s
    jobs = await desk.submitted() if not fault else ()
    chosen = next((job for job in jobs if job.chosen), None)
    outcome = _outcome(task, desk, transcript, jobs, hidden, fault)
    masked = outcome.fault == "infra"
    reward, named = (0.0, {}) if masked else await rewards.evaluate(parts.reward, outcome)
    episode = Episode(
        group=place.group,
        member=place.member,
        task=task,
        version=place.version,
        transcript=transcript,
        outcome=outcome,
        validations=tuple(desk.validations),
        reward=reward,
        parts=named,
        masked=masked,
        result=chosen.result if chosen else None,
        jobs=jobs,
        job_key=chosen.key if chosen else next((a.job.key for a in desk.accepted), ""),
        agent_s=agent_s,
        agent_usd=metered.usd,
    )
    return Told(episode=episode, files=desk.files)


def _outcome(
    task: Task,
    desk: EpisodeDesk,
    transcript: Transcript,
    jobs: Sequence[Submitted],
    hidden: Mapping[str, Score],
    fault: str,
) -> Outcome:
    place = next((place for place, job in enumerate(jobs) if job.chosen), 0)
    chosen = desk.accepted[place] if desk.accepted else None
    result = jobs[place].result if jobs else None
    accepted = desk.validations[chosen.attempt - 1] if chosen else None
    before = desk.accepted[place - 1].attempt if place else 0
    told = next((v.base for v in desk.validations if v.base), None)
    return Outcome(
        task=task,
        valid=accepted is not None,
        attempts=(chosen.attempt if chosen else len(desk.validations)) - before,
        jobs=len(desk.accepted),
        base=accepted.base if accepted else None,
        first_base=told,
        advanced=bool(accepted and accepted.advanced),
        families=accepted.families if accepted else (),
        baselines=hidden,
        post=result.post if result else None,
        cost=result.cost if result else 0.0,
        cost_limit=result.cost_limit if result else 0.0,
        seconds=result.seconds if result else 0.0,
        usd=math.fsum(job.result.usd for job in jobs),
        fault="infra" if fault else (result.fault if result else None),
        error=fault or (result.error if result else ""),
        asked_baselines=desk.asked_baselines or transcript.asked_baselines,
        reused=chosen.reused if chosen else False,
    )
