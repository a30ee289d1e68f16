"""What every agent harness must do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from nested_rl.interfaces import AgentHarness, Desk, Policy
from nested_rl.serialize import dumps, loads
from nested_rl.testing.values import made_task
from nested_rl.types import (
    Conversation,
    JobResult,
    Message,
    Problem,
    Task,
    ToolCall,
    Transcript,
    Turn,
    Usage,
    Validation,
)

FILES = {"job.toml": '[model]\nbase = "nano-s"\n', "environment.py": "def examples(rng, n):\n    return []\n"}
REFUSED = Validation(
    ok=False, problems=(Problem(code="x", where="job.toml", message="no such base", brief="bad base"),)
)
ACCEPTED = Validation(ok=True, base="nano-s")
ENDS = {"submitted", "attempts", "stop", "turns", "tokens", "malformed", "deadline"}


class Actor(Policy):
    """Says its lines, then the last one for ever."""

    def __init__(self, lines: Sequence[Message], *, context_tokens: int = 0) -> None:
        self.context_tokens = context_tokens
        self.version = 3
        self.asked: list[tuple[Conversation, int | None]] = []
        self.said: list[Turn] = []
        self._lines = list(lines)

    async def sample(
        self,
        conversation: Conversation,
        *,
        tools: Sequence[Mapping[str, object]],
        max_tokens: int,
        seed: int | None = None,
    ) -> Turn:
        assert tools
        assert max_tokens > 0
        await asyncio.sleep(0)
        self.asked.append((tuple(conversation), seed))
        line = self._lines.pop(0) if len(self._lines) > 1 else self._lines[0]
        self.said.append(Turn(message=line, version=self.version, usage=Usage(prompt_tokens=10, completion_tokens=5)))
        return self.said[-1]


class Counter(Desk):
    """Gives its verdicts one after the other, the last one for ever."""

    def __init__(self, *verdicts: Validation) -> None:
        self.task = made_task()
        self.submitted: list[dict[str, str]] = []
        self._verdicts = list(verdicts)

    async def baselines(self) -> Mapping[str, float]:
        return {"nano-s": 0.25, "nano-m": 0.5}

    async def submit(self, files: Mapping[str, str]) -> Validation:
        self.submitted.append(dict(files))
        return self._verdicts.pop(0) if len(self._verdicts) > 1 else self._verdicts[0]

    async def result(self) -> JobResult:
        raise AssertionError("the harness has no business with the result")

    def guide(self, *, brief: bool) -> str:
        return "write a job" if brief else "How to write a job, at length."


def says(name: str, **arguments: str) -> Message:
    """A turn with one tool call."""
    return Message(role="assistant", tool_calls=(ToolCall(name=name, arguments=arguments, id=name),))


class HarnessSuite:
    """Override the fixture `harness`, and `lines` when its tools are not those of the built-in one."""

    max_attempts = 3

    @pytest.fixture
    def harness(self) -> AgentHarness:
        """A harness."""
        raise NotImplementedError("override the fixture `harness`")

    @property
    def lines(self) -> list[Message]:
        """What an agent says to hand in FILES."""
        writes = [says("write_file", path=path, content=content) for path, content in FILES.items()]
        return [*writes, says("submit_job")]

    async def test_a_job_is_written_and_handed_in(self, harness: AgentHarness) -> None:
        for context_tokens in (0, 256):
            policy, desk = Actor(self.lines, context_tokens=context_tokens), Counter(ACCEPTED)
            transcript = await self._run(harness, policy, desk)
            assert transcript.end == "submitted"
            assert desk.submitted == [FILES]
            assert transcript.turns == tuple(policy.said)

    async def test_the_agent_is_told_its_task_and_keeps_its_own_words(self, harness: AgentHarness) -> None:
        policy, desk = Actor(self.lines), Counter(ACCEPTED)
        transcript = await self._run(harness, policy, desk)
        opening = "\n".join(m.content for m in policy.asked[0][0] if isinstance(m, Message))
        assert desk.task.prompt in opening
        for number, (conversation, _) in enumerate(policy.asked):
            kept = [turn for turn in conversation if isinstance(turn, Turn)]
            assert all(one is said for one, said in zip(kept, policy.said[:number], strict=True))
            assert transcript.conversation[: len(conversation)] == conversation
        assert loads(dumps(transcript), Transcript) == transcript

    async def test_a_refused_job_may_be_handed_in_again_but_not_for_ever(self, harness: AgentHarness) -> None:
        desk = Counter(REFUSED)
        transcript = await self._run(harness, Actor(self.lines), desk)
        assert len(desk.submitted) == self.max_attempts
        assert transcript.end == "attempts"
        told = [m.content for m in transcript.conversation if isinstance(m, Message) and m.role == "tool"]
        assert any("no such base" in text or "bad base" in text for text in told)
        accepted = await self._run(harness, Actor(self.lines), Counter(REFUSED, ACCEPTED))
        assert accepted.end == "submitted"

    @pytest.mark.parametrize(
        "line",
        [
            Message(role="assistant", content="I give up."),
            Message(role="assistant"),
            says("no_such_tool"),
            says("write_file"),
            says("write_file", path="../../etc/passwd", content="x"),
            says("read_file", path="\0"),
            Message(role="assistant", tool_calls=(ToolCall(name="", error="not JSON"),)),
        ],
        ids=lambda line: line.tool_calls[0].name or "bad call" if line.tool_calls else line.content or "nothing",
    )
    async def test_whatever_the_agent_says_it_comes_to_an_end(self, harness: AgentHarness, line: Message) -> None:
        for context_tokens in (0, 256):
            desk = Counter(ACCEPTED)
            transcript = await self._run(harness, Actor([line], context_tokens=context_tokens), desk)
            assert transcript.end in ENDS
            assert transcript.end != "submitted"
            assert desk.submitted == []

    async def test_turns_have_seeds_of_their_own_that_come_from_the_episodes(self, harness: AgentHarness) -> None:
        seeds = []
        for seed in (1, 1, 2):
            policy = Actor(self.lines)
            await self._run(harness, policy, Counter(ACCEPTED), seed=seed)
            seeds.append([asked for _, asked in policy.asked])
        assert seeds[0] == seeds[1] != seeds[2]
        assert len(set(seeds[0])) == len(seeds[0])

    async def test_episodes_do_not_share_a_workspace(self, harness: AgentHarness) -> None:
        write, _, submit = self.lines
        desks = [Counter(ACCEPTED), Counter(ACCEPTED)]
        await asyncio.gather(
            self._run(harness, Actor(self.lines), desks[0]), self._run(harness, Actor([write, submit]), desks[1])
        )
        assert desks[0].submitted == [FILES]
        assert desks[1].submitted == [{"job.toml": FILES["job.toml"]}]

    async def test_an_error_of_the_policy_is_not_hidden(self, harness: AgentHarness) -> None:
        class Broken(Actor):
            async def sample(self, *_: object, **__: object) -> Turn:
                raise ConnectionError("the sampler is down")

        with pytest.raises(ConnectionError):
            await self._run(harness, Broken([]), Counter(ACCEPTED))

    async def _run(self, harness: AgentHarness, policy: Policy, desk: Counter, *, seed: int = 0) -> Transcript:
        task: Task = desk.task
        return await asyncio.wait_for(harness.run(task, policy, desk, seed=seed), 60)
