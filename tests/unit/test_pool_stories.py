"""Stories of a pool that hypothesis makes up: jobs, faults of every kind, lost pods, killed controllers; the end is always the same.

No pod is left, there were never more than allowed, no job was on two pods at once or ran twice to its end, every job has an end, and the
meter says at least what the provider's ledger says and hardly more. The journal is made shorter again and again meanwhile.
"""

import asyncio
import logging

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pool_play import A40, A5000, ANY, BIG, R4090, Direct, Fleet, Killed, Lines

from nested_rl.compute import pool_roster
from nested_rl.compute.pool_costs import ENDING_S, LATE_S
from nested_rl.compute.pool_roster import BEAT_S, State
from nested_rl.compute.pool_terms import Terms
from nested_rl.errors import NestedRLError
from nested_rl.waiting import within

TERMS = Terms(
    look_s=20.0,
    boot_s=300.0,
    ssh_s=120.0,
    connect_s=30.0,
    preflight_s=60.0,
    idle_s=120.0,
    max_age_s=3600.0,
    ttl_s=7200.0,
    max_jobs=4,
)
MOST = 3
LEASE_S = 300.0
UNSEEN_S = BEAT_S + LATE_S + LEASE_S + ENDING_S
"""What may be booked at most of the time in which no controller looked, of a pod that has been up."""
DEAREST = 0.44
CREATE = ["nocap", 400, 403, 402, 429, 500, "500-after", "hang", "hang-after", 422]
ODD = {
    "create": CREATE,
    "list": ["empty", "partial", "stale", 500, 429],
    "get": [500, 429],
    "terminate": ["accepted", 500, 429],
    "prices": [500],
}
BOOTS = [30.0, 30.0, 0.0, 100.0, None]


