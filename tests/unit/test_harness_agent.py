"""The tool-using harness: how an episode goes, and every way it ends."""

import asyncio
from collections.abc import Mapping

import pytest

from nested_rl import replies
from nested_rl.clock import VirtualClock
from nested_rl.harness.agent import ToolHarness, turn_seed
from nested_rl.interfaces import Desk, Policy
from nested_rl.types import Message, Problem, Task, ToolCall, Turn, Usage, Validation

TASK = Task(id="t", family="calc_chain", difficulty=3, prompt="Teach it.", brief="task calc_chain k 3")
PROBLEM = Problem(
    code="reward-raised",
    where="environment.py:4",
    message="reward() raised ZeroDivisionError",
    hint="divide by something else",
    brief="reward raised ZeroDivisionError",
)
BAD = Validation(ok=False, problems=(PROBLEM, Problem(code="x", where="job.toml", message="second problem")))
GOOD = Validation(ok=True, base="nano-m")


class Script(Policy):
    """A policy that says what it is told to, and remembers how it was asked."""

    def __init__(self, *turns, context_tokens=0):
        self.context_tokens = context_tokens
        self.turns = list(turns)
        self.asked = []
        self.version = 7

    async def sample(self, conversation, *, tools, max_tokens, seed=None):
        self.asked.append({"talk": conversation, "tools": tools, "max_tokens": max_tokens, "seed": seed})
        turn = self.turns.pop(0) if self.turns else call("list_files")
        return turn if isinstance(turn, Turn) else Turn(message=turn, version=self.version)


class CountingDesk(Desk):
    """Hands out the verdicts it is given."""

    def __init__(self, *verdicts, workspace=None):
        self.task = TASK
        self.verdicts = list(verdicts)
        self.submitted = []
        if workspace is not None:
            self.workspace = workspace

    async def baselines(self):
        return {"nano-s": 0.2649, "nano-m": 0.71}

    async def submit(self, files: Mapping[str, str]):
        self.submitted.append(dict(files))
        return self.verdicts.pop(0)

    async def result(self):
        raise NotImplementedError

    def guide(self, *, brief):
        return replies.README if brief else "Write job.toml like this."


def call(name, **arguments):
    return Message(role="assistant", tool_calls=(ToolCall(name=name, arguments=arguments, id=f"id-{name}"),))


WRITE = (call("write_file", path="job.toml", content="a\n"), call("write_file", path="environment.py", content="b\n"))
SUBMIT = call("submit_job")


async def run(policy, desk=None, *, seed=3, **caps):
    return await ToolHarness(**caps).run(TASK, policy, desk or CountingDesk(), seed=seed)


def said(transcript):
    return [m.content for m in transcript.conversation if isinstance(m, Message)]


async def test_a_brief_episode_word_for_word():
    desk = CountingDesk(BAD, GOOD)
    policy = Script(
        call("list_files"),
        call("read_file", path="README.md"),
        call("get_baseline_scores"),
        *WRITE,
        SUBMIT,
        call("edit_file", path="job.toml", old="a", new="c"),
        SUBMIT,
        context_tokens=256,
    )
    transcript = await run(policy, desk)
    assert said(transcript) == [
        "task calc_chain k 3",
        "files README.md",
        replies.README,
        "accuracy nano-m 0.71 nano-s 0.26",
        "ok",
        "ok",
        "error: reward raised ZeroDivisionError",
        "ok",
        "valid",
    ]
    assert transcript.end == "submitted"
    assert not transcript.truncated
    assert transcript.asked_baselines
    assert desk.submitted == [
        {"job.toml": "a\n", "environment.py": "b\n"},
        {"job.toml": "c\n", "environment.py": "b\n"},
    ]


async def test_a_full_episode_names_every_problem_and_the_attempts_left():
    transcript = await run(Script(*WRITE, SUBMIT, SUBMIT), CountingDesk(BAD, GOOD))
    system, user, *_, refusal, accepted = said(transcript)
    assert "submit_job" in system
    assert user == "Teach it.\n\nWrite job.toml like this.\n"
    assert "1. [reward-raised] environment.py:4: reward() raised ZeroDivisionError Hint: divide by" in refusal
    assert "2. [x] job.toml: second problem" in refusal
    assert "Attempts left: 2." in refusal
    assert accepted.startswith("The job is valid")
    assert not transcript.asked_baselines


async def test_tool_messages_name_the_call_they_answer():
    transcript = await run(Script(SUBMIT), CountingDesk(GOOD))
    answer = transcript.conversation[-1]
    assert (answer.role, answer.name, answer.tool_call_id) == ("tool", "submit_job", "id-submit_job")


async def test_several_calls_in_one_turn_run_in_order_and_stop_at_acceptance():
    both = Message(role="assistant", tool_calls=(*WRITE[0].tool_calls, *SUBMIT.tool_calls, *SUBMIT.tool_calls))
    desk = CountingDesk(GOOD)
    transcript = await run(Script(both), desk)
    assert transcript.end == "submitted"
    assert desk.submitted == [{"job.toml": "a\n"}]


