"""A controller as a process of its own, which comes to a given state of its pod, says so, and waits there to be killed.

    python controller.py FOLDER URL STATE MOMENT LEASE_S

MOMENT "line": right after the journal has the state, before anything comes of it. "later": in the midst of what belongs to it, with the
lease being renewed meanwhile. "again": in a job, and then in it again on another pod.
"""

import asyncio
import contextlib
import sys
from pathlib import Path

import pods

from nested_rl.compute import runpod
from nested_rl.compute.pool_roster import Journal
from nested_rl.errors import InfraFault
from nested_rl.types import Need

FOLDER, URL, STATE, MOMENT, LEASE_S = sys.argv[1:]


def there():
    print("there", flush=True)


class Stopping(Journal):
    """Says when the state is told, and goes no further."""

    def append(self, row, *, sync=False):
        super().append(row, sync=sync)
        if MOMENT == "line" and row["state"] == STATE:
            there()
            sys.stdin.read()


async def preflight(machine, candidate):
    if (STATE, MOMENT) == ("preflight", "later"):
        there()
        await asyncio.Event().wait()


async def until_it_works(compute):
    """A job that is delivered again after a loss, told each time that it begins."""
    for program in ("sleep 600", "true"):
        with contextlib.suppress(InfraFault):
            async with compute.machine_for(Need(gpus=1), job="one") as machine:
                there()
                await machine.run(["sh", "-c", program])
    await compute.close()


async def main():
    runpod.Journal = Stopping
    compute = pods.compute(
        Path(FOLDER), URL, max_machines=1, lease_s=float(LEASE_S), grace_s=float(LEASE_S), preflight=preflight
    )
    if (STATE, MOMENT) in (("creating", "later"), ("terminating", "later")):
        there()  # who asks knows best when: the server does
    if MOMENT == "again":
        await until_it_works(compute)
        return
    async with compute.machine_for(Need(gpus=1), job="one") as machine:
        if STATE == "busy":
            if MOMENT == "later":
                process = await machine.start(["sh", "-c", "echo working; sleep 600"])
                await process.readline()
                there()
            await asyncio.Event().wait()
    if (STATE, MOMENT) == ("ready", "later"):
        there()
        await asyncio.Event().wait()
    await compute.close()


asyncio.run(main())
