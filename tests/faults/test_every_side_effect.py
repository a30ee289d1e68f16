"""A run breaks at one of its side effects, is started again, and ends where an undisturbed one ends."""

import contextlib
import os

import pytest
from disk import KINDS, Killed
from life import check, done_jobs, life

from nested_rl.errors import NestedRLError


@pytest.fixture
async def calm(disk, tmp_path):
    """An undisturbed run, and the names of its side effects in order."""
    world = life(tmp_path / "calm")
    disk.arm(-1, "")
    await world.go()
    ops = disk.ops
    disk.restart()
    return world, ops


async def broken_and_mended(disk, path, calm, at, kind):
    """One life up to the fault, another to the end. What was hit."""
    first = life(path)
    disk.arm(at, kind)
    with contextlib.suppress(Killed, NestedRLError):
        await first.go()
    hit = disk.hit
    disk.restart()
    done = done_jobs(path)
    second = life(path, first.clock)
    await second.go()
    check(second, calm, done)
    return hit


def one_of_each(ops):
    """The middle occurrence of each side effect that puts something on the disk, by name; folders' names left to the slow test."""
    places = {}
    for number, name in enumerate(ops):
        if name.startswith(("write", "replace", "fsync journal", "fsync queue", "fsync .draft", "COMMIT", "INSERT")):
            places.setdefault(name, []).append(number)
    return [found[len(found) // 2] for found in places.values()]


@pytest.mark.timeout(600)
async def test_one_fault_at_each_kind_of_side_effect(disk, calm, tmp_path):
    world, ops = calm
    hits = set()
    for number, at in enumerate(one_of_each(ops)):
        hits.add(await broken_and_mended(disk, tmp_path / str(at), world, at, KINDS[number % len(KINDS)]))
    expected = {"COMMIT", "write journal.jsonl", "write costs.jsonl", "write metrics.jsonl", "replace report.html"}
    assert expected | {"replace reward.json", "replace baselines.json", "fsync queue.sqlite-wal"} <= hits


STRIDE = int(os.environ.get("NESTED_RL_FAULT_STRIDE", "8"))
"""Each kind of fault at so many side effects apart, each kind beginning at another; 1 is all of them (half an hour)."""


@pytest.mark.slow
@pytest.mark.timeout(6000)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_fault_at_every_side_effect(disk, calm, tmp_path, kind):
    world, ops = calm
    places = range(KINDS.index(kind) * STRIDE // len(KINDS), len(ops), STRIDE)
    for at in places:
        await broken_and_mended(disk, tmp_path / str(at), world, at, kind)
    print(f"\n{kind}: {len(places)} of {len(ops)} side effects")
