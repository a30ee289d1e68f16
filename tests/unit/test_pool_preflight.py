"""What a rented pod must show before it gets a job."""

import json
import sys

import pytest
from attrs import evolve
from pool_play import A5000

from nested_rl import weights
from nested_rl.compute import runpod
from nested_rl.compute.pod import canary
from nested_rl.compute.pool_preflight import Preflight, recheck
from nested_rl.errors import InfraFault
from nested_rl.inner.prime_rl import pin
from nested_rl.types import Completed

GPU = "NVIDIA RTX A5000, 24564, 1, 570.86.10, 0\n"
DISK = "Filesystem 1024-blocks Used Available Capacity Mounted on\noverlay 83886080 1000 {} 1% /\n"
FINE = {"torch": "2.13.0", "cuda": "12.8", "gpus": [0.05, 0.05], "cpu_s": 0.1}


class Shown:
    """A machine that says what it is told to say."""

    root = "/root/x"

    def __init__(self, gpus=2 * GPU, *, free_gib=70.0, status=0, hangs=False, canary=None):
        self.told = {
            "nvidia-smi": gpus,
            "df": DISK.format(int(free_gib * 2**20)),
            "python3": "a warning\n" + json.dumps(FINE if canary is None else canary) + "\n",
        }
        self.status, self.hangs, self.put_there = status, hangs, []

    async def put(self, path, data):
        self.put_there.append(path)

    async def run(self, argv, *, timeout_s):
        if self.hangs:
            raise TimeoutError(f"{argv[0]}: not done after {timeout_s} s, and killed")
        return Completed(returncode=self.status, stdout=self.told[argv[0]], stderr="Xid 79: GPU has fallen off the bus")


async def test_what_was_rented_passes():
    machine = Shown()
    await Preflight()(machine, A5000)
    assert len(machine.put_there) == 1


@pytest.mark.parametrize(
    ("machine", "says"),
    [
        (Shown(GPU), "1 GPUs, not 2"),
        (Shown(""), "0 GPUs, not 2"),
        (Shown(GPU + GPU.replace("A5000", "A2000")), "'NVIDIA RTX A2000', not 'NVIDIA RTX A5000'"),
        (Shown(GPU + GPU.replace("24564", "12282")), "12.0 GiB, not 24"),
        (Shown(GPU + GPU.replace("570.86.10", "550.127.05")), "driver is 550.127.05, 570 or newer"),
        (Shown(GPU + GPU.replace(", 0\n", ", 3\n")), "3 memory errors"),
        (Shown(free_gib=4.5), "4.5 GiB of its disk"),
        (Shown("No devices were found"), "nvidia-smi says 'No devices"),
        (Shown(status=1), "fallen off the bus"),
        (Shown(hangs=True), "not done after 60"),
    ],
)
async def test_what_was_not_does_not(machine, says):
    for check in (Preflight(), recheck):
        with pytest.raises(InfraFault, match=says):
            await check(machine, A5000)


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"error": "CUDA fails: forward compatibility (804)", "torch": "2.13.0"}, r"804\) \(torch 2.13.0, CUDA -\)"),
        ({**FINE, "gpus": [0.05]}, "CUDA sees 1 GPUs, not 2"),
        (["what"], "the canary says"),
    ],
)
async def test_cuda_must_work_on_every_gpu(told, says):
    with pytest.raises(InfraFault, match=says):
        await Preflight()(Shown(canary=told), A5000)
    await Preflight(canary=False)(Shown(canary=told), A5000)


async def test_memory_may_be_taken_between_jobs_only():
    machine = Shown(GPU + GPU.replace(", 1,", ", 9000,"))
    await recheck(machine, A5000)
    with pytest.raises(InfraFault, match="9000 MiB"):
        await Preflight()(machine, A5000)


