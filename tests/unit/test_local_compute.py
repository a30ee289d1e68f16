"""What only this computer must do: outlive nobody, stay in its folder, start afresh."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nested_rl import process
from nested_rl.compute import orphans, rooted
from nested_rl.compute.child import Output
from nested_rl.compute.local import LocalCompute
from nested_rl.errors import SettingsError
from nested_rl.types import Need

CONTROLLER = """
import asyncio, json, sys, tempfile
tempfile.tempdir = sys.argv[1]
from nested_rl.compute.local import LocalCompute
from nested_rl.types import Need

SPAWN = "sleep 300 & echo $!; setsid sleep 300 & echo $!; echo $$; wait"

async def main():
    compute = LocalCompute(1)
    async with compute.machine(Need()) as machine:
        pids = []
        for program in (await machine.start(["sh", "-c", SPAWN]), await machine.resident("warm", ["sh", "-c", SPAWN])):
            pids += [int(await program.readline()) for _ in range(3)]
        print(json.dumps({"pids": pids, "root": machine.root}), flush=True)
        await asyncio.sleep(300)

asyncio.run(main())
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
async def compute(temporary):
    compute = LocalCompute(1)
    yield compute
    await compute.close()


def runs(pid):
    return process.alive(process.identity(pid)) and any(p == pid for p, state, _ in orphans.processes() if state != "Z")


def spawn(argv, **how):
    return subprocess.Popen([str(word) for word in argv], **how)


async def until(holds, *, seconds=30):
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110  other processes send no events
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("how", [os.kill, os.killpg])
async def test_nothing_survives_a_killed_controller(temporary, how):
    controller = spawn([sys.executable, "-c", CONTROLLER, temporary], stdout=subprocess.PIPE, start_new_session=True)
    told = json.loads(controller.stdout.readline())
    assert all(runs(pid) for pid in told["pids"])
    how(controller.pid, signal.SIGKILL)
    controller.communicate()
    await until(lambda: not any(runs(pid) for pid in told["pids"]))
    await until(lambda: not list((temporary / f"nested_rl-{os.getuid()}").iterdir()))


async def test_the_workspaces_of_a_killed_controller_go_with_it(temporary):
    controller = spawn([sys.executable, "-c", CONTROLLER, temporary], stdout=subprocess.PIPE, start_new_session=True)
    assert controller.stdout.readline()
    desks = temporary / f"nested_rl-{os.getuid()}" / "desks"
    its, ours = (desks / f"{process.identity(pid)}-0badcafe" for pid in (controller.pid, os.getpid()))
    for desk in (its, ours):
        desk.mkdir(parents=True)
    controller.kill()
    controller.communicate()
    await until(lambda: not its.exists())
    assert ours.exists()


async def test_what_leaves_its_group_ends_with_the_lease(compute):
    async with compute.machine(Need()) as machine:
        program = await machine.start(["sh", "-c", "setsid sh -c 'echo $$; exec sleep 300' & read _"])
        pid = int(await program.readline())
        await program.write(b"\n")
        await program.wait()
        assert runs(pid)
    assert not runs(pid)


async def test_folders_of_dead_controllers_are_cleared_those_of_living_ones_not(temporary, compute):
    common = temporary / f"nested_rl-{os.getuid()}"
    common.mkdir(mode=0o700)
    dead = spawn(["sleep", "0"])
    dead.wait()
    stale, other = (
        common / f"{told}-00000000" for told in (process.identity(dead.pid), process.identity(os.getppid()))
    )
    for folder in (stale, other):
        (folder / "local-0" / "closed").mkdir(parents=True)
        (folder / "local-0" / "closed").chmod(0)
    left = spawn(["sleep", "300"], env={orphans.MARK: f"{stale}/local-0/warm"})
    async with compute.machine(Need()):
        assert not stale.exists()
        assert other.exists()
    assert left.wait() == -signal.SIGKILL


async def test_a_folder_that_is_somebody_elses_is_refused(temporary, compute):
    (temporary / "elsewhere").mkdir()
    (temporary / f"nested_rl-{os.getuid()}").symlink_to(temporary / "elsewhere")
    with pytest.raises(SettingsError, match="set TMPDIR"):
        async with compute.machine(Need()):
            pass


async def test_a_root_that_was_swapped_for_a_link_harms_nobody(temporary, compute):
    precious = temporary / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    async with compute.machine(Need()) as first:
        await first.run(["sh", "-c", 'mv "$1" "$1.old" && ln -s "$2" "$1"', "sh", first.root, str(precious)])
        await first.put("file", b"theirs")
    assert (precious / "file").read_text() == "mine"
    async with compute.machine(Need()) as second:
        assert second.id != first.id
    await compute.close()
    assert (precious / "file").read_text() == "mine"


