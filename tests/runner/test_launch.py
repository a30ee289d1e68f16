"""The controller's side: whose fault an end is, a runner that is silent or lies, walls around a job, what a machine must have."""

import asyncio
import json
import os
import secrets
import shutil
import socket
import tempfile
from pathlib import Path

import pytest
from attrs import evolve
from runner_play import card, make_base, make_order, make_programs, terms

from nested_rl.clock import VirtualClock
from nested_rl.compute.local import LocalCompute
from nested_rl.errors import AgentFault, InfraFault, MachineLost
from nested_rl.inner.prime_rl import pin, preflight
from nested_rl.inner.prime_rl.launch import gate, judge, launch
from nested_rl.inner.prime_rl.runner import program
from nested_rl.interfaces import Machine, Process
from nested_rl.types import Completed, Need

FACTS = preflight.Facts(
    program="rl",
    versions=dict(preflight.PINNED),
    gpus=(preflight.Gpu(index=0, name="A40", total_mib=46068, used_mib=3),),
    disk_gib=99,
)

# ---------------------------------------------------------------- whose fault

CARDS = [{"index": 0}]


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ({"stop": "done", "digest": "d"}, None),
        ({"stop": "zero_signal", "digest": "d"}, None),
        ({"stop": "collapse", "digest": "d"}, None),
        ({"stop": "stalled", "digest": "d"}, None),
        ({"stop": "done", "refused": "no weights"}, AgentFault),
        ({"stop": "zero_signal", "refused": "no weights"}, AgentFault),
        ({"stop": "stalled", "refused": "no weights"}, AgentFault),
        ({"stop": "crash"}, AgentFault),
        ({"stop": "nan"}, AgentFault),
        ({"stop": "deadline"}, AgentFault),
        ({"stop": "no_variance"}, AgentFault),
        ({"stop": "disk_job"}, AgentFault),
        ({"stop": "no_start", "gpus": CARDS, "peak_mib": 9000}, AgentFault),
        ({"stop": "no_start", "gpus": []}, AgentFault),
        ({"stop": "no_start", "gpus": CARDS, "peak_mib": 400}, InfraFault),
        ({"stop": "disk_other"}, InfraFault),
        ({"stop": "ours"}, InfraFault),
        ({"stop": "called_off"}, InfraFault),
        ({"stop": "done", "digest": "d", "held": [0]}, InfraFault),
        ({"stop": "crash", "driver": "nvidia-smi ends with 9"}, InfraFault),
        ({"stop": "crash", "ecc": 1}, InfraFault),
        ({"stop": "crash", "gone": 1}, InfraFault),
    ],
)
def test_whose_fault_it_is(answer, fault):
    if fault is None:
        judge("m", {"why": "", **answer})
    else:
        with pytest.raises(fault):
            judge("m", {"why": "", **answer})


def test_what_a_job_prints_moves_no_blame():
    logs = {"trainer.log": "CUDA error: uncorrectable ECC error encountered", "console": "No space left on device"}
    with pytest.raises(AgentFault):
        judge("m", {"stop": "crash", "why": "rl ended with exit status 1", "logs": logs})


def test_the_environments_own_words_come_first_and_draw_nothing():
    logs = {
        "trainer.log": "Traceback (most recent call last)\nTrainerDied",
        "envs/train/job.log": "x" * 9000 + "Traceback (most recent call last)\n\x1b[31mZeroDivisionError",
    }
    with pytest.raises(AgentFault) as fault:
        judge("m", {"stop": "crash", "why": "it crashed", "logs": logs})
    assert str(fault.value).endswith("\ufffd[31mZeroDivisionError")
    assert "TrainerDied" not in str(fault.value)
    assert len(str(fault.value)) < 1400


def test_the_gate_asks_as_the_training_does():
    config = """
    seq_len = 1024
    [orchestrator.renderer]
    enable_thinking = false
    [orchestrator.train.sampling]
    temperature = 0.7
    max_completion_tokens = 99
    [[orchestrator.train.source]]
    [orchestrator.train.source.env.taskset]
    id = "job"
    rows = 5
    """
    asked = gate(evolve(make_order("/base"), config=config))
    assert asked["taskset"] == {"id": "job", "rows": 5}
    assert (asked["prompts"], asked["samples"]) == (16, 8)
    assert (asked["temperature"], asked["max_tokens"], asked["max_model_len"]) == (0.7, 99, 1024)
    assert asked["template"] == {"enable_thinking": False}
    several = config.replace("rows = 5", "[orchestrator.train.source.env.agent]\nmax_turns = 4")
    assert gate(evolve(make_order("/base"), config=several)) is None


# ---------------------------------------------------------------- a runner that is silent, or lies


