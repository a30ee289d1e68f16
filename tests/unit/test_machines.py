"""`machines list` and `reap`: what is rented in our name, on a virtual clock, against the strict fake of the provider's API."""

from __future__ import annotations

import asyncio
import functools
import json

import pytest
from pool_play import A40, KEY, R4090, Direct, Fleet, Killed, Lines, settled, transport

from nested_rl.clock import VirtualClock
from nested_rl.compute.pool_name import PodName
from nested_rl.compute.pool_roster import Journal
from nested_rl.compute.pool_terms import Terms
from nested_rl.compute.provider import Order, ProviderError
from nested_rl.compute.reaping import JOURNAL, reap, still_there, survey
from nested_rl.compute.runpod_rest import RunpodRest
from nested_rl.rundir import RunDir


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "runpod"


class Mortal(Journal):
    """The journal of a controller that may die."""

    dead = False

    def append(self, row, *, sync=False):
        if self.dead:
            raise Killed
        super().append(row, sync=sync)


def provider(fleet):
    return Direct(fleet, Lines())


def pool_in(folder, fleet, **more):
    journal = Mortal(folder / JOURNAL)
    return fleet.pool(R4090, lines=journal, provider=Direct(fleet, journal), **more)


async def close(pool):
    await pool.close()
    pool.roster._lines.release()


async def stranger(fleet, name="my-notebook"):
    return await provider(fleet).create(Order(name=name, candidate=A40, image="image:tag"))


async def killed(fleet, folder, *, jobs=2, after_s=100.0):
    """A controller that was killed while its jobs ran: the pool, for its figures."""
    pool = pool_in(folder, fleet)
    running = [asyncio.ensure_future(fleet.job(pool, f"j{n}", 10_000)) for n in range(jobs)]
    await fleet.clock.sleep(after_s)
    journal = pool.roster._lines
    journal.dead = True
    await fleet.killed(pool, *running)
    journal.release()
    return pool


def test_the_pods_of_a_killed_controller_are_ended_and_its_journal_tells_so(folder):
    fleet = Fleet()

    async def work():
        await killed(fleet, folder)
        other = await stranger(fleet)
        held = await survey(provider(fleet), folder, clock=fleet.clock)
        assert [(one.owner, one.state, one.status, one.due) for one in held] == [
            ("ended", "busy", "running", "its controller has ended")
        ] * 2
        assert all(one.usd_per_hour == 0.34 and one.age_s > 60 and one.left_s > 11 * 3600 for one in held)
        ended = await reap(provider(fleet), folder, clock=fleet.clock)
        assert [(one.why, one.trouble) for one in ended] == [("its controller has ended", "")] * 2
        assert [pod.id for pod in fleet.fake.alive()] == [other.id]
        assert await reap(provider(fleet), folder, clock=fleet.clock) == []
        fleet.fake.lose(fleet.fake.pods.pop(other.id))
        again = pool_in(folder, fleet)
        assert {pod.state for pod in again.roster.pods.values()} == {"gone"}
        settled(fleet, again, most=3)
        await close(again)

    asyncio.run(fleet.clock.run(work()))


def test_the_pods_of_a_controller_that_runs_are_left_alone(folder):
    fleet = Fleet()

    async def work():
        pool = pool_in(folder, fleet, terms=Terms(ttl_s=7200.0, max_age_s=1e9))
        job = asyncio.ensure_future(fleet.job(pool, "long", 8000))
        await fleet.clock.sleep(100)
        (held,) = await survey(provider(fleet), folder, clock=fleet.clock)
        assert (held.owner, held.state, held.due) == ("running", "busy", "")
        await fleet.clock.sleep(7300)  # past its deadline too: its controller sees to it
        assert await reap(provider(fleet), folder, clock=fleet.clock) == []
        assert len(fleet.fake.alive()) == 1
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)
        await close(pool)

    asyncio.run(fleet.clock.run(work()))


def test_a_controller_that_is_being_started_again_gets_its_pods(folder):
    fleet = Fleet()

    async def work():
        await killed(fleet, folder)
        reaping = asyncio.ensure_future(reap(provider(fleet), folder, clock=fleet.clock, wait_s=60))
        await fleet.clock.sleep(30)
        pool = pool_in(folder, fleet)
        await pool.start()
        assert await reaping == []
        assert len(fleet.fake.alive()) == 2
        await close(pool)
        settled(fleet, pool, most=2)

    asyncio.run(fleet.clock.run(work()))


def test_a_pod_of_another_computer_is_ended_when_its_time_is_over_and_not_before(folder):
    fleet = Fleet()

    async def work():
        name = PodName(run="zzzz9999", slot=0, nonce="abcdef", deadline=int(fleet.clock.now()) + 600)
        await stranger(fleet, str(name))
        (held,) = await survey(provider(fleet), folder, clock=fleet.clock)
        assert (held.owner, held.state, held.due, held.gpu) == ("elsewhere", "", "", "1x NVIDIA A40")
        assert await reap(provider(fleet), folder, clock=fleet.clock) == []
        await fleet.clock.sleep(601)
        (ended,) = await reap(provider(fleet), folder, clock=fleet.clock)
        assert ended.why == "past its deadline by 1 s"
        assert fleet.fake.alive() == []
        assert not folder.exists()

    asyncio.run(fleet.clock.run(work()))


