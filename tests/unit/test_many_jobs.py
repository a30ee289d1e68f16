"""Several jobs an episode: what the agent is told, which job counts, and what stays sealed."""

import asyncio

import pytest
from attrs import evolve

from nested_rl.clock import VirtualClock
from nested_rl.episode import Parts, Place, run_episode
from nested_rl.harness.agent import ToolHarness
from nested_rl.interfaces import Desk, Policy
from nested_rl.queues.memory import MemoryQueue
from nested_rl.rundir import RunDir
from nested_rl.types import (
    Feedback,
    JobResult,
    Message,
    Need,
    Score,
    Task,
    ToolCall,
    Turn,
    Usage,
    Validation,
)
from nested_rl.waiting import Overdue, within

TASK = Task(id="t", family="calc_chain", difficulty=3, prompt="Teach it.", brief="task calc_chain k 3")
BASELINES = {"nano-m": Score.of([0.0, 0.0, 0.0, 1.0])}


def call(name, **arguments):
    return Message(role="assistant", tool_calls=(ToolCall(name=name, arguments=arguments, id=name),))


def write(text):
    return call("write_file", path="job.toml", content=text)


SUBMIT = call("submit_job")
STOP = Message(role="assistant", content="that will do")


class Script(Policy):
    """Says its lines, and remembers what it was shown."""

    def __init__(self, *lines, context_tokens=0, clock=None, seconds=0.0):
        self.lines, self.context_tokens, self.seen = list(lines), context_tokens, []
        self.clock, self.seconds = clock, seconds

    async def sample(self, conversation, *, tools, max_tokens, seed=None):
        self.seen.append(conversation)
        if self.clock is not None:
            await self.clock.sleep(self.seconds)
        return Turn(message=self.lines.pop(0), usage=Usage(prompt_tokens=1, completion_tokens=1))


def scored(post, dev, **more):
    return JobResult(post=Score.of(post), dev=Score.of(dev), **more)


class Inner:
    """Takes every job whose text does not say "bad"."""

    scale = "nano"
    timeout_s = 100.0

    def guide(self, task, *, brief):
        return "how to"

    def need(self, draft):
        return Need()

    async def validate(self, draft):
        ok = "bad" not in draft.files["job.toml"]
        return Validation(ok=ok, base="nano-m" if ok else None, problems=() if ok else (problem(),))


def problem():
    from nested_rl.types import Problem

    return Problem(code="job.value", where="job.toml", message="bad")


class Lab:
    """A queue whose jobs end as `results` says by their text, after `job_s`."""

    def __init__(self, results, *, max_jobs=3, job_s=50.0):
        self.clock = VirtualClock()
        self.queue, self.results, self.job_s = MemoryQueue(clock=self.clock), results, job_s
        self.harness = ToolHarness(max_jobs=max_jobs, clock=self.clock)
        self.specs = []

    async def work(self):
        while True:
            job = await self.queue.lease("w", ttl_s=1e6)
            if job is None:
                await self.clock.sleep(1.0)
                continue
            self.specs.append(job.spec)
            await self.clock.sleep(self.job_s)
            result = self.results[job.spec.files["job.toml"]]
            if result.fault == "infra":
                for _ in range(2):
                    await self.queue.release(job, error=result.error)
                    job = await self.queue.lease("w", ttl_s=1e6)
                await self.queue.release(job, error=result.error)
            else:
                await self.queue.finish(job, result)

    async def episode(self, policy, *, deadline_s=1000.0):
        parts = Parts(
            harness=self.harness,
            inner=Inner(),
            queue=self.queue,
            reward=lambda outcome: outcome.uplift,
            clock=self.clock,
            job_seeds=1,
            max_jobs=self.harness.max_jobs,
        )

        async def told():
            worker = asyncio.ensure_future(self.work())
            try:
                place = Place(group=0, member=0, version=0, seed=1)
                return await run_episode(
                    TASK, policy, place, parts, hidden=BASELINES, dev=BASELINES, deadline_s=deadline_s
                )
            finally:
                worker.cancel()

        return await self.clock.run(told())


