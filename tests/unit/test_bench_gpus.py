"""The GPU matrix, measured on this computer with nano jobs, and on stand-ins for what costs money."""

import asyncio
import contextlib
import sys
from pathlib import Path

import pytest

from nested_rl import cli, matrix
from nested_rl.bench_gpus import NANO_JOB, Bench, Kind, rebased
from nested_rl.cli import bench as command
from nested_rl.clock import VirtualClock
from nested_rl.compute.local import LocalCompute
from nested_rl.errors import AgentFault, MachineLost, SettingsError
from nested_rl.inner.nano import NanoInnerTrainer
from nested_rl.scorers.nano import NanoScorer
from nested_rl.types import Checkpoint, Need, Score, Validation


class Boxes:
    """A backend whose machines are names."""

    max_machines, closed = 1, False

    def __init__(self, usd_per_hour=36.0, *, most=9):
        self.usd_per_hour, self.lent, self.most = usd_per_hour, 0, most

    def offers(self):
        return [Need()]

    @contextlib.asynccontextmanager
    async def machine(self, need):
        if self.lent == self.most:
            raise SettingsError("no such key")
        self.lent += 1
        yield type("Box", (), {"id": f"box-{self.lent}", "usd_per_hour": self.usd_per_hour})()

    async def close(self):
        self.closed = True


class Inner:
    """Takes ten virtual seconds a job; does what its script says."""

    scale, bases, timeout_s = "nano", ("a", "b"), 100.0

    def __init__(self, clock, *script):
        self.clock, self.script, self.jobs = clock, list(script), []

    async def validate(self, draft):
        return Validation(ok=True, base="a")

    def need(self, draft):
        return Need()

    async def train(self, job, machine):
        self.jobs.append((job.spec.base, job.spec.seed, job.spec.files["job.toml"]))
        await self.clock.sleep(10.0)
        step = self.script.pop(0) if self.script else None
        if step is not None:
            raise step
        return Checkpoint(path="x", base=job.spec.base, peak_memory_gib=7.0 + len(self.jobs))


class Scorer:
    async def score(self, model, eval_set, machine, *, seed=0):
        return Score.of([1.0, 0.0])


@pytest.fixture
def clock():
    return VirtualClock(start=1_796_083_200.0)


def made(clock, *script, **settings):
    kind = Kind(name="NVIDIA A40", compute=Boxes())
    told = {"kinds": [kind], "inner": Inner(clock, *script), "scorer": Scorer(), "bases": ("a",), "clock": clock}
    return Bench(**{**told, **settings})


def test_a_job_is_paid_for_by_the_seconds_it_held_its_machine(clock):
    bench, told = made(clock, jobs=2), []
    (row,) = _run(clock, bench, told)
    assert told == [row]
    assert (row.candidate, row.base, row.jobs, row.succeeded) == ("NVIDIA A40", "a", 2, 2)
    assert (row.seconds, row.usd, row.usd_per_hour) == (10.0, pytest.approx(0.1), pytest.approx(36.0))
    assert row.peak_memory_gib == 9.0
    assert row.measured.startswith("2026-12-0")
    assert row.machines == ("box-1", "box-2")
    assert bench.kinds[0].compute.closed


def test_what_fails_is_paid_by_what_succeeds_and_told(clock):
    bench = made(clock, MachineLost("it went"), None, AgentFault("it crashed"), jobs=3)
    (row,) = _run(clock, bench, [])
    assert (row.jobs, row.succeeded, row.seconds) == (3, 1, 10.0)
    assert row.usd == pytest.approx(0.3)
    assert row.errors == ("MachineLost: it went", "it crashed")
    (row,) = _run(clock, made(clock, MachineLost("it went")), [])
    assert (row.succeeded, row.seconds, row.usd, row.peak_memory_gib) == (0, None, None, None)


def test_each_base_gets_its_job_and_each_job_its_seed(clock):
    bench = made(clock, bases=("a", "b"), jobs=2)
    rows = _run(clock, bench, [])
    assert [row.base for row in rows] == ["a", "b"]
    assert [(base, seed) for base, seed, _ in bench.inner.jobs] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert all(f'base = "{base}"' in text for base, _, text in bench.inner.jobs)


def test_no_job_begins_that_the_money_does_not_cover(clock):
    bench = made(clock, jobs=5, usd=1.15)  # a job may cost 1.00, and costs 0.10
    (row,) = _run(clock, bench, [])
    assert row.jobs == 2
    assert "budget" in row.errors[-1]
    assert _run(clock, made(clock, usd=0.5), []) == []


def test_settings_that_are_wrong_are_no_measurement(clock):
    told = []
    never, once = (Kind(name="NVIDIA A40", compute=Boxes(most=most)) for most in (0, 1))
    with pytest.raises(SettingsError, match="nothing was measured: NVIDIA A40: no such key"):
        _run(clock, made(clock, kinds=[never], jobs=2), told)
    assert told == []
    (row,) = _run(clock, made(clock, kinds=[once], jobs=3), told)
    assert (row.jobs, row.succeeded, row.errors) == (1, 1, ("no such key",))