def test_a_pod_whose_create_was_never_answered_is_found_by_its_name(folder):
    fleet = Fleet()

    async def work():
        fleet.fake.faults["create"] = ["500-after"]
        fleet.fake.faults["list"] = [503] * 9
        await killed(fleet, folder, jobs=1, after_s=20)
        fleet.fake.faults.clear()
        (held,) = await survey(provider(fleet), folder, clock=fleet.clock)
        assert (held.state, held.id) == ("creating", "pod1")
        (ended,) = await reap(provider(fleet), folder, clock=fleet.clock)
        assert (ended.id, ended.trouble) == ("pod1", "")
        again = pool_in(folder, fleet)
        settled(fleet, again, most=1)
        await close(again)

    asyncio.run(fleet.clock.run(work()))


def test_all_of_them_go_when_that_is_asked_for(folder):
    fleet = Fleet()

    async def work():
        pool = pool_in(folder, fleet)
        job = asyncio.ensure_future(fleet.job(pool, "long", 8000, tries=1))
        other = await stranger(fleet)
        await fleet.clock.sleep(100)
        (ended,) = await reap(provider(fleet), folder, clock=fleet.clock, everything=True)
        assert ended.why == "asked for"
        assert [pod.id for pod in fleet.fake.alive()] == [other.id]
        await asyncio.gather(job, return_exceptions=True)
        await close(pool)

    asyncio.run(fleet.clock.run(work()))


@pytest.mark.parametrize("fault", ["accepted", 500])
def test_what_cannot_be_ended_is_told_and_tried_again_the_next_time(folder, fault):
    fleet = Fleet()

    async def work():
        await killed(fleet, folder, jobs=1)
        fleet.fake.faults["terminate"] = [fault] * 99
        ended = await reap(provider(fleet), folder, clock=fleet.clock, patience_s=30)
        assert [bool(one.trouble) for one in still_there(ended)] == [True]
        assert len(fleet.fake.alive()) == 1
        fleet.fake.faults.clear()
        ended = await reap(provider(fleet), folder, clock=fleet.clock, patience_s=30)
        assert len(ended) == 1
        assert still_there(ended) == []
        assert fleet.fake.alive() == []

    asyncio.run(fleet.clock.run(work()))


def test_without_a_list_nothing_is_ended(folder):
    fleet = Fleet()

    async def work():
        await killed(fleet, folder, jobs=1)
        fleet.fake.faults["list"] = [500]
        with pytest.raises(ProviderError):
            await reap(provider(fleet), folder, clock=fleet.clock)
        assert len(fleet.fake.alive()) == 1

    asyncio.run(fleet.clock.run(work()))


# ---------------------------------------------------------------- the commands


@pytest.fixture
def account(monkeypatch):
    """The fake account behind the real provider, as the commands make it."""
    fleet = Fleet(clock=VirtualClock(start=1_790_000_000.0), boot_s=None)
    made = functools.partial(RunpodRest, transport=transport(fleet.fake))
    monkeypatch.setattr("nested_rl.compute.runpod_rest.RunpodRest", made)
    monkeypatch.setenv("RUNPOD_API_KEY", KEY)
    return fleet


def overdue(fleet):
    """A pod of ours from long ago."""
    asyncio.run(stranger(fleet, str(PodName(run="zzzz9999", slot=3, nonce="abcdef", deadline=1_700_000_000))))


def test_list_and_reap_on_the_command_line(told, account, folder):
    overdue(account)
    asyncio.run(stranger(account))
    code, out, _ = told("machines", "list", "--folder", folder)
    assert code == 0
    assert "nrl-zzzz9999-3-abcdef-" in out
    assert "past its deadline" in out
    assert "my-notebook" not in out
    assert out.splitlines()[-1] == "1 pods with our names, $0.44 an hour"
    code, out, _ = told("machines", "list", "--folder", folder, "--json")
    (row,) = json.loads(out)
    assert (row["run"], row["owner"], row["id"]) == ("zzzz9999", "elsewhere", "pod1")
    code, out, _ = told("machines", "reap", "--folder", folder, "--json")
    assert code == 0
    assert [(row["id"], row["trouble"]) for row in json.loads(out)] == [("pod1", "")]
    assert [pod.name for pod in account.fake.alive()] == ["my-notebook"]
    assert told("machines", "reap", "--folder", folder)[:2] == (0, "0 ended, 0 still there\n")


def test_reap_fails_aloud_when_a_pod_stays(told, account, folder):
    overdue(account)
    account.fake.faults["terminate"] = [500] * 9
    code, out, _ = told("machines", "reap", "--folder", folder, "--patience-s", "0")
    assert code == 1
    assert "500" in out
    assert out.endswith("0 ended, 1 still there\n")


