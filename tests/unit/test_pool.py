"""The pool against the strict fake: what it rents, keeps and ends, and what it makes of everything that can go wrong."""

import asyncio

import pytest
from pool_play import A40, A5000, ANY, BIG, R4090, START, Fleet, Lines, run, settled, states

from nested_rl.compute.pool import Quarantined
from nested_rl.compute.pool_name import PodName
from nested_rl.compute.pool_terms import Terms
from nested_rl.errors import BudgetExceeded, InfraFault, SettingsError


async def test_a_pod_goes_through_its_states_and_each_is_journalled():
    fleet, lines = Fleet(), Lines()
    pool = fleet.pool(lines=lines)
    (pod,) = await run(fleet, fleet.job(pool, "one", 100), pool)
    assert states(lines) == [
        ["intent", "creating", "booting", "preflight", "ready", "busy", "ready", "draining", "terminating", "gone"]
    ]
    assert fleet.fake.pods[pod].body["name"] == lines[0]["pod"]
    assert PodName.read(lines[0]["pod"]).deadline == int(START + Terms().ttl_s)
    settled(fleet, pool, most=1)


async def test_each_line_is_there_before_its_request():
    fleet, lines, seen = Fleet(), Lines(), []
    handle = fleet.fake.handle

    def watched(method, path, *rest):
        seen.append((method, lines[-1]["state"] if lines else None))
        return handle(method, path, *rest)

    fleet.fake.handle = watched
    pool = fleet.pool(lines=lines)
    await run(fleet, fleet.job(pool, "one", 100), pool)
    assert {state for method, state in seen if method == "POST"} == {"creating"}
    assert {state for method, state in seen if method == "DELETE"} == {"terminating"}


async def test_sixteen_pods_forty_jobs_two_lost_and_one_frozen():
    fleet = Fleet()
    fleet.fake.faults["create"] = ["nocap", 500, "500-after", 429]
    pool = fleet.pool(max_machines=16)

    async def trouble():
        await fleet.clock.sleep(200)
        for name in ("job3", "job7"):
            fleet.fake.lose(fleet.fake.pods[fleet.running[name]])
        fleet.frozen.add(fleet.running["job9"])

    async def batch():
        hurt = asyncio.ensure_future(trouble())
        jobs = [fleet.job(pool, f"job{n}", 300 + 37 * n % 500) for n in range(40)]
        pods = await asyncio.gather(*jobs)
        await hurt
        return pods

    pods = await run(fleet, batch(), pool)
    assert [len(pods[n]) for n in (3, 7, 9)] == [2, 2, 2]
    assert sum(len(p) for p in pods) == 43
    settled(fleet, pool, most=16)


async def test_pods_stay_warm_between_jobs_and_go_when_idle():
    fleet = Fleet()
    pool = fleet.pool()

    async def work():
        first = await fleet.job(pool, "one", 10)
        await fleet.clock.sleep(100)
        second = await fleet.job(pool, "two", 10)
        assert (first, len(fleet.fake.alive())) == (second, 1)
        await fleet.clock.sleep(Terms().idle_s + 10)
        assert fleet.fake.alive() == []

    await run(fleet, work(), pool)


async def test_one_list_an_interval_however_many_pods():
    fleet = Fleet()
    pool = fleet.pool(max_machines=8)
    await run(fleet, asyncio.gather(*(fleet.job(pool, f"j{n}", 1000) for n in range(8))), pool)
    lists = sum(method == "GET" and path == "/v2/pods" for method, path, _ in fleet.fake.requests)
    gets = sum(method == "GET" and path.startswith("/v2/pods/pod") for method, path, _ in fleet.fake.requests)
    assert lists <= (fleet.clock.now() - START) / Terms().look_s + 2
    assert gets == 8  # one for each pod, at its end


async def test_no_more_pods_than_machines_and_none_that_are_not_needed():
    fleet = Fleet()
    pool = fleet.pool(max_machines=3)
    await run(fleet, asyncio.gather(*(fleet.job(pool, f"j{n}", 100) for n in range(9))), pool)
    assert fleet.fake.most == 3
    assert len(fleet.fake.pods) == 3


@pytest.mark.parametrize("fault", ["500-after", "hang-after"])
async def test_a_pod_that_nobody_knows_of_is_found_by_its_name(fault):
    fleet = Fleet()
    fleet.fake.faults["create"] = [fault]
    pool = fleet.pool()
    await run(fleet, fleet.job(pool, "one", 100), pool)
    assert len(fleet.fake.pods) == 1
    settled(fleet, pool, most=1)


