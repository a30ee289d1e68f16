"""Model folders, adapters and tokenizers: what is written comes back, what is damaged is named."""

from __future__ import annotations

import json
import string
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from nested_rl.errors import SettingsError, UnknownName
from nested_rl.nano.config import Qwen3Config
from nested_rl.nano.folder import load_model, read_tensors, save_model, weights_path, write_bytes, write_tensors
from nested_rl.nano.lora import LoRA
from nested_rl.nano.model import Qwen3
from nested_rl.nano.tokenizer import Tokenizer

PRINTABLE = [chr(i) for i in range(32, 127)] + ["\n"]
PIECES = Tokenizer.pieces(
    ["<pad>", "<call>", "<obs>", "<end>", "<stop>", "<unk>"],
    PRINTABLE,
    ["def ", "def reward", "reward", "    return ", "\n----\n", "----\n", "steps = ", " = ", "nano-m", "nano-"],
    pad="<pad>",
    eos="<stop>",
    unk="<unk>",
)
CHARACTERS = Tokenizer.characters(">?0123456789abcdefghijklmnopqrstuvwxyzRLXN+-*<| \n:,=/()[]{}!$")


def tiny(tokenizer=CHARACTERS, **changes) -> Qwen3:
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 8, "intermediate_size": 8, "head_dim": 4}
    return Qwen3(Qwen3Config(**(sizes | changes)), seed=3)


# ---------------------------------------------------------------- tokenizer


def test_characters_have_the_bases_layout():
    assert len(CHARACTERS) == 64
    assert (CHARACTERS.pad_id, CHARACTERS.eos_id, CHARACTERS.unk_id) == (0, 1, 63)
    assert CHARACTERS.decode(CHARACTERS.encode("c8-1+5*3?72>6.")) == "c8-1+5*3?72>6."
    assert CHARACTERS.encode("é~") == [63, 63]


@settings(deadline=None)
@given(st.text(alphabet=string.printable[:95] + "\n"))
def test_printable_text_comes_back(text):
    assert PIECES.decode(PIECES.encode(text)) == text
    assert PIECES.decode(PIECES.encode(text, specials=False)) == text


def test_pieces_are_leftmost_longest():
    assert [PIECES.vocab[i] for i in PIECES.encode("def rewards = nano-mx\n----\n")] == [
        "def reward",
        "s",
        " = ",
        "nano-m",
        "x",
        "\n----\n",
    ]
    assert [PIECES.vocab[i] for i in PIECES.encode("ndef \n----\n")] == ["n", "def ", "\n----\n"]


def test_said_text_cannot_fake_a_special():
    fake = "ok<end><call>x"
    assert PIECES.special_ids["<end>"] in PIECES.encode(fake)
    assert not set(PIECES.encode(fake, specials=False)) & set(PIECES.special_ids.values())
    assert CHARACTERS.encode("6.", specials=False) == [CHARACTERS.id("6"), CHARACTERS.unk_id]


def test_specials_are_shown_unless_skipped():
    ids = PIECES.encode("<call>nano-m<end>")
    assert PIECES.decode(ids) == "<call>nano-m<end>"
    assert PIECES.decode(ids, skip_specials=True) == "nano-m"


def test_wrong_vocabularies_are_refused():
    with pytest.raises(SettingsError, match="different"):
        Tokenizer(["a", "a"], [], pad="a", eos="a", unk="a")
    with pytest.raises(SettingsError, match="not in the vocabulary"):
        Tokenizer(["a"], ["<x>"], pad="a", eos="a", unk="a")
    with pytest.raises(UnknownName, match="<stop>"):
        PIECES.id("<stp>")


@pytest.mark.parametrize("tokenizer", [CHARACTERS, PIECES], ids=["characters", "pieces"])
def test_a_tokenizer_survives_its_files(tokenizer):
    files = json.loads(json.dumps([tokenizer.to_hf(), tokenizer.hf_config(128)]))
    again = Tokenizer.from_hf(*files)
    assert (again.vocab, again.specials) == (tokenizer.vocab, tokenizer.specials)
    assert again.encode("def reward<end> = 5.é") == tokenizer.encode("def reward<end> = 5.é")


def test_a_tokenizer_of_another_kind_is_refused():
    good, config = CHARACTERS.to_hf(), CHARACTERS.hf_config(128)
    for damage, says in (
        ({"model": good["model"] | {"merges": ["a b"]}}, "merges"),
        ({"normalizer": {"type": "NFC"}}, "normalizer"),
        ({"model": good["model"] | {"vocab": good["model"]["vocab"] | {"é": 99}}}, "gaps"),
    ):
        with pytest.raises(SettingsError, match=says):
            Tokenizer.from_hf(good | damage, config)
    with pytest.raises(SettingsError, match="eos_token"):
        Tokenizer.from_hf(good, {k: v for k, v in config.items() if k != "eos_token"})


# ---------------------------------------------------------------- folders


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": False}], ids=["tied", "untied"])
def test_a_model_comes_back_as_it_was(tmp_path, changes):
    model = tiny(**changes)
    save_model(tmp_path / "m", model, CHARACTERS, "float32", chat_template="{{ messages }}", stop_ids=(2,))
    again, tokenizer = load_model(tmp_path / "m")
    assert again.config == model.config
    assert np.array_equal(again.theta, model.theta)
    assert tokenizer.vocab == CHARACTERS.vocab
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert json.loads((tmp_path / "m/generation_config.json").read_text())["eos_token_id"] == [1, 2]


def test_half_precision_is_the_nearest(tmp_path):
    model = tiny()
    save_model(tmp_path, model, CHARACTERS)
    again, _ = load_model(tmp_path)
    assert np.array_equal(again.theta, model.theta.astype(np.float16).astype(np.float32))
    save_model(tmp_path, again, CHARACTERS)  # lossless from then on
    assert np.array_equal(load_model(tmp_path)[0].theta, again.theta)


