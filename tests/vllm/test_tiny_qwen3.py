"""A model that transformers made: a small random Qwen3 with byte-level tokens and a ChatML template, in bfloat16, and an adapter by hand."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from safetensors.numpy import save_file

from nested_rl import model_files, tasks
from nested_rl.nano.folder import write_json
from nested_rl.scorers import VLLMScorer
from nested_rl.types import Checkpoint

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(540),
    pytest.mark.filterwarnings("ignore"),
]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HIDDEN, LAYERS, RANK = 128, 2, 8


def make_base(path):
    transformers = pytest.importorskip("transformers", reason="transformers comes with vLLM")
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    letters = Tokenizer(models.BPE())
    letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learn = trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    letters.train_from_iterator([f"{a} + {b} is {a + b}" for a in range(20) for b in range(20)], learn)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=letters, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = TEMPLATE
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    transformers.Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(path)
    tokenizer.save_pretrained(path)


def make_adapter(path):
    path.mkdir()
    rng = np.random.default_rng(0)
    tensors = {}
    for layer in range(LAYERS):
        for module, rows in (("q_proj", 128), ("v_proj", 64)):
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}.lora_"
            tensors[f"{name}A.weight"] = rng.normal(0, 0.1, (RANK, HIDDEN)).astype(np.float32)
            tensors[f"{name}B.weight"] = rng.normal(0, 0.3, (rows, RANK)).astype(np.float32)
    save_file(tensors, path / "adapter_model.safetensors")
    write_json(path / "adapter_config.json", {"r": RANK, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]})


async def test_a_folder_and_an_adapter_are_scored_at_full_scale(machine, tmp_path, monkeypatch):
    monkeypatch.setenv("NESTED_RL_BASES_LOCK", str(tmp_path / "bases.lock.json"))
    make_base(tmp_path / "base")
    make_adapter(tmp_path / "adapter")
    (family,) = tasks.load("calc_chain")
    whole = family.eval_set(next(family.tasks()), "hidden", salt="vllm", n=24)
    assert whole.sampling.temperature == 0.0
    short = attrs.evolve(whole, sampling=attrs.evolve(whole.sampling, max_tokens=12))
    adapter = tmp_path / "adapter"
    digest = model_files.digest(adapter.iterdir())
    checkpoint = Checkpoint(path=str(adapter), base=str(tmp_path / "base"), kind="lora", digest=digest)
    scorer = VLLMScorer(engine={"max_model_len": 1024})
    try:
        first, again = [await scorer.score(checkpoint, short, machine, seed=seed) for seed in (1, 2)]
        (place,) = scorer._places.values()
        assert place.server.names == ("base", "adapter", "control")
    finally:
        await scorer.close()
    assert (first.n, first.value) == (24, 0.0)  # it has learned nothing
    assert first.truncated > 12
    assert 24 <= first.tokens <= 24 * 12
    assert attrs.evolve(first, seconds=0.0) == attrs.evolve(again, seconds=0.0)  # greedy: no seed
    assert (tmp_path / "bases.lock.json").is_file()
