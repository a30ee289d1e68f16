"""From a lease to the first training step on a machine behind SSH, and what goes over the line.

    .venvs/bench/bin/python benchmarks/transfer.py [--rounds 5]

A real sshd on loopback, behind a relay that counts connections and bytes, in a process of its own. A lease, 5 MB put there, and
one step of training: on a host that was never seen, again on the same connection, and again with the same data. The 5 MB stand
for what a job brings along: the data of a nano job itself is bounded to a twentieth of that. Then an adapter of 50 MB there,
back, and there again, beside scp. Writes benchmarks/results/transfer.json.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
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

RELAY = "--relay"
JOB_BYTES, ADAPTER_BYTES = 5_000_000, 50_000_000
OURS, SCP, SCP_NOTHING = "50 MB there", "50 MB there, by scp", "1 byte there, by scp"
JOB_TOML = '[model]\nbase = "nano-m"\n\n[training]\nsteps = 1\nlearning_rate = 1e-3\n'
CODE = """\
from nested_rl.jobkit import make, parse

def examples(rng, n):
    return make("calc_chain", rng, n, k=(1, 3))

def reward(prompt, completion, answer):
    return 1.0 if parse(completion) == answer else 0.0
"""


# ---------------------------------------------------------------- the relay


class Counter:
    """A line to a port that counts what goes through it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.sent = self.received = self.connections = 0

    async def through(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, back = await asyncio.open_connection("127.0.0.1", self.port)
        with contextlib.suppress(asyncio.CancelledError):  # the end of the relay
            await asyncio.gather(self._pass(reader, back, "sent"), self._pass(there, writer, "received"))

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


async def relay(port: int) -> None:
    """The relay's process: says its own port, then the counts for every line of standard input, until that ends."""
    counter, questions = Counter(port), asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(questions), sys.stdin.buffer
    )
    server = await asyncio.start_server(counter.through, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    while await questions.readline():
        print(json.dumps([counter.sent, counter.received, counter.connections]), flush=True)


class Line:
    """The relay's other end. It has a process of its own: in this one it would slow our transfer down, and not scp."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self._process, self.port = process, port

    @classmethod
    @asynccontextmanager
    async def to(cls, port: int) -> AsyncIterator[Line]:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, __file__, RELAY, str(port), stdin=pipe, stdout=pipe
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield cls(process, int(await process.stdout.readline()))
        finally:
            process.stdin.close()
            await process.wait()

    async def counts(self) -> list[int]:
        """Bytes sent and received, connections."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        counts: list[int] = json.loads(await self._process.stdout.readline())
        return counts


# ---------------------------------------------------------------- what is measured


class Measured:
    """Named measurements: wall-clock seconds, bytes sent and received, connections. The calibration runs before each."""

    def __init__(self) -> None:
        self.calibration = record.Calibration(time.perf_counter)
        self.found: dict[str, list[tuple[float, ...]]] = {}

    async def start(self, name: str, line: Line) -> Stopwatch:
        self.calibration.take()
        return Stopwatch(self.found.setdefault(name, []), line, await line.counts(), time.perf_counter())

    @asynccontextmanager
    async def as_(self, name: str, line: Line) -> AsyncIterator[None]:
        watch = await self.start(name, line)
        yield
        await watch.stop()


class Stopwatch:
    """One measurement that has begun."""

    def __init__(self, found: list[tuple[float, ...]], line: Line, before: Sequence[int], started: float) -> None:
        self._found, self._line, self._before, self._started = found, line, before, started

    async def stop(self) -> None:
        seconds, after = time.perf_counter() - self._started, await self._line.counts()
        self._found.append((seconds, *(a - b for a, b in zip(after, self._before, strict=True))))


def job(seed: int) -> Job:
    """One step of training on nano-m."""
    (family,) = tasks.load("calc_chain", scale="nano")
    files = {"job.toml": JOB_TOML, "environment.py": CODE}
    spec = JobSpec(task=next(family.tasks()), files=files, digest=digest(files), base="nano-m", scale="nano", seed=seed)
    return Job(id="1", key="k", spec=spec, delivery=1)


async def leases(compute: SSHCompute, measured: Measured, line: Line, number: int) -> None:
    """Lease, 5 MB there, one step of training; leaving the lease is not counted."""
    rng, trainer = random.Random(number), NanoInnerTrainer()
    data, other = rng.randbytes(JOB_BYTES), rng.randbytes(JOB_BYTES)
    for i, (name, put) in enumerate(
        {
            "first lease, 5 MB, first step": data,
            "next lease, another 5 MB, first step": other,
            "next lease, the same 5 MB again, first step": data,
        }.items()
    ):
        asked = job(number + 100 * i)
        watch = await measured.start(name, line)
        async with compute.machine(Need()) as machine:
            await machine.put("job/data.bin", put)
            await trainer.train(asked, machine)
            await watch.stop()
    await trainer.close()


async def adapters(compute: SSHCompute, measured: Measured, line: Line, sshd: Sshd, folder: Path) -> None:
    """An adapter by our line, then by scp."""
    source, nothing, target = folder / "adapter.bin", folder / "nothing.bin", folder / "there.bin"
    adapter = os.urandom(ADAPTER_BYTES)
    await asyncio.to_thread(source.write_bytes, adapter)
    await asyncio.to_thread(nothing.write_bytes, b"0")
    async with compute.machine(Need()) as machine:
        async with measured.as_(OURS, line):
            await machine.put("adapter.bin", adapter)
        async with measured.as_("50 MB back", line):
            back = await machine.get("adapter.bin")
        assert back == adapter
        async with measured.as_("the same 50 MB there again, under another name", line):
            await machine.put("again.bin", adapter)
    async with measured.as_(SCP, line):
        await asyncio.to_thread(scp, sshd, line.port, source, target)
    async with measured.as_(SCP_NOTHING, line):
        await asyncio.to_thread(scp, sshd, line.port, nothing, target)


def scp(sshd: Sshd, port: int, source: Path, target: Path) -> None:
    """A connection of its own each time."""
    options = ["-O", "-q", "-P", str(port), "-i", str(sshd.key)]  # -O: the host has no SFTP
    options += ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
    subprocess.run(["scp", *options, source, f"{getpass.getuser()}@127.0.0.1:{target}"], check=True)


async def one_round(number: int, measured: Measured, folder: Path) -> None:
    """A fresh host."""
    sshd = Sshd(folder / f"host-{number}")
    await sshd.start()
    try:
        async with Line.to(sshd.port) as line:
            compute = SSHCompute([evolve(sshd.host(), address=f"{getpass.getuser()}@127.0.0.1:{line.port}")])
            await leases(compute, measured, line, number)
            await adapters(compute, measured, line, sshd, folder)
            await compute.close()
    finally:
        sshd.kill()


# ---------------------------------------------------------------- the table


def row(name: str, found: Sequence[tuple[float, ...]]) -> dict[str, Any]:
    seconds, sent, received, connections = (record.median(values) for values in zip(*found, strict=True))
    return {
        "what": name,
        "wall_s": record.significant(seconds, 3),
        "sent_mb": round(sent / 1e6, 3),
        "received_mb": round(received / 1e6, 3),
        "connections": round(connections),
    }


async def main() -> None:
    """Print the table and write it."""
    parser = record.options(__doc__)
    parser.add_argument("--rounds", type=record.count, default=5)
    asked = parser.parse_args()
    os.environ.pop("SSH_AUTH_SOCK", None)
    measured = Measured()
    with tempfile.TemporaryDirectory(prefix="nrl-") as folder:
        for number in range(asked.rounds):
            await one_round(number, measured, Path(folder))
    rows = [row(name, found) for name, found in measured.found.items()]
    record.show(
        "A machine behind SSH on loopback",
        ("what", "s", "MB sent", "MB back", "new connections"),
        [tuple(r.values()) for r in rows],
    )
    seconds = {name: [each[0] for each in found] for name, found in measured.found.items()}
    scp_by_ours = record.ratio(seconds[SCP], seconds[OURS])
    print(f"50 MB by scp take {scp_by_ours:.3g} times as long as ours")
    if record.usual(parser, asked):
        record.write(
            "transfer",
            calibration_s=measured.calibration.seconds,
            seconds={name: record.median(each) for name, each in seconds.items()},
            ratios={"50 MB: scp ÷ ours": scp_by_ours},
            settings={"rounds": asked.rounds, "job_bytes": JOB_BYTES, "adapter_bytes": ADAPTER_BYTES},
            rows=rows,
        )


if __name__ == "__main__":
    asyncio.run(relay(int(sys.argv[2])) if sys.argv[1:2] == [RELAY] else main())
