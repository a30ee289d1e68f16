"""The pods' journal when it grows: shorter, with the same costs and the same pods, whenever it is killed; and who may have it."""

import asyncio
import logging
import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pool_play import A40, Fleet, Lines, Mortal, settled, states
from test_pool_parts import journals

from nested_rl.compute import pool_roster
from nested_rl.compute.pool_costs import PAID, by_kind, costs, final, folded
from nested_rl.compute.pool_roster import Journal, Roster, State
from nested_rl.compute.pool_terms import Terms
from nested_rl.errors import RunDirError, SettingsError
from nested_rl.meter import Meter
from nested_rl.types import Budget


@given(journals(), st.booleans())
def test_a_folded_pod_costs_the_same_and_so_does_what_comes_after(told, early):
    lines, now = told
    for name in {line["pod"] for line in lines}:
        mine = [line for line in lines if line["pod"] == name]
        cut = next((n for n, line in enumerate(mine, 1) if line["state"] == "gone"), 0) if early else len(mine)
        short = [*folded(mine[:cut]), *mine[cut:]] if cut else mine
        assert len(short) <= len(mine)
        assert folded(short) == folded(mine) or cut < len(mine)
        one, other = (by_kind(costs(rows, now=now)) for rows in (mine, short))
        assert one == pytest.approx(other)
        assert len(final(short)) == len(final(mine))
        assert all(a.ledger == PAID or a == b for a, b in zip(final(short), final(mine), strict=True))


async def test_a_long_run_has_a_short_journal(monkeypatch):
    monkeypatch.setattr(pool_roster, "BULKY", 60)
    fleet, lines, rows, longest = Fleet(), Lines(), [], 0
    meter = Meter(Budget(usd=1000), clock=fleet.clock, write=rows.append)
    pool = fleet.pool(A40, lines=lines, terms=Terms(max_jobs=5), max_machines=2)
    pool.metered(meter, ledger="run")

    async def work():
        nonlocal longest
        for number in range(150):
            await fleet.job(pool, f"j{number}", 20)
            longest = max(longest, len(lines))
        again = fleet.pool(A40, lines=Lines(lines))  # as the next controller would read it
        assert {name: pod.state for name, pod in again.roster.pods.items()} == {
            name: pod.state for name, pod in pool.roster.pods.items()
        }
        await pool.close()

    await fleet.clock.run(work())
    assert len(fleet.fake.pods) == 30
    assert longest <= 130
    assert meter.spent_usd == pytest.approx(fleet.spent(pool))
    assert len({row["id"] for row in rows}) == len(rows)
    settled(fleet, pool, most=2)


async def test_a_pod_that_turns_up_after_it_was_folded_is_ended_and_its_end_is_paid():
    fleet, rows, lines = Fleet(), [], Lines()
    meter = Meter(Budget(usd=1000), clock=fleet.clock, write=rows.append)
    pool = fleet.pool(A40, lines=lines)
    pool.metered(meter, ledger="run")

    async def work():
        await fleet.job(pool, "one", 20)
        await fleet.clock.sleep(Terms().idle_s + 30)
        pool.roster.fold(pool._paid_for, folded)
        assert [line["state"] for line in lines] == ["gone"]
        fleet.fake.pods["pod1"].ended_at = None
        await fleet.clock.sleep(30)
        assert fleet.fake.alive() == []
        await pool.close()

    await fleet.clock.run(work())
    assert states(lines) == [["gone", "terminating", "gone"]]
    assert meter.spent_usd == pytest.approx(fleet.spent(pool))
    settled(fleet, pool, most=1)


async def test_what_another_run_may_still_pay_for_is_kept():
    fleet, lines = Fleet(), Lines()
    theirs = fleet.pool(A40, lines=lines)
    theirs.metered(Meter(Budget(), clock=fleet.clock, write=lambda row: None), ledger="theirs")

    async def work():
        await fleet.job(theirs, "one", 20)
        await theirs.close()
        before = list(lines)
        ours = fleet.pool(A40, lines=lines)
        ours.roster.fold(ours._paid_for, folded)
        assert list(lines) == before
        await fleet.clock.sleep(31 * 24 * 3600)
        ours.roster.fold(ours._paid_for, folded)
        assert len(lines) == 1

    await fleet.clock.run(work())


async def test_a_pod_that_never_was_is_forgotten_after_its_deadline_and_not_before():
    fleet, lines = Fleet(), Lines()
    fleet.fake.faults["create"] = ["hang"]
    pool = fleet.pool(A40, lines=lines)

    async def work():
        await fleet.job(pool, "one", 20)
        await pool.close()
        pool.roster.fold(pool._paid_for, folded)
        assert len(pool.roster.pods) == 2
        await fleet.clock.sleep(Terms().ttl_s + 2 * pool_roster.LATE_S)
        pool.roster.fold(pool._paid_for, folded)
        assert [pod.id for pod in pool.roster.pods.values()] == ["pod1"]

    await fleet.clock.run(work())