async def test_attempts_are_capped():
    desk = CountingDesk(*[BAD] * 9)
    transcript = await run(Script(*[SUBMIT] * 9), desk, max_attempts=2)
    assert transcript.end == "attempts"
    assert len(desk.submitted) == 2
    assert "No attempts left." in said(transcript)[-1]


async def test_turns_are_capped():
    policy = Script()
    transcript = await run(policy, max_turns=4)
    assert transcript.end == "turns"
    assert len(transcript.turns) == len(policy.asked) == 4


async def test_sampled_tokens_are_capped_over_the_episode():
    long = Turn(message=call("list_files"), prompt_ids=tuple(range(50)), ids=tuple(range(10)))
    policy = Script(*[long] * 9)
    transcript = await run(policy, max_tokens=25, turn_tokens=12)
    assert [a["max_tokens"] for a in policy.asked] == [12, 12, 5]
    assert (transcript.end, transcript.truncated) == ("tokens", True)


async def test_a_frozen_policy_is_counted_by_its_usage():
    long = Turn(message=call("list_files"), usage=Usage(prompt_tokens=9, completion_tokens=30))
    transcript = await run(Script(*[long] * 9), max_tokens=60)
    assert (transcript.end, len(transcript.turns)) == ("tokens", 2)


async def test_a_full_context_ends_the_episode():
    full = Turn(message=call("list_files"), prompt_ids=(1,) * 250, ids=(1,) * 6)
    transcript = await run(Script(full, context_tokens=256))
    assert (transcript.end, transcript.truncated, len(transcript.turns)) == ("tokens", True, 1)


@pytest.mark.parametrize(
    ("turn", "context", "end"),
    [
        (Turn(message=Message(role="assistant", content="I give up.")), 0, "stop"),
        (Turn(message=Message(role="assistant")), 256, "stop"),
        (Turn(message=call("list_files"), stop="malformed"), 256, "malformed"),
        (Turn(message=Message(role="assistant"), stop="malformed"), 0, "malformed"),
        (
            Turn(message=Message(role="assistant", tool_calls=(ToolCall(name="", error="no end"),))),
            256,
            "malformed",
        ),
        (Turn(message=Message(role="assistant"), ids=(), prompt_ids=(1,), stop="length"), 256, "tokens"),
        (Turn(message=Message(role="assistant", content="I think"), stop="length"), 0, "tokens"),
    ],
)
async def test_ways_to_end(turn, context, end):
    transcript = await run(Script(turn, context_tokens=context))
    assert transcript.end == end
    assert transcript.truncated == (end == "tokens")
    assert transcript.turns == (turn,)


async def test_a_large_agent_reads_about_its_malformed_call_and_goes_on():
    broken = Message(role="assistant", tool_calls=(ToolCall(name="", error="arguments are not JSON"),))
    transcript = await run(Script(broken, SUBMIT), CountingDesk(GOOD))
    assert "arguments are not JSON" in said(transcript)[2]
    assert transcript.end == "submitted"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (call("submit_jobs"), "did you mean 'submit_job'?"),
        (call("rm", path="x"), "unknown tool 'rm'"),
        (call("read_file"), "argument 'path' is missing; read_file takes path"),
        (call("submit_job", force="yes"), "argument 'force' is not known; submit_job takes no arguments"),
        (call("read_file", path=3), "argument 'path' must be a string"),
        (call("read_file", path="../x"), "not allowed"),
        (call("read_file", path="x"), "no such file"),
        (call("edit_file", path="README.md", old="zzz", new=""), "read the file and copy it exactly"),
    ],
)
async def test_a_wrong_call_is_answered(wrong, words):
    full = await run(Script(wrong), max_turns=1)
    brief = await run(Script(wrong, context_tokens=256), max_turns=1)
    assert words in said(full)[-1]
    assert said(brief)[-1].startswith("error: ")
    assert len(said(brief)[-1]) < 60
    assert full.end == brief.end == "turns"


async def test_brief_words_for_each_refusal():
    policy = Script(
        call("read_file", path="x"),
        call("read_file", path="/x"),
        call("edit_file", path="README.md", old="zzz", new=""),
        call("edit_file", path="README.md", old="base", new=""),
        call("edit_file", path="README.md", old="e", new=""),
        call("write_file", path="x", content="y" * 300_000),
        call("nothing"),
        context_tokens=256,
    )
    transcript = await run(policy, max_turns=7)
    assert said(transcript)[1:] == [
        "error: no x",
        replies.BAD_PATH,
        replies.NOT_FOUND,
        replies.OK,
        replies.NOT_UNIQUE,
        replies.TOO_BIG,
        replies.BAD_CALL,
    ]