class Told(Process):
    """A runner that says what a test wants, and then nothing."""

    def __init__(self, lines):
        self.lines, self.asked, self.killed = list(lines), [], False

    async def write(self, data):
        self.asked.append(data)

    async def readline(self):
        if not self.lines:
            await asyncio.get_running_loop().create_future()
        line = self.lines.pop(0)
        return line(json.loads(self.asked[0])["nonce"]) if callable(line) else line

    async def wait(self):
        return await asyncio.get_running_loop().create_future()

    async def kill(self):
        self.killed = True

    @property
    def alive(self):
        return not self.killed


class Lying(Machine):
    id = "lying"
    root = "/root"

    def __init__(self, lines):
        self.process = Told(lines)
        preflight._KNOWN[self] = FACTS

    async def run(self, argv, *, env=None, timeout_s=None):
        return Completed(returncode=0)

    async def start(self, argv, *, env=None):
        return self.process

    async def put(self, path, data):
        pass

    async def get(self, path):
        return b""

    def forward(self, port):
        raise AssertionError(port)

    async def resident(self, key, argv, *, env=None):
        raise AssertionError(key)


ENDED = {"event": "ended", "stop": "done", "why": "", "digest": "f", "curve": [1.0]}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (json.dumps({**ENDED, "nonce": "0" * 32}).encode() + b"\n", "without the nonce"),
        (json.dumps(ENDED).encode() + b"\n", "without the nonce"),
        (b'"ended"\n', "without the nonce"),
        (b"done\n", "not JSON"),
        (b"", "died before it answered"),
        (b'{"event": "ended"', "died before it answered"),
    ],
)
async def test_an_answer_to_no_question_is_a_lost_machine(line, why):
    machine, clock = Lying([line]), VirtualClock()
    with pytest.raises(MachineLost, match=why):
        await clock.run(launch(machine, make_order("/base"), terms=terms(), clock=clock))
    assert machine.process.killed


async def test_an_answer_with_the_nonce_is_believed():
    machine, clock = Lying([lambda nonce: json.dumps({**ENDED, "nonce": nonce}).encode() + b"\n"]), VirtualClock()
    ended = await clock.run(launch(machine, make_order("/base"), terms=terms(), clock=clock))
    assert (ended.digest, ended.curve) == ("f", (1.0,))
    assert machine.process.killed


async def test_silence_is_a_lost_machine():
    machine, clock = Lying([]), VirtualClock()
    with pytest.raises(MachineLost, match="silent for 60 s"):
        await clock.run(launch(machine, make_order("/base"), terms=terms(), clock=clock))
    assert clock.monotonic() == 60 + 20
    assert machine.process.asked[1:] == [b"stop\n"]
    assert machine.process.killed


# ---------------------------------------------------------------- walls


@pytest.fixture
def open_place(monkeypatch):
    """A folder that every user can go to, with machines below it."""
    folder = Path(tempfile.mkdtemp(prefix="walls-"))
    folder.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def programs(open_place, monkeypatch):
    folder = make_programs(open_place / "bin")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


@pytest.fixture
async def machine(programs):
    compute = LocalCompute(1)
    async with compute.machine(Need()) as machine:
        preflight._KNOWN[machine] = FACTS
        yield machine
    await compute.close()


def network():
    return program.walls("", isolate=True).network


async def test_a_job_has_a_clean_environment_and_no_network(machine, open_place):
    note = open_place / "note"
    base = make_base(open_place / "base")
    with socket.create_server(("127.0.0.1", 0)) as server:
        order = make_order(base, at_1=["reach"], note=str(note), port=server.getsockname()[1])
        await launch(machine, order, terms=evolve(terms(), isolate=True))
    found = json.loads(read(note))
    assert not {name for name in found["environment"] if "KEY" in name or "TOKEN" in name or name.startswith("PYTEST")}
    assert found["environment"]["CUDA_VISIBLE_DEVICES"] == "0,0"
    assert found["environment"]["HF_HUB_OFFLINE"] == "1"
    if network() == "own":
        assert (found["reached"], found["host"]) != (True, socket.gethostname())
        assert "refused" in found["reached"]
    else:
        assert found["reached"] is True


def a_user():
    """A number that nobody else uses: all processes of a job's user are ended with it."""
    return str(secrets.randbelow(10**6) + 10**6)


def gone(path):
    return not Path(path).exists()


def read(path):
    return path.read_text("utf-8")


