"""Real programs on this computer: what is started ends, what is private stays private, and noise changes no verdict."""

import asyncio
import contextlib
import functools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from case_doubles import World

from nested_rl import Experiment, cli, process, tasks
from nested_rl.compute import orphans
from nested_rl.compute.local import LocalCompute
from nested_rl.errors import AgentFault, InfraFault, SettingsError
from nested_rl.inner import nano_job
from nested_rl.interfaces import Policy
from nested_rl.jobs.sandbox import EnvironmentFault, Limits, SandboxUnavailable, Zygote
from nested_rl.nano.lines import ask
from nested_rl.policies.baselines import RandomPolicy, TemplatePolicy
from nested_rl.report.page import render
from nested_rl.rundir import RunDir
from nested_rl.scorers.nano import ARGV, KEY
from nested_rl.trackers.guard import guarded
from nested_rl.trainers.nano import NanoTrainer
from nested_rl.types import Message, Need, Turn

pytestmark = pytest.mark.cases

SECRET = "rp_TESTSECRET123"
LIMITS = Limits(cpu_s=2, memory_mib=256, call_s=30.0)
LEAVES = "setsid sh -c 'sleep 300 & echo $!' & wait"
"""Forks twice, into a session of its own."""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
async def compute(temporary):
    compute = LocalCompute(1)
    yield compute
    await compute.close()


@pytest.fixture(scope="module")
def zygote():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUNPOD_API_KEY", SECRET)
        patch.setenv("HF_TOKEN", SECRET)
        with Zygote() as zygote:
            assert zygote.level
            yield zygote


def runs(pid):
    return process.alive(process.identity(pid)) and any(p == pid for p, state, _ in orphans.processes() if state != "Z")


async def until(holds):
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110  other processes send no events
            await asyncio.sleep(0.01)


async def test_a22_a_program_whose_wait_ran_out_is_gone(compute):
    """The wait for something on a machine runs out of time: nothing of it runs on, and its folder is gone."""
    seen = []

    async def waits():
        async with compute.machine(Need()) as machine:
            program = await machine.start(["sh", "-c", "sleep 300 & echo $!; wait"])
            seen.extend([int(await program.readline()), Path(machine.root)])
            assert runs(seen[0])
            raise TimeoutError

    with pytest.raises(TimeoutError):
        await waits()
    pid, root = seen
    assert not runs(pid)
    assert not root.exists()


CONTROLLER = """
import asyncio, sys, tempfile
tempfile.tempdir = sys.argv[1]
from nested_rl.compute.local import LocalCompute
from nested_rl.types import Need

async def main():
    async with LocalCompute(1).machine(Need()) as machine:
        program = await machine.start(["sh", "-c", sys.argv[2]])
        print((await program.readline()).decode(), end="", flush=True)
        await asyncio.sleep(300)

asyncio.run(main())
"""


def controller(folder):
    return subprocess.Popen([sys.executable, "-c", CONTROLLER, str(folder), LEAVES], stdout=subprocess.PIPE, text=True)


async def test_a25_kill_9_leaves_machine(temporary):
    """The controller is killed: what it left running on this computer ends by itself."""
    with controller(temporary) as running:
        pid = int(running.stdout.readline())
        assert runs(pid)
        os.kill(running.pid, signal.SIGKILL)
    await until(lambda: not runs(pid))
    await until(lambda: not list((temporary / f"nested_rl-{os.getuid()}").iterdir()))


async def test_a27_warm_machine_leftovers(compute):
    """Job A leaves a process that holds a lock, and files: before job B both are gone, and B is not failed."""
    async with compute.machine(Need()) as machine:
        done = await machine.run(["sh", "-c", "touch lock; (setsid sleep 300 >/dev/null 2>&1 & echo $!)"])
        pid = int(done.stdout)
    async with compute.machine(Need()) as machine:
        assert not runs(pid)
        assert (await machine.run(["sh", "-c", "ls -A; mkdir lock"])).stdout == ""


