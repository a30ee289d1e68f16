"""Who watches the watchers: what runs beside a run on this computer is replaced when it dies, and never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from nested_rl.compute import LocalCompute, orphans
from nested_rl.jobs import nursery
from nested_rl.jobs.sandbox import EnvironmentCrashed, Limits, SandboxUnavailable, Zygote
from nested_rl.types import Need

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")


def running(pid: int) -> bool:
    return any(found == pid and state not in "ZX" for found, state, _ in orphans.processes())


async def test_a_watcher_that_was_killed_is_replaced_and_knows_everybody():
    compute = LocalCompute(1)
    try:
        async with compute.machine(Need()) as machine:
            before = await machine.start(["sleep", "300"])
            watcher = compute._open.orphans._process
            watcher.kill()
            watcher.wait()
            with pytest.warns(RuntimeWarning, match="watcher of this computer's machines was killed"):
                after = await machine.start(["sleep", "300"])
            replaced = compute._open.orphans._process
            assert replaced.pid != watcher.pid
            assert running(before.pid)
            assert running(after.pid)
            replaced.stdin.close()  # as when this process is gone
            assert replaced.wait(60) == 0
            assert not running(before.pid)
            assert not running(after.pid)
    finally:
        await compute.close()


async def test_a_program_that_ignores_being_asked_is_ended_with_its_children():
    """Only its group and its mark are known of it; it is killed, not asked."""
    code = "import os, signal, sys; [signal.signal(n, signal.SIG_IGN) for n in (2, 15)]; os.fork(); print('up', flush=True); signal.pause()"
    compute = LocalCompute(1)
    try:
        async with compute.machine(Need()) as machine:
            child = await machine.start(["python", "-c", code])
            assert await child.readline() == b"up\n"
            assert await child.readline() == b"up\n"
            os.killpg(child.pid, signal.SIGINT)
            os.killpg(child.pid, signal.SIGTERM)
            group = child.pid
        assert not orphans.in_group(group)
    finally:
        await compute.close()


SLEEPY = """
import time

def examples(rng, n):
    time.sleep(1e6)

def reward(prompt, completion, answer):
    return 1.0
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("_", range(10))  # each meets the threads at another moment
def test_closing_a_sandbox_does_not_wait_for_a_job_that_sleeps(monkeypatch, _):
    """Whoever stops a run would wait out the probe's deadline; here there is none."""
    monkeypatch.setattr(nursery, "_CALL_S", 1e6)
    zygote = Zygote(kit=False)
    environment = zygote.spawn({"environment.py": SLEEPY}, Limits(call_s=1e6))
    asleep = zygote.threads.submit(environment.examples, 0, 1)
    waiting = [zygote.threads.submit(zygote.spawn, {"environment.py": SLEEPY}) for _ in range(9)]
    zygote.close()
    with pytest.raises((SandboxUnavailable, EnvironmentCrashed)):
        asleep.result(0)
    assert all(future.done() for future in waiting)
    for future in waiting:  # one that had its environment in time has it still
        if not future.cancelled() and future.exception() is None:
            future.result().close()
    with pytest.raises(SandboxUnavailable, match="closed"):
        zygote.spawn({"environment.py": SLEEPY})


def test_a_watcher_ends_what_it_was_told_of_and_spares_what_was_taken_back(tmp_path):
    """The program itself, with a pipe that only we hold; torn lines, numbers of groups that have gone, and one it must not touch."""
    folder = tmp_path / "machines"
    (folder / "local-0").mkdir(parents=True)
    (folder / "local-0").chmod(0)
    sleep = ["sleep", "300"]
    told, spared, gone = (subprocess.Popen(sleep, start_new_session=True) for _ in range(3))
    marked = subprocess.Popen(sleep, start_new_session=True, env={orphans.MARK: f"{folder}/local-0/1"})
    gone.kill()
    gone.wait()
    try:
        watcher = subprocess.Popen([sys.executable, orphans.__file__, folder], stdin=subprocess.PIPE)
        for part in (
            f"+{told.pid}\n+{str(spared.pid)[:1]}",
            f"{str(spared.pid)[1:]}\n+{gone.pid}\n",
            f"-{spared.pid}\n",
        ):
            watcher.stdin.write(part.encode())
            watcher.stdin.flush()
        watcher.stdin.close()
        assert watcher.wait(100) == 0
        assert (told.wait(10), marked.wait(10)) == (-signal.SIGKILL, -signal.SIGKILL)
        assert spared.poll() is None
        assert not folder.exists()
    finally:
        for process in (told, spared, marked):
            process.kill()
            process.wait()
