"""Simulated runs: what can be reckoned by hand comes out; pods, faults and staleness do what they should."""

import asyncio
import logging

import pytest
from plan_play import A40, CALM, R4090, fixed, pods, setting, told, told_pods

from nested_rl.clock import VirtualClock
from nested_rl.errors import NestedRLError, SupervisionError
from nested_rl.plan import Assumptions
from nested_rl.plan.fleet import PlanQueue
from nested_rl.plan.simulate import simulate
from nested_rl.types import JobSpec, Task


@pytest.mark.parametrize(("machines", "step_s"), [(1, 410), (2, 210), (4, 110), (9, 110)])
def test_one_machine_after_the_other_takes_as_long_as_it_takes(machines, step_s):
    found = simulate(setting(machines=machines, usd_per_hour=0.36), told())
    assert found.wall_clock_s == pytest.approx(3 * step_s)
    assert found.jobs == found.episodes == 12
    assert found.machine_s["busy"] == pytest.approx(1200)
    assert found.pods_usd == pytest.approx(0.12)
    assert found.utilisation == pytest.approx(1200 / (3 * step_s * machines))


def test_off_policy_sampling_hides_updates_behind_jobs():
    on, off = (simulate(setting(max_steps_off_policy=k, steps=5), told()).wall_clock_s for k in (0, 1))
    assert on == pytest.approx(5 * 410)
    assert off == pytest.approx(5 * 400 + 10)


def test_attempts_cost_the_agents_time_and_tokens():
    turns = {"turns": 2.0, "turn_s": 5.0, "prompt_tokens": 10.0, "sample_tokens": 3.0, "train_tokens": 7.0}
    found = simulate(setting(machines=4), told(valid=0.0, **turns))
    assert found.jobs == 0
    assert found.spent.attempts == 3 * 12
    assert found.spent.sample_tokens == pytest.approx(0.3 * found.spent.prompt_tokens)
    assert found.spent.train_tokens == pytest.approx(7 * 12)
    assert 600 < found.spent.prompt_tokens < 850  # 36 attempts of 20, more or less


def test_an_agent_that_gives_up_hands_in_no_more():
    found = simulate(setting(machines=4, steps=20), told(tries=0.5, valid=0.0, turns=1.0, turn_s=1.0))
    assert found.jobs == 0
    assert 1.5 * 80 < found.spent.attempts < 2 * 80  # 1 + 1/2 + 1/4 stretches of work an episode, one with each chance


def test_the_same_seed_is_the_same_run_and_another_is_not():
    asked, varied = pods(machines=3, steps=4), told_pods(job_spread=0.5, lost_per_hour=0.5, refused=0.3)
    one, again, other = (simulate(asked, varied, seed=seed) for seed in (1, 1, 2))
    assert one == again
    assert one.wall_clock_s != other.wall_clock_s


def test_a_plan_can_be_made_where_an_event_loop_runs():
    async def here():
        return simulate(setting(), told())

    assert asyncio.run(here()) == simulate(setting(), told())


def test_pods_are_paid_from_the_request_to_the_end():
    found = simulate(pods(machines=2), told_pods())
    seconds = found.machine_s
    assert found.pods == 2
    assert found.jobs == 12
    assert seconds["busy"] == pytest.approx(1200)
    assert 2 * 30 <= seconds["provision"] <= 2 * 120  # boots vary around 60 s, and are seen at the next look
    assert seconds["preflight"] == pytest.approx(60)
    assert found.pods_usd == pytest.approx(0.36 * found.machine_hours)
    assert found.wall_clock_s > 3 * 210 + 90


def test_the_pool_takes_the_kind_on_which_a_job_costs_least():
    kinds = {("*", "1x NVIDIA A40"): 100.0, ("*", "1x NVIDIA GeForce RTX 4090"): 20.0}
    fast = told_pods(job_s={place: fixed(seconds, "s") for place, seconds in kinds.items()})
    found = simulate(pods(A40, R4090, machines=1, job_timeout_s=600.0), fast)
    assert found.pods_usd == pytest.approx(0.72 * found.machine_hours)  # twice the price, a fifth of the time
    assert found.machine_s["busy"] == pytest.approx(12 * 20)


def test_capacity_bounds_a_kind_whatever_may_be_rented():
    found = simulate(pods(machines=8), told_pods(capacity={A40.name: 2}))
    assert found.pods == 2
    assert found.jobs == 12


def test_lost_pods_lose_their_jobs_and_every_job_has_one_result():
    found = simulate(pods(machines=4, steps=6), told_pods(lost_per_hour=4.0))
    assert found.jobs == 24
    assert found.deliveries > found.jobs
    assert found.pods > 4