class Stories(RuleBasedStateMachine):
    """One provider, and one controller after the other."""

    ended = 0

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.fleet, self.lines, self.jobs, self.number = Fleet(), Lines(), {}, 0
        self.slack_s, self.lost = 0.0, set()

    @initialize()
    def open(self):
        self.pool = self.made()

    def made(self):
        provider = Direct(self.fleet, self.lines)
        return self.fleet.pool(
            A5000, A40, R4090, lines=self.lines, provider=provider, max_machines=MOST, terms=TERMS, alone_s=LEASE_S
        )

    def do(self, work):
        return self.loop.run_until_complete(self.fleet.clock.run(work, settle=25))

    def alive(self):
        return self.fleet.fake.alive()

    @rule(seconds=st.sampled_from([5, 60, 400]), need=st.sampled_from([ANY, ANY, BIG]), n=st.integers(1, 3))
    def jobs_come(self, seconds, need, n):
        for _ in range(n):
            self.number += 1
            self.deliver(f"job{self.number}", seconds, need)

    def deliver(self, name, seconds, need):
        async def start():
            return asyncio.ensure_future(self.fleet.job(self.pool, name, seconds, need))

        self.jobs[name] = (self.loop.run_until_complete(start()), seconds, need)

    @rule(seconds=st.sampled_from([1.0, 20.0, 60.0, 300.0]))
    def time_passes(self, seconds):
        self.do(self.fleet.clock.sleep(seconds))

    @rule(call=st.sampled_from(sorted(ODD)), data=st.data())
    def the_provider_errs(self, call, data):
        waiting = self.fleet.fake.faults.setdefault(call, [])
        if not waiting:
            waiting += data.draw(st.lists(st.sampled_from(ODD[call]), min_size=1, max_size=2))
            self.slack_s += 60.0 * MOST

    @rule(boot_s=st.sampled_from(BOOTS))
    def pods_boot_otherwise(self, boot_s):
        self.fleet.boot_s = boot_s

    @rule(kind=st.sampled_from([A5000, A40, R4090]), n=st.integers(0, 1))
    def a_kind_is_scarce(self, kind, n):
        self.fleet.fake.capacity[kind.gpu, kind.cloud.upper()] = n

    @precondition(lambda self: self.alive())
    @rule(which=st.integers(0, MOST - 1))
    def a_pod_is_lost(self, which):
        pod = self.alive()[which % len(self.alive())]
        self.fleet.fake.lose(pod)
        self.lost.add(pod.id)
        self.slack_s += 60.0

    @precondition(lambda self: self.alive())
    @rule(which=st.integers(0, MOST - 1))
    def a_pod_freezes(self, which):
        self.fleet.frozen.add(self.alive()[which % len(self.alive())].id)

    @precondition(lambda self: self.alive())
    @rule(which=st.integers(0, MOST - 1))
    def a_container_starts_again(self, which):
        pod = self.alive()[which % len(self.alive())]
        if pod.started_at is not None:
            pod.started_at = self.fleet.clock.now()

    @rule()
    def the_next_pod_is_not_what_was_rented(self):
        self.fleet.unfit.add(f"pod{len(self.fleet.fake.pods) + 1}")

    @precondition(lambda self: self.jobs)
    @rule(which=st.integers(0, 5))
    def a_job_is_called_off(self, which):
        name = sorted(self.jobs)[which % len(self.jobs)]
        task, *_ = self.jobs.pop(name)
        task.cancel()
        self.do(asyncio.wait({task}))

    @rule(down_s=st.sampled_from([0.0, 30.0, 600.0, 3 * 86400.0]))
    def the_controller_is_killed(self, down_s):
        """And so the queue delivers its jobs again."""
        self.lines.dead = True
        tasks = [task for task, *_ in self.jobs.values()]
        self.do(self.fleet.killed(self.pool, *tasks))
        self.do(self.fleet.clock.sleep(min(down_s, LEASE_S)))
        if down_s >= LEASE_S:
            for pod in self.alive():
                self.fleet.fake.lose(pod)
                self.lost.add(pod.id)
            up = {line["pod"] for line in self.lines if line["state"] == "preflight"}
            for pod in self.pool.roster.alive():
                most_s = UNSEEN_S if str(pod.name) in up else TERMS.ttl_s + ENDING_S
                self.slack_s += min(down_s, most_s)
        self.do(self.fleet.clock.sleep(max(0.0, down_s - LEASE_S)))
        self.slack_s += 60.0 * MOST
        self.lines, self.pool = Lines(self.lines), None
        self.pool = self.made()
        for name, (task, *job) in list(self.jobs.items()):
            if task.cancelled() or isinstance(task.exception(), Killed):
                self.deliver(name, *job)

    @invariant()
    def never_too_many_and_never_twice(self):
        assert self.fleet.fake.most <= MOST
        assert not self.fleet.twice
        assert not [name for name, times in self.fleet.finished.items() if times > 1]

    @invariant()
    def each_pod_is_found_by_its_state(self):
        roster = self.pool.roster
        alive = [pod for pod in roster.pods.values() if pod.alive]
        for state in State:
            found = {str(pod.name) for pod in roster.of({state})}
            assert found == {str(pod.name) for pod in alive if pod.state is state}
        assert len(roster.alive()) == len(alive)

    def teardown(self):
        try:
            self.ending()
        finally:
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            if left:
                self.loop.run_until_complete(asyncio.wait(left))
            self.loop.close()
            type(self).ended += 1

    def ending(self):
        """The provider is well again, but for the ends of pods: every job ends, and then every pod."""
        self.fleet.fake.faults = {"terminate": self.fleet.fake.faults.get("terminate", [])}
        self.fleet.fake.capacity.clear()
        self.fleet.boot_s = 30.0
        tasks = [task for task, *_ in self.jobs.values()]
        if tasks:
            self.do(within(self.fleet.clock, 7 * 3600, asyncio.wait(tasks)))
        ended = [task.exception() for task in tasks]
        assert all(error is None or isinstance(error, NestedRLError) for error in ended), ended
        self.do(self.pool.close())
        assert self.alive() == []
        self.never_too_many_and_never_twice()
        # A pod whose request was never answered, and that is lost before a list shows it, can be known to nobody but the provider.
        unseen = set(self.fleet.fake.pods) - {line.get("id") for line in self.lines}
        assert unseen <= self.lost
        for pod in unseen:
            del self.fleet.fake.pods[pod]
        ledger, meter = self.fleet.fake.usd(), self.fleet.spent(self.pool)
        slack = self.slack_s / 3600 * DEAREST
        assert ledger - 1e-9 <= meter <= ledger * 1.02 + slack + 1e-9, (ledger, meter, slack)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    """Thousands of given-up pods are no news here. A journal is long sooner than elsewhere."""
    monkeypatch.setattr(pool_roster, "BULKY", 25)
    monkeypatch.setattr(Stories, "ended", 0)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_stories():
    run_state_machine_as_test(Stories, settings=settings(max_examples=40, stateful_step_count=15))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_thousand_stories():
    run_state_machine_as_test(Stories, settings=settings(max_examples=2000, stateful_step_count=15))
    assert Stories.ended >= 2000
