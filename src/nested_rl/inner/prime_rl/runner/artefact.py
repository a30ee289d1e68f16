"""From what a run left to a folder that vLLM loads. The job gives tensors and nothing else.

Names and shapes are those of the base, or of an adapter for it; the numbers are copied one by one into a file of ours. Tokenizer,
chat template and config come from the base's folder. Whatever else lies there means that something else than prime-rl wrote it.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from nested_rl.model_files import ADAPTER, ADAPTER_CONFIG, BASE_FILES, MODEL, digest_of, sha256

from . import tensors
from .files import Folder
from .tensors import Layout, Refused, Tensor

FINAL = "STABLE"
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
MAX_RANK = 512
PREFIX = "base_model.model."
"""PEFT writes it before every name; prime-rl does not."""

_SHARD = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
_LORA = re.compile(r"((?:base_model\.model\.)?)(.+)\.lora_([AB])\.weight")
_CONFIG_BYTES = 1 << 20


@dataclass(frozen=True)
class Source:
    """One broadcast of a run: `folder` is what the job wrote in, `path` the place of the broadcast in it."""

    folder: Folder
    path: str
    kind: str
    base_path: str


def finished(folder: Folder, run: str) -> dict[int, str]:
    """The complete broadcasts of a run: step and path."""
    found = {}
    for name in folder.names(f"{run}/broadcasts"):
        step = name.removeprefix("step_")
        if step.isdigit() and len(step) < 10 and folder.has(f"{run}/broadcasts/{name}/{FINAL}"):
            found[int(step)] = f"{run}/broadcasts/{name}"
    return found


def take(source: Source, out: str, *, beat: Callable[[], None]) -> str:
    """Make the folder `out`; the digest of its files. Raises Refused, and then there is no such folder.

    OSError and ValueError are trouble of ours: a base that is damaged, a disk that is full.
    """
    part = Path(f"{out}.part")
    part.mkdir()
    try:
        hashes = _adapter(source, part, beat) if source.kind == "lora" else _model(source, part, beat)
        part.rename(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return digest_of(hashes)


def layout(folder: str) -> Layout:
    """Name and shape of every tensor of a base."""
    found: dict[str, tuple[int, ...]] = {}
    for path in sorted(Path(folder).glob("model*.safetensors")):
        if _SHARD.fullmatch(path.name):
            with path.open("rb") as file:
                try:
                    header = tensors.read_header(file.fileno(), str(path))
                except Refused as refused:
                    raise ValueError(f"the base is damaged: {refused}") from None
            found |= {name: tensor.shape for name, tensor in header.items()}
    if not found:
        raise FileNotFoundError(f"{folder}: no model*.safetensors there")
    return found


# ---------------------------------------------------------------- a full fine-tune


def _model(source: Source, out: Path, beat: Callable[[], None]) -> dict[str, str]:
    base, tied = layout(source.base_path), _tied(source.base_path)
    with _opened(source, _SHARD.fullmatch, {"model.safetensors.index.json"}) as found:
        # A tied head is the embedding again; bases have it or not, and it is never needed.
        wanted = {name: shape for name, shape in base.items() if not (tied and name == HEAD)}
        given = {name: tensor for name, tensor in found.items() if not (tied and name == HEAD)}
        _same_names(set(given), set(wanted))
        for name, shape in wanted.items():
            if given[name].shape != shape:
                raise Refused(f"{name} has shape {list(given[name].shape)}, the base has {list(shape)}")
        same = {name: name for name in given}
        hashes = {MODEL: tensors.write(out / MODEL, given, names=same, kind="BF16", beat=beat)}
    for name in BASE_FILES:
        if (ours := Path(source.base_path, name)).is_file():
            shutil.copyfile(ours, out / name)
            hashes[name] = sha256(out / name)
    return hashes


def _tied(base_path: str) -> bool:
    return bool(json.loads(Path(base_path, "config.json").read_text("utf-8")).get("tie_word_embeddings"))


# ---------------------------------------------------------------- an adapter


def _adapter(source: Source, out: Path, beat: Callable[[], None]) -> dict[str, str]:
    base = layout(source.base_path)
    with _opened(source, ADAPTER.__eq__, {ADAPTER_CONFIG}) as found:
        names, targets, rank = _pairs(found, base)
        config = _config(source, rank)
        written = tensors.write(out / ADAPTER, found, names=names, kind=None, beat=beat)
    told = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": source.base_path,
        "r": rank,
        "lora_alpha": config["lora_alpha"],
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": targets,
        "modules_to_save": None,
        "inference_mode": True,
    }
    (out / ADAPTER_CONFIG).write_text(json.dumps(told, indent=1), "utf-8")
    return {ADAPTER: written, ADAPTER_CONFIG: sha256(out / ADAPTER_CONFIG)}


def _pairs(found: Mapping[str, Tensor], base: Layout) -> tuple[dict[str, str], list[str], int]:
    """New names, adapted modules and the one rank of an adapter that fits the base."""
    names, sides, ranks = {}, {}, set()
    for name, tensor in found.items():
        match = _LORA.fullmatch(name)
        if match is None or len(base.get(f"{match[2]}.weight", ())) != 2:
            raise Refused(f"{name[:100]} is no part of a LoRA adapter for this base")
        module, side = match[2], match[3]
        rows, columns = base[f"{module}.weight"]
        rank = tensor.shape[0 if side == "A" else -1] if len(tensor.shape) == 2 else 0
        if tensor.shape != ((rank, columns) if side == "A" else (rows, rank)) or not 1 <= rank <= MAX_RANK:
            raise Refused(f"{name} has shape {list(tensor.shape)}, which does not fit {module} with {[rows, columns]}")
        if (module, side) in sides:
            raise Refused(f"{name} is there twice, with and without {PREFIX!r}")
        sides[module, side] = True
        ranks.add(rank)
        names[name] = f"{PREFIX}{module}.lora_{side}.weight"
    modules = {module for module, _ in sides}
    if not modules or len(sides) != 2 * len(modules) or len(ranks) != 1:
        raise Refused("an adapter has matrices A and B of one rank for each of its modules; this one does not")
    return names, sorted({module.rpartition(".")[2] for module in modules}), ranks.pop()


def _config(source: Source, rank: int) -> dict[str, float]:
    try:
        told = json.loads(source.folder.read(f"{source.path}/{ADAPTER_CONFIG}", _CONFIG_BYTES))
        alpha, told_rank = told["lora_alpha"], told["r"]
        alpha = alpha if isinstance(alpha, int) else float(alpha)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise Refused(f"{ADAPTER_CONFIG} cannot be read, or lacks r or lora_alpha") from None
    if told_rank != rank or not math.isfinite(alpha) or not 0 < alpha <= 1 << 16:
        raise Refused(
            f"{ADAPTER_CONFIG} says r = {told_rank!r:.40}, lora_alpha = {alpha!r:.40}; the matrices have rank {rank}"
        )
    return {"lora_alpha": alpha}


# ---------------------------------------------------------------- both


@contextlib.contextmanager
def _opened(source: Source, weights: Callable[[str], object], besides: set[str]) -> Iterator[dict[str, Tensor]]:
    """The tensors of every file that `weights` knows by its name. Others than those, `besides` and STABLE are refused."""
    names = source.folder.names(source.path)
    strange = [name for name in names if not weights(name) and name not in besides | {FINAL}]
    if strange:
        raise Refused(f"files that prime-rl does not write: {', '.join(map(repr, strange[:5]))[:200]}")
    found: dict[str, Tensor] = {}
    with contextlib.ExitStack() as stack:
        for name in filter(weights, names):
            try:
                handle = stack.enter_context(source.folder.open(f"{source.path}/{name}"))
            except OSError as error:
                raise Refused(f"{name} cannot be read: {error}") from None
            part = tensors.read_header(handle, name)
            if twice := sorted(found.keys() & part.keys()):
                raise Refused(f"{twice[0][:100]} is in two files")
            found |= part
        if not found:
            raise Refused("there are no weights")
        yield found


def _same_names(given: set[str], wanted: set[str]) -> None:
    for names, what in ((wanted - given, "missing"), (given - wanted, "not in the base")):
        if names:
            raise Refused(f"{len(names)} tensors are {what}, such as {min(names)[:100]}")
