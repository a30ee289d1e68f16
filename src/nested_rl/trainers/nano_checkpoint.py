"""Checkpoints of the nano trainer: a model folder that also holds the optimiser, written all or nothing.

NAME/  config.json, tokenizer files, model.safetensors (float32)   an ordinary model folder
       trainer.json               version, recipe, digest of the starting weights
       optimizer.safetensors      first and second moments, steps
       adapter/                   with lora_rank: a PEFT folder
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from attrs import asdict

from nested_rl import scratch
from nested_rl.errors import RunDirError, SettingsError, TrainerError
from nested_rl.nano.arrays import Floats
from nested_rl.nano.folder import fill, read_json, read_tensors, save_model, write_json, write_tensors
from nested_rl.nano.lora import LoRA
from nested_rl.nano.model import Qwen3
from nested_rl.nano.tokenizer import Tokenizer
from nested_rl.rundir import sync_path
from nested_rl.trainers.nano_learner import Learner, Recipe

_TRAINER, _OPTIMIZER, _MODEL, _ADAPTER = "trainer.json", "optimizer.safetensors", "model.safetensors", "adapter"


def digest(model: Qwen3) -> str:
    """Names the starting weights: a checkpoint only goes on from the ones it began with."""
    return hashlib.sha256(model.theta.astype("<f4").tobytes()).hexdigest()


def write(
    directory: Path,
    name: str,
    learner: Learner,
    tokenizer: Tokenizer,
    *,
    base: str,
    chat_template: str,
    stops: tuple[int, ...],
) -> Path:
    """Write `directory/name`; an older one of that name is replaced. It is on the disk when this returns.

    Raises RunDirError (full disk, permissions).
    """
    target = directory / name
    draft = scratch.draft(directory)
    try:
        settled(target)
        draft.mkdir(parents=True)
        save_model(draft, learner.model, tokenizer, "float32", chat_template=chat_template, stop_ids=stops)
        write_tensors(draft / _OPTIMIZER, learner.optimiser.state())
        if learner.lora is not None:
            learner.lora.save(draft / _ADAPTER, base=base)
        about = {"version": learner.version, "recipe": asdict(learner.recipe), "start": digest(learner.start)}
        write_json(draft / _TRAINER, about)
        _sync(draft)
        if target.exists():
            target.rename(_aside(target))
        draft.rename(target)
        sync_path(directory)
    except OSError as error:
        raise RunDirError(f"{target}: the checkpoint cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    with contextlib.suppress(OSError):  # the next one tries again
        settled(target)
    return target


def read(folder: Path, start: Qwen3, recipe: Recipe) -> Learner:
    """A learner as it was saved.

    Raises RunDirError naming the file that is missing or damaged, TrainerError when it is of another trainer.
    """
    learner = Learner(start, recipe)
    try:
        about = read_json(folder / _TRAINER)
        learner.version = _version(about, folder / _TRAINER)
    except SettingsError as error:
        raise _damaged(folder, error) from error
    try:
        _check_origin(about, start, recipe, folder / _TRAINER)
    except SettingsError as error:
        raise TrainerError(f"this checkpoint cannot be loaded: {error}") from error
    try:
        learner.set_theta(_theta(folder, learner))
        state = read_tensors(folder / _OPTIMIZER)
        for key, values in state.items():
            if not np.isfinite(values).all():
                raise SettingsError(f"{folder / _OPTIMIZER}: {key} has values that are not finite")
        _restore(learner, state, folder / _OPTIMIZER)
    except SettingsError as error:
        raise _damaged(folder, error) from error
    return learner


def _damaged(folder: Path, error: SettingsError) -> RunDirError:
    return RunDirError(
        f"this checkpoint cannot be loaded: {error}. Put {folder} back from a copy of the run, or start a new run "
        "from an earlier one of its folder"
    )


def delete(folder: Path) -> None:
    """Delete a checkpoint; nothing happens if there is none. Raises RunDirError (permissions, a busy disk)."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunDirError(f"{folder}: the checkpoint cannot be deleted ({error.strerror or error})") from error


def settled(target: Path) -> Path:
    """The folder of a checkpoint, after a replacement that was cut short: undone between its two renames, else ended."""
    older = _aside(target)
    if older.exists() and not target.exists():
        older.rename(target)
    elif older.exists():
        outdated = scratch.draft(target.parent)  # out of the way even if it cannot be removed
        older.rename(outdated)
        shutil.rmtree(outdated, ignore_errors=True)
    return target


def _sync(folder: Path) -> None:
    """Wait until everything in a folder is on the disk."""
    for path, _, files in os.walk(folder):
        for name in files:
            sync_path(Path(path, name))
        sync_path(Path(path))


def _aside(target: Path) -> Path:
    return target.parent / f".{target.name}.old"


def _theta(folder: Path, learner: Learner) -> Floats:
    if learner.lora is None:
        model = Qwen3(learner.start.config, np.zeros_like(learner.start.theta))
        fill(model, read_tensors(folder / _MODEL), folder / _MODEL)
        return model.theta
    adapter = LoRA.load(folder / _ADAPTER, learner.start.copy())
    if adapter.theta.shape != learner.theta.shape:
        raise SettingsError(f"{folder / _ADAPTER}: its rank is {adapter.rank}, {learner.lora.rank} is needed")
    return adapter.theta


def _restore(learner: Learner, state: dict[str, Floats], where: Path) -> None:
    try:
        learner.optimiser.restore(state)
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from error


def _version(about: dict[str, Any], where: Path) -> int:
    version = about.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 0:
        raise SettingsError(f"{where}: version is {version!r}, a whole number is expected")
    return version


def _check_origin(about: dict[str, Any], start: Qwen3, recipe: Recipe, where: Path) -> None:
    if about.get("start") != digest(start):
        raise SettingsError(
            f"{where}: it was trained from other starting weights; give the trainer the model it began with"
        )
    rank = (about.get("recipe") or {}).get("lora_rank")
    if rank != recipe.lora_rank:
        raise SettingsError(f"{where}: it was trained with lora_rank={rank}, this trainer has {recipe.lora_rank}")
