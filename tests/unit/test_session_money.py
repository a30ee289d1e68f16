"""Money of a run on rented pods, end to end on a virtual clock: every second of every pod in one row, budgets that hold."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter

import pytest
from loop_doubles import Family, Harness, Inner, Trainer
from pool_play import R4090, Direct, Fleet, Lines

import nested_rl as nrl
from nested_rl.compute.pool_terms import Terms
from nested_rl.errors import BudgetExceeded
from nested_rl.meter import Meter
from nested_rl.queues.memory import MemoryQueue
from nested_rl.rundir import RunDir
from nested_rl.shares import shares
from nested_rl.types import Budget, Checkpoint, Score

PRICE = 0.34


class Trains(Inner):
    """Jobs of some minutes on the machine that they get; `deadly` ones take their pod with them."""

    timeout_s = 1800.0

    def __init__(self, fleet, *, job_s=300.0, deadly=lambda key: False):
        self.fleet, self.job_s, self.deadly, self.tried = fleet, job_s, deadly, Counter()

    def settings(self):
        return {"job_s": self.job_s}

    async def train(self, job, machine):
        self.tried[job.key] += 1
        if self.deadly(job.key):
            await machine.run(30.0)
            self.fleet.fake.lose(machine.pod)
        await machine.run(self.job_s * random.Random(job.key).uniform(0.5, 2.0))
        return Checkpoint(path="out", base="nano-s", work=30.0, work_limit=100.0)


class Scores:
    async def score(self, model, eval_set, machine, *, seed=0):
        await machine.run(20.0)
        return Score.of([1.0, 0.0, 0.0, 0.0] if model == "strong" else [0.0] * 4)


class Rented:
    """A run on pods. `open` again is the next process, with the same journal, queue and run directory."""

    def __init__(self, path, *, fleet=None, lines=None, max_machines=3, terms=None, **inner):
        self.path, self.fleet = path, fleet or Fleet()
        self.lines = Lines() if lines is None else lines
        self.queue = MemoryQueue(clock=self.fleet.clock)
        self.inner = Trains(self.fleet, **inner)
        self.max_machines, self.terms = max_machines, terms or Terms()

    def pool(self):
        provider = Direct(self.fleet, self.lines)
        more = {"lines": self.lines, "provider": provider, "max_machines": self.max_machines, "terms": self.terms}
        return self.fleet.pool(R4090, **more)

    def begin(self, *, steps=2, budget=None):
        """The run, to be awaited in virtual time."""
        self.compute = self.pool()
        experiment = nrl.Experiment(
            [Family()],
            trainer=Trainer(self.path / "weights"),
            harness=Harness(),
            inner=self.inner,
            scorer=Scores(),
            queue=self.queue,
            compute=self.compute,
            reward=paid,
            budget=budget,
            clock=self.fleet.clock,
        )
        asked = {"groups_per_step": 2, "group_size": 2, "eval_every": 0, "order": "ready", "quiet": True}
        return experiment.run_async(steps, out=self.path / "run", **asked)

    async def go(self, *, meanwhile=None, **asked):
        work = self.begin(**asked)
        if meanwhile is not None:
            other = asyncio.ensure_future(meanwhile())
        try:
            return await self.fleet.clock.run(work, sealed=True)
        finally:
            if meanwhile is not None:
                other.cancel()
                await asyncio.gather(other, return_exceptions=True)

    @property
    def rows(self):
        return list(RunDir.open(self.path / "run").costs())

    def whole(self, *, slack=1.02):
        """The rows are the pods' time: all of it, once, and what the provider's ledger says."""
        rows = self.rows
        pods = [row for row in rows if row["kind"].startswith("pod/")]
        assert len({row["id"] for row in rows}) == len(rows)
        assert not any(row["kind"].startswith("job") for row in rows)
        cost = self.compute.costs()
        assert sum(row["usd"] for row in pods) == pytest.approx(sum(one.usd for one in cost), abs=1e-9)
        assert sum(row["seconds"] for row in pods) == pytest.approx(sum(one.seconds for one in cost), abs=1e-6)
        paid = sum(row["usd"] for row in pods)
        assert self.fleet.fake.alive() == []
        assert self.fleet.fake.usd() - 1e-9 <= paid <= self.fleet.fake.usd() * slack
        return pods


def paid(outcome):
    """A reward that anything earns."""
    return outcome.uplift


def usd(rows, kind):
    return sum(row["usd"] for row in rows if row["kind"] == f"pod/{kind}")


async def test_the_rows_of_a_run_sum_to_the_time_of_its_pods(tmp_path):
    rented = Rented(tmp_path)
    run = await rented.go()
    rows = rented.whole()
    assert {row["kind"] for row in rows} >= {"pod/provision", "pod/preflight", "pod/busy", "pod/idle"}
    jobs = {episode.job_key for episode in run.episodes}
    assert {row["job"] for row in rows if "job" in row} == jobs
    assert all(row["pod_id"].startswith("pod") for row in rows)
    # What an episode is told is its job's share; the machine is held a little longer than that.
    shares = {episode.job_key: episode.outcome.usd for episode in run.episodes}
    for key, share in shares.items():
        busy = sum(row["usd"] for row in rows if row.get("job") == key)
        assert share == pytest.approx(busy, rel=0.01)
    assert sum(row["usd"] for row in run.metrics) == pytest.approx(run.metrics[-1]["usd/total"])
    assert 0 < run.metrics[0]["usd"] < run.metrics[-1]["usd/total"] <= sum(row["usd"] for row in rows)


async def test_the_ledger_is_the_same_by_job_by_episode_and_by_step(tmp_path):
    rented = Rented(tmp_path)
    run = await rented.go(steps=3)
    total = sum(row["usd"] for row in rented.rows)
    by_job, by_episode, by_step = (shares(RunDir.open(run.path), by) for by in ("job", "episode", "step"))
    for found in (by_job, by_episode, by_step):
        assert sum(found.values()) == pytest.approx(total)
    episodes = list(run.episodes)
    assert set(by_job) - {""} == {episode.job_key for episode in episodes}
    assert set(by_episode) - {""} == {f"{episode.group:05d}-{episode.member}" for episode in episodes}
    assert set(by_step) - {""} == {"0", "1", "2"}
    assert by_job.get("", 0.0) <= 0.1 * total
    for episode in episodes:  # each pays its job and a part of the time around it
        assert by_episode[f"{episode.group:05d}-{episode.member}"] > episode.outcome.usd


async def test_also_with_pods_that_get_lost_and_dearer(tmp_path):
    rented = Rented(tmp_path)

    async def trouble():
        await rented.fleet.clock.sleep(200)
        rented.fleet.fake.lose(rented.fleet.fake.alive()[0])
        await rented.fleet.clock.sleep(100)
        for pod in rented.fleet.fake.alive():
            pod.usd_per_hour = 0.68

    with_trouble = await rented.go(meanwhile=trouble)
    rows = rented.rows
    assert len(with_trouble.metrics) == 2
    assert usd(rows, "lost") > 0
    cost = sum(one.usd for one in rented.compute.costs())
    assert sum(row["usd"] for row in rows) == pytest.approx(cost, abs=1e-9)


async def test_a_budget_stops_a_run_and_a_larger_one_goes_on_with_it(tmp_path):
    rented = Rented(tmp_path, max_machines=2)
    with pytest.raises(BudgetExceeded, match="larger budget"):
        await rented.go(steps=12, budget=Budget(usd=1.0))
    first = sum(row["usd"] for row in rented.whole())
    assert 0.4 < first <= 1.0
    counts = await rented.queue.counts()
    assert counts["running"] == 0
    assert counts["done"] == sum(rented.inner.tried.values())  # what was on a machine has finished
    before = dict(rented.inner.tried)
    run = await rented.go(steps=12, budget=Budget(usd=50.0))
    assert len(run.metrics) == 12
    assert sum(row["usd"] for row in rented.whole()) > first
    assert {key: rented.inner.tried[key] for key in before} == before  # none was run again


async def test_a_budget_that_covers_few_jobs_at_once_runs_them_a_few_at_a_time(tmp_path):
    """Eight jobs may be in flight, the worst of each at $0.17: the rest waits until one was cheaper than feared."""
    rented = Rented(tmp_path, max_machines=2)
    run = await rented.go(steps=2, budget=Budget(usd=0.7))
    assert len(run.metrics) == 2
    rented.whole()
    told = [event["message"] for event in RunDir.open(run.path).events("alarm") if event["name"] == "budget"]
    assert any("set aside for others" in message for message in told)


@pytest.mark.parametrize("usd", [0.05, 0.35, 0.5, 0.7, 0.9])
async def test_no_budget_is_ever_passed_and_each_is_used(tmp_path, usd):
    rented = Rented(tmp_path, max_machines=3)
    with pytest.raises(BudgetExceeded):
        await rented.go(steps=12, budget=Budget(usd=usd))
    spent = sum(row["usd"] for row in rented.whole())
    assert spent <= usd
    assert usd - spent < PRICE  # what is left does not cover a pod for an hour, or the worst of a job
    assert len((await rented.go(steps=12, budget=Budget(usd=50.0))).metrics) == 12
    rented.whole()


async def test_at_the_cap_pods_end_whatever_runs_there(tmp_path):
    rented = Rented(tmp_path, max_machines=2, job_s=800.0)

    async def dear():
        await rented.fleet.clock.sleep(200)
        for pod in rented.fleet.fake.alive():
            pod.usd_per_hour = 3.4

    with pytest.raises(BudgetExceeded, match="larger budget"):
        await rented.go(steps=2, budget=Budget(usd=3.0), meanwhile=dear)
    spent = sum(row["usd"] for row in rented.rows)
    assert 0.3 < spent <= 3.0
    assert rented.fleet.fake.alive() == []
    cut_off = [key for key, times in rented.inner.tried.items() if times]
    assert (await rented.queue.counts())["done"] < len(cut_off)
    assert len((await rented.go(steps=2, budget=Budget(usd=30.0))).metrics) == 2
    assert (await rented.queue.counts())["queued"] == 0


async def test_what_all_pods_cost_an_hour_is_limited_by_their_number(tmp_path):
    rented = Rented(tmp_path)
    await rented.go(budget=Budget(usd_per_hour=0.7))
    rented.whole()
    assert rented.fleet.fake.most == 2


async def test_a_rate_that_no_pod_fits_ends_the_run_at_once(tmp_path):
    rented = Rented(tmp_path)
    with pytest.raises(BudgetExceeded, match=r"allows \$0\.20 an hour.*one more is \$0\.34"):
        await rented.go(budget=Budget(usd_per_hour=0.2))
    assert rented.fleet.fake.pods == {}


async def test_hours_end_a_run_and_it_goes_on_when_run_again(tmp_path):
    rented = Rented(tmp_path, max_machines=2)
    with pytest.raises(BudgetExceeded, match="hours"):
        await rented.go(steps=12, budget=Budget(hours=0.5))
    rented.whole()
    assert len(RunDir.open(tmp_path / "run").metrics()) < 12
    assert len((await rented.go(steps=12, budget=Budget(hours=10.0))).metrics) == 12
    rented.whole()


async def test_without_a_balance_the_pods_that_are_there_do_the_work(tmp_path):
    rented = Rented(tmp_path)

    async def no_money():
        await rented.fleet.clock.sleep(10)
        rented.fleet.fake.faults["create"] = [402] * 99

    assert len((await rented.go(steps=4, meanwhile=no_money)).metrics) == 4
    assert rented.fleet.fake.most == 1
    rented.whole()


@pytest.mark.parametrize("after_s", [0, 10])
async def test_when_none_is_left_the_run_ends_and_goes_on_when_there_is_money_again(tmp_path, after_s):
    """The provider ends the pods of an account whose balance is used up."""
    rented = Rented(tmp_path)

    async def no_money():
        await rented.fleet.clock.sleep(after_s)
        rented.fleet.fake.faults["create"] = [402] * 99
        await rented.fleet.clock.sleep(400)
        for pod in rented.fleet.fake.alive():
            rented.fleet.fake.lose(pod)

    with pytest.raises(BudgetExceeded, match="top it up"):
        await rented.go(steps=4, meanwhile=no_money)
    told = [event["message"] for event in RunDir.open(tmp_path / "run").events("alarm") if event["name"] == "budget"]
    assert ["top it up" in message for message in told] == [True]
    rented.fleet.fake.faults.clear()
    assert len((await rented.go(steps=4)).metrics) == 4
    rented.whole()


@pytest.mark.parametrize("after_s", [20, 150, 333])
async def test_a_run_whose_controller_was_killed_goes_on_and_its_rows_are_whole(tmp_path, after_s):
    rented = Rented(tmp_path)
    run, kept = tmp_path / "run", tmp_path / "kept"

    async def story():
        work = asyncio.ensure_future(rented.begin(steps=3))
        await rented.fleet.clock.sleep(after_s)
        shutil.copytree(run, kept)
        rented.lines.dead = True
        await rented.fleet.killed(rented.compute, work)
        shutil.rmtree(run)  # what a process does that is not killed, but cancelled
        kept.rename(run)
        rented.lines, rented.queue = Lines(rented.lines), MemoryQueue(clock=rented.fleet.clock)
        await rented.fleet.clock.sleep(100)
        return await rented.begin(steps=3)

    done = await rented.fleet.clock.run(story(), sealed=True)
    assert len(done.metrics) == 3
    rented.whole()


# ---------------------------------------------------------------- poison, and whose job it is


async def test_a_job_under_which_pods_get_lost_gets_no_more_of_them(tmp_path):
    rented = Rented(tmp_path)
    keys = []

    def first(key):
        keys.append(key)
        return key == keys[0]

    rented.inner.deadly = first
    run = await rented.go(steps=1)
    assert rented.inner.tried[keys[0]] == 2  # the third delivery found it in quarantine
    poisoned = [episode for episode in run.episodes if episode.job_key == keys[0]]
    assert poisoned
    assert all(episode.masked and "pods were lost under job" in episode.outcome.error for episode in poisoned)
    assert all(rented.inner.tried[key] == 1 for key in rented.inner.tried if key != keys[0])
    rows = rented.whole()
    assert [row["seconds"] for row in rows if row.get("job") == keys[0]] == [30.0, 30.0]


# ---------------------------------------------------------------- one journal, several runs and controllers


def metered(pool, fleet, rows, ledger):
    pool.metered(Meter(Budget(), clock=fleet.clock, write=rows.append, rows=list(rows)), ledger=ledger)
    return pool


async def killed(fleet, lines, rows, ledger, *, after_s):
    pool = metered(fleet.pool(R4090, lines=lines, provider=Direct(fleet, lines)), fleet, rows, ledger)
    job = asyncio.ensure_future(fleet.job(pool, "long", 1000))
    await fleet.clock.sleep(after_s)
    lines.dead = True
    await fleet.killed(pool, job)


@pytest.mark.parametrize("after_s", [3, 20, 33, 100])
async def test_a_killed_controller_leaves_nothing_unpaid_and_nothing_is_paid_twice(after_s):
    fleet, lines, rows = Fleet(), Lines(), []

    async def story():
        await killed(fleet, lines, rows, "mine", after_s=after_s)
        again = Lines(lines)
        pool = metered(fleet.pool(R4090, lines=again, provider=Direct(fleet, again)), fleet, rows, "mine")
        await fleet.job(pool, "long", 300)
        await pool.close()
        return pool

    pool = await fleet.clock.run(story(), sealed=True)
    assert len({row["id"] for row in rows}) == len(rows)
    assert sum(row["usd"] for row in rows) == pytest.approx(sum(one.usd for one in pool.costs()))
    assert fleet.fake.usd() - 1e-9 <= sum(row["usd"] for row in rows) <= fleet.fake.usd() * 1.02


async def test_what_one_run_owes_is_not_paid_by_the_next_that_has_its_pods():
    fleet, lines, first, second = Fleet(), Lines(), [], []

    async def story():
        await killed(fleet, lines, first, "first", after_s=100)
        again = Lines(lines)
        pool = metered(fleet.pool(R4090, lines=again, provider=Direct(fleet, again)), fleet, second, "second")
        await fleet.job(pool, "next", 300)
        await pool.close()
        last = Lines(again)
        pool = metered(fleet.pool(R4090, lines=last, provider=Direct(fleet, last)), fleet, first, "first")
        await pool.start()
        await pool.close()
        return pool

    pool = await fleet.clock.run(story(), sealed=True)
    by = Counter()
    for one in pool.costs():
        by[one.ledger] += one.usd
    assert sum(row["usd"] for row in first) == pytest.approx(by["first"])
    assert sum(row["usd"] for row in second) == pytest.approx(by["second"])
    assert {row["kind"] for row in first} == {"pod/provision", "pod/preflight", "pod/lost"}
    assert {row["job"] for row in second if "job" in row} == {"next"}
    assert set(by) == {"first", "second"}
