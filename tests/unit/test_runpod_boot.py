"""boot.sh by itself: what the watchdog does when clocks, leases and the provider go wrong, and which user is made. No real time passes."""

import os
import select
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from nested_rl.compute.runpod import JOB_USER
from nested_rl.inner.prime_rl import preflight

SCRIPT = Path(str(resources.files("nested_rl.compute").joinpath("pod/boot.sh")))
KEY = "pod-key-0123456789"
API = "https://api.runpod.io/v2/pods/p1"
SOON_S = 60.0
SLEEP = 'echo "$1" >"$SHIMS/asked"; read -r _ <"$SHIMS/go"'
"""A watchdog that sleeps says for how long, and goes on when it is told."""
LOG = 'echo "${0##*/} $*" >>"$SHIMS/calls"; [ "${0##*/}" = curl ] && cat >/dev/null; [ -e "$SHIMS/works" ]'

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pods are Linux: GNU stat, /proc")


class Pod:
    """A pod with its own clock, uptime and lease, whose programs are stand-ins."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.process = folder, None
        for name, code in {
            "sleep": SLEEP,
            "date": 'cat "$SHIMS/date"',
            "curl": LOG,
            "runpodctl": LOG,
            "useradd": LOG,
            "usermod": "exit 0",
            "python": "exit 1",
        }.items():
            self.shim(name, code)
        os.mkfifo(folder / "asked")
        os.mkfifo(folder / "go")
        self.asked = os.open(folder / "asked", os.O_RDWR)
        self.go = os.open(folder / "go", os.O_RDWR)
        self.works(True)
        self.clock(1_000_000)
        self.uptime(50)

    def shim(self, name: str, code: str) -> None:
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/bash\n{code}\n")
        path.chmod(0o755)

    def works(self, works: bool) -> None:
        (self.folder / "works").touch() if works else (self.folder / "works").unlink()

    def clock(self, seconds: int) -> None:
        (self.folder / "date").write_text(f"{seconds}\n")

    def uptime(self, seconds: float) -> None:
        (self.folder / "uptime").write_text(f"{seconds}.37 99.0\n")

    def touch(self, at: int) -> None:
        (self.folder / "lease").touch()
        os.utime(self.folder / "lease", (at, at))

    def env(self, **more: str) -> dict[str, str]:
        told = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "SHIMS": str(self.folder),
            "NRL_HOME": str(self.folder / "home"),
            "NRL_PYTHON": str(self.folder / "bin/python"),
            "NRL_UPTIME": str(self.folder / "uptime"),
            "NRL_LEASE": str(self.folder / "lease"),
            "NRL_DEADLINE": "1000600",
            "NRL_TTL_S": "600",
            "NRL_LEASE_S": "100",
            "NRL_GRACE_S": "300",
            "RUNPOD_POD_ID": "p1",
            "RUNPOD_API_KEY": KEY,
        }
        return {**told, **more}

    def watch(self, **more: str) -> None:
        """A watchdog starts, and looks for the first time."""
        self.kill()
        self.process = subprocess.Popen(
            ["bash", SCRIPT, "watch"],
            env=self.env(**more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.slept = self._look()

    def then(self, uptime: float) -> list[str]:
        """It looks again at that uptime; what it asked the provider meanwhile."""
        self.uptime(uptime)
        os.write(self.go, b"\n")
        self.slept = self._look()
        return self.calls()

    def calls(self) -> list[str]:
        path = self.folder / "calls"
        told = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return told

    def _look(self) -> float:
        assert select.select([self.asked], [], [], SOON_S)[0], "it does not look"
        return float(os.read(self.asked, 100))

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, 9)
            self.process.wait()

    def close(self) -> None:
        self.kill()
        os.close(self.asked)
        os.close(self.go)


@pytest.fixture
def pod(tmp_path):
    pod = Pod(tmp_path)
    yield pod
    pod.close()


def test_it_ends_at_its_deadline_and_asks_for_ever(pod):
    pod.watch()
    for uptime in range(100, 640, 90):
        pod.touch(uptime)
        assert pod.then(uptime) == []
    (call,) = pod.then(651)
    assert call.endswith(f'-X POST -H Content-Type: application/json --data {{"action": "terminate"}} {API}/action')
    slept = []
    for _ in range(8):
        assert len(pod.then(651)) == 1
        slept.append(pod.slept)
    assert slept == [2, 4, 8, 16, 32, 60, 60, 60]


@pytest.mark.parametrize("behind_s", [86_400, 1_000_000])
def test_a_clock_that_is_behind_gives_no_more_time(pod, behind_s):
    pod.clock(1_000_000 - behind_s)
    pod.watch(NRL_LEASE_S="9999", NRL_GRACE_S="9999")
    assert pod.then(649) == []
    assert len(pod.then(650)) == 1


def test_a_clock_that_is_ahead_of_the_deadline_ends_it_at_once(pod):
    pod.clock(1_000_601)
    pod.watch()
    assert len(pod.calls()) == 1


@pytest.mark.parametrize("jump_s", [86_400, -86_400])
def test_a_clock_that_is_set_while_it_runs_changes_nothing(pod, jump_s):
    pod.touch(1_000_000)
    pod.watch()
    pod.clock(1_000_000 + jump_s)
    assert pod.then(149) == []
    pod.touch(1_000_000 + jump_s)
    assert pod.then(160) == []
    assert pod.then(259) == []
    assert len(pod.then(260)) == 1


def test_without_a_clock_there_is_its_uptime(pod):
    pod.shim("date", "exit 1")
    pod.watch(NRL_GRACE_S="9999")
    assert pod.then(649) == []
    assert len(pod.then(650)) == 1


def test_without_an_uptime_there_is_its_clock(pod):
    pod.watch(NRL_UPTIME="/nowhere", NRL_GRACE_S="9999")
    pod.clock(1_000_599)
    assert pod.then(0) == []
    pod.clock(1_000_600)
    assert len(pod.then(0)) == 1


def test_it_ends_when_nobody_touches_its_lease_any_more(pod):
    pod.touch(5)
    pod.watch()
    assert pod.then(120) == []
    pod.touch(6)
    assert pod.then(149) == []
    (pod.folder / "lease").unlink()  # that helps nobody
    assert pod.then(248) == []
    assert len(pod.then(249)) == 1
    pod.touch(7)
    assert pod.then(250) == []  # its owner is back
    assert pod.slept == 10


def test_nobody_ever_takes_it(pod):
    pod.watch()
    assert pod.then(349) == []
    assert len(pod.then(350)) == 1


def test_a_watchdog_that_starts_again_gives_no_new_time(pod):
    pod.watch(NRL_GRACE_S="9999")
    pod.clock(900_000)
    pod.uptime(400)
    pod.watch(NRL_GRACE_S="9999")
    assert pod.then(649) == []
    assert len(pod.then(650)) == 1


def test_every_way_is_tried_and_the_key_is_in_no_command_line(pod):
    pod.works(False)
    pod.watch(NRL_GRACE_S="0")
    calls = pod.calls()
    assert [" ".join(call.split()[:2]) for call in calls] == [
        "curl -fsS",
        "curl -fsS",
        "runpodctl pod",
        "runpodctl remove",
    ]
    assert calls[1].endswith(f"-X DELETE {API}")
    assert KEY not in "".join(calls)


@pytest.mark.parametrize(
    ("uid", "known", "user", "made"),
    [
        (0, False, JOB_USER, True),
        (0, True, JOB_USER, False),
        (0, False, "", False),
        (1000, False, JOB_USER, False),
    ],
)
def test_the_jobs_user_is_made_where_that_is_possible_and_needed(pod, uid, known, user, made):
    pod.shim("id", f'[ "$1" = -u ] && echo {uid} && exit; exit {0 if known else 1}')
    subprocess.run(["bash", SCRIPT, "user"], env=pod.env(NRL_JOB_USER=user), check=True)
    calls = pod.calls()
    assert bool(calls) is made
    assert all(call.endswith(f"--shell /usr/sbin/nologin {JOB_USER}") for call in calls)


def test_it_is_the_user_that_full_scale_jobs_ask_for():
    assert JOB_USER == preflight.JOB_USER


@pytest.mark.parametrize("check", [["bash", "-n"], ["shellcheck"]])
def test_the_script_is_sound(check):
    if shutil.which(check[0]) is None:
        pytest.skip(f"there is no {check[0]} here")
    done = subprocess.run([*check, SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