async def test_a46_plugin_in_scorer(compute):
    """What a job leaves on a machine to be imported by the scorer is not imported by it."""
    async with compute.machine(Need()) as machine:
        mark = f"{machine.root}/imported"
        trap = f"open({mark!r}, 'a').write(__name__)\n".encode()
        home = f".local/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
        for name in ("sitecustomize", "usercustomize", "conftest", "nested_rl/__init__", "numpy/__init__", "json"):
            await machine.put(f"{name}.py", trap)
            await machine.put(f"{home}/{name}.py", trap)
        await machine.put(f"{home}/trap.pth", b"import usercustomize\n")
        await machine.put(f"{home}/trap-1.dist-info/entry_points.txt", b"[pytest11]\ntrap = conftest\n")
        (family,) = tasks.load("calc_chain", scale="nano")
        prompt = family.examples(random.Random(0), 1)[0].prompt
        question = {
            "base": "nano-s",
            "prompts": [prompt],
            "samples": 1,
            "temperature": 0.0,
            "max_tokens": 4,
            "seed": 0,
        }
        answer = await ask(machine, KEY, ARGV, question, timeout_s=60)
        assert len(answer["completions"]) == 1
        with pytest.raises(FileNotFoundError):
            await machine.get("imported")


async def test_a48_silent_downgrade(tmp_path):
    """The sandbox cannot be had: agent-written code does not run at all, and the episode is masked, not scored."""
    mark = tmp_path / "ran"
    with Zygote(python=str(tmp_path / "no-python")) as broken:
        with pytest.raises(SandboxUnavailable):
            broken.spawn({"environment.py": f"open({str(mark)!r}, 'w')"}, LIMITS)
        assert not mark.exists()

        world = World(tmp_path / "run", steps=1)
        world.inner.verdict = lambda draft: broken.spawn(draft.files, LIMITS)
        await world.go()
    assert [e.masked for e in world.files.episodes()] == [True, True]
    assert world.inner.started == []


def test_a48_the_level_that_stands_is_told():
    with Zygote(strongest="limits") as weak:
        assert weak.level == "limits"


@pytest.fixture
def weak(monkeypatch):
    """A computer that grants nothing but resource limits."""
    from nested_rl.inner import nano, nano_job

    monkeypatch.setattr(nano, "Zygote", functools.partial(Zygote, strongest="limits"))
    monkeypatch.setattr(nano_job, "Zygote", functools.partial(Zygote, strongest="limits"))


class Clever(Policy):
    """An agent that is not one of ours, and says nothing."""

    context_tokens = 256

    async def sample(self, conversation, *, tools, max_tokens, seed=None):
        return Turn(message=Message(role="assistant"))


def evaluated(tmp_path, policy, **choice):
    families = tasks.load("calc_chain")
    with contextlib.closing(RunDir.create(tmp_path / "run", {"steps": 1})):
        pass
    work = Experiment(**choice).evaluate_async(families, policy=policy, n=1, out=tmp_path / "run")
    return asyncio.run(work)


def test_a48_weak_walls_are_too_weak_for_an_agent_of_unknown_powers(tmp_path, weak):
    """Refused before anything is written by it, unless the user says that it may; our own small agents may always."""
    with pytest.raises(SettingsError, match="allow_weak_sandbox"):
        evaluated(tmp_path, Clever())
    assert not list((tmp_path / "run" / "evals").rglob("*"))
    assert evaluated(tmp_path, Clever(), allow_weak_sandbox=True).reward == 0.0
    for policy in (TemplatePolicy(), RandomPolicy()):
        assert policy.embedded
    assert NanoTrainer.embedded
    assert evaluated(tmp_path, TemplatePolicy()).valid == 1.0


async def test_a48_nor_is_its_job_run_on_a_machine_with_weak_walls(tmp_path, weak):
    """The walls are strong here and weak on the machine: what must be strong is refused there too."""
    shop = nano_job.Shop()
    try:
        with pytest.raises(SandboxUnavailable, match="only resource limits"):
            shop.answer({"base": "nano-s", "families": [], "files": {"environment.py": "print(1)"}, "walls": True})
    finally:
        shop.close()


def test_a48_the_level_is_shown_by_doctor_and_report(tmp_path, capsys):
    assert cli.main(["doctor", "--out", str(tmp_path)]) in (0, 1)
    assert "sandbox: " in capsys.readouterr().out
    run = RunDir.create(tmp_path / "run", {"steps": 1})
    run.journal.append({"t": 1.0, "event": "sandbox", "level": "seccomp"})
    page = render(run)
    run.close()
    assert "sandbox" in page
    assert "seccomp" in page


