"""Keys of the controller are in nothing that is written: not by value, not in a URL, whoever lets them slip."""

import logging
import os
import subprocess
import sys

import httpx
import pytest
from case_doubles import World, calls

from nested_rl.errors import InfraFault, RewardError
from nested_rl.policies import FrozenPolicy
from nested_rl.queues.sqlite import SqliteQueue
from nested_rl.report.page import summary, write_report
from nested_rl.trackers import JsonlTracker
from nested_rl.types import Problem, Validation

pytestmark = pytest.mark.cases

KEY = "rp_TESTSECRET123"
PASSWORD = "pw-TESTSECRET-456"
OPENAI = "plain-TESTSECRET-789"
CANARIES = (KEY, PASSWORD, OPENAI)
URL = f"https://me:{PASSWORD}@api.provider.example/v2?api_key={KEY}"


@pytest.fixture(autouse=True)
def keys(monkeypatch):
    monkeypatch.setenv("RUNPOD_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", OPENAI)
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:{PASSWORD}@proxy:1")


def leaks(folder):
    """Where a canary stands, over names and bytes of all files."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [(str(p), c) for p in files for c in CANARIES if c.encode() in p.read_bytes() or c in str(p)]


class Tells:
    """A tracker of somebody's, with a setting that is a key. It writes down what it gets."""

    def __init__(self, path):
        self.api_key, self.path = KEY, path

    def metrics(self, step, values):
        self._write(f"{step} {values}\n")

    def episode(self, step, episode):
        self._write(f"{step} {episode} {episode.transcript.conversation} {episode.result}\n")

    def _write(self, text):
        with self.path.open("a") as file:
            file.write(text)

    def close(self):
        raise ConnectionError(f"401 for {URL}")


async def test_a52_secrets_in_logs(tmp_path, caplog, capsys):
    """Every part lets a key slip, in every way: the run directory, its queue, the trackers, the report and the log have none."""
    caplog.set_level(logging.INFO)
    folder = tmp_path / "run"
    world = World(folder, steps=2, queue=lambda clock: SqliteQueue(tmp_path / "queue.sqlite", clock=clock))
    lost = iter([InfraFault(f"POST {URL} failed: {{'Authorization': 'Bearer {KEY}'}}")])
    world.compute.fails = lambda: next(lost, None) if world.scorer.asked else None
    world.inner.ends = lambda job: None
    world.trackers = [Tells(tmp_path / "tells.txt"), JsonlTracker(tmp_path / "rows.jsonl")]
    world.inner.settings = lambda: {"endpoint": URL, "api_key": "a key nobody knows", "headers": {"Authorization": KEY}}
    problem = Problem(code="x", where=KEY, message=f"no module {OPENAI}", hint=URL)
    world.inner.verdict = lambda draft: (
        Validation(ok=False, problems=(problem,))
        if len(world.inner.validated) == 1
        else Validation(ok=True, base="strong")
    )
    train = world.inner.train

    async def prints(job, machine):
        import attrs

        return attrs.evolve(await train(job, machine), log=f"env: RUNPOD_API_KEY={KEY}")

    world.inner.train = prints
    world.trainer.say = lambda talk: calls("write_file", path="a", content=f"key = {KEY}", api_key="of somebody else")
    await world.go()
    told = [e["error"] for e in world.events("job.released")]
    assert len(told) == 1
    assert "POST https://[redacted]@api.provider.example/v2?api_key=[redacted] failed" in told[0]
    assert any(e.result and "RUNPOD_API_KEY=[redacted]" in e.result.log for e in world.files.episodes())
    write_report(world.files)
    print(summary(world.files))
    assert leaks(tmp_path) == []
    said = caplog.text + "".join(capsys.readouterr())
    assert not any(canary in said for canary in CANARIES)
    assert "tracker Tells failed" in said
    assert (tmp_path / "tells.txt").read_text().count("[redacted]") > 4


async def test_a52_a_server_that_echoes_the_key(tmp_path, monkeypatch):
    """A 401 with the key in its body: the episode is masked, and says why without the key."""

    def refuse(request):
        sent = request.headers["authorization"]
        return httpx.Response(401, json={"error": {"message": f"Incorrect API key: {OPENAI} ({sent})"}})

    class Client(httpx.AsyncClient):
        def __init__(self, **settings):
            super().__init__(**settings, transport=httpx.MockTransport(refuse))

    monkeypatch.setattr(httpx, "AsyncClient", Client)
    world = World(tmp_path / "run", steps=1)
    policy = FrozenPolicy("m", base_url="http://api.example/v1")
    world.trainer.say = lambda talk: calls("submit_job")
    run, harness = world.harness.run, world.harness

    async def asks(task, ours, desk, *, seed=0):
        await policy.sample([], tools=[], max_tokens=1)
        return await run(task, ours, desk, seed=seed)

    harness.run = asks
    await world.go()
    episodes = list(world.files.episodes())
    assert [e.masked for e in episodes] == [True, True]
    assert all("KeyRefused" in e.outcome.error for e in episodes)
    assert leaks(tmp_path) == []
    with pytest.raises(Exception, match="401") as refused:
        await policy.sample([], tools=[], max_tokens=1)
    assert OPENAI not in str(refused.value)