def test_pods_that_never_come_up_are_paid_and_replaced():
    good, bad = (simulate(pods(machines=4), told_pods(boot_failure=share)) for share in (0.0, 0.3))
    assert good.jobs == bad.jobs == 12
    assert bad.machine_s["provision"] > 2 * good.machine_s["provision"]


def test_pods_that_fail_together_do_not_stop_a_pool_whose_other_pods_came_up():
    """All of them were asked for at once, and reach the deadline of a boot at once."""
    found = simulate(pods(machines=60, steps=3, group_size=60), told_pods(boot_failure=0.3, job_s=700.0))
    assert found.jobs == 180
    assert found.pods > 60  # what failed was replaced


def test_where_no_machine_is_to_be_had_the_simulation_ends_and_says_so():
    with pytest.raises(SupervisionError, match="no machines are to be had"):
        simulate(pods(machines=1, steps=1), told_pods(refused=1.0))


def test_a_run_that_would_stop_by_itself_stops_in_the_simulation_too():
    with pytest.raises(NestedRLError, match="failed"):
        simulate(setting(machines=2, steps=9), told(job_failure=1.0))


def test_what_goes_wrong_in_a_simulation_is_not_logged(caplog):
    with caplog.at_level(logging.DEBUG):
        simulate(pods(machines=2), told_pods(boot_failure=0.4, refused=0.4))
    assert not [one for one in caplog.records if one.name.startswith("nested_rl")]
    assert logging.getLogger("nested_rl").level == logging.NOTSET


def test_equal_jobs_are_run_once():
    found = simulate(setting(machines=4, steps=40), told(distinct=0.5))
    assert 0.4 < found.jobs / found.episodes < 0.6


def test_dropping_what_is_stale_costs_more_jobs():
    asked = {"machines": 8, "steps": 30, "groups_per_step": 2, "max_steps_off_policy": 1, "order": "ready"}
    keep, drop = (simulate(setting(stale=stale, **asked), told(job_spread=1.0)) for stale in ("keep", "drop"))
    assert keep.dropped == 0
    assert drop.dropped > 0
    assert drop.jobs > keep.jobs == 240
    assert drop.trained_jobs == keep.trained_jobs == 240


def test_equal_jobs_are_trained_on_once():
    found = simulate(setting(machines=4, steps=40), told(distinct=0.5))
    assert found.trained_jobs == found.jobs < found.episodes


def test_the_stalest_group_is_told_beside_the_means_of_the_steps():
    asked = {"machines": 8, "steps": 30, "groups_per_step": 2, "max_steps_off_policy": 1, "order": "ready"}
    keep, drop = (simulate(setting(stale=stale, **asked), told(job_spread=1.0)) for stale in ("keep", "drop"))
    assert drop.staleness_max == 1
    assert keep.staleness_max > max(keep.staleness) > 1


def test_assumptions_at_their_dearer_end_cost_more():
    asked, stated = pods(machines=2, steps=2), Assumptions.stated("full")
    stated = stated.with_values(usd_per_hour={A40.name: 0.4}, **CALM)
    low, mid, high = (simulate(asked, stated, end=end) for end in ("low", "mid", "high"))
    assert low.pods_usd < mid.pods_usd < high.pods_usd
    assert low.wall_clock_s < mid.wall_clock_s < high.wall_clock_s


# ---------------------------------------------------------------- the clock and the queue


def test_a_sealed_clock_wakes_everybody_in_the_order_of_their_time():
    clock, told = VirtualClock(), []

    async def one(name, *naps):
        for nap in naps:
            await clock.sleep(nap)
            told.append((clock.monotonic(), name))

    async def all_of_them():
        await asyncio.gather(one("a", 3, 3), one("b", 2, 2, 2), one("c", 0, 1))

    asyncio.run(clock.run(all_of_them(), sealed=True))
    assert told == [(0, "c"), (1, "c"), (2, "b"), (3, "a"), (4, "b"), (6, "a"), (6, "b")]


def test_on_a_sealed_clock_work_that_nobody_wakes_is_told():
    async def never():
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="nobody who would wake them"):
        asyncio.run(VirtualClock().run(never(), sealed=True))


async def test_an_idle_worker_of_a_plan_is_woken_by_a_job():
    queue = PlanQueue(clock=VirtualClock())
    first, second = (asyncio.ensure_future(queue.lease(name, ttl_s=9)) for name in ("a", "b"))
    await asyncio.sleep(0)
    spec = JobSpec(task=Task(id="t", family="f", difficulty=1), files={}, digest="d", base="b", scale="nano")
    await queue.put(spec, key="k")
    job = await first
    assert job.owner == "a"
    assert not second.done()
    await queue.release(job, error="lost")
    assert (await second).delivery == 2