@pytest.mark.parametrize("fault", [500, "hang"])
async def test_only_after_a_minute_without_it_a_new_name_is_tried(fault):
    fleet, lines = Fleet(), Lines()
    fleet.fake.faults["create"] = [fault]
    pool = fleet.pool(A40, lines=lines)
    await run(fleet, fleet.job(pool, "one", 100), pool)
    names = [body["name"] for method, path, body in fleet.fake.requests if (method, path) == ("POST", "/v2/pods")]
    assert len(set(names)) == len(names) == 2
    gone = next(line["t"] for line in lines if line["state"] == "gone")
    assert gone - START >= Terms().find_s
    settled(fleet, pool, most=1)


async def test_a_pod_that_appears_after_all_is_ended_and_paid():
    fleet = Fleet()
    fleet.fake.faults["create"] = ["500-after"]
    fleet.fake.faults["list"] = ["empty"] * 14
    pool = fleet.pool(A40)

    async def work():
        await fleet.job(pool, "one", 500)
        await fleet.clock.sleep(10)

    await run(fleet, work(), pool)
    assert len(fleet.fake.pods) == 2
    settled(fleet, pool, most=2)


@pytest.mark.parametrize("fault", ["empty", "partial", "stale", 500])
async def test_one_odd_list_loses_no_pod(fault):
    fleet = Fleet()
    pool = fleet.pool()

    async def work():
        job = asyncio.ensure_future(fleet.job(pool, "one", 300))
        await fleet.clock.sleep(100)
        fleet.fake.faults["list"] = [fault, fault]
        return await job

    assert len(await run(fleet, work(), pool)) == 1
    settled(fleet, pool, most=1)


async def test_no_capacity_means_another_kind_and_a_cool_down():
    fleet = Fleet()
    fleet.fake.capacity[A5000.gpu, "COMMUNITY"] = 0
    pool = fleet.pool(A5000, A40)
    await run(fleet, fleet.job(pool, "one", 300), pool)
    asked = [body["gpu"]["id"] for method, path, body in fleet.fake.requests if (method, path) == ("POST", "/v2/pods")]
    assert asked == [A5000.gpu, A40.gpu]


async def test_cool_downs_double_and_end():
    fleet = Fleet()
    fleet.fake.capacity[A40.gpu, "SECURE"] = 0
    pool = fleet.pool(A40)

    async def work():
        job = asyncio.ensure_future(fleet.job(pool, "one", 10))
        await fleet.clock.sleep(3600)
        fleet.fake.capacity.clear()
        await job

    await run(fleet, work(), pool)
    posts = sum(method == "POST" for method, _, _ in fleet.fake.requests)
    assert 8 <= posts <= 14  # 30 s, 1, 2, 4, 8 min, then about every ten minutes


async def test_the_cheapest_for_a_job_and_only_what_fits():
    fleet = Fleet()
    pool = fleet.pool(A5000, A40, R4090, job_s={A5000.gpu: 600, A40.gpu: 300, R4090.gpu: 900})

    async def work():
        a, b = await asyncio.gather(fleet.job(pool, "a", 500), fleet.job(pool, "b", 500, BIG))
        return a + b

    await run(fleet, work(), pool)
    bought = [pod.body["gpu"]["id"] for pod in fleet.fake.pods.values()]
    assert bought == [A40.gpu, A40.gpu]  # 0.32 × 600 > 0.44 × 300 < 0.34 × 900


async def test_a_free_pod_makes_room_for_a_kind_that_is_needed():
    fleet = Fleet()
    pool = fleet.pool(R4090, A40, max_machines=1)

    async def work():
        await fleet.job(pool, "small", 50)
        await fleet.job(pool, "big", 50, BIG)

    await run(fleet, work(), pool)
    assert [pod.body["gpu"]["id"] for pod in fleet.fake.pods.values()] == [R4090.gpu, A40.gpu]
    settled(fleet, pool, most=1)


async def test_a_wrong_request_is_made_once():
    fleet = Fleet()
    fleet.fake.faults["create"] = [422] * 5
    pool = fleet.pool()
    with pytest.raises(SettingsError, match="422"):
        await run(fleet, fleet.job(pool, "one", 10), pool)
    assert sum(method == "POST" for method, _, _ in fleet.fake.requests) == 1


async def test_when_every_kind_is_rejected_the_request_is_wrong():
    fleet = Fleet()
    fleet.fake.faults["create"] = [400] * 20
    pool = fleet.pool()
    with pytest.raises(SettingsError, match="rejects"):
        await run(fleet, fleet.job(pool, "one", 10), pool)
    assert sum(method == "POST" for method, _, _ in fleet.fake.requests) == 3


