"""Ctrl-C twice, and SIGTERM, sent to a small but real pilot: nothing is left running, and the same command goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nested_rl.rundir import RunDir

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc to see what an interrupted run leaves behind"),
]

RUN_FILE = """
families = ["calc_chain", "dispatch"]

[run]
steps = 3
groups_per_step = 2
group_size = 4
eval_every = 2
"""


def pilot(folder: Path) -> subprocess.Popen[str]:
    """In a session of its own, as from another terminal. What it writes outside its run is in `tmp`."""
    return subprocess.Popen(
        [sys.executable, "-m", "nested_rl", "run", str(folder / "small.toml"), "--out", str(folder / "run")],
        env=os.environ | {"TMPDIR": str(folder / "tmp"), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def descendants(pid: int) -> list[int]:
    """Living processes below one, by /proc."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            number = int(entry.name)
            parents.setdefault(int((entry / "stat").read_text().rpartition(")")[2].split()[1]), []).append(number)
    found, todo = [], [pid]
    while todo:
        todo += (children := parents.get(todo.pop(), []))
        found += children
    return found


def living(pids: list[int]) -> list[int]:
    """Which of them run, zombies apart: somebody else collects those."""
    left = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                left.append(pid)
    return left


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tmp").mkdir()
    (tmp_path / "small.toml").write_text(RUN_FILE)
    return tmp_path


@pytest.mark.parametrize(
    ("signals", "code"),
    [((signal.SIGINT, signal.SIGINT), 130), ((signal.SIGTERM,), 143)],
    ids=["SIGINT twice", "SIGTERM"],
)
@pytest.mark.parametrize("after", ["step 1/3", "step 2/3"])
def test_an_interrupted_pilot_leaves_nothing_and_goes_on(folder, signals, code, after):
    process = pilot(folder)
    for line in process.stdout:
        if line.startswith(after):
            break
    below = descendants(process.pid)
    assert below, "there were machines"
    for number in signals:
        process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == code
    assert err.splitlines()[-1] == "nested-rl: stopped; run the same command again to resume"
    assert living(below) == []
    assert [path for path in (folder / "tmp").glob("nested_rl-*/**/*") if path.name != "desks"] == []

    again = pilot(folder)
    out, err = again.communicate(timeout=300)
    assert (again.returncode, err) == (0, "")
    run = RunDir.open(folder / "run")
    assert [event["step"] for event in run.events("step.done")] == [0, 1, 2]
    done = [event["key"] for event in run.events("job.done")]
    assert len(done) == len(set(done))
    assert "3/3" in out
    assert set(run.evals()) == {"validation-00000", "validation-00002", "validation-00003"}