async def test_a_folder_nested_deeper_than_python_goes_is_removed(temporary, compute):
    deep = "import os\nfor _ in range(3000):\n    os.mkdir('d'); os.chdir('d')"
    async with compute.machine(Need()) as machine:
        assert (await machine.run(["python", "-I", "-S", "-c", deep])).returncode == 0
    async with compute.machine(Need()) as again:
        assert (await again.run(["ls", "-A", again.root])).stdout == ""
    await compute.close()
    assert not list((temporary / f"nested_rl-{os.getuid()}").iterdir())


async def test_a_file_larger_than_the_limit_is_not_read(compute, monkeypatch):
    monkeypatch.setattr(rooted, "READ_BYTES", 1000)
    async with compute.machine(Need()) as machine:
        await machine.put("file", b"x" * 1000)
        assert len(await machine.get("file")) == 1000
        await machine.run(["truncate", "-s", "100G", f"{machine.root}/file"])
        with pytest.raises(PermissionError, match="more than 1000 bytes"):
            await machine.get("file")


async def test_an_interrupted_put_leaves_the_old_file(compute):
    async with compute.machine(Need()) as machine:
        await machine.put("file", b"old")
        with pytest.raises(TypeError):
            await machine.put("file", "not bytes")
        assert await machine.get("file") == b"old"
        assert (await machine.run(["ls", "-A", machine.root])).stdout == "file\n"


async def test_warm_programs_have_one_thread_and_python_is_ours(compute):
    async with compute.machine(Need()) as machine:
        show = "import json, os, sys; print(json.dumps([sys.executable, dict(os.environ)]), flush=True); input()"
        warm = await machine.resident("python", ["python", "-c", show])
        executable, environment = json.loads(await warm.readline())
    assert executable == sys.executable
    assert environment.pop("NESTED_RL_MACHINE").startswith(machine.root)
    assert environment["OPENBLAS_NUM_THREADS"] == environment["OMP_NUM_THREADS"] == "1"
    assert environment["HOME"] == machine.root
    assert set(environment) <= {
        "PATH", "HOME", "LANG", "LC_CTYPE", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS",
    }  # fmt: skip


async def test_a_resident_asked_for_with_another_command_is_replaced(compute):
    async with compute.machine(Need()) as machine:
        one = await machine.resident("key", ["python", "-c", "input()"])
        assert await machine.resident("key", ["python", "-c", "input()"]) is one
        two = await machine.resident("key", ["cat"])
        assert not one.alive
        assert two.alive


def test_after_closing_it_can_be_used_again_also_in_another_loop(temporary):
    compute = LocalCompute(1)

    async def use():
        async def hold():
            async with compute.machine(Need()) as machine:
                return (await machine.run(["echo", "hi"])).stdout

        said = await asyncio.gather(hold(), hold(), hold())
        await compute.close()
        return said

    for _ in range(2):
        assert asyncio.run(use()) == ["hi\n"] * 3
    assert not list((temporary / f"nested_rl-{os.getuid()}").iterdir())


async def test_closing_ends_leases_that_are_held(compute):
    async def hold():
        async with compute.machine(Need()) as machine:
            started.set_result(machine)
            return await machine.run(["sleep", "300"])

    started = asyncio.get_running_loop().create_future()
    holder = asyncio.ensure_future(hold())
    await started
    await asyncio.sleep(0.05)
    await compute.close()
    assert (await asyncio.wait_for(holder, 30)).returncode == -signal.SIGKILL


def test_at_least_one_machine(temporary):
    assert LocalCompute().max_machines >= 1
    with pytest.raises(SettingsError, match="at least 1"):
        LocalCompute(0)


@given(st.lists(st.binary(max_size=30)), st.integers(2, 20).map(lambda n: 2 * n))
def test_of_a_long_output_the_beginning_and_the_end_are_kept(pieces, limit):
    output, whole = Output(limit), b"".join(pieces).decode(errors="replace")
    for piece in pieces:
        output.feed_data(piece)
    data = b"".join(pieces)
    if len(data) <= limit:
        assert output.text() == whole
    else:
        head, tail = data[: limit // 2], data[-limit // 2 :]
        gap = f"\n... {len(data) - limit} bytes left out ...\n".encode()
        assert output.text() == (head + gap + tail).decode(errors="replace")


def test_the_watcher_ends_when_its_controller_is_done(temporary):
    folder = temporary / "folder"
    folder.mkdir()
    start_s = time.monotonic()
    watcher = subprocess.Popen([sys.executable, "-I", "-S", orphans.__file__, str(folder)], stdin=subprocess.PIPE)
    watcher.stdin.close()
    assert watcher.wait(30) == 0
    assert not folder.exists()
    assert time.monotonic() - start_s < 30