async def test_without_money_no_more_pods_but_jobs_go_on():
    fleet = Fleet()
    pool = fleet.pool()

    async def work():
        first = asyncio.ensure_future(fleet.job(pool, "one", 300))
        await fleet.clock.sleep(100)
        fleet.fake.faults["create"] = [402] * 5
        second = asyncio.ensure_future(fleet.job(pool, "two", 10))
        third = asyncio.ensure_future(fleet.job(pool, "three", 10))
        return await asyncio.gather(first, second, third)

    pods = await run(fleet, work(), pool)
    assert len({pod for one in pods for pod in one}) == 1  # all on the first one
    with pytest.raises(BudgetExceeded, match="balance"):
        await run(fleet, fleet.job(pool, "four", 10), pool)


async def test_a_refused_kind_is_left_alone_for_long():
    fleet = Fleet()
    fleet.fake.faults["create"] = [403]
    pool = fleet.pool(R4090, A40)

    async def work():
        await fleet.job(pool, "one", 1000)

    await run(fleet, work(), pool)
    assert [pod.body["gpu"]["id"] for pod in fleet.fake.pods.values()] == [A40.gpu]


async def test_two_refused_logins_stop_it():
    fleet = Fleet()
    fleet.closed_to_us = True
    pool = fleet.pool()
    with pytest.raises(SettingsError, match="refused the login"):
        await run(fleet, fleet.job(pool, "one", 10), pool)
    assert len(fleet.fake.pods) == 2
    settled(fleet, pool, most=2)


async def test_a_pod_that_never_runs_is_given_up():
    fleet = Fleet(boot_s=None)
    pool = fleet.pool()

    async def work():
        job = asyncio.ensure_future(fleet.job(pool, "one", 10))
        await fleet.clock.sleep(800)
        fleet.boot_s = 30.0
        return await job

    (pod,) = await run(fleet, work(), pool)
    assert pod == "pod2"
    settled(fleet, pool, most=1)


async def test_a_pod_without_a_port_is_given_up_sooner():
    fleet = Fleet()
    fleet.fake.boot = lambda pod: fleet.fake.run(pod, ssh=None)
    pool = fleet.pool()

    async def work():
        job = asyncio.ensure_future(fleet.job(pool, "one", 10))
        await fleet.clock.sleep(200)
        fleet.fake.boot = fleet.boot
        return await job

    (pod,) = await run(fleet, work(), pool)
    assert pod == "pod2"
    first = fleet.fake.pods["pod1"]
    assert Terms().ssh_s <= first.ended_at - first.created_at <= Terms().ssh_s + 20


async def test_what_was_not_rented_never_joins():
    fleet = Fleet()
    fleet.unfit.add("pod1")
    pool = fleet.pool()
    assert await run(fleet, fleet.job(pool, "one", 10), pool) == ["pod2"]
    assert {row.kind for row in pool.costs() if row.pod in _named(fleet, "pod1")} == {"provision", "preflight"}


async def test_six_pods_in_a_row_that_do_not_come_up_stop_it():
    fleet = Fleet()
    fleet.unfit |= {f"pod{n}" for n in range(1, 200)}
    pool = fleet.pool()
    with pytest.raises(SettingsError, match="in a row did not come up"):
        await run(fleet, fleet.job(pool, "one", 10), pool)
    assert len(fleet.connects) == 6  # not counting those at a place that is left alone meanwhile


async def test_a_data_centre_where_two_went_wrong_is_left_alone():
    fleet = Fleet()
    pool = fleet.pool()
    boot = fleet.fake.boot

    def placed(pod):
        pod.data_center = "EU-BAD-1" if len(fleet.fake.pods) <= 3 else "EU-RO-1"
        boot(pod)

    fleet.fake.boot = placed
    fleet.unfit |= {"pod1", "pod2", "pod3"}
    assert await run(fleet, fleet.job(pool, "one", 10), pool) == ["pod4"]
    assert fleet.connects == ["pod1", "pod2", "pod4"]  # the third was not even connected to


async def test_a_container_that_starts_again_and_again_is_given_up():
    fleet = Fleet()
    pool = fleet.pool()

    async def work():
        job = asyncio.ensure_future(fleet.job(pool, "one", 500))
        await fleet.clock.sleep(100)
        for _ in range(2):
            fleet.fake.pods["pod1"].started_at = fleet.clock.now()
            await fleet.clock.sleep(12)
        return await job

    assert await run(fleet, work(), pool) == ["pod1", "pod2"]
    settled(fleet, pool, most=2)