async def test_the_job_that_did_best_on_dev_counts_and_the_others_stay_sealed(tmp_path):
    results = {
        "one": scored([1.0, 1.0, 1.0, 1.0], [0.25, 0.25], usd=1.0),
        "two": scored([0.5, 0.5, 0.5, 0.5], [0.504, 0.504], usd=2.0),
        "three": scored([0.75, 0.75, 0.75, 0.75], [0.5, 0.5], usd=4.0),
    }
    lab = Lab(results)
    policy = Script(write("one"), SUBMIT, write("bad"), SUBMIT, write("two"), SUBMIT, write("three"), SUBMIT)
    told = await lab.episode(policy)
    episode, outcome = told.episode, told.episode.outcome
    assert [spec.dev for spec in lab.specs] == [True] * 3
    assert episode.transcript.end == "submitted"
    assert (outcome.valid, outcome.jobs, outcome.attempts, outcome.usd) == (True, 3, 2, 7.0)
    assert outcome.post == results["two"].post
    assert episode.reward == pytest.approx(0.25)
    assert [(job.attempt, job.chosen, job.result.post) for job in episode.jobs] == [
        (1, False, None),
        (3, True, results["two"].post),
        (4, False, None),
    ]
    replies = [m.content for m in episode.transcript.conversation if isinstance(m, Message) and m.name == "submit_job"]
    assert "accuracy on a development set is 0.25." in replies[0]
    assert "hand in 2 more jobs" in replies[0]
    assert "Attempts left: 2." in replies[1]
    assert "0.50." in replies[2]
    assert "one more job" in replies[2]
    assert replies[3] == "The job is valid. It is accepted and will be trained."

    run = RunDir.create(tmp_path / "run", {"steps": 1})
    run.write_episode(episode, files=told.files)
    assert run.read_episode(0, 0) == episode
    root = run.episode_dir(0, 0)
    assert [(root / f"jobs/{n}/job/job.toml").read_text() for n in (1, 2, 3)] == ["one", "two", "three"]
    run.close()


async def test_an_agent_may_stop_after_its_first_job():
    lab = Lab({"one": scored([1.0] * 4, [1.0])})
    episode = (await lab.episode(Script(write("one"), SUBMIT, STOP))).episode
    assert (episode.transcript.end, episode.outcome.jobs, episode.reward) == ("submitted", 1, 0.75)


async def test_of_equals_the_first_counts_and_a_failed_job_only_for_want_of_another():
    infra = JobResult(fault="infra", error="the machine was lost")
    crash = JobResult(fault="agent", error="it raised ZeroDivisionError")
    lab = Lab({"one": infra, "two": scored([0.5] * 4, [0.5]), "three": scored([1.0] * 4, [0.5])})
    policy = Script(write("one"), SUBMIT, write("two"), SUBMIT, write("three"), SUBMIT)
    episode = (await lab.episode(policy)).episode
    assert [job.chosen for job in episode.jobs] == [False, True, False]
    assert not episode.masked
    assert "no fault of yours" in policy.seen[2][-1].content

    lab = Lab({"one": infra, "two": crash}, max_jobs=2)
    policy = Script(write("one"), SUBMIT, write("two"), SUBMIT)
    episode = (await lab.episode(policy)).episode
    assert [job.chosen for job in episode.jobs] == [False, True]
    assert (episode.masked, episode.reward, episode.outcome.fault) == (False, 0.0, "agent")

    episode = (await Lab({"one": infra}).episode(Script(write("one"), SUBMIT, STOP))).episode
    assert episode.masked
    episode = (await Lab({"one": crash}).episode(policy := Script(write("one"), SUBMIT, STOP))).episode
    assert "it raised ZeroDivisionError" in policy.seen[2][-1].content


