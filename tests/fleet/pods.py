"""What tests of rented pods share: computes over the real server, jobs that count how often they ran, and what must hold at the end."""

from __future__ import annotations

import asyncio
import getpass
import os
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path

from fake_runpod import KEY
from processes import told_of, tree
from runpod_server import Server

from nested_rl.clock import SystemClock
from nested_rl.compute.pool_terms import Terms
from nested_rl.compute.rate import RateLimit
from nested_rl.compute.runpod import RunpodCompute
from nested_rl.compute.runpod_rest import RunpodRest
from nested_rl.errors import InfraFault
from nested_rl.rundir import Log
from nested_rl.types import Need

GPUS = ["NVIDIA RTX A5000"]
GPU = "NVIDIA RTX A5000, 24564, 1, 570.10, 0"
"""What `nvidia-smi` says of one that is in order."""
DEAREST = 0.34
LOOK_S = 0.5
TERMS = Terms(look_s=LOOK_S, find_s=2.0)
REQUESTS_S = 3.0
"""The meter counts a pod from before the request that makes it to after the answer that it is gone: so long at most, on two busy cores."""
SOON_S = 60


class Compute(RunpodCompute):
    """All pods of a test share one disk, so each has a folder of its own."""

    def _base(self, name):
        return str(self._folder / "pods" / name / "machine")


async def no_check(machine, candidate):
    """There are no GPUs here."""


def compute(folder, url, *, gpus=GPUS, **more):
    """A controller that asks as often as it likes: there is no account whose limit it could reach."""
    provider = RunpodRest(key=KEY, url=url)
    provider._limit = RateLimit(SystemClock(), per_minute=100_000)
    usual = {
        "max_machines": 2,
        "patience_s": 3.0,
        "keepalive_s": 0.5,
        "terms": TERMS,
        "preflight": no_check,
        "recheck": no_check,
    }
    return Compute(
        gpus,
        folder=folder,
        provider=provider,
        user=getpass.getuser(),
        python=sys.executable,
        **{**usual, **more},
    )


class World:
    """One server and its pods, the controllers of a test, and a file in which each job says when it begins and when it is done."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = Server(folder / "pods")
        self.fake = self.server.fake
        self.told = folder / "told"
        self.told.touch()
        self.made = []
        self.path = os.environ["PATH"]

    def compute(self, **more):
        self.made.append(compute(self.folder, self.server.url, **more))
        return self.made[-1]

    def close(self) -> None:
        self.server.close()

    # ---- jobs

    def program(self, name, seconds):
        """A job that takes so long."""
        return [
            "sh",
            "-c",
            f'echo "begun $0" >>{self.told}; sleep $1; echo "done $0" >>{self.told}',
            name,
            str(seconds),
        ]

    def count(self, what) -> Counter:
        """How often each job has `begun`, or is `done`."""
        words = [line.split() for line in self.told.read_text().splitlines()]
        return Counter(name for word, name in words if word == what)

    async def job(self, compute, name, seconds, *, tries=4):
        """One job to its end, delivered again after a loss; the ids of the pods it was on."""
        pods = []
        for _ in range(tries):
            try:
                async with compute.machine_for(Need(gpus=1), job=name) as machine:
                    pods.append(self.pod(machine).id)
                    done = await machine.run(self.program(name, seconds))
                    assert done.returncode == 0, done
            except InfraFault:
                continue
            return pods
        raise AssertionError(f"{name}: {tries} tries, on {pods}")

    async def begun(self, name, times=1) -> None:
        await self.until(lambda: self.count("begun")[name] >= times)

    async def until(self, what, seconds=SOON_S) -> None:
        """Other processes send no events."""
        async with asyncio.timeout(seconds):
            while not what():  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    # ---- pods

    def pod(self, machine):
        """The one behind a machine: its port is its own."""
        port = int(machine.id.rpartition(":")[2])
        return next(pod for pod in self.fake.alive() if pod.ssh is not None and pod.ssh[1] == port)

    def pids(self, pod) -> list[int]:
        """Everything that runs on a pod, also what has left its shell."""
        process = self.server.processes.get(pod.id)
        return sorted({*(tree(process.pid) if process else ()), *told_of(self.server.home(pod))})

    def signal(self, pids, number) -> None:
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def freeze(self, pod) -> None:
        """Its address still takes connections, and nobody answers."""
        self.signal(self.pids(pod), signal.SIGSTOP)

    def sshd(self, pod) -> list[int]:
        """The listener first, then the sessions; not what runs in them."""
        return [pid for pid in self.pids(pod) if self.command(pid).startswith("sshd: ")]

    def cut(self, pod) -> None:
        """Every SSH session breaks; the listener and what runs stay."""
        sessions = [pid for pid in self.sshd(pod) if "listener" not in self.command(pid)]
        self.signal(sessions, signal.SIGKILL)

    def restart(self, pod) -> None:
        """Its container ends and is started again, with an empty disk and another port."""
        with self.server.lock:
            self.server._end(pod)
            shutil.rmtree(self.server.home(pod))
            self.server._boot(pod)

    @staticmethod
    def alive(pid) -> bool:
        """A zombie is not."""
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False

    @staticmethod
    def command(pid) -> str:
        try:
            return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
        except OSError:
            return ""

    def lose(self, pod) -> None:
        with self.server.lock:
            self.fake.lose(pod)

    # ---- the end

    async def settled(self, *, most, lost=0, unseen_s=0.0, unknown=0) -> None:
        """All controllers close; no pod is left, there were never too many, no job is done twice, and the meter is right.

        Of the `lost` pods the provider knows sooner than the controller, which looks every `LOOK_S`; `unseen_s` there was none to look.
        A pod whose request was never answered, and that is gone before a list shows it, is `unknown` to all but the provider.
        """
        for one in self.made:
            await one.close()
        assert self.fake.alive() == []
        assert self.fake.most <= most
        assert not [name for name, times in self.count("done").items() if times > 1]
        assert not [pid for pod in self.fake.pods.values() for pid in self.pids(pod)]
        known = {row.get("id") for row in Log(self.folder / "pods.jsonl").rows()}
        for pod in (never := set(self.fake.pods) - known):
            del self.fake.pods[pod]
        assert len(never) == unknown
        ledger, meter = self.fake.usd(), sum(row.usd for one in self.made[-1:] for row in one.costs())
        slack_s = REQUESTS_S * len(self.fake.pods) + (LOOK_S + REQUESTS_S) * lost + unseen_s
        assert ledger <= meter <= ledger * 1.02 + slack_s / 3600 * DEAREST, (ledger, meter, slack_s)