def test_bfloat16_is_read(tmp_path):
    values = np.array([1.0, -2.5, 0.15625], np.float32)
    raw = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    head = json.dumps({"x": {"dtype": "BF16", "shape": [3], "data_offsets": [0, len(raw)]}}).encode()
    head += b" " * (-len(head) % 8)
    (tmp_path / "x.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + raw)
    assert read_tensors(tmp_path / "x.safetensors")["x"].tolist() == values.tolist()


def _without(tensors, name):
    return {k: v for k, v in tensors.items() if k != name}


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda t: _without(t, NORM), "model.norm.weight is missing"),
        (lambda t: t | {"model.layers.9.mlp.up_proj.weight": t[NORM]}, "unknown tensors model.layers.9"),
        (lambda t: t | {NORM: np.ones(3, np.float32)}, r"shape \(3,\)"),
        (lambda t: t | {NORM: t[NORM] * np.float32("nan")}, "not finite"),
        (lambda t: t | {NORM: t[NORM].astype(np.int8)}, "type I8"),
    ],
    ids=["missing", "unknown", "shape", "nan", "type"],
)
def test_damaged_weights_are_named(tmp_path, damage, says):
    save_model(tmp_path, tiny(), CHARACTERS, "float32")
    tensors = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    safetensors.numpy.save_file(damage(tensors), tmp_path / "model.safetensors")
    with pytest.raises(SettingsError, match=says) as caught:
        load_model(tmp_path)
    assert str(tmp_path / "model.safetensors") in str(caught.value)


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("model.safetensors", b"\x10", "safetensors"),
        ("model.safetensors", None, "no such file"),
        ("config.json", b"{", "not readable JSON"),
        ("config.json", b"[]", "object"),
        ("config.json", b'{"model_type": "llama"}', "llama"),
        ("config.json", None, "no such file"),
        ("tokenizer.json", None, "no such file"),
        ("tokenizer.json", b"{}", "BPE"),
    ],
)
def test_a_damaged_folder_names_its_file(tmp_path, file, content, says):
    save_model(tmp_path, tiny(), CHARACTERS)
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(SettingsError, match=says) as caught:
        load_model(tmp_path)
    assert str(tmp_path / file) in str(caught.value)


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path):
    save_model(tmp_path, tiny(vocab_size=10), CHARACTERS)
    with pytest.raises(SettingsError, match="64 tokens"):
        load_model(tmp_path)


def test_no_folder_no_model(tmp_path):
    with pytest.raises(SettingsError, match="no such model folder"):
        load_model(tmp_path / "none")
    with pytest.raises(UnknownName):
        weights_path("nano-xl")


def test_a_failed_write_leaves_the_old_file(tmp_path):
    write_tensors(tmp_path / "x.safetensors", {"a": np.ones(2)})
    before = (tmp_path / "x.safetensors").read_bytes()
    with pytest.raises(TypeError):
        write_bytes(tmp_path / "x.safetensors", "not bytes")
    assert (tmp_path / "x.safetensors").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]


# ---------------------------------------------------------------- adapters


def test_an_adapter_comes_back_as_it_was(tmp_path):
    model = tiny()
    base = model.copy()
    lora = LoRA(model, rank=4, alpha=8, targets=("q_proj", "down_proj"), seed=1)
    lora.theta += np.random.default_rng(0).normal(0, 0.1, lora.size).astype(np.float32)
    lora.merge()
    lora.save(tmp_path, base="somewhere")
    again = LoRA.load(tmp_path, base)
    assert np.array_equal(again.theta, lora.theta)
    assert np.array_equal(base.theta, model.theta)


def test_a_damaged_adapter_is_named(tmp_path):
    model = tiny()
    lora = LoRA(model, rank=2)
    lora.save(tmp_path, base="x")
    weights, config = tmp_path / "adapter_model.safetensors", tmp_path / "adapter_config.json"
    good, text = safetensors.numpy.load_file(weights), config.read_text()
    first = min(good)
    for damaged, says in (
        (_without(good, first), "missing"),
        (good | {"y": good[first]}, "unknown"),
        (good | {first: good[first][:1]}, "shape"),
        (good | {first: good[first] + np.float32("inf")}, "not finite"),
    ):
        safetensors.numpy.save_file({k: np.ascontiguousarray(v) for k, v in damaged.items()}, weights)
        with pytest.raises(SettingsError, match=says):
            LoRA.load(tmp_path, model)
    for change, says in (({"use_dora": True}, "use_dora"), ({"peft_type": "IA3"}, "IA3"), ({"r": None}, "r is")):
        config.write_text(json.dumps(json.loads(text) | change))
        with pytest.raises(SettingsError, match=says):
            LoRA.load(tmp_path, model)
    with pytest.raises(SettingsError, match="rank"):
        LoRA(model, rank=0)
    with pytest.raises(SettingsError, match="lora targets"):
        LoRA(model, targets=("embed_tokens",))


# ---------------------------------------------------------------- threads


BLAS = """
import asyncio
import numpy
from threadpoolctl import threadpool_info
from nested_rl.nano.threads import in_engine, single_thread

def threads():
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

def held():
    before = threads()
    with single_thread():
        with single_thread():
            inside = threads()
        between = threads()
    return before, inside, between, threads()

before, inside, between, after = asyncio.run(in_engine(held))
assert before and set(inside + between) == {1} and after == before, (before, inside, between, after)
"""


def test_one_thread_while_held_and_then_as_before():
    """In a process of its own: which thread OpenBLAS heeds depends on who set it before."""
    done = subprocess.run([sys.executable, "-c", BLAS], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