NOSY = """#!/bin/sh
runner=$PPID
{
  id -u
  cat /proc/$runner/environ > /dev/null 2>&1 && echo environ
  for pipe in /proc/$runner/fd/*; do echo forged >> "$pipe" && echo wrote; done 2> /dev/null
  cat job.toml > /dev/null && echo job
  ls .. > /dev/null 2>&1 && echo above
  kill -9 $runner 2> /dev/null && echo killed
  pwd
  echo stray > $(mktemp -u /tmp/nrl-stray-XXXXXX)
  grep -q 'NoNewPrivs:.1' /proc/self/status && echo confined
} > scratch/note
cp scratch/note %s
setsid sh -c 'sleep 600' > /dev/null 2>&1 &
exit 7
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a job a user of its own")
@pytest.mark.parametrize("closed", [False, True], ids=["reachable", "closed"])
async def test_a_job_with_a_user_of_its_own_reaches_nothing_of_the_runner(machine, programs, open_place, closed):
    if closed:
        (Path(machine.root).parents[1]).chmod(0o700)
    else:
        for folder in (Path(machine.root), *Path(machine.root).parents[:2]):
            folder.chmod(0o711)
    (open_place / "notes").mkdir()
    (open_place / "notes").chmod(0o777)
    (programs / "rl").write_text(NOSY % (open_place / "notes" / "note"))
    base = make_base(open_place / "base")
    user = a_user()
    with pytest.raises(AgentFault, match="exit status 7"):
        await launch(machine, make_order(base), terms=evolve(terms(), user=user))
    uid, *told = read(open_place / "notes" / "note").split()
    (work,) = [word for word in told if "/" in word]
    assert uid == user
    assert {"job", "confined"} <= set(told) - {work} <= {"job", "confined", "above"}
    assert work.startswith(machine.root) != closed
    assert gone(work)
    assert not [path for path in program.strays(program.walls(user, isolate=False)) if "nrl-stray" in path.name]


async def test_a_user_that_is_not_there_is_said_and_the_job_has_a_number_of_its_own(machine, programs, open_place):
    (programs / "rl").write_text("#!/bin/sh\nid -u\nid -g\nexit 7\n")
    base = make_base(open_place / "base")
    with pytest.raises(AgentFault, match="exit status 7"):
        await launch(machine, make_order(base), terms=evolve(terms(), user="no-such-user"))
    walls = program.walls("no-such-user", isolate=False)
    assert "'no-such-user'" in walls.notes[0]
    if os.getuid() == 0:
        assert walls.uid == walls.gid
        assert walls.uid in program.NUMBERS


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a job a user of its own")
@pytest.mark.parametrize("user", ["root", "0", "nobody", "65534", "no-such-user"])
def test_a_job_is_never_root_and_never_who_the_sandbox_is(user):
    walls = program.walls(user, isolate=False)
    assert walls.uid in program.NUMBERS
    assert walls.gid not in (0, 65534)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a job a user of its own")
def test_where_only_root_can_go_a_plain_job_runs_as_root_and_says_so(open_place):
    closed = open_place / "closed"
    closed.mkdir(mode=0o700)
    walls = program.walls("no-such-user", isolate=False, needs=[str(closed)])
    assert walls.uid is None
    assert "runs as root" in walls.notes[0]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a job a user of its own")
async def test_a_base_that_the_jobs_user_cannot_read_is_no_fault_of_the_job(machine, open_place):
    base = make_base(open_place / "closed" / "base")
    base.parent.chmod(0o700)
    with pytest.raises(InfraFault, match="cannot go there"):
        await launch(machine, make_order(base), terms=evolve(terms(), user=a_user()))


# ---------------------------------------------------------------- what a machine must have


async def test_a_machine_is_asked_once_and_what_it_has_is_told(machine, programs):
    preflight.forget(machine)
    found = await preflight.preflight(machine, gpus="0,0")
    assert found.program == str(programs / "rl")
    assert found.versions == {"prime-rl": "0.8.0", "verifiers": pin.VERIFIERS}
    assert found.gpus[0].total_mib == 24564
    assert "driver 570.00" in found.told
    (programs / "gpus").write_text("nonsense")
    assert await preflight.preflight(machine, gpus="0") is found


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda folder: (folder / "gpus").write_text(card(used=5000)), r"GPU 0 is in use \(5000 MiB\)"),
        (lambda folder: (folder / "gpus").write_text(""), "there is no GPU 0"),
        (lambda folder: (folder / "gpus").write_text("lost"), "nvidia-smi tells something else"),
        (lambda folder: (folder / "rl").unlink(), "rl is not installed"),
        (lambda folder: (folder / "python").unlink(), "verifiers is not installed, jobs are written for"),
    ],
)
async def test_what_is_missing_is_named(machine, programs, change, why):
    change(programs)
    preflight.forget(machine)
    with pytest.raises(InfraFault, match=why):
        await preflight.preflight(machine, gpus="0,0", gpu_s=0.0)


async def test_everything_that_is_missing_is_named_at_once():
    machine = Lying([])
    preflight._KNOWN[machine] = preflight.Facts(program="rl", versions={"verifiers": "0.4.0"}, commit="0" * 40)
    with pytest.raises(
        InfraFault, match=r"verifiers is 0\.4\.0.*at 000000000000.*no GPU 0; there is no GPU 1; only 0\.0 GiB"
    ):
        await preflight.preflight(machine, gpus="0,1")


async def test_a_machine_that_tells_nonsense_is_lost():
    machine = Lying([])
    preflight.forget(machine)
    with pytest.raises(MachineLost, match="does not say what it has"):
        await preflight.preflight(machine, gpus="0")