async def test_a51_environment_inherited(compute, zygote, monkeypatch):
    """Neither a machine's programs nor agent-written code see a key of the controller's."""
    monkeypatch.setenv("RUNPOD_API_KEY", SECRET)
    async with compute.machine(Need()) as machine:
        done = await machine.run(["env"])
        warm = await machine.resident("warm", ["sh", "-c", "env | grep -c TESTSECRET"])
        assert await warm.readline() == b"0\n"
    assert "PATH=" in done.stdout
    assert SECRET not in done.stdout
    code = "import random\nprint(dict(random._os.environ))\n"
    with zygote.spawn({"environment.py": code}, LIMITS) as environment:
        assert environment.log.startswith("{")
        assert SECRET not in environment.log


async def test_a53_paths_on_a_machine(compute, tmp_path):
    """A path that leads out of a machine's folder, or through a link in it, is neither written nor read."""
    async with compute.machine(Need()) as machine:
        await machine.run(["sh", "-c", f"ln -s {tmp_path} link; ln -s /etc/passwd file; mkfifo pipe"])
        for path in ("../../evil", "/tmp/evil", "a/../../evil"):
            with pytest.raises(SettingsError):
                await machine.put(path, b"x")
        with pytest.raises(PermissionError):
            await machine.put("link/evil", b"x")
        for path in ("file", "pipe", "link/evil", "."):
            with pytest.raises((PermissionError, SettingsError)):
                await machine.get(path)
    assert not (tmp_path / "evil").exists()


NOISE = r"""
import sys
sys.stdout.buffer.write(b"\xff\xfe\x00\x1b[31mred\x1b[0m")
for _ in range(50):
    sys.stdout.buffer.write(b"x" * 1_000_000)
"""


async def test_a57_log_decode(compute, zygote):
    """Bytes that are no text, colours, and a line of 50 MB: the job is fine, and its log is short."""
    async with compute.machine(Need()) as machine:
        done = await machine.run(["python", "-c", NOISE])
    assert done.returncode == 0
    assert done.stdout.startswith("\ufffd\ufffd\0\x1b[31mred")
    assert len(done.stdout) < 2_000_000
    code = "print('\\udcff\\0\\x1b[31m')\nfor _ in range(50): print('x' * 1_000_000, end='')\n"
    with zygote.spawn({"environment.py": code + "def reward(p, c, a): return 0.5\n"}, LIMITS) as environment:
        assert environment.rewards([{"prompt": "p", "completion": "c", "answer": "a"}]) == [0.5]
        assert 0 < len(environment.log) <= LIMITS.log_bytes


def test_a60_late_out_of_memory(zygote):
    """Memory runs out at the 120th row: the code's own doing, said in words, and the next environment is untouched."""
    code = """
        seen = []
        def reward(prompt, completion, answer):
            seen.append(bytearray((1 << 30) if len(seen) == 119 else 1))
            return 1.0
    """
    source = {"environment.py": "\n".join(line[8:] for line in code.splitlines())}
    row = {"prompt": "p", "completion": "c", "answer": "a"}
    with zygote.spawn(source, LIMITS) as environment:
        assert environment.rewards([row] * 119) == [1.0] * 119
        with pytest.raises(EnvironmentFault, match=r"(?i)memory") as told:
            environment.rewards([row])
    assert isinstance(told.value, AgentFault)
    assert not isinstance(told.value, InfraFault)
    with zygote.spawn(source, LIMITS) as environment:
        assert environment.rewards([row]) == [1.0]


class Breaks:
    """A tracker whose every call raises, or never comes back."""

    def __init__(self, wait=None):
        self.wait = wait

    def metrics(self, step, values):
        if self.wait is not None:
            self.wait.wait()
        raise BrokenPipeError

    def episode(self, step, episode):
        raise BrokenPipeError

    def close(self):
        raise BrokenPipeError


async def test_a19_tracker_outage(tmp_path, caplog):
    """A tracker raises at every call: the run finishes with one warning, and its own files are whole."""
    world = World(tmp_path / "run", steps=3)
    world.trackers = [Breaks()]
    run = await world.go()
    assert run.finished
    assert len(run.metrics) == 3
    assert [r.message for r in caplog.records if "tracker" in r.message] == [
        "tracker Breaks failed and the run goes on without it: BrokenPipeError()"
    ]


def test_a19_a_tracker_that_hangs_is_left_behind(caplog):
    over = threading.Event()
    trackers = guarded([Breaks(over)], queue_size=2, close_timeout_s=0.05)
    for step in range(10):
        trackers.metrics(step, {"step": step})
    trackers.close()
    over.set()
    assert trackers.dropped["Breaks"] >= 7
    assert json.dumps([r.message for r in caplog.records]).count("left behind") == 1
