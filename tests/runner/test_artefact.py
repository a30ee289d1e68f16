"""What is taken of a run's weights, and what is refused."""

import json
import os
import struct

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from runner_play import SHAPES, make_base
from stand_in_rl import safetensors as made

from nested_rl.inner.prime_rl.runner import artefact, tensors
from nested_rl.inner.prime_rl.runner.artefact import Source
from nested_rl.inner.prime_rl.runner.files import Folder
from nested_rl.inner.prime_rl.runner.tensors import Refused

FULL = {name: ("BF16", shape) for name, shape in SHAPES.items()}
Q = "model.layers.0.self_attn.q_proj"
LORA = {f"{Q}.lora_A.weight": ("BF16", [2, 4]), f"{Q}.lora_B.weight": ("BF16", [6, 2])}
CONFIG = {"r": 2, "lora_alpha": 4}


@pytest.fixture
def place(tmp_path):
    folder = tmp_path / "work" / "run" / "broadcasts" / "step_3"
    folder.mkdir(parents=True)
    (folder / "STABLE").touch()
    return folder


@pytest.fixture
def take(tmp_path, place):
    base = make_base(tmp_path / "base")

    def take(kind="full", base=base):
        folder = Folder(str(tmp_path / "work"))
        path = artefact.finished(folder, "run")[3]
        source = Source(folder, path, kind, str(base))
        try:
            artefact.take(source, str(tmp_path / "model"), beat=lambda: None)
        finally:
            assert not (tmp_path / "model.part").exists()
        return tmp_path / "model"

    return take


def full(place, tensors, value=1.0, name="model.safetensors"):
    (place / name).write_bytes(made(tensors, value))


def lora(place, tensors=LORA, config=CONFIG):
    (place / "adapter_model.safetensors").write_bytes(made(tensors, 1.0))
    (place / "adapter_config.json").write_text(config if isinstance(config, str) else json.dumps(config))


# ---------------------------------------------------------------- taken


def test_a_file_that_the_real_library_reads(place, take, tmp_path):
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    safetensors.numpy.save_file(arrays, place / "model.safetensors")
    blobs = dict(safetensors.deserialize((take() / "model.safetensors").read_bytes()))
    for name, array in arrays.items():
        assert blobs[name]["dtype"] == "BF16"
        read = (np.frombuffer(blobs[name]["data"], "<u2").astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_allclose(read, array.ravel(), rtol=2**-8)


def test_shards_become_one_file(place, take):
    names = sorted(FULL)
    full(place, {n: FULL[n] for n in names[:1]}, name="model-00001-of-00002.safetensors")
    full(place, {n: FULL[n] for n in names[1:]}, name="model-00002-of-00002.safetensors")
    (place / "model.safetensors.index.json").write_text("whatever it says")
    model = take()
    assert artefact.layout(str(model)) == {name: tuple(shape) for name, shape in SHAPES.items()}
    assert not (model / "model.safetensors.index.json").exists()


@pytest.mark.parametrize("in_base", [True, False])
@pytest.mark.parametrize("in_run", [True, False])
def test_a_tied_head_may_be_there_or_not(place, take, tmp_path, in_base, in_run):
    head = {"lm_head.weight": ("BF16", [8, 4])}
    base = make_base(tmp_path / "tied", FULL | (head if in_base else {}))
    full(place, FULL | (head if in_run else {}))
    assert "lm_head.weight" not in artefact.layout(str(take(base=base)))


def test_only_complete_broadcasts_count(place, tmp_path):
    for name in ("step_4", "step_x", "step_99999999999", "latest"):
        (place.parent / name).mkdir()
    for name in ("step_x", "step_99999999999", "latest"):
        (place.parent / name / "STABLE").touch()
    (place.parent / "step_5").symlink_to(place)
    assert artefact.finished(Folder(str(tmp_path / "work")), "run") == {3: "run/broadcasts/step_3"}


def test_names_with_the_prefix_of_peft_are_names_too(place, take):
    lora(place, {f"base_model.model.{name}": told for name, told in LORA.items()})
    blobs = dict(safetensors.deserialize((take("lora") / "adapter_model.safetensors").read_bytes()))
    assert set(blobs) == {f"base_model.model.{name}" for name in LORA}


# ---------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ({}, "there are no weights"),
        ({"model.norm.weight": ("BF16", [4])}, r"2 tensors are missing, such as model\.embed_tokens"),
        ({**FULL, "model.extra.weight": ("BF16", [2])}, r"1 tensors are not in the base, such as model\.extra"),
        ({**FULL, "model.norm.weight": ("BF16", [5])}, r"model\.norm\.weight has shape \[5\], the base has \[4\]"),
        ({**FULL, "model.norm.weight": ("BF16", [2, 2])}, "has shape"),
        ({**FULL, "model.norm.weight": ("F16", [4])}, "is F16, BF16 is wanted"),
        ({**FULL, "lm_head.weight": ("BF16", [8, 4])}, None),
    ],
)
def test_names_shapes_and_types_are_the_bases(place, take, tensors, why):
    full(place, tensors)
    if why is None:
        assert take().is_dir()
    else:
        with pytest.raises(Refused, match=why):
            take()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3.4e38])
