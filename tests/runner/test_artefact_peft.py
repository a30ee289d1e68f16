"""What is taken of a run, loaded by transformers and PEFT."""

import json

import pytest
from stand_in_rl import safetensors as made

from nested_rl.inner.prime_rl.runner import artefact
from nested_rl.inner.prime_rl.runner.files import Folder
from nested_rl.nano.folder import weights_path

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")]

MODULES = ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj")


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is not installed: make test-tinker")


@pytest.fixture
def place(tmp_path):
    folder = tmp_path / "work" / "run" / "broadcasts" / "step_1"
    folder.mkdir(parents=True)
    (folder / "STABLE").touch()
    return folder


def take(tmp_path, kind):
    source = artefact.Source(Folder(str(tmp_path / "work")), "run/broadcasts/step_1", kind, str(weights_path("nano-s")))
    artefact.take(source, str(tmp_path / "model"), beat=lambda: None)
    return tmp_path / "model"


def logits(torch, model):
    with torch.no_grad():
        return model(torch.tensor([[5, 6, 7]])).logits.float()


def base_model(torch):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(weights_path("nano-s"), dtype=torch.float32).eval()


def test_an_adapter_as_prime_rl_writes_it_changes_the_base(torch, place, tmp_path):
    peft = pytest.importorskip("peft", reason="peft is not installed: make test-tinker")
    shapes = artefact.layout(str(weights_path("nano-s")))
    pairs = {}
    modules = [name.removesuffix(".weight") for name in shapes if name.removesuffix(".weight").endswith(MODULES)]
    for module in modules:
        rows, columns = shapes[f"{module}.weight"]
        pairs |= {f"{module}.lora_A.weight": ("BF16", [2, columns]), f"{module}.lora_B.weight": ("BF16", [rows, 2])}
    (place / "adapter_model.safetensors").write_bytes(made(pairs, 0.25))
    (place / "adapter_config.json").write_text(json.dumps({"r": 2, "lora_alpha": 4}))
    before = logits(torch, base_model(torch))
    adapted = peft.PeftModel.from_pretrained(base_model(torch), take(tmp_path, "lora")).eval()
    assert not torch.allclose(logits(torch, adapted), before)
    by_hand = base_model(torch)
    for module in modules:
        by_hand.get_parameter(f"{module}.weight").data += (
            4 / 2 * 2 * 0.25 * 0.25
        )  # alpha / r times B A, of two columns and rows of one number
    torch.testing.assert_close(logits(torch, adapted), logits(torch, by_hand))


def test_a_full_fine_tune_loads_as_bf16_with_the_bases_tokenizer(torch, place, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = base_model(torch)
    model.get_input_embeddings().weight.data *= 2
    model.save_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / "model.safetensors").rename(place / "model.safetensors")
    folder = take(tmp_path, "full")
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
    torch.testing.assert_close(logits(torch, loaded.float()), logits(torch, model), atol=0.3, rtol=0.05)
    torch.testing.assert_close(
        loaded.get_input_embeddings().weight, model.get_input_embeddings().weight.bfloat16().float()
    )
    assert AutoTokenizer.from_pretrained(folder)("1+2") == AutoTokenizer.from_pretrained(weights_path("nano-s"))("1+2")
