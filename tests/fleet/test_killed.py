"""kill -9 of a real controller in every state of a pod: without a successor the pod ends itself, with one it is taken over or ended."""

import os
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
import pytest

from nested_rl.clock import SystemClock
from nested_rl.compute.pool_costs import ENDING_S, LATE_S
from nested_rl.compute.pool_roster import BEAT_S, Roster
from nested_rl.rundir import Log

LEASE_S = 6.0
"""Of a pod that nobody follows. A pod looks every second."""
MOMENTS = {
    "intent": ["line"],
    "creating": ["line", "later"],
    "booting": ["line"],
    "preflight": ["line", "later"],
    "ready": ["line", "later"],
    "busy": ["line", "later"],
    "draining": ["line"],
    "terminating": ["line", "later"],
}
STATES = [(state, moment) for state, moments in MOMENTS.items() for moment in moments]
MADE = [one for one in STATES if one not in (("intent", "line"), ("creating", "line"))]
ENDING = ("draining", "terminating")


@attrs.define
class Scene:
    """What one killed controller has left."""

    world: object
    killed_at: float

    @property
    def roster(self):
        return Roster(Log(self.world.folder / "pods.jsonl"), clock=SystemClock())


def killed(folder, state, moment, *, lease_s):
    """A controller that was killed there, and its server."""
    from pods import World

    world = World(folder)
    asked = threading.Event()
    if moment == "later" and state in ("creating", "terminating"):
        world.fake.faults = {"creating": {"create": ["hang-after"]}, "terminating": {"terminate": ["accepted"]}}[state]
        handle, method = world.fake.handle, {"creating": "POST", "terminating": "DELETE"}[state]

        def watched(asks, *more):
            told = handle(asks, *more)
            if asks == method:
                asked.set()
            return told

        world.fake.handle = watched
    else:
        asked.set()
    here = Path(__file__).parent
    argv = [sys.executable, str(here / "controller.py"), str(folder), world.server.url, state, moment, str(lease_s)]
    controller = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(here)}
    )
    try:
        assert controller.stdout.readline() == b"there\n"
        assert asked.wait(60)
        return Scene(world=world, killed_at=world.fake.now())
    finally:
        controller.kill()
        controller.communicate()


def scenes(lease_s):
    """All of them, a few at a time: what a pod does when it is alone takes its time, and they do it side by side."""
    with tempfile.TemporaryDirectory(prefix="nrl-") as top, ThreadPoolExecutor(max_workers=4) as several:
        folders = {one: Path(top) / f"{n}" for n, one in enumerate(STATES)}
        for folder in folders.values():
            folder.mkdir()
        work = {one: several.submit(killed, folder, *one, lease_s=lease_s) for one, folder in folders.items()}
        try:
            yield work
        finally:
            for made in work.values():
                if made.exception() is None:
                    made.result().world.close()


@pytest.fixture(scope="module")
def alone():
    yield from scenes(LEASE_S)


@pytest.fixture(scope="module")
def followed():
    yield from scenes(600.0)


@pytest.mark.parametrize(("state", "moment"), STATES)
async def test_without_a_successor_its_pods_end_themselves(alone, state, moment):
    scene = alone[state, moment].result()
    world = scene.world
    await world.until(lambda: not world.fake.alive(), LEASE_S + 60)
    assert len(world.fake.pods) == ((state, moment) in MADE)
    meant = [row for row in Log(world.folder / "pods.jsonl").rows() if row["state"] == "intent"]
    assert all(row["alone_s"] >= LEASE_S for row in meant)
    assert all(pod.ended_at <= scene.killed_at + LEASE_S + 60 for pod in world.fake.pods.values())
    world.compute()._opened()  # it closes, and with it whatever it has found
    unknown, bound_s = (state, moment) == ("creating", "later"), BEAT_S + LATE_S + LEASE_S + ENDING_S
    unseen_s = min(world.fake.now() - scene.killed_at, bound_s)
    await world.settled(most=1, unseen_s=unseen_s, unknown=unknown)
    assert scene.roster.alive() == []


@pytest.mark.parametrize(("state", "moment"), STATES)
async def test_the_next_controller_takes_its_pod_over_or_ends_it(followed, state, moment):
    scene = followed[state, moment].result()
    world = scene.world
    compute = world.compute(max_machines=1)
    left = [pod.id for pod in world.fake.alive()]
    assert len(left) == ((state, moment) in MADE)
    used = await world.job(compute, "one", 0.2)
    assert (left == used) == ((state, moment) in MADE and state not in ENDING)
    await world.settled(most=1)
    assert scene.roster.alive() == []
    assert world.count("done") == {"one": 1}
