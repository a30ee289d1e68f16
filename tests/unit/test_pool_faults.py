"""Fault cases of the pool that are in no other file; the table in tests/fleet/README.md says where each is."""

import asyncio
import re
from pathlib import Path

import pytest
from pool_play import A40, A5000, Fleet, run

from nested_rl.compute.pool_places import AVOIDED_S
from nested_rl.errors import SettingsError

NO_SPACE = "failed to register layer: write /usr/lib/libcudnn.so.9: no space left on device"


def full_disks(fleet, pods):
    """These pods end while their image is unpacked."""
    boot = fleet.fake.boot

    def fails(pod):
        if pod.id in pods:
            pod.status = "ERROR"
            pod.log["system"].append(NO_SPACE)
            pod.data_center = f"EU-{pod.id}"
        else:
            boot(pod)

    fleet.fake.boot = fails


async def test_11_a_pod_without_room_for_its_image_is_replaced_and_its_log_is_told(caplog):
    fleet = Fleet()
    full_disks(fleet, {"pod1"})
    pool = fleet.pool()
    assert await run(fleet, fleet.job(pool, "one", 10), pool) == ["pod2"]
    assert NO_SPACE in caplog.text


async def test_11_two_of_them_mean_that_disks_are_too_small():
    fleet = Fleet()
    full_disks(fleet, {"pod1", "pod2", "pod3"})
    pool = fleet.pool()
    with pytest.raises(SettingsError, match=r"2 pods had no space left for the image on 80 GiB; .*disk_gib"):
        await run(fleet, fleet.job(pool, "one", 10), pool)
    assert len(fleet.fake.pods) == 2


async def test_05_a_key_that_is_no_good_any_more_makes_no_pods_and_ends_no_job():
    fleet = Fleet()
    pool = fleet.pool()

    async def work():
        first = asyncio.ensure_future(fleet.job(pool, "one", 300))
        await fleet.clock.sleep(100)
        fleet.fake.faults["list"] = [401]
        await fleet.clock.sleep(10)
        assert await first == ["pod1"]
        fleet.fake.lose(fleet.fake.pods["pod1"])
        with pytest.raises(SettingsError, match="401"):
            await fleet.job(pool, "two", 10)

    await run(fleet, work(), pool)
    assert len(fleet.fake.pods) == 1


@pytest.mark.parametrize("odd", [{"runtime": None}, {"runtime": {"uptime": 0}}, {"cost": None}, {"startedAt": None}])
async def test_34_odd_fields_end_no_pod(odd):
    fleet = Fleet()
    pool = fleet.pool()

    async def work():
        job = asyncio.ensure_future(fleet.job(pool, "one", 300))
        await fleet.clock.sleep(100)
        (pod,) = fleet.fake.pods.values()
        told = type(pod).told
        type(pod).told = lambda self, now: told(self, now) | odd
        try:
            await fleet.clock.sleep(60)
        finally:
            type(pod).told = told
        return await job

    assert await run(fleet, work(), pool) == ["pod1"]


async def test_25_whatever_breaks_while_a_pod_comes_up_it_is_ended():
    fleet = Fleet()

    async def preflight(machine, candidate):
        if machine.id == "pod1":
            raise RuntimeError("a bug of ours")

    fleet.preflight = preflight
    pool = fleet.pool()
    assert await run(fleet, fleet.job(pool, "one", 10), pool) == ["pod2"]


async def test_08_a_place_where_two_never_came_up_is_tried_again_later():
    fleet = Fleet()
    fleet.unfit |= {"pod1", "pod2"}
    pool = fleet.pool(A5000, A40)

    async def work():
        first = asyncio.ensure_future(fleet.job(pool, "one", 10))
        await fleet.clock.sleep(AVOIDED_S + 600)
        return await first

    (used,) = await run(fleet, work(), pool)
    assert fleet.connects == ["pod1", "pod2", used]  # those in between were not even connected to


def test_the_table_of_cases_names_tests_that_there_are():
    root = Path(__file__).parents[1]
    lines = (root / "fleet" / "README.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if re.match(r"\| \d", line)]
    assert [int(number) for number, *_ in rows] == list(range(1, 35))
    for number, _, *cells in rows:
        assert any(cell.strip(" |") for cell in cells), number
        for cell in cells:
            text = ""
            for name in re.findall(r"`([^`]+)`", cell):
                if name.endswith(".py"):
                    (path,) = [*root.glob(f"fleet/{name}"), *root.glob(f"unit/{name}")]
                    text = path.read_text()
                else:
                    assert name in text, (number, name)