async def test_a_full_disk_leaves_it_long(caplog):
    fleet, lines = Fleet(), Lines()
    pool = fleet.pool(A40, lines=lines)

    def full(rows, *, sync):
        raise RunDirError("pods.jsonl: No space left on device")

    async def work():
        await fleet.job(pool, "one", 20)
        await pool.close()
        before, lines.rewrite = list(lines), full
        pool.roster.fold(pool._paid_for, folded)
        assert list(lines) == before

    await fleet.clock.run(work())
    assert "stays long" in caplog.text
    settled(fleet, pool, most=1)


KILLED = """
import os, signal, sys
from pathlib import Path
left = int(sys.argv[2])
def deadly(name, real):
    def call(*args, **more):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **more)
    setattr(os, name, call)
from nested_rl.compute.pool_roster import Journal
journal = Journal(Path(sys.argv[1]))
rows = list(journal.rows())
journal.append({"told": "last"}, sync=True)
for name in ("open", "write", "fsync", "replace", "rename", "close", "unlink"):
    deadly(name, getattr(os, name))
journal.rewrite([*rows[:2], {"told": "short"}], sync=True)
print("done")
"""


def test_killed_at_any_moment_it_is_the_long_one_or_the_short_one(tmp_path):
    ended = set()
    for moment in range(1, 12):
        path = tmp_path / str(moment) / "pods.jsonl"
        path.parent.mkdir()
        path.write_text("".join(f'{{"n":{n}}}\n' for n in range(5)))
        done = subprocess.run([sys.executable, "-c", KILLED, str(path), str(moment)], capture_output=True, check=False)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        journal = Journal(path)
        rows = list(journal.rows())
        assert rows in (
            [*({"n": n} for n in range(5)), {"told": "last"}],
            [{"n": 0}, {"n": 1}, {"told": "short"}],
        )
        ended.add((len(rows), done.returncode))
        assert {each.name for each in path.parent.iterdir()} == {"pods.jsonl", "pods.jsonl.lock"}
        journal.append({"n": 9}, sync=True)
        assert [*journal.rows()][-1] == {"n": 9}
        journal.release()
        if done.returncode == 0:
            break
    assert ended == {(6, -signal.SIGKILL), (3, -signal.SIGKILL), (3, 0)}


def test_one_controller_at_a_time_has_the_journal_and_the_next_is_told_by_whom_and_what_to_do(tmp_path):
    first = Journal(tmp_path / "pods.jsonl")
    with pytest.raises(
        SettingsError, match=rf"process {os.getpid()} of .* a folder of its own: RunpodCompute\(.*folder="
    ):
        Journal(tmp_path / "pods.jsonl")
    first.release()
    Journal(tmp_path / "pods.jsonl").release()


@pytest.mark.parametrize("faults", [{"terminate": ["accepted"] * 999}, {"terminate": [500] * 999}])
async def test_a_pool_whose_pods_do_not_end_closes_all_the_same_and_the_next_one_ends_them(faults, caplog):
    fleet, lines = Fleet(), Lines()
    pool = fleet.pool(A40, lines=lines)

    async def work():
        await fleet.job(pool, "one", 20)
        fleet.fake.faults = dict(faults)
        began = fleet.clock.now()
        await pool.close()
        assert Terms().close_s <= fleet.clock.now() - began <= Terms().close_s + 120
        assert pool.roster.alive()[0].state is State.TERMINATING
        assert asyncio.all_tasks() <= {asyncio.current_task(), *before}
        fleet.fake.faults = {}
        again = fleet.pool(A40, lines=Lines(lines))
        await again.close()
        return again

    async def all_of_it():
        before.update(asyncio.all_tasks())
        return await work()

    before = set()
    settled(fleet, await fleet.clock.run(all_of_it()), most=1)
    assert "left to their leases" in caplog.text


async def test_a_pool_that_cannot_find_out_whether_a_pod_was_made_closes_all_the_same():
    fleet, lines = Fleet(), Lines()
    fleet.fake.faults = {"create": ["hang-after"], "list": [500] * 9999}
    pool = fleet.pool(A40, lines=lines, provider=Mortal(fleet, lines))

    async def work():
        job = asyncio.ensure_future(fleet.job(pool, "one", 20))
        await fleet.clock.sleep(100)
        await pool.close()
        await asyncio.gather(job, return_exceptions=True)
        assert states(lines) == [["intent", "creating"]]
        fleet.fake.faults = {}
        again = fleet.pool(A40, lines=Lines(lines))
        await again.close()
        return again

    logging.getLogger("nested_rl.compute.pool_watch").setLevel(logging.ERROR)
    settled(fleet, await fleet.clock.run(work()), most=1)


def test_a_folded_journal_is_read_as_a_whole_one():
    fleet, lines = Fleet(), Lines()
    pool = fleet.pool(A40, lines=lines)

    async def work():
        await fleet.job(pool, "one", 20)
        await pool.close()

    asyncio.run(fleet.clock.run(work()))
    pool.roster.fold(pool._paid_for, folded)
    (pod,) = Roster(Lines(lines), clock=fleet.clock).pods.values()
    assert (pod.state, pod.id, pod.candidate) == (State.GONE, "pod1", A40)
