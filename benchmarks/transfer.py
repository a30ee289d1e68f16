"""From a lease to the first training step on a machine behind SSH, and what goes over the line.

    .venvs/bench/bin/python benchmarks/transfer.py [--rounds 5]

A real sshd on loopback, behind a counter of connections and bytes. A lease with a job of 5 MB, up to the end of its first step of
training: on a host that was never seen, again on the same connection, and again with the same data. Then an adapter of 50 MB
there, back, and there again, beside scp. Writes benchmarks/results/transfer.json.
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import record
from attrs import evolve

from nested_rl import tasks
from nested_rl.compute import SSHCompute
from nested_rl.inner import NanoInnerTrainer
from nested_rl.jobs.folder import digest
from nested_rl.types import Job, JobSpec, Need

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fleet"))

from sshd import Sshd

JOB_BYTES, ADAPTER_BYTES = 5_000_000, 50_000_000
JOB_TOML = '[model]\nbase = "nano-m"\n\n[training]\nsteps = 1\nlearning_rate = 1e-3\n'
CODE = """\
from nested_rl.jobkit import make, parse

def examples(rng, n):
    return make("calc_chain", rng, n, k=(1, 3))

def reward(prompt, completion, answer):
    return 1.0 if parse(completion) == answer else 0.0
"""


class Counter:
    """A line to a port that counts what goes through it."""

    def __init__(self) -> None:
        self.connections = self.sent = self.received = 0

    @asynccontextmanager
    async def before(self, port: int) -> AsyncIterator[int]:
        async def through(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            there, back = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(self._pass(reader, back, "sent"), self._pass(there, writer, "received"))

        async with await asyncio.start_server(through, "127.0.0.1", 0) as server:
            yield server.sockets[0].getsockname()[1]

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:
        try:
            while data := await reader.read(1 << 18):
                setattr(self, way, getattr(self, way) + len(data))
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()


def job(seed: int) -> Job:
    """One step of training on nano-m."""
    (family,) = tasks.load("calc_chain", scale="nano")
    files = {"job.toml": JOB_TOML, "environment.py": CODE}
    spec = JobSpec(task=next(family.tasks()), files=files, digest=digest(files), base="nano-m", scale="nano", seed=seed)
    return Job(id="1", key="k", spec=spec, delivery=1)


class Measured:
    """Named measurements: seconds, bytes sent and received."""

    def __init__(self, counter: Counter) -> None:
        self.counter = counter
        self.found: dict[str, list[tuple[float, int, int, int]]] = {}

    @asynccontextmanager
    async def as_(self, name: str) -> AsyncIterator[None]:
        line = self.counter
        before, started = (line.sent, line.received, line.connections), time.perf_counter()
        yield
        seconds = time.perf_counter() - started
        moved = (line.sent - before[0], line.received - before[1], line.connections - before[2])
        self.found.setdefault(name, []).append((seconds, *moved))


async def first_step(compute: SSHCompute, trainer: NanoInnerTrainer, data: bytes, seed: int) -> None:
    """Lease, job's data there, one step of training."""
    async with compute.machine(Need()) as machine:
        await machine.put("job/data.bin", data)
        await trainer.train(job(seed), machine)


async def one_round(number: int, measured: Measured, folder: Path) -> None:
    """A fresh host."""
    rng = random.Random(number)
    sshd, trainer = Sshd(folder / f"host-{number}"), NanoInnerTrainer()
    await sshd.start()
    try:
        async with measured.counter.before(sshd.port) as port:
            host = evolve(sshd.host(), address=f"{getpass.getuser()}@127.0.0.1:{port}")
            compute = SSHCompute([host])
            data, adapter = rng.randbytes(JOB_BYTES), rng.randbytes(ADAPTER_BYTES)
            async with measured.as_("first lease, 5 MB job, first step"):
                await first_step(compute, trainer, data, number)
            async with measured.as_("next lease, another 5 MB job, first step"):
                await first_step(compute, trainer, rng.randbytes(JOB_BYTES), number + 100)
            async with measured.as_("next lease, the same 5 MB again, first step"):
                await first_step(compute, trainer, data, number + 200)
            async with compute.machine(Need()) as machine:
                async with measured.as_("50 MB there"):
                    await machine.put("adapter.bin", adapter)
                async with measured.as_("50 MB back"):
                    assert await machine.get("adapter.bin") == adapter
                async with measured.as_("the same 50 MB there again, under another name"):
                    await machine.put("again.bin", adapter)
            (folder / "adapter.bin").write_bytes(adapter)
            async with measured.as_("50 MB there, by scp"):
                await asyncio.to_thread(scp, sshd, port, folder / "adapter.bin", folder / "there.bin")
            await compute.close()
            await trainer.close()
    finally:
        sshd.kill()


def scp(sshd: Sshd, port: int, source: Path, target: Path) -> None:
    options = [
        "-O",  # the host has no SFTP
        "-q",
        "-P",
        str(port),
        "-i",
        str(sshd.key),
        "-o",
        "StrictHostKeyChecking=no",
        "-o",
        "UserKnownHostsFile=/dev/null",
    ]
    subprocess.run(["scp", *options, source, f"{getpass.getuser()}@127.0.0.1:{target}"], check=True)


async def main() -> None:
    """Print the table and write it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    os.environ.pop("SSH_AUTH_SOCK", None)
    measured, calibration = Measured(Counter()), []
    with tempfile.TemporaryDirectory(prefix="nrl-") as folder:
        for number in range(asked.rounds):
            await one_round(number, measured, Path(folder))
            calibration += record.interleaved({}, rounds=3)[record.CALIBRATION]
    rows: list[dict[str, Any]] = []
    for name, found in measured.found.items():
        seconds, sent, received, connections = (record.median(values) for values in zip(*found, strict=True))
        rows.append(
            {
                "what": name,
                "wall_s": record.significant(seconds, 3),
                "sent_mb": round(sent / 1e6, 3),
                "received_mb": round(received / 1e6, 3),
                "connections": round(connections),
            }
        )
    record.show(
        "A machine behind SSH on loopback",
        ("what", "s", "MB sent", "MB back", "new connections"),
        [tuple(r.values()) for r in rows],
    )
    by_name = {r["what"]: r["wall_s"] for r in rows}
    record.write(
        "transfer",
        calibration_s=record.median(calibration),
        seconds=by_name,
        ratios={"50 MB: scp ÷ ours": by_name["50 MB there, by scp"] / by_name["50 MB there"]},
        settings={"rounds": asked.rounds, "job_bytes": JOB_BYTES, "adapter_bytes": ADAPTER_BYTES},
        rows=rows,
    )


if __name__ == "__main__":
    asyncio.run(main())