async def test_a52_a_reward_that_raises_with_the_key(tmp_path):
    world = World(tmp_path / "run", steps=1)

    def reward(outcome):
        raise RuntimeError(f"cannot reach {URL} with {KEY}")

    world.reward = reward
    with pytest.raises(RewardError):
        await world.go()
    assert "[redacted]" in world.events("run.failed")[0]["error"]
    assert leaks(tmp_path) == []


async def test_a52_a_job_that_holds_a_key_is_refused(tmp_path):
    """What is accepted is hashed, runs and is kept as it is; so a job with a key is not accepted, and its copy is cleaned."""
    world = World(tmp_path / "run", steps=1)

    async def hands_in(task, policy, desk, *, seed=0):
        from nested_rl.types import Message, Transcript

        turn = await policy.sample([], tools=[], max_tokens=1)
        verdict = await desk.submit({"job.toml": "steps = 1\n", "environment.py": f"KEY = '{KEY}'\n"})
        assert [p.code for p in verdict.problems] == ["files.secret"]
        return Transcript(conversation=(Message(role="user", content="go"), turn), end="attempts")

    world.harness.run = hands_in
    await world.go()
    assert world.inner.validated == []
    assert (await world.queue.counts())["done"] == 0
    kept = list((tmp_path / "run").rglob("attempts/1/files/environment.py"))
    assert {path.read_text() for path in kept} == {"KEY = '[redacted]'\n"}
    assert leaks(tmp_path) == []


LEAKY = """
import attrs, logging, os
from nested_rl.compute.local import LocalCompute
from nested_rl.errors import InfraFault
from nested_rl.inner.nano import NanoInnerTrainer
from nested_rl.types import Problem, Validation

KEY = os.environ["RUNPOD_API_KEY"]
train, validate, seen = NanoInnerTrainer.train, NanoInnerTrainer.validate, []

async def prints(self, job, machine):
    seen.append(job)
    if len(seen) == 1:
        raise InfraFault(f"GET https://me:{KEY}@host/?token={KEY}")
    return attrs.evolve(await train(self, job, machine), log=f"env {dict(os.environ)}")

async def echoes(self, draft):
    found = await validate(self, draft)
    wrong = tuple(attrs.evolve(p, message=f"{p.message} {KEY}", brief=f"{p.brief[:8]} {KEY}"[:40]) for p in found.problems)
    return attrs.evolve(found, problems=wrong)

NanoInnerTrainer.train, NanoInnerTrainer.validate = prints, echoes

def leaky(outcome):
    logging.getLogger("some.library").warning("asked https://me:%s@host/", KEY)
    return float(outcome.valid)

def raises(outcome):
    raise RuntimeError(f"no answer from https://host/?key={KEY}")
"""


@pytest.mark.timeout(300)
def test_a52_a_whole_run_of_the_command_line(tmp_path):
    """Real parts that let the key slip: nothing in all files of the run, nothing on the terminal."""
    (tmp_path / "rewards.py").write_text(LEAKY)
    environment = os.environ | {"RUNPOD_API_KEY": KEY}
    for reward, code in (("leaky", 0), ("raises", 1)):
        out = tmp_path / reward
        text = f'families = ["calc_chain"]\nreward = "rewards.py:{reward}"\n[run]\nsteps = 2\ngroups_per_step = 1\ngroup_size = 4\neval_every = 0\n'
        (tmp_path / f"{reward}.toml").write_text(text)
        argv = [sys.executable, "-m", "nested_rl", "run", str(tmp_path / f"{reward}.toml"), "--out", str(out)]
        done = subprocess.run(argv, check=False, env=environment, capture_output=True, text=True, timeout=240)
        assert done.returncode == code, done.stderr
        assert KEY not in done.stdout + done.stderr
        assert "[redacted]" in done.stderr
        assert leaks(out) == []
    assert "[redacted]" in "".join(p.read_text() for p in (tmp_path / "leaky").rglob("result.json"))
    assert "host/?token=[redacted]" in (tmp_path / "leaky" / "journal.jsonl").read_text()
    assert (tmp_path / "leaky" / "report.html").stat().st_size > 10_000
    assert (tmp_path / "leaky" / "queue.sqlite").exists()