@pytest.mark.parametrize(
    ("slow", "says"),
    [
        ({**FINE, "gpus": [0.05, 0.11]}, "a GPU takes 0.11 s for what takes 0.05 s"),
        ({**FINE, "cpu_s": 0.21}, "processor"),
    ],
)
async def test_a_pod_that_is_much_slower_than_others_of_its_kind_is_none(slow, says):
    check = Preflight()
    await check(Shown(canary=slow), A5000)  # nobody knows yet
    for _ in range(2):
        await check(Shown(), A5000)
    with pytest.raises(InfraFault, match=says):
        await check(Shown(canary=slow), A5000)
    await check(Shown(canary=slow), evolve(A5000, cloud="secure"))  # of another kind nothing is known
    await check(Shown(), A5000)
    await Preflight()(Shown(canary=slow), A5000)  # nor to another pool


async def test_bases_are_looked_for_by_hash(monkeypatch):
    asked = []

    async def locate(machine, base):
        asked.append(base)
        if base == "changed":
            raise InfraFault("the weights of changed are not those that were recorded: model.safetensors")

    monkeypatch.setattr(weights, "locate", locate)
    await Preflight(bases=["org/good"])(Shown(), A5000)
    with pytest.raises(InfraFault, match=r"not those that were recorded: model\.safetensors"):
        await Preflight(bases=["org/good", "changed"])(Shown(), A5000)
    assert asked == ["org/good", "org/good", "changed"]


def test_pods_run_the_image_that_jobs_are_written_for():
    assert runpod.IMAGE == pin.IMAGE


# ---- the canary itself


class Matrix:
    """Of ones; `wrong` puts another number into products."""

    def __init__(self, value=1.0, *, wrong=False):
        self.value, self.wrong = value, wrong

    def __matmul__(self, other):
        return Matrix(canary.SIZE + self.wrong)

    def __eq__(self, number):
        return Matrix(self.value == number)

    __hash__ = None

    def all(self):
        return self.value


class Torch:
    """As much of torch as the canary needs."""

    __version__, float16 = "2.13.0", "float16"
    version = type("version", (), {"cuda": "12.8"})

    def __init__(self, gpus=2, *, wrong=(), fails=""):
        self.gpus, self.wrong, self.fails, self.used, self.cuda = gpus, wrong, fails, [], self

    def init(self):
        if self.fails:
            raise RuntimeError(self.fails)

    def device_count(self):
        return self.gpus

    def synchronize(self, device):
        self.used.append(device)

    def ones(self, shape, *, dtype, device):
        return Matrix(wrong=device in self.wrong)


def test_the_canary_computes_on_every_gpu_and_on_the_processor():
    torch = Torch()
    told = canary.measured(torch)
    assert set(torch.used) == {"cuda:0", "cuda:1"}
    assert len(told["gpus"]) == 2
    assert min(*told["gpus"], told["cpu_s"]) > 0
    assert (told["torch"], told["cuda"]) == ("2.13.0", "12.8")


@pytest.mark.parametrize(
    ("torch", "says"),
    [
        (Torch(fails="CUDA error 804: forward compatibility was attempted"), "CUDA fails: CUDA error 804"),
        (Torch(wrong=["cuda:1"]), "cuda:1 computes wrong numbers"),
    ],
)
def test_the_canary_tells_what_goes_wrong(torch, says):
    assert says in canary.measured(torch)["error"]


def test_the_first_python_with_torch_is_taken(tmp_path, monkeypatch):
    for name, status in (("without", 1), ("with", 0)):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {status}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert canary.found(["nowhere", "without", "with"]) == str(tmp_path / "with")
    assert canary.found(["nowhere", "without"]) is None


def test_without_torch_it_says_where_it_has_looked(monkeypatch, capsys):
    monkeypatch.setattr(canary, "PYTHONS", ("nowhere",))
    monkeypatch.setattr(sys, "argv", ["canary.py"])
    canary.main()
    assert json.loads(capsys.readouterr().out) == {"error": "no Python with torch: looked for nowhere"}
