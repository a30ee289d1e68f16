"""The GPU matrix measured on pods of the fake provider: real jobs behind real sshd processes, at the provider's price."""

import getpass
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("asyncssh", reason="asyncssh is not installed: make test-fleet")

from fake_runpod import KEY
from runpod_server import Server

from nested_rl import matrix
from nested_rl.bench_gpus import Bench, Kind
from nested_rl.compute.pool_terms import Terms
from nested_rl.compute.runpod import RunpodCompute
from nested_rl.inner.nano import NanoInnerTrainer
from nested_rl.scorers.nano import NanoScorer

GPU = "NVIDIA RTX A5000"


async def no_check(machine, candidate):
    """There are no GPUs here."""


async def test_a_pod_is_rented_measured_and_given_back_and_the_next_pool_starts_from_it(tmp_path):
    with tempfile.TemporaryDirectory(prefix="nrl-") as short:  # the path of a socket has little room
        folder = Path(short)
        server = Server(folder / "pods")
        settings = {
            "key": KEY,
            "url": server.url,
            "user": getpass.getuser(),
            "python": sys.executable,
            "preflight": no_check,
            "recheck": no_check,
            "terms": Terms(look_s=2.0),
            "max_machines": 1,
        }

        class Compute(RunpodCompute):
            def _base(self, name):
                return str(self._folder / "pods" / name / "machine")

        try:
            compute = Compute([GPU], folder=folder, **settings)
            bench = Bench(
                kinds=[Kind(name=GPU, compute=compute)],
                inner=NanoInnerTrainer(),
                scorer=NanoScorer(),
                bases=("nano-s",),
                items=32,
                usd=20.0,
            )
            (row,) = await bench.run(lambda one: matrix.write(tmp_path / "gpus.json", [one]))
            assert (row.candidate, row.success, row.errors) == (GPU, 1.0, ())
            assert len(server.fake.pods) == 1
            assert row.usd == pytest.approx(row.seconds * row.usd_per_hour / 3600, rel=1e-3)
            assert row.usd_per_hour > 0
            assert server.fake.alive() == []
            assert sum(one.usd for one in compute.costs()) > row.usd  # booting is paid for too
            following = RunpodCompute([GPU], folder=folder / "next", matrix=tmp_path / "gpus.json", **settings)
            records = following._opened().market.records.values()
            assert {record.seconds for record in records} == {row.seconds}
            await following.close()
        finally:
            server.close()