def test_all_asks_first(told, account, folder, monkeypatch):
    overdue(account)
    code, out, err = told("machines", "reap", "--all", "--folder", folder)
    assert (code, out) == (2, "")
    assert "give --yes" in err
    assert len(account.fake.alive()) == 1
    assert told("machines", "reap", "--all", "--yes", "--folder", folder)[0] == 0
    assert account.fake.alive() == []


def test_without_a_key_the_commands_say_how_to_set_one(told, tmp_path, monkeypatch):
    monkeypatch.delenv("RUNPOD_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for words in (["list"], ["reap"]):
        code, out, err = told("machines", *words)
        assert (code, out) == (2, "")
        assert "set RUNPOD_API_KEY" in err
        assert err.count("\n") == 1


def test_a_journal_of_another_user_is_told_in_a_sentence(told, account, folder):
    folder.mkdir()
    (folder / JOURNAL).touch()
    (folder / f"{JOURNAL}.lock").mkdir()
    code, out, err = told("machines", "reap", "--folder", folder)
    assert (code, out) == (5, "")
    assert "the user whose controller it is" in err
    assert err.count("\n") == 1


# ---------------------------------------------------------------- cost


@pytest.fixture
def spent(account, folder):
    """A pod that has done its work and is gone, in the journal in `folder`: 0.34 $ an hour for about six minutes."""
    account.boot_s = 30.0

    async def work():
        pool = pool_in(folder, account)
        await account.job(pool, "j", 300)
        await close(pool)
        return sum(row.usd for row in pool.costs())

    return asyncio.run(account.clock.run(work()))


def test_cost_tells_by_run_and_kind_what_the_pods_of_a_journal_cost(told, spent, folder):
    code, out, _ = told("machines", "cost", "--folder", folder, "--json")
    rows = json.loads(out)["spent"]
    assert code == 0
    assert {(row["run"], row["kind"]) for row in rows} == {
        ("abcd1234", kind) for kind in ("provision", "preflight", "busy")
    }
    assert sum(row["usd"] for row in rows) == pytest.approx(spent)
    out = told("machines", "cost", "--folder", folder)[1]
    assert f"{spent:.4f}" in out.splitlines()[-1]
    assert not (folder / "bills.jsonl").exists()


def test_what_was_billed_stands_beside_ours_and_every_answer_is_kept(told, account, spent, folder):
    code, out, _ = told("machines", "cost", "--folder", folder, "--billing", "--json")
    assert code == 0
    (bill,) = json.loads(out)["bills"]
    assert bill["pod_id"] == "pod1"
    assert bill["usd"] == pytest.approx(spent)
    assert bill["billed_usd"] == pytest.approx(account.fake.usd())
    assert bill["difference_usd"] == pytest.approx(spent - account.fake.usd())
    out = told("machines", "cost", "--folder", folder, "--billing")[1]
    assert out.splitlines()[-1].startswith(f"1 of 1 pods are billed: ${spent:.4f} by our reckoning")
    assert len((folder / "bills.jsonl").read_text().splitlines()) == 2
    method, path, _ = account.fake.requests[-1]
    assert (method, path) == ("GET", "/v2/billing/pods")


def test_a_key_that_may_not_read_the_bill_is_told_so(told, account, spent, folder):
    account.fake.faults["billing"] = [403]
    code, out, err = told("machines", "cost", "--folder", folder, "--billing")
    assert (code, out) == (1, "")
    assert "403" in err
    assert not (folder / "bills.jsonl").exists()


def test_cost_of_a_run_is_its_ledger(told, account, tmp_path):
    run = RunDir.create(tmp_path / "run", {"steps": 1})
    about = {"pod": "nrl-abcd1234-0-x0y1z2-tlpwu8", "pod_id": "pod7", "t": account.clock.now()}
    run.costs_log.append({"id": "p/0", "kind": "pod/provision", "usd": 0.1, "seconds": 30.0, **about})
    run.costs_log.append({"id": "p/1", "kind": "pod/busy", "usd": 0.3, "seconds": 90.0, "job": "k", **about})
    run.costs_log.append({"id": "agent-1", "t": 1.0, "kind": "agent", "usd": 0.5})
    run.close()
    out = told("machines", "cost", run.path, "--billing", "--json")[1]
    told_all = json.loads(out)
    assert [(row["kind"], row["usd"]) for row in told_all["spent"]] == [
        ("agent", 0.5),
        ("pod/busy", 0.3),
        ("pod/provision", 0.1),
    ]
    assert [(bill["pod_id"], bill["usd"], bill["billed_usd"]) for bill in told_all["bills"]] == [("pod7", 0.4, None)]
    assert (run.path / "bills.jsonl").exists()
    assert told("machines", "cost", run.path)[1].splitlines()[-1].endswith("0.9000")


@pytest.mark.parametrize("words", [["--folder", "nowhere"], ["nowhere"]])
def test_cost_of_nothing_is_wrong_use(told, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    code, out, err = told("machines", "cost", *words)
    assert (code, out) == (2, "")
    assert "nowhere" in err
