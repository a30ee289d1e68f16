"""What every machine must do. A machine is assumed to have a POSIX shell and python3."""

from __future__ import annotations

import asyncio

import pytest

from nested_rl.interfaces import Machine

SERVER = """
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    with server.accept()[0] as client:
        client.sendall(b"hello")
"""
STATE = 'cat "/proc/$1/stat" 2>/dev/null || echo "0 (none) X"'


async def runs(machine: Machine, pid: str) -> bool:
    """Whether a process of the machine still runs; a zombie does not."""
    told = await machine.run(["sh", "-c", STATE, "sh", pid.strip()])
    return told.stdout.rpartition(")")[2].split()[0] not in "ZX"


class MachineSuite:
    """Override the fixture `machine` with one that is leased for the test."""

    @pytest.fixture
    def machine(self) -> Machine:
        """A machine."""
        raise NotImplementedError("override the fixture `machine`")

    async def test_a_command_runs_to_its_end(self, machine: Machine) -> None:
        done = await machine.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
        assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")

    async def test_arguments_are_no_shell_text(self, machine: Machine) -> None:
        done = await machine.run(["printf", "%s", "$HOME; 'ü' \"*\""])
        assert done.stdout == "$HOME; 'ü' \"*\""

    async def test_any_output_is_survived(self, machine: Machine) -> None:
        done = await machine.run(["printf", r"\377\376ok\000"])
        assert done.returncode == 0
        assert "ok" in done.stdout
        much = await machine.run(["sh", "-c", "head -c 9000000 /dev/zero; echo; echo end"])
        assert much.returncode == 0
        assert much.stdout.endswith("end\n")
        assert len(much.stdout) <= 9_000_005

    async def test_past_its_time_a_command_is_killed_with_its_children(self, machine: Machine) -> None:
        command = 'sleep 300 & echo $! > "$0"; wait'
        with pytest.raises(TimeoutError):
            await machine.run(["sh", "-c", command, f"{machine.root}/pid"], timeout_s=0.5)
        assert not await runs(machine, (await machine.get("pid")).decode())

    async def test_a_cancelled_command_is_killed(self, machine: Machine) -> None:
        # The pipe is opened when both ends have come: then the command runs.
        await machine.run(["mkfifo", f"{machine.root}/pipe"])
        command = 'echo $$ > "$0"; exec sleep 300'
        running = asyncio.ensure_future(machine.run(["sh", "-c", command, f"{machine.root}/pipe"]))
        pid = (await machine.run(["cat", f"{machine.root}/pipe"])).stdout
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not await runs(machine, pid)

    async def test_what_a_command_left_running_ends_with_it(self, machine: Machine) -> None:
        done = await machine.run(["sh", "-c", "sleep 300 & echo $!"])
        assert not await runs(machine, done.stdout)

    async def test_a_program_that_does_not_exist_is_told(self, machine: Machine) -> None:
        try:
            done = await machine.run(["no-such-program-here"])
        except OSError:
            return
        assert done.returncode != 0

    async def test_the_environment_is_what_was_given(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PROVIDER_API_KEY", "sk-secret")
        done = await machine.run(["env"], env={"GIVEN": "this"})
        names = {line.partition("=")[0] for line in done.stdout.splitlines()}
        assert {"PATH", "HOME", "GIVEN"} <= names
        assert "sk-secret" not in done.stdout
        assert "PYTHONPATH" not in names

    async def test_files_go_there_and_back(self, machine: Machine) -> None:
        data = bytes(range(256)) * 1000
        await machine.put("a/b/data.bin", data)
        assert await machine.get("a/b/data.bin") == data
        assert await machine.get(f"{machine.root}/a/b/data.bin") == data
        await machine.put("a/b/data.bin", b"")
        assert await machine.get("a/b/data.bin") == b""
        listed = await machine.run(["ls", "-A", f"{machine.root}/a/b"])
        assert listed.stdout == "data.bin\n"

    async def test_a_missing_file_is_told(self, machine: Machine) -> None:
        with pytest.raises(FileNotFoundError):
            await machine.get("nothing/here")

    @pytest.mark.parametrize("path", ["../out", "a/../../out", "/etc/nested_rl", "", "a\0b"])
    async def test_paths_that_lead_out_are_refused(self, machine: Machine, path: str) -> None:
        with pytest.raises((ValueError, PermissionError)):
            await machine.put(path, b"")
        with pytest.raises((ValueError, PermissionError)):
            await machine.get(path)

    async def test_links_and_pipes_are_not_followed(self, machine: Machine) -> None:
        made = await machine.run(
            ["sh", "-c", 'cd "$0" && ln -s /etc/passwd file && ln -s /tmp folder && mkfifo pipe', machine.root]
        )
        assert made.returncode == 0
        for path in ("file", "folder/x", "pipe"):
            with pytest.raises(OSError, match=path):
                await asyncio.wait_for(machine.get(path), 30)
        with pytest.raises(OSError, match="folder"):
            await machine.put("folder/x", b"")

    async def test_lines_go_in_and_out_of_a_program(self, machine: Machine) -> None:
        process = await machine.start(
            ["sh", "-c", 'while read -r line; do echo "got $line"; done; printf last; exit 4']
        )
        for number in range(3):
            await process.write(f"{number}\n".encode())
            assert await process.readline() == f"got {number}\n".encode()
        assert process.alive
        await process.kill()
        assert not process.alive
        assert await process.wait() != 0
        assert await process.readline() == b""

    async def test_the_last_line_needs_no_end(self, machine: Machine) -> None:
        process = await machine.start(["sh", "-c", "printf last; exit 4"])
        assert await process.readline() == b"last"
        assert await process.readline() == b""
        assert await process.wait() == 4
        assert not process.alive
        await process.kill()

    async def test_writing_to_a_dead_program_is_an_error(self, machine: Machine) -> None:
        process = await machine.start(["true"])
        await process.wait()
        with pytest.raises(OSError):
            await process.write(b"x\n")

    async def test_a_line_that_is_too_long_does_not_fill_the_memory(self, machine: Machine) -> None:
        process = await machine.start(["sh", "-c", r"head -c 50000000 /dev/zero | tr '\000' x; echo; echo next"])
        assert len(await process.readline()) <= 50_000_001
        assert await process.readline() == b"next\n"

    async def test_killing_takes_the_children_too(self, machine: Machine) -> None:
        process = await machine.start(["sh", "-c", "sleep 300 & echo $!; wait"])
        pid = (await process.readline()).decode()
        assert await runs(machine, pid)
        await process.kill()
        assert not await runs(machine, pid)

    async def test_a_resident_stays_and_is_started_again_when_dead(self, machine: Machine) -> None:
        argv = ["sh", "-c", 'while read -r line; do echo "$$ $line"; done']
        first, second = await asyncio.gather(machine.resident("echo", argv), machine.resident("echo", argv))
        assert first is second
        await first.write(b"a\n")
        pid = (await first.readline()).split()[0]
        again = await machine.resident("echo", argv)
        await again.write(b"b\n")
        assert await again.readline() == pid + b" b\n"
        await again.kill()
        fresh = await machine.resident("echo", argv)
        await fresh.write(b"c\n")
        assert (await fresh.readline()).split()[0] != pid

    async def test_a_port_of_the_machine_is_reached(self, machine: Machine) -> None:
        server = await machine.start(["python3", "-c", SERVER])
        port = int(await server.readline())
        async with machine.forward(port) as here:
            reader, writer = await asyncio.open_connection("127.0.0.1", here)
            assert await reader.read() == b"hello"
            writer.close()
            await writer.wait_closed()
