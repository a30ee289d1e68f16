"""One SSHCompute in two event loops, as a run and the evaluation after it have them."""

import asyncio

import pytest

from nested_rl.types import Need

pytest.importorskip("asyncssh", reason="asyncssh is not installed: make test-fleet")

from sshd import Sshd


def test_one_backend_serves_two_event_loops_in_turn(tmp_path):
    from nested_rl.compute import SSHCompute

    host = Sshd(tmp_path / "host", key=tmp_path / "login")
    asyncio.run(host.start())
    compute = SSHCompute([host.host()])

    async def said() -> str:
        async with compute.machine(Need()) as machine:
            return (await machine.run(["echo", "here"])).stdout

    async def both_want_it() -> list[str]:
        try:
            return await asyncio.gather(said(), said())
        finally:
            await compute.close()

    try:
        for _ in range(2):
            assert asyncio.run(both_want_it()) == ["here\n"] * 2
    finally:
        host.kill()
