"""A controller that is killed, and the next one: every pod is taken over or ended, and none is made twice or forgotten."""

import asyncio

import pytest
from pool_play import A40, A5000, START, Fleet, Killed, Lines, Mortal, settled

from nested_rl.compute.pool_costs import ENDING_S, LATE_S, costs
from nested_rl.compute.pool_roster import BEAT_S, Journal, Roster, State
from nested_rl.compute.pool_terms import Terms
from nested_rl.errors import RunDirError
from nested_rl.meter import Meter
from nested_rl.types import Budget


async def _until_killed(fleet, lines, *, jobs=2, in_create=False):
    """A controller with some jobs, up to its death by its journal's last line."""
    pool = fleet.pool(A5000, A40, lines=lines, provider=Mortal(fleet, lines, in_create=in_create), max_machines=2)
    work = [asyncio.ensure_future(fleet.job(pool, f"j{n}", 100)) for n in range(jobs)]
    while not lines.dead:
        await fleet.clock.sleep(1)
        if all(task.done() for task in work):
            pool.drain()
    await fleet.killed(pool, *work)


@pytest.mark.parametrize("last", range(1, 19))
async def test_killed_after_any_line_the_next_controller_clears_up(last):
    fleet, lines = Fleet(), Lines(last=last)

    async def story():
        await _until_killed(fleet, lines)
        await fleet.clock.sleep(200)
        again = Lines(lines)
        pool = fleet.pool(A5000, A40, lines=again, provider=Mortal(fleet, again), max_machines=2)
        names = {"j0", "j1"} - fleet.handed_in
        await asyncio.gather(*(fleet.job(pool, name, 100) for name in sorted(names)))
        await pool.close()
        return pool

    pool = await fleet.clock.run(story())
    # What ended while no controller looked is paid, in the meter, until one did.
    settled(fleet, pool, most=2, slack_usd=2 * 200 / 3600 * 0.44)


async def test_killed_between_request_and_answer_the_pod_is_found_and_used():
    fleet, lines = Fleet(), Lines()

    async def story():
        await _until_killed(fleet, lines, jobs=1, in_create=True)
        assert [line["state"] for line in lines] == ["intent", "creating"]
        again = Lines(lines)
        pool = fleet.pool(A5000, A40, lines=again, provider=Mortal(fleet, again), max_machines=2)
        pods = await fleet.job(pool, "j0", 100)
        await pool.close()
        return pool, pods

    pool, pods = await fleet.clock.run(story())
    assert pods == ["pod1"]
    settled(fleet, pool, most=1)


async def test_what_ended_meanwhile_is_only_noted():
    fleet, lines = Fleet(), Lines(last=6)

    async def story():
        await _until_killed(fleet, lines, jobs=1)
        fleet.fake.lose(fleet.fake.pods["pod1"])
        pool = fleet.pool(A5000, A40, lines=(again := Lines(lines)), provider=Mortal(fleet, again))
        await pool.start()
        await fleet.clock.sleep(20)
        assert pool.roster.alive() == []
        await pool.close()
        assert [line["state"] for line in again][-2:] == ["lost", "gone"]

    await fleet.clock.run(story())


async def test_a_pod_past_its_deadline_is_ended():
    fleet, lines = Fleet(), Lines(last=6)

    async def story():
        await _until_killed(fleet, lines, jobs=1)
        await fleet.clock.sleep(Terms().ttl_s)
        pool = fleet.pool(A5000, A40, lines=(again := Lines(lines)), provider=Mortal(fleet, again))
        await pool.start()
        await fleet.clock.sleep(20)
        assert fleet.fake.alive() == []
        assert fleet.connects == ["pod1"]  # and nobody tries to get in again
        await pool.close()

    await fleet.clock.run(story())


LEASE_S = 10.0
SLACK_S = BEAT_S + LATE_S + ENDING_S
"""What may be booked beyond the lease for the time in which nobody looked."""
AWAY_S = 72 * 3600.0


async def _left_alone(fleet, lines, *, busy_s, ends=True, **more):
    """A controller that is killed while a job runs, and away for three days; its pod ends itself when its lease is over."""
    pool = fleet.pool(A5000, lines=lines, provider=Mortal(fleet, lines), alone_s=LEASE_S, **more)
    job = asyncio.ensure_future(fleet.job(pool, "long", 1e6))
    await fleet.clock.sleep(busy_s)
    lines.dead = True
    await fleet.killed(pool, job)
    await fleet.clock.sleep(LEASE_S)
    if ends:
        fleet.fake.lose(fleet.fake.pods["pod1"])
    await fleet.clock.sleep(AWAY_S)
    return Lines(lines)


def _within(fleet, usd, *, slack_s=SLACK_S):
    ledger, slack_usd = fleet.fake.usd(), slack_s / 3600 * fleet.fake.pods["pod1"].usd_per_hour
    assert ledger - 1e-9 <= usd <= ledger * 1.02 + slack_usd, (ledger, usd)


