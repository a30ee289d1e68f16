"""Many processes that lease from one queue at once.

python tests/chaos/claims.py [PROCESSES [LEASES]]      # 16 processes, 10000 leases each
"""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import closing
from pathlib import Path

from nested_rl.queues.sqlite import SqliteQueue
from nested_rl.testing.values import made_spec

LONG_S = 3600.0


async def _claim(path: str, owner: str, leases: int) -> None:
    """Lease and give back, over and over. One line a claim: the job, its delivery, and from when to when it was held."""
    queue, held = SqliteQueue(path), []
    print("ready", flush=True)
    sys.stdin.readline()
    while len(held) < leases:
        job = await queue.lease(owner, ttl_s=LONG_S)
        if job is not None:
            since = time.monotonic_ns()
            held.append((job.id, job.delivery, since, time.monotonic_ns()))
            await queue.release(job, counts=False)
    await queue.close()
    sys.stdout.writelines(f"{job} {delivery} {since} {until}\n" for job, delivery, since, until in held)


async def _fill(path: Path, jobs: int) -> None:
    queue = SqliteQueue(path)
    for number in range(jobs):
        await queue.put(made_spec(), key=str(number))
    await queue.close()


def contend(path: Path, *, processes: int, leases: int, jobs: int = 64) -> dict[str, float]:
    """`processes` of them take `leases` each from a queue of `jobs`. A double claim is a hand-out told to two, or held by two."""
    asyncio.run(_fill(path, jobs))
    command = [sys.executable, __file__, "claim", str(path)]
    claimers = [
        subprocess.Popen([*command, f"p{n}", str(leases)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for n in range(processes)
    ]
    for claimer in claimers:
        assert claimer.stdout is not None
        assert claimer.stdout.readline() == "ready\n"
    start_s = time.monotonic()
    for claimer in claimers:
        assert claimer.stdin is not None
        claimer.stdin.write("go\n")
        claimer.stdin.flush()
    told = [claimer.communicate()[0] for claimer in claimers]
    seconds = time.monotonic() - start_s
    claims = defaultdict(list)
    for line in "".join(told).splitlines():
        job, delivery, since, until = map(int, line.split())
        claims[job].append((delivery, since, until))
    taken = sum(map(len, claims.values()))
    with closing(SqliteQueue(path)._file) as file:
        handed_out = file.db.execute("SELECT sum(delivery) FROM jobs").fetchone()[0]
    return {
        "processes": processes,
        "leases": taken,
        "double_claims": sum(_double(sorted(those)) for those in claims.values()),
        "lost": handed_out - taken,
        "seconds": round(seconds, 2),
        "leases_per_s": round(taken / seconds, 1),
    }


def _double(claims: list[tuple[int, int, int]]) -> int:
    """Of one job, by delivery: how often a hand-out was told twice, or came while the one before it was still held."""
    return sum(a[0] == b[0] or b[1] < a[2] for a, b in itertools.pairwise(claims))


if __name__ == "__main__":
    if sys.argv[1:2] == ["claim"]:
        asyncio.run(_claim(sys.argv[2], sys.argv[3], int(sys.argv[4])))
    else:
        numbers = [int(word) for word in sys.argv[1:]]
        how_many, each = (numbers + [16, 10_000][len(numbers) :])[:2]
        with tempfile.TemporaryDirectory() as folder:
            print(contend(Path(folder) / "q", processes=how_many, leases=each))
