"""Models as ordinary Hugging Face folders: what is written here loads in transformers, PEFT and vLLM unchanged."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import safetensors
import safetensors.numpy

from nested_rl.errors import SettingsError, UnknownName
from nested_rl.nano.arrays import Floats
from nested_rl.nano.config import Qwen3Config
from nested_rl.nano.model import Qwen3
from nested_rl.nano.parameters import layout, size
from nested_rl.nano.tokenizer import Tokenizer

_WEIGHTS = Path(__file__).parent / "weights"
_HEAD = "lm_head.weight"
T = TypeVar("T")


def weights_path(name: str) -> Path:
    """The folder of a shipped model; raises UnknownName."""
    shipped = sorted(p.name for p in _WEIGHTS.iterdir() if (p / "config.json").is_file()) if _WEIGHTS.is_dir() else []
    if name not in shipped:
        raise UnknownName("nano model", name, shipped)
    return _WEIGHTS / name


def load_model(path: str | Path) -> tuple[Qwen3, Tokenizer]:
    """Model (float32) and tokenizer of a folder; raises SettingsError naming the file that is wrong."""
    folder = Path(path)
    if not folder.is_dir():
        raise SettingsError(f"{folder}: no such model folder")
    config = _named(folder / "config.json", lambda: Qwen3Config.from_hf(read_json(folder / "config.json")))
    model = Qwen3(config, np.empty(size(config), np.float32))
    fill(model, read_tensors(folder / "model.safetensors"), folder / "model.safetensors")
    tokenizer = _named(
        folder / "tokenizer.json",
        lambda: Tokenizer.from_hf(read_json(folder / "tokenizer.json"), read_json(folder / "tokenizer_config.json")),
    )
    if len(tokenizer) > config.vocab_size:
        raise SettingsError(f"{folder}: tokenizer has {len(tokenizer)} tokens, the model only {config.vocab_size}")
    return model, tokenizer


def save_model(
    path: str | Path,
    model: Qwen3,
    tokenizer: Tokenizer,
    dtype: Literal["float16", "float32"] = "float16",
    *,
    chat_template: str = "",
    stop_ids: tuple[int, ...] = (),
) -> None:
    """Write a folder. `stop_ids` are further ids that end a generation. Files appear whole, the weights last."""
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    c = model.config
    stops = sorted({c.eos_token_id, *stop_ids})
    generation = {
        "do_sample": True,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "eos_token_id": stops if len(stops) > 1 else c.eos_token_id,
        "pad_token_id": c.pad_token_id,
    }
    template = {"chat_template": chat_template} if chat_template else {}
    write_json(folder / "config.json", c.to_hf(dtype))
    write_json(folder / "generation_config.json", generation)
    write_json(folder / "tokenizer.json", tokenizer.to_hf())
    write_json(folder / "tokenizer_config.json", tokenizer.hf_config(c.max_position_embeddings) | template)
    if chat_template:
        write_bytes(folder / "chat_template.jinja", chat_template.encode())
    write_tensors(folder / "model.safetensors", model.tensors, dtype)


def fill(model: Qwen3, tensors: Mapping[str, Floats], where: Path) -> None:
    """Copy named tensors into a model; raises SettingsError for missing, unknown, misshapen or non-finite ones."""
    expected = dict(layout(model.config))
    known = set(expected) | ({_HEAD} if model.config.tie_word_embeddings else set())
    unknown = sorted(set(tensors) - known)
    if unknown:
        raise SettingsError(f"{where}: unknown tensors {', '.join(unknown[:5])}")
    for name, shape in expected.items():
        if name not in tensors:
            raise SettingsError(f"{where}: tensor {name} is missing")
        if tensors[name].shape != shape:
            raise SettingsError(f"{where}: {name} has shape {tensors[name].shape}, config.json says {shape}")
        if not np.isfinite(tensors[name]).all():
            raise SettingsError(f"{where}: {name} has values that are not finite")
        model.tensors[name][...] = tensors[name]


def read_tensors(path: str | Path) -> dict[str, Floats]:
    """A safetensors file, floats widened to float32, int64 as it is; raises SettingsError naming the file."""
    try:
        blobs = safetensors.deserialize(Path(path).read_bytes())  # type: ignore[no-untyped-call]
    except FileNotFoundError:
        raise SettingsError(f"{path}: no such file") from None
    except (OSError, safetensors.SafetensorError) as error:
        raise SettingsError(f"{path}: not a readable safetensors file ({error})") from error
    return {name: _array(blob, f"{path}: {name}") for name, blob in blobs}


def _array(blob: Mapping[str, Any], where: str) -> Floats:
    kind, data = blob["dtype"], blob["data"]
    if kind == "BF16":  # the upper half of a float32
        flat: Floats = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    elif kind == "I64":
        flat = np.frombuffer(data, "<i8")
    elif kind in {"F16", "F32", "F64"}:
        flat = np.frombuffer(data, {"F16": "<f2", "F32": "<f4", "F64": "<f8"}[kind]).astype(np.float32)
    else:
        raise SettingsError(f"{where} has type {kind}; F32, F16, BF16 and F64 are supported")
    return flat.reshape(blob["shape"])


def write_tensors(
    path: str | Path, tensors: Mapping[str, Floats], dtype: Literal["float16", "float32"] = "float32"
) -> None:
    """Write a safetensors file, all or nothing. Integers keep their type."""
    arrays = {
        name: np.ascontiguousarray(t if np.issubdtype(t.dtype, np.integer) else t.astype(dtype))
        for name, t in sorted(tensors.items())
    }
    write_bytes(Path(path), safetensors.numpy.save(arrays, metadata={"format": "pt"}))


def write_json(path: Path, value: Any) -> None:
    """Write JSON, all or nothing."""
    write_bytes(path, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file, all or nothing: a reader sees the old one or the new one."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; raises SettingsError naming the file."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: not readable JSON ({error})") from error
    if not isinstance(value, dict):
        raise SettingsError(f"{path}: a JSON object is expected")
    return value


def _named(path: Path, read: Callable[[], T]) -> T:
    """Say which file a SettingsError is about."""
    try:
        return read()
    except SettingsError as error:
        if str(path.parent) in str(error):
            raise
        raise SettingsError(f"{path}: {error}") from error
