"""What an SSH machine does when the line, the host or the controller fails."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nested_rl.clock import SystemClock
from nested_rl.compute import ssh, ssh_link, ssh_login
from nested_rl.compute.ssh import SSHCompute
from nested_rl.compute.ssh_login import owner
from nested_rl.errors import MachineLost, SettingsError
from nested_rl.nano import lines
from nested_rl.types import Need

SOON_S = 20


def compute_of(*hosts, **settings):
    return SSHCompute(list(hosts), **{"patience_s": 20.0, "keepalive_s": 1.0, "lease_s": 40.0, **settings})


@pytest.fixture
async def compute(sshds):
    made = []

    async def make(n=1, **settings):
        hosts = await sshds(n)
        made.append(compute_of(*(one.host() for one in hosts), **settings))
        return made[-1], hosts

    yield make
    for one in made:
        await one.close()


def alive(pid):
    return (
        Path(f"/proc/{pid}/stat").exists()
        and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    )


async def gone(pid):
    async with asyncio.timeout(SOON_S):
        while alive(pid):  # noqa: ASYNC110  a process of another's
            await asyncio.sleep(0.02)


async def test_a_command_goes_on_when_the_line_breaks_and_is_run_once(compute):
    backend, (host,) = await compute()
    async with backend.machine(Need()) as machine:
        script = f'echo run >> "{host.folder}/runs"; read -r _ < "{host.folder}/gate"; echo done'
        os.mkfifo(host.folder / "gate")
        running = asyncio.ensure_future(machine.run(["sh", "-c", script]))
        await asyncio.to_thread(_until_written, host.folder / "runs")
        host.drop()
        await asyncio.to_thread((host.folder / "gate").write_text, "go\n")
        done = await asyncio.wait_for(running, SOON_S)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert (host.folder / "runs").read_text() == "run\n"


def _until_written(path):
    while not path.exists() or not path.read_text():
        os.sched_yield()


async def test_each_line_arrives_once_however_often_the_line_breaks(compute):
    backend, (host,) = await compute()
    async with backend.machine(Need()) as machine:
        process = await machine.start(["sh", "-c", 'n=0; while read -r line; do n=$((n+1)); echo "$n $line"; done'])
        for number in range(1, 7):
            reading = asyncio.ensure_future(process.readline())
            if number % 2:
                host.drop()
            await process.write(f"{number}\n".encode())
            if number % 3 == 0:
                host.drop()
            assert await asyncio.wait_for(reading, SOON_S) == f"{number} {number}\n".encode()
        assert process.alive


async def test_a_resident_is_still_warm_after_the_line_broke(compute):
    backend, (host,) = await compute()
    argv = ["sh", "-c", 'while read -r line; do echo "$$ $line"; done']
    told = []
    for line in (b"a\n", b"b\n"):
        async with backend.machine(Need()) as machine:
            process = await machine.resident("echo", argv)
            await process.write(line)
            told.append((await process.readline()).split()[0])
        host.drop()
    assert told[0] == told[1]


async def test_a_host_that_dies_is_lost_and_another_is_used(compute):
    backend, hosts = await compute(2, patience_s=1.0)
    with pytest.raises(MachineLost, match=r"does not answer|cannot be reached"):  # noqa: PT012
        async with backend.machine(Need()) as machine:
            lost = next(one for one in hosts if str(one.port) in machine.id)
            lost.kill()
            await machine.run(["true"])
    async with backend.machine(Need()) as machine:
        assert str(lost.port) not in machine.id
        assert (await machine.run(["true"])).returncode == 0
    other = next(one for one in hosts if one is not lost)
    other.kill()
    with pytest.raises(MachineLost):
        async with backend.machine(Need()) as machine:
            await machine.run(["true"])
    with pytest.raises(MachineLost, match="no host can be used"):
        async with backend.machine(Need()):
            pass


async def test_a_host_that_has_rested_is_used_while_others_are_taken(compute, monkeypatch):
    monkeypatch.setattr(ssh, "REST_S", 2.0)
    backend, hosts = await compute(2, patience_s=1.0)
    async with backend.machine(Need()) as first:
        bad = next(one for one in hosts if str(one.port) not in first.id)
        bad.kill()
        with pytest.raises(MachineLost):
            async with backend.machine(Need()):
                pass
        await bad.start()
        async with asyncio.timeout(SOON_S), backend.machine(Need()) as second:
            assert str(bad.port) in second.id


async def test_a_frozen_host_is_noticed_by_keepalives(compute):
    backend, (host,) = await compute(patience_s=1.0, keepalive_s=0.3)
    try:
        with pytest.raises(MachineLost):  # noqa: PT012
            async with asyncio.timeout(SOON_S), backend.machine(Need()) as machine:
                host.signal(signal.SIGSTOP)
                await machine.run(["true"])
    finally:
        host.signal(signal.SIGCONT)


@pytest.mark.parametrize("size", [1 << 12, 1 << 20], ids=["taken in", "left in the pipe"])
async def test_a_host_whose_shell_stands_still_is_given_up(compute, monkeypatch, size):
    monkeypatch.setattr(ssh_link, "START_S", 2.0)
    monkeypatch.setattr(ssh_login, "agent", lambda: bytes(size))
    backend, (host,) = await compute()
    slow = host.folder / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    backend = compute_of(host.host(python=str(slow)))
    async with asyncio.timeout(SOON_S):
        with pytest.raises(MachineLost, match="not done after 2 s"):
            async with backend.machine(Need()):
                pass


async def test_a_host_that_forwards_no_sockets_is_told_what_to_allow(sshds):
    (host,) = await sshds(1)
    host.kill()
    config = host.folder / "config"
    config.write_text(config.read_text().replace("AllowStreamLocalForwarding yes", "AllowStreamLocalForwarding no"))
    await host.start()
    backend = compute_of(host.host(), lease_s=2.0)
    with pytest.raises(MachineLost, match="`AllowStreamLocalForwarding yes` must hold there"):
        async with backend.machine(Need()):
            pass
    await backend.close()


async def test_a_host_program_that_has_ended_is_not_waited_for(compute):
    backend, (host,) = await compute(patience_s=600.0)
    async with asyncio.timeout(SOON_S):
        with pytest.raises(MachineLost, match="has ended"):  # noqa: PT012
            async with backend.machine(Need()) as machine:
                running = asyncio.ensure_future(machine.run(["sleep", "600"]))
                (host.folder / "base" / "socket").unlink()
                host.drop()
                await running


async def test_a_wrong_host_key_gets_nothing(sshds):
    one, other = await sshds(2)
    backend = compute_of(one.host(host_key=other.host_key))
    with pytest.raises(SettingsError, match="host key is not the pinned one"):
        async with backend.machine(Need()):
            pass
    assert not (one.folder / "base").exists()


async def test_an_unknown_host_and_a_refused_login_say_so(sshds, tmp_path):
    import asyncssh

    (one,) = await sshds(1)
    (tmp_path / "known").write_text("")
    backend = compute_of(one.host(host_key=None), known_hosts=str(tmp_path / "known"))
    with pytest.raises(SettingsError, match="this host is unknown"):
        async with backend.machine(Need()):
            pass
    stranger = tmp_path / "stranger"
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(stranger))
    backend = compute_of(one.host(key=str(stranger)))
    with pytest.raises(SettingsError, match="the login was refused"):
        async with backend.machine(Need()):
            pass
    (tmp_path / "nonsense").write_text("nonsense")
    for key in ("missing", "nonsense"):
        backend = compute_of(one.host(key=str(tmp_path / key)))
        with pytest.raises(SettingsError, match=f"the key .*{key} cannot be used"):
            async with backend.machine(Need()):
                pass
    backend = compute_of(one.host(python="/bin/false"))
    with pytest.raises(SettingsError, match="/bin/false ended with 1"):
        async with backend.machine(Need()):
            pass


async def test_a_host_is_held_by_one_controller_at_a_time(compute):
    backend, (host,) = await compute()
    async with backend.machine(Need()) as machine:
        await machine.put("mine", b"1")
        second = compute_of(host.host())
        with pytest.raises(SettingsError, match="is held by another controller"):
            async with second.machine(Need()):
                pass
        assert await machine.get("mine") == b"1"
    await backend.close()
    second = compute_of(host.host())
    async with second.machine(Need()) as machine:
        assert (await machine.run(["ls", "-A", machine.root])).stdout == ""
    await second.close()


CONTROLLER = """
import asyncio, sys
from nested_rl.compute import Host, SSHCompute
from nested_rl.types import Need

