"""A controller that is killed leaves nothing of a job running, not even what hid from the machine."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from runner_play import HERE, make_base, make_programs

from nested_rl import process

CONTROLLER = """
import asyncio, sys, tempfile
from pathlib import Path
sys.path.insert(0, sys.argv[1])
tempfile.tempdir = sys.argv[2]
from runner_play import make_order, terms
from nested_rl.compute.local import LocalCompute
from nested_rl.inner.prime_rl.launch import launch
from nested_rl.types import Need

async def main():
    async with LocalCompute(1).machine(Need()) as machine:
        order = make_order(Path(sys.argv[2], "base"), at_1=["leave", "hang"], pid=sys.argv[2] + "/pid")
        await launch(machine, order, terms=terms())

asyncio.run(main())
"""


async def until(holds):
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110  other processes send no events
            await asyncio.sleep(0.01)


def text(path):
    return path.read_text() if path.exists() else ""


def spawn(folder, path):
    return subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, str(HERE), str(folder)], env={**os.environ, "PATH": path}
    )


async def test_nothing_of_a_job_outlives_a_killed_controller(tmp_path):
    make_base(tmp_path / "base")
    controller = spawn(tmp_path, f"{make_programs(tmp_path / 'bin')}:{os.environ['PATH']}")
    await until(lambda: text(tmp_path / "pid"))
    hidden = process.identity(int(text(tmp_path / "pid")))
    assert process.alive(hidden)
    controller.send_signal(signal.SIGKILL)
    controller.wait()
    await until(lambda: not process.alive(hidden))
    await until(lambda: not any(Path(tmp_path, f"nested_rl-{os.getuid()}").iterdir()))
