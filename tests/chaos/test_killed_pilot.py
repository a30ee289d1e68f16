"""kill -9 of a small but real pilot at random moments: it finishes, and ends exactly where an undisturbed one ends."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from killing import descendants, outlived

from chaos import plain
from nested_rl.rundir import RunDir

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PILOT = """
import sys
import nested_rl as nrl
nrl.Experiment().run(steps=4, groups_per_step=2, group_size=4, eval_every=2, seed=3, out=sys.argv[1], quiet=True)
"""
KILLS = 10


def pilot(out: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", PILOT, str(out)], start_new_session=True)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> RunDir:
    out = tmp_path_factory.mktemp("calm") / "run"
    assert pilot(out).wait(timeout=600) == 0
    return RunDir.open(out)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc to see what a killed controller leaves behind")
def test_killed_at_random_moments_it_ends_where_it_would_have(undisturbed, tmp_path):
    rng = random.Random(7)
    # from a lucky day's copy: same secret salt, so the same hidden items
    out = tmp_path / "run"
    (out / "secret").mkdir(parents=True, mode=0o700)
    (out / "secret" / "salt").write_text(undisturbed.salt)
    kills = 0
    while True:
        process = pilot(out)
        try:
            code = process.wait(timeout=rng.uniform(0.5, 3.5) if kills < KILLS else 600)
        except subprocess.TimeoutExpired:
            below = descendants(process.pid)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
            assert outlived(below, 20) == [], "the dead controller left processes behind"
            continue
        assert code == 0
        break
    run = RunDir.open(out)
    assert plain(run.metrics()) == plain(undisturbed.metrics())
    steps = [event["step"] for event in run.events("step.done")]
    assert steps == sorted(set(steps)) == list(range(4))
    done: set[str] = set()
    for event in run.events("job.started", "job.done"):
        assert event["key"] not in done, f"{event['event']} of a job that was finished before"
        if event["event"] == "job.done":
            done.add(event["key"])
    assert kills >= 1
    print(f"\n{kills} kills, {len(done)} jobs, each finished once")


def test_two_undisturbed_runs_agree_bit_by_bit(undisturbed, tmp_path):
    out = tmp_path / "run"
    (out / "secret").mkdir(parents=True, mode=0o700)
    (out / "secret" / "salt").write_text(undisturbed.salt)
    assert pilot(out).wait(timeout=600) == 0
    assert plain(RunDir.open(out).metrics()) == plain(undisturbed.metrics())
