"""A large agent at work: whole episodes past every kind of trouble, and evaluations."""

import pytest
from frozen_play import CANARY, ENVIRONMENT, JOB, TASK, Waits
from openai_server import STALL, Server, answer, fault, made_call

import nested_rl as nrl
from nested_rl.endpoint import (
    KeyRefused,
    NoSuchModel,
    Unavailable,
)
from nested_rl.errors import SettingsError
from nested_rl.experiment import _named
from nested_rl.harness.agent import ToolHarness
from nested_rl.inner.nano import NanoInnerTrainer
from nested_rl.interfaces import Desk
from nested_rl.policies import FrozenPolicy
from nested_rl.rundir import RunDir
from nested_rl.serialize import dumps, loads
from nested_rl.types import Draft, Message, Transcript


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


# ---------------------------------------------------------------- whole episodes


class NanoDesk(Desk):
    """The nano inner trainer's own checks and probe; nothing is trained."""

    task = TASK

    def __init__(self, inner):
        self.inner, self.verdicts = inner, []

    async def baselines(self):
        return {"nano-s": 0.12, "nano-m": 0.26}

    async def submit(self, files):
        self.verdicts.append(await self.inner.validate(Draft(task=TASK, files=dict(files))))
        return self.verdicts[-1]

    async def result(self):
        raise AssertionError("not the harness's business")

    def guide(self, *, brief):
        return self.inner.guide(TASK, brief=brief)


@pytest.fixture
async def desk():
    inner = NanoInnerTrainer()
    yield NanoDesk(inner)
    await inner.close()


async def episode(desk, *answers, **settings):
    clock = Waits()
    with Server(*answers) as server:
        policy = FrozenPolicy("small", base_url=server.url, clock=clock, **settings)
        try:
            transcript = await ToolHarness().run(TASK, policy, desk, seed=1)
        finally:
            await policy.aclose()
    assert loads(dumps(transcript), Transcript) == transcript
    return transcript, server, clock


async def test_a_good_job_by_tool_calls_past_every_kind_of_trouble(desk):
    transcript, server, clock = await episode(
        desk,
        fault(429, "slow down", {"retry-after": "3"}),
        answer("First the scores.", [("get_baseline_scores", {})], cost=0.01),
        answer("", [made_call("x", "write_file", '{"path": "job.toml", "content": ')]),
        answer("", [made_call("y", "wriet_file", {"path": "job.toml", "content": JOB}), made_call(None, "submit_job")]),
        fault(500, "oops"),
        answer("", [("write_file", {"path": "job.toml", "content": JOB.replace("nano-m", "nano-xl")})], cost=0.01),
        STALL,
        answer("", [("write_file", {"path": "environment.py", "content": ENVIRONMENT}), ("submit_job", {})]),
        answer("", [("edit_file", {"path": "job.toml", "old": "nano-xl", "new": "nano-m"}), ("submit_job", {})]),
        attempt_s=1.0,
    )
    assert transcript.end == "submitted"
    assert transcript.asked_baselines
    assert [v.ok for v in desk.verdicts] == [False, True]
    assert desk.verdicts[1].base == "nano-m"
    assert desk.verdicts[1].families == ("calc_chain",)
    told = [m.content for m in transcript.conversation if isinstance(m, Message) and m.role == "tool"]
    assert "are not JSON" in told[1]
    assert "did you mean 'write_file'" in told[2]
    assert "no id" in told[3]
    assert "nano-xl" in told[6]
    assert sum(t.usage.usd for t in transcript.turns) == pytest.approx(0.02)
    assert clock.waited[0] == 3.0
    assert len(clock.waited) >= 3  # a slow machine may stall more often
    system, user = (m["content"] for m in server.seen[0]["messages"])
    assert "reinforcement-learning jobs" in system
    assert desk.guide(brief=False).strip() in user  # the whole guide, not the brief one
    for body in server.seen:  # every result answers a call that was made, in order
        calls = [call["id"] for m in body["messages"] for call in m.get("tool_calls", ())]
        assert [m["tool_call_id"] for m in body["messages"] if m["role"] == "tool"] == calls


async def test_a_truncated_answer_ends_the_episode(desk):
    transcript, _, _ = await episode(desk, answer("I would", finish="length"))
    assert (transcript.end, transcript.truncated) == ("tokens", True)


async def test_a_cut_call_is_answered_and_may_be_made_again(desk):
    cut = answer("", [("write_file", '{"path": "job.toml", "cont')], finish="length")
    transcript, _, _ = await episode(desk, cut, answer("I give up."))
    assert transcript.end == "stop"
    assert "are not JSON" in transcript.conversation[3].content


async def test_a_server_that_stays_down_is_an_error_of_the_policy(desk):
    with pytest.raises(Unavailable, match="500"):
        await episode(desk, fault(500, "oops"), timeout_s=100)
    assert desk.verdicts == []


# ---------------------------------------------------------------- evaluation


@pytest.mark.parametrize("name", ["openai:m", "openai:m@ftp://x/v1", "openai:m@https://u:p@x/v1"])
def test_an_evaluation_refuses_a_name_before_it_opens_anything(name, tmp_path):
    with pytest.raises(SettingsError, match=r"openai:MODEL@URL|base_url"):
        nrl.Experiment().evaluate(nrl.tasks.load("calc_chain"), policy=name, out=tmp_path / "none")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("given", "kind"), [(fault(401, "no"), KeyRefused), (fault(404, "no"), NoSuchModel)])
async def test_a_wrong_key_or_model_ends_an_evaluation_before_it_begins(given, kind, tmp_path):
    RunDir.create(tmp_path, {"job_seeds": 2}).close()
    there = sorted(path.name for path in tmp_path.iterdir())
    with Server(given) as server, pytest.raises(kind):
        await nrl.Experiment().evaluate_async(
            nrl.tasks.load("calc_chain"), policy=f"openai:large@{server.url}", out=tmp_path
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == there  # no queue, no baselines, no evals
    assert [body["model"] for body in server.seen] == ["large"]


def test_other_settings_are_another_evaluation():
    plain, hot, same = (
        _named(FrozenPolicy("a/b", base_url="http://localhost:1/v1", temperature=t, concurrency=c))
        for t, c in ((None, 1), (0.7, 1), (None, 2))
    )
    assert plain[0].startswith("openai-a-b-http-localhost-1-v1-")
    assert plain[1] == "openai:a/b@http://localhost:1/v1"
    assert plain == same != hot