def test_the_plan_says_what_it_may_cost(clock):
    known = Kind(name="NVIDIA A40", compute=Boxes(), expected_s=30.0)
    new = Kind(name="2x NVIDIA A40", compute=Boxes(), usd_per_hour=72.0)
    text = made(clock, kinds=[known, new], bases=("a", "b"), usd=9.0).plan()
    assert "NVIDIA A40: 2 jobs (a, b), $36.000 an hour, 30 s a job before, at most 100 s or $1.00 each" in text
    assert "2x NVIDIA A40: 2 jobs (a, b), $72.000 an hour, never measured, at most 100 s or $2.00 each" in text
    assert "in all at most about $4.60" in text
    assert "would exceed $9.00" in text
    assert "would exceed $0.002" in made(clock, usd=0.002).plan()


def test_a_job_without_a_model_is_refused():
    with pytest.raises(SettingsError, match=r"job\.toml"):
        rebased({"environment.py": ""}, "a")
    assert rebased(NANO_JOB, "nano-s")["job.toml"].splitlines()[1] == 'base = "nano-s"'


async def test_real_jobs_on_this_computer():
    bench = Bench(
        kinds=[Kind(name="this computer", compute=LocalCompute(1, usd_per_hour=0.36))],
        inner=NanoInnerTrainer(),
        scorer=NanoScorer(),
        bases=("nano-s", "nano-m"),
        items=64,
    )
    rows = await bench.run(lambda row: None)
    assert [(row.base, row.success) for row in rows] == [("nano-s", 1.0), ("nano-m", 1.0)]
    for row in rows:
        assert row.usd == pytest.approx(row.seconds * 0.36 / 3600, rel=1e-3)
        assert row.peak_memory_gib is None
        assert row.machines == ("local-0",)


def test_the_command_measures_and_keeps_the_table(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("here.toml").write_text('[inner]\nname = "nano"\n[compute]\nname = "local"\nmax_machines = 1\n')
    argv = ["bench-gpus", "this computer", "--file", "here.toml", "--base", "nano-s", "--items", "32"]
    assert cli.main([*argv, "--dry-run"]) == 0
    assert "this computer: 1 jobs (nano-s)" in capsys.readouterr().out
    assert not Path("gpus.json").exists()
    assert cli.main(argv) == 0
    assert "| this computer | nano-s | 1 | 100% |" in capsys.readouterr().out
    (row,) = matrix.read("gpus.json")
    assert row.seconds > 0
    assert cli.main([*argv, "--dry-run"]) == 0
    assert f"{row.seconds:.0f} s a job before" in capsys.readouterr().out


def test_what_cannot_be_asked_for_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("paid.toml").write_text('[inner]\nname = "nano"\n[compute]\nname = "local"\nusd_per_hour = 1.0\n')
    rented = '[inner]\nname = "nano"\n[compute]\nname = "runpod"\ngpus = [{gpu = "a", gpus = 2, gpu_memory_gib = 24}]\n'
    Path("pods.toml").write_text(rented)
    monkeypatch.delenv("RUNPOD_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("gpus.json").write_text('{"format": 1, "rows": []}')
    for argv, said in (
        (["NVIDIA A40"], "--job"),
        (["--file", "paid.toml"], "--yes"),
        (["a", "b", "--file", "paid.toml"], "one kind of machine"),
        (["--file", "paid.toml", "--jobs", "0"], "at least 1"),
        (["--file", "paid.toml", "--usd", "-5"], "usd must be a finite number, 0 or more"),
        (["NVIDIA A40", "--file", "pods.toml", "--yes"], "no key for Runpod"),
        (["--file", "pods.toml", "--yes"], "no key for Runpod"),
    ):
        assert cli.main(["bench-gpus", *argv]) == 2
        assert said in capsys.readouterr().err
        assert matrix.read("gpus.json") == ()


def test_whoever_sits_there_is_asked(monkeypatch, clock):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    for answer, agreed in (("y", True), ("yes ", True), ("", False), ("n", False)):
        monkeypatch.setattr("builtins.input", lambda _, answer=answer: answer)
        assert command.agreed(made(clock)) is agreed


def test_each_kind_of_pod_is_a_pool_of_its_own():
    one, two = command.kinds({"name": "runpod", "folder": "/x"}, ["2x NVIDIA RTX A5000", "NVIDIA L40"], ())
    assert (one.name, two.name) == ("2x NVIDIA RTX A5000", "NVIDIA L40")
    assert one.usd_per_hour == pytest.approx(0.54)  # secure, as last written down
    assert (one.compute.max_machines, len(one.compute.candidates)) == (1, 2)


def _run(clock, bench, told):
    return asyncio.run(clock.run(bench.run(told.append)))
