"""Checkpoints: nothing but tensors comes from training, they are the recorded ones, and an adapter is proven to be applied."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest
import pytest_asyncio
from safetensors.numpy import save_file
from vllm_play import STANDIN, Standin, evaluation

from nested_rl import model_files
from nested_rl.compute.local import LocalCompute
from nested_rl.errors import InfraFault
from nested_rl.inner.nano_job import write
from nested_rl.nano.folder import load_model, weights_path
from nested_rl.nano.lora import LoRA
from nested_rl.process import alive, identity
from nested_rl.scorers import VLLMEngine, vllm_host, vllm_server
from nested_rl.types import Checkpoint, Need

asynchronous = pytest.mark.asyncio(loop_scope="module")
BASE = weights_path("nano-s")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def machine():
    compute = LocalCompute(max_machines=1, python=sys.executable)
    async with compute.machine(Need()) as lent:
        yield lent
    await compute.close()


@pytest_asyncio.fixture(loop_scope="module")
async def standin(tmp_path):
    made = []

    def make(fault="none"):
        made.append(Standin(tmp_path / f"{len(made)}.log", fault))
        return made[-1]

    yield make
    for one in made:
        await one.scorer.close()


def adapter(path, *, scale=0.05):
    lora = LoRA(load_model(BASE)[0], rank=4)
    rng = np.random.default_rng(0)
    for b in lora.b.values():
        b[:] = rng.normal(0, 1, b.shape) * scale
    lora.save(path, base="nano-s")
    return Checkpoint(path=str(path), base="nano-s", kind="lora", digest=model_files.digest(path.iterdir()))


def full(path):
    model, tokenizer = load_model(BASE)
    digest = write(path, model, tokenizer, "nano-s")
    return Checkpoint(path=str(path), base="nano-s", digest=digest)


@asynchronous
async def test_an_adapter_is_served_beside_its_base_and_asked_by_its_name(machine, standin, tmp_path):
    one = standin()
    score = await one.scorer.score(adapter(tmp_path / "a"), evaluation(), machine)
    assert score.value == 1.0  # greedy, as checkpoints are asked
    assert {body["model"] for body in one.notes("body")[-12:]} == {"adapter"}
    (start,) = one.notes("pid")
    options = start["argv"]
    assert options[options.index("--max-lora-rank") + 1] == "8"
    assert start["files"].keys() >= {"config.json", "model.safetensors"}


@pytest.mark.parametrize("fault", ["weak", "overflow"])
@asynchronous
async def test_a_weak_or_ruined_adapter_is_scored_as_it_is(machine, standin, tmp_path, fault):
    score = await standin(fault).scorer.score(adapter(tmp_path / "a", scale=1e-9), evaluation(), machine)
    assert score.n == 12


@asynchronous
async def test_an_adapter_without_any_effect_is_our_fault(machine, standin, tmp_path):
    with pytest.raises(InfraFault, match="loaded but has no effect"):
        await standin("deaf").scorer.score(adapter(tmp_path / "a"), evaluation(), machine)


@asynchronous
async def test_an_adapter_of_zeros_is_its_base(machine, standin, tmp_path):
    one = standin("deaf")
    await one.scorer.score(adapter(tmp_path / "a", scale=0.0), evaluation(), machine)
    assert {body["model"] for body in one.notes("body")} == {"base"}


@asynchronous
async def test_of_a_full_checkpoint_only_tensors_are_taken(machine, standin, tmp_path):
    checkpoint = full(tmp_path / "c")
    (tmp_path / "c" / "chat_template.jinja").write_text("{{ the answers }}")
    (tmp_path / "c" / "config.json").write_text('{"auto_map": {"AutoConfig": "evil.py"}}')
    (tmp_path / "c" / "evil.py").write_text("raise SystemExit")
    one = standin()
    await one.scorer.score(checkpoint, evaluation(), machine)
    (start,) = one.notes("pid")
    assert "evil.py" not in start["files"]
    assert start["files"].keys() <= {path.name for path in BASE.iterdir()}
    for name in ("config.json", "chat_template.jinja"):
        assert start["files"][name] == (BASE / name).read_text("latin1")[:40]


@asynchronous
async def test_a_checkpoint_that_is_not_what_training_wrote_is_our_fault(machine, standin, tmp_path):
    checkpoint = full(tmp_path / "c")
    tensors = tmp_path / "c" / "model.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1] + b"!")
    linked = full(tmp_path / "l")
    (tmp_path / "l" / "model.safetensors").rename(tmp_path / "elsewhere")
    (tmp_path / "l" / "model.safetensors").symlink_to(tmp_path / "elsewhere")
    for wrong, words in ((checkpoint, "its sha256 differs"), (linked, "is not a plain file")):
        with pytest.raises(InfraFault, match=words):
            await standin().scorer.score(wrong, evaluation(), machine)


@pytest.mark.parametrize(
    "told", [{"r": 0}, {"lora_alpha": float("inf")}, {"target_modules": "all"}, {"r": "8"}, {"r": 1 << 20}]
)
def test_an_adapter_config_that_makes_no_sense_is_refused(tmp_path, told):
    adapter(tmp_path / "a")
    config = json.loads((tmp_path / "a" / vllm_host.ADAPTER_CONFIG).read_text())
    (tmp_path / "a" / vllm_host.ADAPTER_CONFIG).write_text(json.dumps(config | told))
    with pytest.raises(vllm_host.Refused, match="is not an adapter"):
        vllm_host.adapters(tmp_path / "a", tmp_path)


def test_all_files_of_a_checkpoint_can_be_what_is_recorded(tmp_path):
    """The digest that a full-scale training gives."""
    adapter(tmp_path / "a")
    digest = model_files.digest((tmp_path / "a").iterdir())
    vllm_host.verify(tmp_path / "a", digest)
    with pytest.raises(vllm_host.Refused, match="no such checkpoint"):
        vllm_host.verify(tmp_path / "b", digest)
    (tmp_path / "a" / "adapter_config.json").write_text("{}")
    with pytest.raises(vllm_host.Refused, match="sha256"):
        vllm_host.verify(tmp_path / "a", digest)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_effect_of_an_adapter_is_about_its_largest_product(tmp_path, dtype):
    for a, b in ((1.0, 1.0), (-0.25, 2.0**-9), (2.0**-7, -(2.0**-5))):
        pair = {
            "m.q_proj.lora_A.weight": np.full((2, 3), a, dtype),
            "m.q_proj.lora_B.weight": np.full((3, 2), b, dtype),
        }
        save_file(pair, tmp_path / "x")
        assert abs(vllm_host.effect(tmp_path / "x") - np.log2(abs(a * b))) <= 4
    save_file({**pair, "m.q_proj.lora_B.weight": np.full((3, 2), -0.0, dtype)}, tmp_path / "x")
    assert vllm_host.effect(tmp_path / "x") is None


def test_without_its_controller_a_server_ends(tmp_path):
    engine = VLLMEngine(argv=(sys.executable, str(STANDIN), str(tmp_path / "log"), "none"))
    told = {"options": engine.options(cpu=True), "environment": engine.environment(cpu=True)}
    order = {
        "root": str(tmp_path),
        "base": str(BASE),
        "kind": "base",
        "path": None,
        "digest": "",
        "engine": "cpu",
        "argv": engine.argv,
        "max_model_len": 64,
        "extra_args": [],
        "key": "k",
        "cpu": told,
        "gpu": told,
    }
    (tmp_path / "host.pyz").write_bytes(vllm_server.host())
    command = [sys.executable, "-I", str(tmp_path / "host.pyz")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as host:
        host.stdin.write(json.dumps(order).encode() + b"\n")
        host.stdin.flush()
        assert json.loads(host.stdout.readline())["context"] == 64
        server = identity(json.loads((tmp_path / "log").read_text().splitlines()[0])["pid"])
        assert alive(server)
        host.stdin.close()
        assert json.loads(host.stdout.readline())["ended"]
        assert host.wait() == -signal.SIGKILL
    assert not alive(server)
    assert [path for path in tmp_path.iterdir() if path.name.startswith("vllm-")] == []
