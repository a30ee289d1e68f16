"""The files of a trained model, and their digest: one rule for what trains, what fetches and what scores.

It runs on machines too, beside the programs that are put there: Python 3.10 or later, standard library only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

ADAPTER, ADAPTER_CONFIG, MODEL = "adapter_model.safetensors", "adapter_config.json", "model.safetensors"
BASE_FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt",
    "special_tokens_map.json", "added_tokens.json", "tokenizer.model", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
"""What a full checkpoint has of its base, besides tensors."""
IMAGE_BIN = "/app/.venv/bin"
"""Where prime-rl's image has its programs, vLLM too; a login over SSH does not have it on its PATH."""

_BASE_PLACE = "base_model_name_or_path"


def digest(files: Iterable[Path]) -> str:
    """Of a model, from its files. Raises OSError."""
    return digest_of({path.name: sha256(path) for path in files})


def digest_of(hashes: Mapping[str, str]) -> str:
    """Of a model, from the `sha256` of each of its files.

    >>> digest_of({"a": "1", "b": "2"}) == digest_of({"b": "2", "a": "1"}) != digest_of({"a": "2", "b": "1"})
    True
    """
    return hashlib.sha256("".join(f"{name} {hashes[name]}\n" for name in sorted(hashes)).encode()).hexdigest()


def sha256(path: Path) -> str:
    """Of one file. Of an adapter's configuration it is without its base's place: the same adapter is the same on every machine."""
    if path.name == ADAPTER_CONFIG:
        return hashlib.sha256(_placeless(path.read_bytes())).hexdigest()
    found = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            found.update(data)
    return found.hexdigest()


def _placeless(data: bytes) -> bytes:
    try:
        config = json.loads(data)
    except (ValueError, RecursionError):
        return data
    if not isinstance(config, dict):
        return data
    return json.dumps({key: value for key, value in config.items() if key != _BASE_PLACE}).encode()
