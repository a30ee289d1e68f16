"""The engine against the reference implementations: transformers and PEFT, on torch.

Set them up with `pip install -e '.[torch]'`; without them this file is skipped.
"""

from __future__ import annotations

import random
import string
import warnings

import numpy as np
import pytest

from nested_rl.errors import UnknownName
from nested_rl.nano.config import Qwen3Config
from nested_rl.nano.folder import load_model, save_model, weights_path
from nested_rl.nano.lora import LoRA
from nested_rl.nano.model import Qwen3, Tape
from nested_rl.nano.packing import left_padded
from nested_rl.nano.sampling import generate, pad_left
from nested_rl.nano.tokenizer import Tokenizer

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

SHIPPED = ("nano-s", "nano-m", "nano-agent")
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
NETS = {
    "gqa": {"hidden_size": 32, "intermediate_size": 48},
    "mha untied": {"num_key_value_heads": 4, "tie_word_embeddings": False, "head_dim": 16},
    "deep, theta 1e6": {"num_hidden_layers": 4, "rope_theta": 1e6, "max_position_embeddings": 256},
}
PRINTABLE = [chr(i) for i in range(32, 127)] + ["\n"]
PIECES = [
    "def ",
    "def reward",
    "    return ",
    "\n----\n",
    "----\n",
    " = ",
    " == ",
    "nano-m",
    "nano-",
    '"\n',
    ".5",
    "<e",
]
TOKENIZERS = {
    "characters": Tokenizer.characters(">?0123456789abcdefghijklmnopqrstuvwxyzRLXN+-*<| \n:,=/()[]{}!$"),
    "pieces": Tokenizer.pieces(
        ["<pad>", "<call>", "<obs>", "<end>", "<stop>", "<unk>"],
        PRINTABLE,
        PIECES,
        pad="<pad>",
        eos="<stop>",
        unk="<unk>",
    ),
}


@pytest.fixture(scope="module")
def torch():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = pytest.importorskip("torch", reason="torch is not installed (pip install 'nested-rl[torch]')")
        pytest.importorskip("transformers", reason="transformers is not installed (pip install 'nested-rl[torch]')")
    before = module.get_num_threads()
    module.set_num_threads(1)
    yield module
    module.set_num_threads(before)


def save_random(path, seed=5, **changes):
    tokenizer = TOKENIZERS["characters"]
    model = Qwen3(Qwen3Config(vocab_size=len(tokenizer), **changes), seed=seed)
    model.theta *= np.float32(1.5)
    save_model(path, model, tokenizer, "float32", chat_template=TEMPLATE)
    return path


def folder(name, tmp_path):
    if name in NETS:
        return save_random(tmp_path / "net", **NETS[name])
    try:
        return weights_path(name)
    except UnknownName:
        pytest.skip(f"{name} is not shipped yet")


def reference(torch, path):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    model.train(False)
    return model


def batch(config, seed=0):
    """Left-padded rows of different lengths."""
    rng = np.random.default_rng(seed)
    rows = [rng.integers(1, config.vocab_size, n).tolist() for n in (7, 40, 23, 64)]
    rows = [[r if r != config.pad_token_id else 1 for r in row] for row in rows]
    return pad_left(rows, config.pad_token_id)


def both_logits(torch, ours, theirs, ids):
    """Logits of both at every real position, our tapes, and the mask of real positions."""
    positions, mask, _ = left_padded(ids, ours.config.pad_token_id)
    tape = Tape()
    z = ours.logits(ours.forward(ids, positions, mask, tape=tape), tape)
    real = ids != ours.config.pad_token_id
    out = theirs(
        torch.tensor(ids),
        attention_mask=torch.tensor(real.astype(np.int64)),
        position_ids=torch.tensor(positions.copy()),
    ).logits
    return z.reshape(out.shape), out, tape, real


@pytest.mark.parametrize("name", [*NETS, *SHIPPED])
def test_logits_and_gradients_are_those_of_transformers(torch, tmp_path, name):
    path = folder(name, tmp_path)
    ours, _ = load_model(path)
    theirs = reference(torch, path)
    ids = batch(ours.config)
    z, out, tape, real = both_logits(torch, ours, theirs, ids)
    assert np.abs(z - out.detach().numpy())[real].max() <= 1e-4
    weight = np.random.default_rng(1).normal(size=z.shape).astype(np.float32) * real[..., None]
    ours.zero_grad()
    ours.backward(ours.logits_backward(weight.reshape(-1, z.shape[-1]), tape), tape)
    (out * torch.tensor(weight)).sum().backward()
    checked = 0
    for key, parameter in theirs.named_parameters():
        expected = parameter.grad.numpy()
        got = ours.grad_views.tensors[key]
        assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max(), key
        checked += expected.size
    assert checked == ours.size


