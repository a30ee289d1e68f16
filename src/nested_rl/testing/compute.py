"""What every compute backend must do."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AsyncExitStack

import pytest

from nested_rl.errors import SettingsError
from nested_rl.interfaces import ComputeBackend
from nested_rl.testing.machine import runs
from nested_rl.types import Need

ANY = Need()
ECHO = ["sh", "-c", 'while read -r line; do echo "$$ $line"; done']
SOON_S = 0.1


class ComputeSuite:
    """Override the fixture `compute` with a backend of at least two machines; close it at the end."""

    @pytest.fixture
    def compute(self) -> ComputeBackend:
        """A backend."""
        raise NotImplementedError("override the fixture `compute`")

    async def test_what_it_offers_is_enough_for_a_small_job(self, compute: ComputeBackend) -> None:
        assert any(ANY.fits(offer) for offer in compute.offers())

    async def test_a_need_that_no_offer_fits_is_refused(self, compute: ComputeBackend) -> None:
        with pytest.raises(SettingsError):
            async with compute.machine(Need(gpus=10**6)):
                pass

    async def test_machines_held_together_are_different_ones(self, compute: ComputeBackend) -> None:
        async with compute.machine(ANY) as one, compute.machine(ANY) as two:
            assert one.id != two.id
            await one.put("mine", b"1")
            await two.put("mine", b"2")
            assert (await one.get("mine"), await two.get("mine")) == (b"1", b"2")

    async def test_when_all_are_taken_the_next_one_waits(self, compute: ComputeBackend) -> None:
        async def short() -> str:
            async with compute.machine(ANY) as machine:
                return machine.id

        async with AsyncExitStack() as stack:
            for _ in range(compute.max_machines):
                await stack.enter_async_context(compute.machine(ANY))
            waiting = asyncio.ensure_future(short())
            await asyncio.sleep(SOON_S)
            assert not waiting.done()
        assert await asyncio.wait_for(waiting, 60)

    async def test_a_lease_finds_an_empty_root_and_nothing_of_the_one_before(self, compute: ComputeBackend) -> None:
        pids: list[str] = []
        for _ in range(compute.max_machines + 1):
            async with compute.machine(ANY) as machine:
                listed = await machine.run(["ls", "-A", machine.root])
                assert listed.stdout == ""
                for pid in pids:
                    assert not await runs(machine, pid)
                await machine.put("folder/file", b"x")
                await machine.run(["chmod", "-R", "a-w", machine.root + "/folder"])
                process = await machine.start(["sh", "-c", "sleep 300 & echo $!; wait"])
                pids.append((await process.readline()).decode())
            assert not process.alive

    async def test_a_warm_program_serves_many_leases(self, compute: ComputeBackend) -> None:
        async def ask(line: bytes) -> tuple[str, bytes]:
            async with compute.machine(ANY) as machine:
                process = await machine.resident("echo", ECHO)
                await process.write(line + b"\n")
                pid, answer = (await process.readline()).split()
                assert answer == line
                return machine.id, pid

        first, second = await ask(b"a"), await ask(b"b")
        assert first == second or first[0] != second[0]

    async def test_after_a_warm_program_died_the_next_lease_gets_a_fresh_one(self, compute: ComputeBackend) -> None:
        async with compute.machine(ANY) as machine:
            process = await machine.resident("echo", ECHO)
            await process.kill()
        async with compute.machine(ANY) as machine:
            process = await machine.resident("echo", ECHO)
            await process.write(b"a\n")
            assert (await process.readline()).endswith(b" a\n")

    async def test_a_lease_that_ended_badly_leaves_nothing_warm(self, compute: ComputeBackend) -> None:
        with contextlib.suppress(KeyError):
            async with compute.machine(ANY) as machine:
                process = await machine.resident("echo", ECHO)
                raise KeyError("what may have left it in any state")
        assert not process.alive
        async with compute.machine(ANY) as machine:
            assert (await machine.run(["ls", "-A", machine.root])).stdout == ""

    async def test_a_cancelled_holder_gives_its_machine_back(self, compute: ComputeBackend) -> None:
        async def hold() -> None:
            async with compute.machine(ANY) as machine:
                await machine.run(["sleep", "300"])

        for _ in range(2):
            holders = [asyncio.ensure_future(hold()) for _ in range(compute.max_machines)]
            await asyncio.sleep(SOON_S)
            for holder in holders:
                holder.cancel()
            await asyncio.gather(*holders, return_exceptions=True)
        async with asyncio.timeout(60), AsyncExitStack() as stack:
            for _ in range(compute.max_machines):
                await stack.enter_async_context(compute.machine(ANY))

    async def test_closing_ends_what_was_warm_and_may_be_done_twice(self, compute: ComputeBackend) -> None:
        async with compute.machine(ANY) as machine:
            process = await machine.resident("echo", ECHO)
        await compute.close()
        assert not process.alive
        await compute.close()