@pytest.mark.parametrize("kind", ["BF16", "F32"])
def test_every_number_is_finite(place, take, kind, value):
    full(place, {name: (kind, shape) for name, shape in SHAPES.items()}, value)
    if value == 3.4e38 and kind == "BF16":
        assert take().is_dir()  # the upper half of it is the largest that BF16 has
    else:
        with pytest.raises(Refused, match=r"not finite|too large"):
            take()


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "tokenizer.json", "adapter_model.bin", "modeling.py", "config.json", ".x"]
)
def test_other_files_are_refused(place, take, name):
    full(place, FULL)
    (place / name).write_bytes(b"\x80\x04.")
    with pytest.raises(Refused, match="files that prime-rl does not write"):
        take()


def test_folders_links_and_pipes_are_refused(place, take, tmp_path):
    full(tmp_path, FULL)
    for make in (
        lambda path: path.mkdir(),
        lambda path: path.symlink_to(tmp_path / "model.safetensors"),
        lambda path: os.link(tmp_path / "model.safetensors", path),
        os.mkfifo,
    ):
        path = place / "model.safetensors"
        make(path)
        with pytest.raises(Refused, match=r"model\.safetensors cannot be read"):
            take()
        path.rmdir() if path.is_dir() else path.unlink()


def header(told, body=b"\0" * 8):
    text = told if isinstance(told, bytes) else json.dumps(told).encode()
    return struct.pack("<Q", len(text)) + text + body


ONE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04pickle",
        b"PK\x03\x04" + bytes(100),
        struct.pack("<Q", 1 << 60) + b"{}",
        header(b"{"),
        header(b"[" * 100_000),
        header([]),
        header({"a": 1}),
        header({"a": {**ONE, "dtype": "I64"}}),
        header({"a": {**ONE, "dtype": "F64", "shape": [1]}}),
        header({"a": {**ONE, "shape": [3]}}),
        header({"a": {**ONE, "shape": [-2, -1]}}),
        header({"a": {**ONE, "shape": [True, 2]}}),
        header({"a": {**ONE, "shape": "ab"}}),
        header({"a": {**ONE, "data_offsets": [0, 4]}}),
        header({"a": {**ONE, "data_offsets": [4, 12]}}, b"\0" * 12),
        header({"a": {**ONE, "data_offsets": [0, 8, 9]}}),
        header({"a": ONE, "b": ONE}),
        header({"a": ONE}, b"\0" * 4),
        header({"a": ONE}, b"\0" * 9),
    ],
)
def test_what_is_no_safetensors_file_is_refused(place, take, data):
    (place / "model.safetensors").write_bytes(data)
    with pytest.raises(Refused, match=r"safetensors|header|does not lie|bytes long"):
        take()


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ({}, "there are no weights"),
        ({f"{Q}.lora_A.weight": ("BF16", [2, 4])}, "matrices A and B"),
        ({**LORA, f"{Q}.weight": ("BF16", [6, 4])}, "no part of a LoRA adapter"),
        ({**LORA, "model.norm.lora_A.weight": ("BF16", [2, 4])}, "no part of a LoRA adapter"),
        ({**LORA, "lm_head.lora_A.weight": ("BF16", [2, 4])}, "no part of a LoRA adapter"),
        ({**LORA, f"{Q}.lora_B.weight": ("BF16", [5, 2])}, "does not fit"),
        ({**LORA, f"{Q}.lora_B.weight": ("BF16", [12])}, "does not fit"),
        ({**LORA, f"{Q}.lora_B.weight": ("BF16", [6, 3])}, "of one rank"),
        ({f"{Q}.lora_A.weight": ("BF16", [0, 4]), f"{Q}.lora_B.weight": ("BF16", [6, 0])}, "does not fit"),
        ({f"{Q}.lora_A.weight": ("BF16", [600, 4]), f"{Q}.lora_B.weight": ("BF16", [6, 600])}, "does not fit"),
        ({**LORA, f"base_model.model.{Q}.lora_A.weight": ("BF16", [2, 4])}, "there twice"),
    ],
)
def test_an_adapter_fits_the_base(place, take, tensors, why):
    lora(place, tensors)
    with pytest.raises(Refused, match=why):
        take("lora")


@pytest.mark.parametrize(
    "config",
    ["{", "[]", {}, {"r": 2}, {"r": 3, "lora_alpha": 4}, {"r": 2, "lora_alpha": "x"}, {"r": 2, "lora_alpha": 0},
     {"r": 2, "lora_alpha": float("nan")}, {"r": 2, "lora_alpha": 1e9}, {"r": "2", "lora_alpha": 4}],
)  # fmt: skip
def test_an_adapters_config_says_what_its_matrices_say(place, take, config):
    lora(place, config=config)
    with pytest.raises(Refused, match="adapter_config"):
        take("lora")


# ---------------------------------------------------------------- numbers


@given(st.lists(st.floats(width=32), max_size=40))
def test_finite_says_what_numpy_says(values):
    array = np.array(values, np.float32)
    with np.errstate(over="ignore"):
        half = array.astype(np.float16)
    upper = array.view(np.uint32) >> 16
    assert tensors.finite(array.tobytes(), "F32") == bool(np.isfinite(array).all())
    assert tensors.finite(half.tobytes(), "F16") == bool(np.isfinite(half).all())
    brain = (upper << 16).astype(np.uint32).view(np.float32)
    assert tensors.finite(upper.astype("<u2").tobytes(), "BF16") == bool(np.isfinite(brain).all())


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=40))
def test_rounding_is_to_the_nearest_and_ties_go_to_even(values):
    bits = np.array(values, np.float32).view(np.uint32)
    expected = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    assert tensors.rounded(np.array(values, "<f4").tobytes()) == expected.tobytes()