@pytest.mark.parametrize("name", ["gqa", "nano-m"])
def test_greedy_is_that_of_transformers(torch, tmp_path, name):
    path = folder(name, tmp_path)
    ours, _ = load_model(path)
    theirs = reference(torch, path)
    c = ours.config
    ids = pad_left([row[row != c.pad_token_id][:20].tolist() for row in batch(c)], c.pad_token_id)
    mine = generate(ours, ids, max_new=16, temperature=0)
    prompt = torch.tensor(ids)
    out = theirs.generate(
        prompt, attention_mask=(prompt != c.pad_token_id).long(), max_new_tokens=16, do_sample=False, temperature=None
    )[:, ids.shape[1] :].numpy()
    for row, n, expected in zip(mine.ids, mine.lengths, out, strict=True):
        assert row[:n].tolist() == expected[:n].tolist()


@pytest.mark.parametrize("name", [*TOKENIZERS, *SHIPPED])
def test_ids_are_those_of_transformers(torch, tmp_path, name):
    from transformers import AutoTokenizer

    if name in TOKENIZERS:
        ours = TOKENIZERS[name]
        config = Qwen3Config(vocab_size=len(ours), hidden_size=8, eos_token_id=ours.eos_id, pad_token_id=ours.pad_id)
        save_model(tmp_path, Qwen3(config), ours, chat_template=TEMPLATE)
        path = tmp_path
    else:
        path = folder(name, tmp_path)
        _, ours = load_model(path)
    theirs = AutoTokenizer.from_pretrained(path)
    assert len(theirs) == len(ours)
    assert (theirs.pad_token_id, theirs.eos_token_id, theirs.unk_token_id) == (ours.pad_id, ours.eos_id, ours.unk_id)
    rng = random.Random(0)
    alphabet = string.printable[:95] + "\n"
    pieces = [t for t in ours.vocab if len(t) > 1]
    texts = ["".join(rng.choices(alphabet, k=60)) for _ in range(100)]
    texts += ["".join(rng.choices([*alphabet, *pieces * 3], k=40)) for _ in range(200)]
    texts += ["é\t~ü", "def rewards = nano-m\n----\n", ""]
    for text in texts:
        ids = ours.encode(text)
        assert theirs(text, add_special_tokens=True)["input_ids"] == ids, text
        assert theirs.decode(ids, skip_special_tokens=False) == ours.decode(ids), text


def test_a_chat_template_travels(torch, tmp_path):
    from transformers import AutoTokenizer

    path = save_random(tmp_path)
    text = AutoTokenizer.from_pretrained(path).apply_chat_template(
        [{"role": "user", "content": "c8-1?"}], tokenize=False
    )
    assert text == "c8-1?"


def test_adapters_are_those_of_peft(torch, tmp_path):
    peft = pytest.importorskip("peft", reason="peft is not installed (pip install 'nested-rl[torch]')")
    path = save_random(tmp_path / "base")
    ours, _ = load_model(path)
    lora = LoRA(ours, rank=8, alpha=16)
    lora.theta += np.random.default_rng(2).normal(0, 0.05, lora.size).astype(np.float32)
    lora.merge()
    lora.save(tmp_path / "adapter", base=str(path))
    theirs = peft.PeftModel.from_pretrained(reference(torch, path), tmp_path / "adapter", is_trainable=True)
    theirs.train(False)
    z, out, tape, real = both_logits(torch, ours, theirs, batch(ours.config))
    assert np.abs(z - out.detach().numpy())[real].max() <= 1e-4
    plain, _ = load_model(path)
    assert np.abs(both_logits(torch, plain, theirs, batch(ours.config))[0] - z)[real].max() > 0.01

    weight = np.random.default_rng(1).normal(size=z.shape).astype(np.float32) * real[..., None]
    ours.zero_grad()
    ours.backward(ours.logits_backward(weight.reshape(-1, z.shape[-1]), tape), tape)
    lora.pull()
    (out * torch.tensor(weight)).sum().backward()
    n = len(lora.names)
    grads = dict(zip(lora.names, lora._views(lora.grad)[0].values(), strict=True))
    checked = 0
    for key, parameter in theirs.named_parameters():
        if ".lora_A." in key:
            name = key.removeprefix("base_model.model.").replace(".lora_A.default", "")
            expected = parameter.grad.numpy()
            assert np.abs(grads[name] - expected).max() <= 1e-4 * np.abs(expected).max(), key
            checked += 1
    assert checked == n

    # and back: what PEFT writes, we read
    theirs.save_pretrained(tmp_path / "again")
    assert np.array_equal(LoRA.load(tmp_path / "again", plain).theta, lora.theta)