async def test_long_files_are_cut_for_the_reader_but_not_for_the_job():
    text = "x" * 30_000
    desk = CountingDesk(GOOD)
    write = call("write_file", path="data/a.jsonl", content=text)
    transcript = await run(Script(write, call("read_file", path="data/a.jsonl"), SUBMIT), desk)
    assert "10000 more characters are not shown" in said(transcript)[-2]
    assert desk.submitted == [{"data/a.jsonl": text}]


async def test_each_turn_has_its_own_seed_and_the_same_one_again():
    policies = [Script(), Script(), Script()]
    for policy, seed in zip(policies, (5, 5, 6), strict=True):
        await run(policy, seed=seed, max_turns=3)
    a, b, c = ([asked["seed"] for asked in policy.asked] for policy in policies)
    assert a == b
    assert len({*a, *c}) == 6
    assert all(0 <= s < 2**63 for s in a)
    assert a[0] == turn_seed(5, 0)


@pytest.mark.parametrize("context", [0, 256])
async def test_the_policy_gets_schemas_of_its_tools_and_the_turns_as_they_were_sampled(context):
    policy = Script(call("list_files"), context_tokens=context)
    transcript = await run(policy, max_turns=2)
    names = [tool["function"]["name"] for tool in policy.asked[0]["tools"]]
    more = [] if context else ["delete_file"]
    assert names == ["list_files", "read_file", "write_file", "edit_file", *more, "get_baseline_scores", "submit_job"]
    assert policy.asked[1]["talk"][1 if context else 2] is transcript.turns[0]


async def test_a_large_agent_can_take_back_a_file_that_is_no_part_of_a_job():
    desk = CountingDesk(GOOD)
    extra = call("write_file", path="ok.txt", content="done")
    gone, again = call("delete_file", path="ok.txt"), call("delete_file", path="ok.txt")
    outside, folder = call("delete_file", path="../x"), call("delete_file", path="data")
    data = call("write_file", path="data/a.jsonl", content="{}")
    transcript = await run(Script(*WRITE, extra, data, gone, again, outside, folder, SUBMIT), desk)
    assert [words.split(":")[0] for words in said(transcript)[6:10]] == [
        "Done",
        "Error",
        "Error",
        "Error",
    ]
    assert "ok.txt is deleted" in said(transcript)[6]
    assert "no such file" in said(transcript)[7]
    assert desk.submitted[0].keys() == {"job.toml", "environment.py", "data/a.jsonl"}


async def test_a_very_small_agent_has_no_such_tool():
    desk = CountingDesk(GOOD)
    transcript = await run(Script(WRITE[0], call("delete_file", path="job.toml"), SUBMIT, context_tokens=256), desk)
    assert said(transcript)[2] == replies.BAD_CALL
    assert desk.submitted[0].keys() == {"job.toml"}


async def test_no_turn_starts_after_the_deadline():
    clock = VirtualClock()

    class Slow(Script):
        async def sample(self, conversation, *, tools, max_tokens, seed=None):
            await clock.sleep(40)
            return await super().sample(conversation, tools=tools, max_tokens=max_tokens, seed=seed)

    transcript = await clock.run(run(Slow(), deadline_s=100, clock=clock))
    assert (transcript.end, len(transcript.turns)) == ("deadline", 3)


async def test_the_desk_may_bring_its_folder_and_a_temporary_one_is_removed(tmp_path, monkeypatch):
    own = tmp_path / "own" / "workspace"
    await run(Script(WRITE[0]), CountingDesk(workspace=own), max_turns=1)
    assert (own / "job.toml").read_text() == "a\n"
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    await run(Script(WRITE[0]), max_turns=1)
    assert list((tmp_path / "tmp").glob("*/desks/*")) == []


async def test_a_link_in_the_folder_is_refused_and_does_not_cost_an_attempt(tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "environment.py").symlink_to(tmp_path / "outside")
    desk = CountingDesk(GOOD, workspace=own)
    transcript = await run(Script(SUBMIT, context_tokens=256), desk, max_turns=1)
    assert said(transcript)[-1] == replies.BAD_PATH
    assert desk.submitted == []
    assert [p.name for p in tmp_path.iterdir()] == ["own"]


async def test_faults_of_ours_are_raised():
    class Broken(CountingDesk):
        async def submit(self, files):
            raise ConnectionError("queue is gone")

    with pytest.raises(ConnectionError):
        await run(Script(SUBMIT), Broken())


async def test_episodes_side_by_side_do_not_share_files():
    async def one(text):
        desk = CountingDesk(GOOD)
        await run(Script(call("write_file", path="job.toml", content=text), SUBMIT), desk)
        return desk.submitted[0]["job.toml"]

    assert await asyncio.gather(one("a"), one("b")) == ["a", "b"]


@pytest.mark.parametrize("cap", ["max_turns", "max_tokens", "turn_tokens", "max_attempts"])
def test_caps_must_be_positive(cap):
    with pytest.raises(ValueError, match=cap):
        ToolHarness(**{cap: 0})
