"""`nested-rl machines` as a timer runs it: a program of its own, beside controllers that run and that were killed."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from fake_runpod import KEY
from pods import World


@pytest.fixture
def world():
    with tempfile.TemporaryDirectory(prefix="nrl-") as folder:
        world = World(Path(folder))
        yield world
        world.close()


def machines(world, *words):
    argv = [
        sys.executable,
        "-m",
        "nested_rl",
        "machines",
        *words,
        "--folder",
        str(world.folder),
        "--url",
        world.server.url,
    ]
    done = subprocess.run(
        argv, env={**os.environ, "RUNPOD_API_KEY": KEY}, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, json.loads(done.stdout) if "--json" in words else done.stdout


def test_a_timer_ends_the_pods_of_a_killed_controller_and_none_before(world):
    here = Path(__file__).parent
    argv = [sys.executable, str(here / "controller.py"), str(world.folder), world.server.url, "busy", "later", "600"]
    controller = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(here)}
    )
    try:
        assert controller.stdout.readline() == b"there\n"
        assert machines(world, "reap", "--wait-s", "1", "--json") == (0, [])
        code, (held,) = machines(world, "list", "--json")
        assert (code, held["owner"], held["state"], held["status"], held["due"]) == (
            0,
            "running",
            "busy",
            "running",
            "",
        )
        assert len(world.fake.alive()) == 1
    finally:
        controller.kill()
        controller.communicate()
    code, (held,) = machines(world, "list", "--json")
    assert (held["owner"], held["due"]) == ("ended", "its controller has ended")
    code, (ended,) = machines(world, "reap", "--wait-s", "1", "--json")
    assert (code, ended["trouble"]) == (0, "")
    assert world.fake.alive() == []
    assert machines(world, "list")[1].endswith("0 pods with our names, $0.00 an hour\n")
    code, told = machines(world, "cost", "--billing", "--json")
    (bill,) = told["bills"]
    assert code == 0
    assert bill["billed_usd"] == pytest.approx(world.fake.usd())
    assert bill["usd"] == pytest.approx(sum(row["usd"] for row in told["spent"]))
    assert bill["difference_usd"] >= 0
