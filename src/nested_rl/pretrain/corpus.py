"""Transcripts of the novice, made by the real harness: real files in a real folder, real checks of real families.

Only two things are invented. The names: each transcript calls its family by a made-up name, so that nothing can be learnt
about a name but to copy it. And the scores: what can be learnt about them is to read them.
"""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from attrs import evolve, field, frozen

from nested_rl import replies, tasks
from nested_rl.harness.agent import ToolHarness
from nested_rl.inner.nano import NanoInnerTrainer
from nested_rl.interfaces import Desk, Policy, Renderer, TaskFamily
from nested_rl.jobs.folder import CODE, parse
from nested_rl.pretrain import novice
from nested_rl.types import (
    Conversation,
    Draft,
    JobResult,
    Message,
    Problem,
    Task,
    ToolCall,
    Transcript,
    Turn,
    Validation,
)

VERSION: Final = 1
"""Stored with the weights. Raise it when transcripts change."""

CONTEXT: Final = 256
"""Tokens that the nano agent can read; longer transcripts are cut."""

_MADE: Final = re.compile(r'make\("([^"]*)"')
_NOWHERE: Final = "nowhere"
"""Stands for every name that is no family's, so that one check serves all of them."""


@frozen(kw_only=True)
class Sample:
    """One transcript: its ids, which of them the agent said, and how it went."""

    ids: tuple[int, ...] = field(repr=False)
    said: tuple[bool, ...] = field(repr=False)
    transcript: Transcript = field(repr=False)
    validations: tuple[Validation, ...]

    @property
    def valid(self) -> bool:
        """Whether a job was accepted."""
        return any(v.ok for v in self.validations)

    @property
    def valid_first(self) -> bool:
        """Whether the first one was."""
        return bool(self.validations) and self.validations[0].ok


class Verdicts:
    """The inner trainer's validation, remembered by what it depends on: job.toml alone, then family and environment.py.

    job.toml is read again each time, which costs little; its problems come first. The probe runs once for each environment.
    """

    def __init__(self, inner: NanoInnerTrainer) -> None:
        self._inner = inner
        self._known: dict[tuple[str, int, str], Validation] = {}

    def guide(self, task: Task, *, brief: bool) -> str:
        """What the agent reads about jobs."""
        return self._inner.guide(task, brief=brief)

    async def of(self, task: Task, files: Mapping[str, str]) -> Validation:
        """What `inner.validate` says."""
        config, problems = parse(files, self._inner.surface)
        if config is None:
            return Validation(ok=False, problems=problems)
        key = (task.family, task.difficulty, files[CODE])
        if key not in self._known:
            self._known[key] = await self._inner.validate(Draft(task=task, files=files))
        return evolve(self._known[key], base=config.base, advanced=config.advanced)


class Novice(Policy):
    """The novice behind the seam that every policy has."""

    context_tokens = CONTEXT

    def __init__(self, rng: random.Random, given: str) -> None:
        self._acts = novice.act(rng, given)
        self._began = False

    async def sample(
        self,
        conversation: Conversation,
        *,
        tools: Sequence[Mapping[str, object]],  # noqa: ARG002 - it knows them
        max_tokens: int,  # noqa: ARG002 - short enough
        seed: int | None = None,  # noqa: ARG002 - it has its own generator
    ) -> Turn:
        last = conversation[-1]
        assert isinstance(last, Message)
        calls: tuple[ToolCall, ...] = ()
        with suppress(StopIteration):  # no call: it gives up
            calls = (self._acts.send(last.content) if self._began else next(self._acts),)
        self._began = True
        return Turn(message=Message(role="assistant", tool_calls=calls))


class Examiner(Desk):
    """The desk of one transcript. Between it and the checks, the made-up name stands for the real family."""

    def __init__(self, task: Task, given: str, scores: Mapping[str, float], verdicts: Verdicts) -> None:
        self.task = task
        self.validations: list[Validation] = []
        self._given = given
        self._scores = scores
        self._verdicts = verdicts

    async def baselines(self) -> Mapping[str, float]:
        return self._scores

    async def submit(self, files: Mapping[str, str]) -> Validation:
        named: list[str] = []

        def real(found: re.Match[str]) -> str:
            named.append(found[1])
            return f'make("{self.task.family if found[1] == self._given else _NOWHERE}"'

        real_files = {path: _MADE.sub(real, text) if path == CODE else text for path, text in files.items()}
        validation = await self._verdicts.of(self.task, real_files)
        problems = tuple(_renamed(problem, named[0] if named else "") for problem in validation.problems)
        self.validations.append(evolve(validation, problems=problems))
        return self.validations[-1]

    async def result(self) -> JobResult:
        return JobResult()

    def guide(self, *, brief: bool) -> str:
        return self._verdicts.guide(self.task, brief=brief)


class Corpus:
    """Endless transcripts; the same seed gives the same ones."""

    def __init__(self, verdicts: Verdicts, renderer: Renderer, *, seed: int = 0) -> None:
        self._verdicts = verdicts
        self._renderer = renderer
        self._seed = seed
        self._families: tuple[TaskFamily, ...] = tasks.load(scale="nano")
        self._harness = ToolHarness()

    async def samples(self) -> AsyncIterator[Sample]:
        """One after the other."""
        rng = random.Random(f"corpus:{self._seed}")
        while True:
            yield await self._sample(rng)

    async def _sample(self, rng: random.Random) -> Sample:
        family = rng.choice(self._families)
        given = novice.invent_name(rng)
        real = next(family.tasks(seed=0))
        task = evolve(real, brief=replies.task(given, real.difficulty))
        desk = Examiner(task, given, invent_scores(rng), self._verdicts)
        transcript = await self._harness.run(task, Novice(rng, given), desk)
        ids: list[int] = []
        said: list[bool] = []
        for item in transcript.conversation:
            part = self._renderer.render([item])
            ids += part
            said += [isinstance(item, Turn)] * len(part)
        return Sample(
            ids=tuple(ids[:CONTEXT]),
            said=tuple(said[:CONTEXT]),
            transcript=transcript,
            validations=tuple(desk.validations),
        )


def invent_scores(rng: random.Random) -> dict[str, float]:
    """Scores of the two bases: either may be ahead, by a little or by much."""
    weak = rng.uniform(0.05, 0.6)
    strong = min(0.95, weak + rng.uniform(0.05, 0.5))
    pair = [weak, strong]
    rng.shuffle(pair)
    return {"nano-s": round(pair[0], 2), "nano-m": round(pair[1], 2)}


def _renamed(problem: Problem, name: str) -> Problem:
    return evolve(problem, brief=replies.brief(problem.brief.replace(_NOWHERE, name)))