async def main(address, key, host_key, python, folder, lease_s):
    host = Host(address=address, key=key, host_key=host_key, python=python, folder=folder, offer=Need())
    async with SSHCompute([host], lease_s=float(lease_s), keepalive_s=0.3).machine(Need()) as machine:
        process = await machine.start(["sh", "-c", "sleep 300 & echo $!; wait"])
        print((await process.readline()).decode().strip(), flush=True)
        await process.wait()

asyncio.run(main(*sys.argv[1:]))
"""


def _killed_controller(host, *, lease_s):
    """The pid of a program on the host whose controller was killed."""
    told = host.host()
    argv = [told.address, told.key, told.host_key, told.python, told.folder, str(lease_s)]
    controller = subprocess.Popen([sys.executable, "-c", CONTROLLER, *argv], stdout=subprocess.PIPE)
    try:
        assert controller.stdout is not None
        return int(controller.stdout.readline())
    finally:
        controller.kill()
        controller.communicate()


async def test_what_a_killed_controller_left_ends_by_its_lease(sshds):
    (host,) = await sshds(1)
    pid = await asyncio.to_thread(_killed_controller, host, lease_s=2.0)
    await gone(pid)
    async with asyncio.timeout(SOON_S):
        while (host.folder / "base" / "socket").exists():  # noqa: ASYNC110  a file of another's
            await asyncio.sleep(0.02)


async def test_a_killed_controller_of_this_computer_is_followed_at_once(sshds):
    (host,) = await sshds(1)
    pid = await asyncio.to_thread(_killed_controller, host, lease_s=3600.0)
    assert alive(pid)
    backend = compute_of(host.host())
    async with asyncio.timeout(SOON_S), backend.machine(Need()) as machine:
        assert not alive(pid)
        assert (await machine.run(["ls", "-A", machine.root])).stdout == ""
    await backend.close()


async def test_nothing_is_sent_twice_and_what_a_job_did_to_its_copy_stays_there(compute):
    backend, (host,) = await compute()
    data = os.urandom(300_000)
    sent = []
    for _ in range(2):
        async with backend.machine(Need()) as machine:
            asked = machine._link.ask

            async def counted(op, data=b"", *, asked=asked, **fields):
                sent.append((op, len(data)))
                return await asked(op, data, **fields)

            machine._link.ask = counted
            await machine.put("adapter.bin", data)
            await machine.run(["sh", "-c", 'echo spoilt > "$0"', f"{machine.root}/adapter.bin"])
            await machine.put("again.bin", data)
            assert await machine.get("again.bin") == data
            machine._link.ask = asked
    assert [entry for entry in sent if entry[0] == "put"] == [("put", 300_000)]
    (kept,) = (host.folder / "base" / "store").iterdir()
    kept.write_bytes(b"meddled with")
    async with backend.machine(Need()) as machine:
        await machine.put("adapter.bin", data)
        assert await machine.get("adapter.bin") == data


async def test_cancelling_in_any_moment_leaves_nothing_running(compute):
    backend, _ = await compute()
    pids = []
    for pause_s in (0.0, 0.05, 0.2):

        async def hold():
            async with backend.machine(Need()) as machine:
                process = await machine.start(["sh", "-c", "echo $$; exec sleep 300"])
                pids.append(int(await process.readline()))
                await process.wait()

        holder = asyncio.ensure_future(hold())
        await asyncio.sleep(pause_s)
        holder.cancel()
        await asyncio.gather(holder, return_exceptions=True)
    await backend.close()
    for pid in pids:
        assert not alive(pid)


def test_hosts_that_cannot_be_are_refused():
    for wrong, words in (
        ("gpu1", "needs a list of hosts"),
        ([], "needs a list of hosts"),
        (["a:b:c"], r"an address is \[user@\]host\[:port\]"),
        (["a", "a"], "named twice"),
    ):
        with pytest.raises(SettingsError, match=words):
            SSHCompute(wrong)
    with pytest.raises(SettingsError, match="no host has Need"):
        SSHCompute(["a"]).machine(Need(gpus=1))


async def test_one_that_is_cut_off_while_it_connects_leaves_the_host_free(sshds):
    (host,) = await sshds(1)
    slow, begun, gate = (host.folder / name for name in ("slow", "begun", "gate"))
    os.mkfifo(gate)
    waits = f'if test ! -e "{begun}"; then echo > "{begun}"; read -r _ < "{gate}"; fi'
    slow.write_text(f'#!/bin/sh\n"{sys.executable}" "$@" || exit $?\n{waits}\n')  # holds the machine before it says so
    slow.chmod(0o755)
    backend = compute_of(host.host(python=str(slow)), lease_s=3600.0)

    async def lease():
        async with backend.machine(Need()) as machine:
            return (await machine.run(["echo", "mine"])).stdout

    cut = asyncio.ensure_future(lease())
    await asyncio.to_thread(_until_written, begun)
    cut.cancel()
    await asyncio.to_thread(gate.write_text, "go\n")
    with pytest.raises(asyncio.CancelledError):
        await cut
    assert not (host.folder / "base" / "socket").exists()
    async with asyncio.timeout(SOON_S):
        assert await lease() == "mine\n"
    await backend.close()


async def test_what_the_same_controller_left_there_is_taken_over_and_what_is_anothers_is_not(sshds):
    (host,) = await sshds(1)
    first, again, other = (
        ssh_link.Link(host.host(), clock=SystemClock(), lease_s=3600.0, patience_s=1.0, whose=whose)
        for whose in ("", "", owner("another part"))
    )
    await first.open()
    first._beating.cancel()
    first._drop()
    with pytest.raises(SettingsError, match="held by another controller"):
        await other.open()
    async with asyncio.timeout(SOON_S):
        await again.open()
    for link in (other, first, again):
        await link.close()


async def test_a_shell_may_greet(sshds):
    (host,) = await sshds(1)
    greeting = host.folder / "greeting"
    greeting.write_text(f'#!/bin/sh\necho "Welcome to the lab"\nexec "{sys.executable}" "$@"\n')
    greeting.chmod(0o755)
    backend = compute_of(host.host(python=str(greeting)))
    async with backend.machine(Need()) as machine:
        assert (await machine.run(["echo", "in"])).stdout == "in\n"
    await backend.close()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"python": "true"}, r"'true' is no Python 3\.11"),
        ({"folder": "/proc/nowhere"}, r"^[^\n]*folder /proc/nowhere cannot be used there[^\n]*$"),
        ({"host_key": None}, r"this host is unknown.*ssh-keyscan -p"),
    ],
)
async def test_what_is_wrong_with_a_host_is_one_sentence(sshds, tmp_path, settings, words):
    (host,) = await sshds(1)
    backend = compute_of(host.host(**settings), known_hosts=str(tmp_path / "none"))
    with pytest.raises(SettingsError, match=words):
        async with backend.machine(Need()):
            pass
    await backend.close()


async def test_the_last_words_of_a_program_cross_the_line(compute):
    backend, _ = await compute()
    async with backend.machine(Need()) as machine:
        argv = ["sh", "-c", "read -r _; echo no module of that name >&2; exit 1"]
        with pytest.raises(MachineLost, match="its last words: no module of that name"):
            await asyncio.wait_for(lines.ask(machine, "it", argv, {}, timeout_s=SOON_S), SOON_S)