async def test_waiting_for_jobs_is_not_the_agents_time():
    results = {"one": scored([0.0] * 4, [0.0]), "two": scored([1.0] * 4, [1.0])}
    lab = Lab(results, job_s=500.0)
    lab.harness = evolve(lab.harness, deadline_s=60.0, max_jobs=2)
    policy = Script(write("one"), SUBMIT, write("two"), SUBMIT, clock=lab.clock, seconds=10.0)
    episode = (await lab.episode(policy, deadline_s=60.0)).episode
    assert episode.outcome.jobs == 2
    assert episode.agent_s == pytest.approx(40.0, abs=2.0)

    lab = Lab(results, job_s=500.0)
    slow = Script(write("one"), SUBMIT, write("two"), SUBMIT, clock=lab.clock, seconds=25.0)
    episode = (await lab.episode(slow, deadline_s=60.0)).episode
    assert episode.masked
    assert "Overdue" in episode.outcome.error


async def test_within_excuses_no_more_than_it_is_told():
    clock = VirtualClock()
    with pytest.raises(Overdue):
        await clock.run(within(clock, 5.0, clock.sleep(8.0), excused_s=lambda: 2.0))
    assert clock.monotonic() == pytest.approx(7.0)
    await clock.run(within(clock, 5.0, clock.sleep(6.5), excused_s=lambda: 2.0))


async def test_best_of_n_starts_each_job_from_the_beginning():
    lab = Lab({"one": scored([0.0] * 4, [0.25]), "two": scored([1.0] * 4, [1.0])})
    lab.harness = evolve(lab.harness, max_jobs=2, afresh=True)
    extra = call("write_file", path="data/x.jsonl", content="{}")
    policy = Script(extra, write("one"), SUBMIT, call("list_files"), write("two"), SUBMIT, context_tokens=5000)
    told = await lab.episode(policy)
    assert policy.seen[3] == policy.seen[0]
    assert policy.seen[4][-1].content == "README.md"
    assert told.episode.reward == 0.75
    assert set(told.files[1]) == {"data/x.jsonl", "job.toml"}
    assert set(told.files[2]) == {"job.toml"}


async def test_a_small_agent_reads_a_number():
    lab = Lab({"one": scored([0.0] * 4, [0.25]), "two": JobResult(fault="agent", error="boom")})
    policy = Script(write("one"), SUBMIT, write("two"), SUBMIT, STOP, context_tokens=256)
    await lab.episode(policy)
    assert [seen[-1].content for seen in policy.seen[2::2]] == ["valid 0.25", "valid 0.00"]


async def test_a_turn_has_a_deadline_of_its_own():
    lab = Lab({})
    lab.harness = evolve(lab.harness, turn_s=5.0)
    episode = (await lab.episode(Script(write("one"), clock=lab.clock, seconds=9.0))).episode
    assert episode.masked
    assert "not done after 5 s" in episode.outcome.error


async def test_a_desk_without_dev_scores_says_so():
    class Plain(Desk):
        baselines = submit = result = guide = None

    assert await Plain().feedback() == Feedback(error="this desk gives no feedback")


async def test_a_job_is_scored_on_both_splits_on_its_own_lease():
    from contextlib import asynccontextmanager

    from nested_rl.types import Checkpoint, EvalSet, Job, JobSpec
    from nested_rl.worker import Delivery

    asked = []

    class Compute:
        @asynccontextmanager
        async def machine(self, need):
            asked.append("leased")
            yield type("Box", (), {"id": "box", "usd_per_hour": 0.0})

    class Trainer:
        async def train(self, job, machine):
            return Checkpoint(path="x", base="nano-m")

    class Scorer:
        async def score(self, model, eval_set, machine, *, seed=0):
            asked.append(eval_set.split)
            return Score.of([1.0] if eval_set.split == "dev" else [0.0])

    def items(split):
        return lambda spec: EvalSet(family="f", difficulty=1, split=split, items=(), digest=split)

    for dev in (False, True):
        spec = JobSpec(task=TASK, files={}, digest="d", base="nano-m", scale="nano", dev=dev)
        delivery = Delivery(job=Job(id="1", key="k", spec=spec), inner=Trainer(), scorer=Scorer(), clock=VirtualClock())
        result = await delivery.run(Compute(), items("hidden"), items("dev"))
        assert (result.post.value, result.dev and result.dev.value) == (0.0, 1.0 if dev else None)
    assert asked == ["leased", "hidden", "leased", "hidden", "dev"]