@pytest.mark.parametrize("busy_s", [60, 5 * 3600 + 77])
async def test_a_pod_that_ended_alone_costs_what_it_lived_however_late_somebody_looks(busy_s):
    fleet, lines = Fleet(), Lines()

    async def story():
        again = await _left_alone(fleet, lines, busy_s=busy_s)
        _within(fleet, sum(row.usd for row in costs(again, now=fleet.clock.now())))
        pool = fleet.pool(A5000, lines=again, provider=Mortal(fleet, again))
        pool.metered(meter := Meter(Budget(usd=5), clock=fleet.clock, write=lambda row: None), ledger="mine")
        await fleet.job(pool, "next", 10)
        await pool.close()
        _within(fleet, fleet.spent(pool))
        assert {line["ledger"] for line in again if "ledger" in line} == {"mine"}
        assert meter.spent_usd < 1

    await fleet.clock.run(story())


@pytest.mark.parametrize(("ttl_s", "called_off"), [(AWAY_S * 2, False), (3600.0, True)])
async def test_a_pod_that_lived_on_alone_costs_all_of_it(ttl_s, called_off):
    fleet, lines = Fleet(), Lines()

    async def story():
        terms = Terms(ttl_s=ttl_s, max_age_s=0.9 * ttl_s)
        again = await _left_alone(fleet, lines, busy_s=60, ends=False, terms=terms)
        pool = fleet.pool(A5000, lines=again, provider=Mortal(fleet, again), terms=terms)
        await pool.start()
        assert pool.roster.alive()[0].called_off == called_off
        await fleet.clock.sleep(60)
        await pool.close()
        settled(fleet, pool, most=1)
        assert fleet.fake.usd() > AWAY_S / 3600 * 0.1

    await fleet.clock.run(story())


async def test_a_pod_that_never_came_up_costs_no_more_than_to_its_deadline():
    fleet, lines = Fleet(boot_s=None), Lines()

    async def story():
        again = await _left_alone(fleet, lines, busy_s=60)
        most_s = Terms().ttl_s + SLACK_S
        assert sum(row.seconds for row in costs(again, now=fleet.clock.now())) <= most_s

    await fleet.clock.run(story())


async def test_a_list_that_fails_for_long_ends_no_pods_time():
    fleet, lines = Fleet(), Lines()
    pool = fleet.pool(A5000, lines=lines, alone_s=LEASE_S)

    async def story():
        job = asyncio.ensure_future(fleet.job(pool, "long", 3000))
        await fleet.clock.sleep(60)
        fleet.fake.faults["list"] = [500] * 400
        await job
        await pool.close()
        settled(fleet, pool, most=1)

    await fleet.clock.run(story())


async def test_closing_is_enough_to_end_what_another_has_left():
    fleet, lines = Fleet(), Lines(last=6)

    async def story():
        await _until_killed(fleet, lines)
        pool = fleet.pool(A5000, A40, lines=(again := Lines(lines)), provider=Mortal(fleet, again))
        await pool.close()
        assert fleet.fake.alive() == []

    await fleet.clock.run(story())


async def test_a_real_journal_says_the_same_when_it_is_read_again(tmp_path):
    fleet = Fleet()
    journal = Journal(tmp_path / "pods.jsonl")
    pool = fleet.pool(A5000, lines=journal)

    async def story():
        await fleet.job(pool, "one", 100)
        await pool.close()

    await fleet.clock.run(story())
    again = Roster(journal, clock=fleet.clock)
    assert [pod.state for pod in again.pods.values()] == [State.GONE]
    assert again.lines() == pool.roster.lines()
    journal.release()


async def test_a_journal_that_cannot_be_written_makes_no_pod_and_ends_those_there_are(caplog):
    fleet, lines = Fleet(), Lines()
    pool = fleet.pool(A5000, lines=lines)

    def full(row, *, sync):
        raise RunDirError("pods.jsonl: No space left on device")

    async def story():
        job = asyncio.ensure_future(fleet.job(pool, "one", 100))
        await fleet.clock.sleep(60)
        lines.append = full
        with pytest.raises(RunDirError):
            await job
        with pytest.raises(RunDirError):
            await fleet.job(pool, "two", 100)
        await pool.close()

    await fleet.clock.run(story())
    assert fleet.fake.alive() == []
    assert "which the journal cannot tell" in caplog.text


def test_states_change_as_they_may_and_in_no_other_way():
    fleet = Fleet()
    roster = Roster(Lines(), clock=fleet.clock)
    pool = fleet.pool()
    pod = pool.roster.intend(_name(), A40, usd_per_hour=0.4)
    with pytest.raises(RuntimeError, match="intent does not become busy"):
        roster.move(pod, State.BUSY)


def test_a_journal_of_something_else_is_refused():
    with pytest.raises(RunDirError, match="no pod of ours"):
        Roster(Lines([{"t": START, "pod": "web-server", "state": "intent"}]), clock=Fleet().clock)


def test_dead_controllers_write_nothing():
    lines = Lines(last=1)
    with pytest.raises(Killed):
        lines.append({}, sync=True)


def _name():
    from nested_rl.compute.pool_name import PodName

    return PodName(run="abcd1234", slot=0, nonce="aaaaaa", deadline=1)