@pytest.mark.parametrize("faults", [["accepted"] * 4, [500, 429, 500], [401]])
async def test_the_end_is_asked_for_until_it_is_confirmed(faults):
    fleet = Fleet()
    fleet.fake.faults["terminate"] = list(faults)
    pool = fleet.pool()
    await run(fleet, fleet.job(pool, "one", 100), pool)
    assert sum(method == "DELETE" for method, _, _ in fleet.fake.requests) == len(faults) + 1
    settled(fleet, pool, most=1)


async def test_a_job_under_which_two_pods_were_lost_gets_no_third():
    fleet = Fleet()
    pool = fleet.pool()

    async def work():
        job = asyncio.ensure_future(fleet.job(pool, "poison", 500))
        for _ in range(2):
            await fleet.clock.sleep(100)
            fleet.fake.lose(fleet.fake.pods[fleet.running["poison"]])
        with pytest.raises(Quarantined, match="2 pods were lost under job poison"):
            await job
        return await fleet.job(pool, "other", 10)

    await run(fleet, work(), pool)
    settled(fleet, pool, most=2, slack_usd=2 * 5 / 3600 * 0.44)


async def test_a_pod_is_worn_out_by_jobs():
    fleet = Fleet()
    pool = fleet.pool(terms=Terms(max_jobs=2))

    async def work():
        return [await fleet.job(pool, f"j{n}", 10) for n in range(3)]

    assert await run(fleet, work(), pool) == [["pod1"], ["pod1"], ["pod2"]]


async def test_a_pod_is_worn_out_by_age():
    fleet = Fleet()
    pool = fleet.pool(terms=Terms(max_age_s=3000, ttl_s=6000))

    async def work():
        return [await fleet.job(pool, name, seconds) for name, seconds in (("a", 2000), ("b", 1100), ("c", 10))]

    assert await run(fleet, work(), pool) == [["pod1"], ["pod1"], ["pod2"]]


async def test_a_pod_whose_price_changes_while_it_runs_is_paid_at_each():
    fleet = Fleet()
    pool = fleet.pool(A40)

    async def work():
        job = asyncio.ensure_future(fleet.job(pool, "one", 1000))
        await fleet.clock.sleep(500)
        before = fleet.spent(pool)
        fleet.fake.pods["pod1"].usd_per_hour = 3.6
        await job
        assert fleet.spent(pool) - before == pytest.approx(0.001 * (1000 + 35 - 500), abs=0.001 * 10)
        assert max(row.usd / row.seconds for row in pool.costs()) == pytest.approx(0.001)
        await pool.close()

    await fleet.clock.run(work())


async def test_a_machine_that_cannot_be_used_again_is_not():
    fleet = Fleet()
    pool = fleet.pool()

    async def work():
        async with pool.machine(ANY) as machine:
            machine.good = False
        return await fleet.job(pool, "next", 10)

    assert await run(fleet, work(), pool) == ["pod2"]


async def test_a_recheck_between_jobs_sends_a_pod_away():
    fleet = Fleet()

    async def recheck(machine, candidate):
        if machine.id == "pod1":
            raise InfraFault("4 GiB of disk left")

    pool = fleet.pool(recheck=recheck)

    async def work():
        return [await fleet.job(pool, name, 10) for name in ("a", "b", "c")]

    assert await run(fleet, work(), pool) == [["pod1"], ["pod2"], ["pod2"]]


async def test_foreign_pods_are_left_alone():
    fleet = Fleet()
    pool = fleet.pool()
    others = []

    async def work():
        other = fleet.pool()
        other._run_name = "zzzz9999"
        await fleet.job(other, "theirs", 10)
        others.extend(pod.id for pod in fleet.fake.alive())
        await fleet.job(pool, "ours", 10)
        await pool.close()
        assert [pod.id for pod in fleet.fake.alive()] == others == ["pod1"]
        await other.close()
        assert fleet.fake.usd() <= fleet.spent(pool) + fleet.spent(other)

    await fleet.clock.run(work())


async def test_a_waiter_that_gives_up_leaves_nothing_behind():
    fleet = Fleet()
    pool = fleet.pool(max_machines=1)

    async def work():
        waiting = asyncio.ensure_future(fleet.job(pool, "a", 100))
        await fleet.clock.sleep(20)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return await fleet.job(pool, "b", 100)

    assert await run(fleet, work(), pool) == ["pod1"]


def _named(fleet, *ids):
    return {fleet.fake.pods[one].name for one in ids}
