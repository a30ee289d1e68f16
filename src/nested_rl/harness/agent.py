"""One episode: the policy is given its tools until a job is accepted, it gives up, or a cap is reached."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from attrs import field, frozen, validators

from nested_rl import scratch
from nested_rl.clock import Clock, SystemClock
from nested_rl.harness.tools import README, Toolbox
from nested_rl.harness.workspace import Limits, Workspace
from nested_rl.interfaces import AgentHarness, Desk, Policy
from nested_rl.types import Message, Task, Transcript, Turn
from nested_rl.waiting import within

BRIEF_CONTEXT: Final = 4096
"""A policy with fewer context tokens than this reads the brief texts."""

SYSTEM: Final = """\
You write reinforcement-learning jobs that teach a small language model to do a task. You work in a folder, through tools.
A job is job.toml (which base model, and how to train it) and environment.py (training examples and a reward function).
The trained model is scored on a hidden evaluation of the task; the better it gets over the best untrained model, the better
your job. Look at the baseline scores, write both files, then call submit_job. If the job is not valid you are told why and
may correct it; earlier attempts are worth more. Always answer with a tool call: a turn without one ends the task."""

_AT_LEAST_ONE = validators.ge(1)


@frozen(kw_only=True)
class ToolHarness(AgentHarness):
    """The tool-using agent.

    `max_turns` bounds the sampled turns, `max_tokens` the sampled tokens and `max_attempts` the submissions for one job,
    `turn_tokens` the tokens of one turn. `deadline_s` is the time on `clock` after which no turn is started (waiting for jobs
    does not count), `turn_s` that of one turn: a policy that takes longer has failed, which masks the episode.

    With `max_jobs` above 1 the agent may go on after a job was accepted: it waits, is told the job's score on the dev split,
    and may hand in another. The episode is scored by the job that did best on dev. With `afresh` it starts each job from the
    beginning instead, in an empty folder and without memory of the others: best of n.
    """

    max_turns: int = field(default=14, validator=_AT_LEAST_ONE)
    max_tokens: int = field(default=32_768, validator=_AT_LEAST_ONE)
    turn_tokens: int = field(default=8_192, validator=_AT_LEAST_ONE)
    max_attempts: int = field(default=3, validator=_AT_LEAST_ONE)
    max_jobs: int = field(default=1, validator=_AT_LEAST_ONE)
    afresh: bool = False
    deadline_s: float | None = None
    turn_s: float | None = None
    limits: Limits = field(default=Limits())
    system: str = field(default=SYSTEM, repr=False)
    clock: Clock = field(factory=SystemClock, repr=False)

    async def run(self, task: Task, policy: Policy, desk: Desk, *, seed: int = 0) -> Transcript:
        brief = 0 < policy.context_tokens < BRIEF_CONTEXT
        with _folder(desk) as root, Workspace(root, self.limits) as workspace:
            guide = desk.guide(brief=brief)
            workspace.write(README, guide)
            toolbox = Toolbox(
                workspace, desk, self.clock, max_attempts=self.max_attempts, max_jobs=self.max_jobs, brief=brief
            )
            talk: list[Message | Turn] = list(self._opening(task, guide, brief=brief))
            end = await self._converse(talk, policy, toolbox, brief=brief, seed=seed)
        return Transcript(
            conversation=tuple(talk), end=end, truncated=end == "tokens", asked_baselines=toolbox.asked_baselines
        )

    def _opening(self, task: Task, guide: str, *, brief: bool) -> Iterator[Message]:
        if brief:
            yield Message(role="user", content=task.brief)
        else:
            yield Message(role="system", content=self.system)
            yield Message(role="user", content=f"{task.prompt.rstrip()}\n\n{guide.rstrip()}\n")

    async def _converse(
        self, talk: list[Message | Turn], policy: Policy, toolbox: Toolbox, *, brief: bool, seed: int
    ) -> str:
        """Take turns, growing `talk`; return why it ended."""
        started, opening, seen = self.clock.monotonic(), tuple(talk), len(talk)
        sampled = 0
        for index in range(self.max_turns * self.max_jobs):
            spent_s = self.clock.monotonic() - started - toolbox.waited_s
            if self.deadline_s is not None and spent_s >= self.deadline_s:
                return "deadline"
            asked = policy.sample(
                (*opening, *talk[seen:]),
                tools=toolbox.schemas,
                max_tokens=min(self.turn_tokens, self.max_tokens * self.max_jobs - sampled),
                seed=turn_seed(seed, index),
            )
            turn = await (asked if self.turn_s is None else within(self.clock, self.turn_s, asked))
            talk.append(turn)
            jobs = toolbox.jobs
            end = _end_of(turn, brief=brief) or await self._answer(talk, turn, toolbox)
            if end:
                return "submitted" if toolbox.jobs and end == "stop" else end
            prompt, completion = _tokens(turn)
            sampled += completion
            anew = self.afresh and toolbox.jobs > jobs
            if anew:
                toolbox.clear()
                seen = len(talk)
            full = 0 < policy.context_tokens <= prompt + completion and not anew
            if full or sampled >= self.max_tokens * self.max_jobs:
                return "tokens"
        return "turns"

    async def _answer(self, talk: list[Message | Turn], turn: Turn, toolbox: Toolbox) -> str:
        """Run the calls of a turn in order; return why the episode is over, or an empty string."""
        for call in turn.message.tool_calls:
            reply = await toolbox.use(call)
            talk.append(Message(role="tool", content=reply, tool_call_id=call.id, name=call.name))
            if toolbox.jobs >= self.max_jobs:
                return "submitted"
            if toolbox.attempts >= self.max_attempts:
                return "attempts"
        return ""


def turn_seed(seed: int, turn: int) -> int:
    """A turn's own seed: independent streams from one episode seed, the same on every machine; below 2**63.

    >>> turn_seed(0, 1) == turn_seed(0, 1) != turn_seed(1, 0)
    True
    """
    return int.from_bytes(hashlib.sha256(f"turn:{seed}:{turn}".encode()).digest()[:8]) >> 1


def _end_of(turn: Turn, *, brief: bool) -> str:
    """Why a turn ends the episode before any tool is used, or an empty string.

    A large agent is told about a call that cannot be read. To a very small one nothing useful can be said: it ends.
    """
    calls = turn.message.tool_calls
    if turn.stop == "length" and (brief or not calls):
        return "tokens"
    if brief and (turn.stop == "malformed" or any(call.error is not None for call in calls)):
        return "malformed"
    if not calls:
        return "malformed" if turn.stop == "malformed" else "stop"
    return ""


def _tokens(turn: Turn) -> tuple[int, int]:
    """Prompt and sampled tokens of a turn, from the ids when there are any, else as the policy counted them."""
    prompt = turn.usage.prompt_tokens if turn.prompt_ids is None else len(turn.prompt_ids)
    completion = turn.usage.completion_tokens if turn.ids is None else len(turn.ids)
    return prompt, completion


@contextmanager
def _folder(desk: Desk) -> Iterator[Path]:
    """The desk's own folder, or a temporary one that goes with the episode."""
    own: Path | None = getattr(desk, "workspace", None)  # a desk of another's making may have none
    if own is not None:
        own.mkdir(parents=True, exist_ok=True)
        yield own
        return
    with scratch.desk() as folder:
        yield folder
