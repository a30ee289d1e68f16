"""The bases' weights on machines: where they lie, and that they are the ones that were recorded.

A base is a name on the Hugging Face Hub or a folder. On a machine it is looked for in the folders of `NESTED_RL_BASES`, in the image,
in the machine's own store, then in its Hugging Face cache; if it is nowhere, the machine downloads it (to the first of those folders,
or to its store), before any job runs.
What was found first is recorded in a lock file (`bases.lock.json`) with its revision and the sha256 of each file. Later finds must be
the same, on every machine.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from attrs import field, frozen

from nested_rl import serialize
from nested_rl.errors import InfraFault, MachineLost, SettingsError
from nested_rl.interfaces import Machine
from nested_rl.weights import on_machine
from nested_rl.weights.lock import Lock, Record

__all__ = ["FOLDERS", "Lock", "Record", "locate"]

FOLDERS = "NESTED_RL_BASES"
"""A variable of the controller: folders on machines, divided by colons, that hold bases by their names."""
PATIENCE_S = 3600.0
"""A download of a few GB over a slow line."""


@frozen(kw_only=True)
class _File:
    """`stamp` is size, times and place on disk: it changes whenever anybody but root changes the file."""

    sha256: str
    stamp: str


@frozen(kw_only=True)
class _Found:
    """What the machine's side answers; `missing` says why there is nothing."""

    path: str = ""
    revision: str = ""
    files: Mapping[str, _File] = field(factory=dict)
    missing: str = ""


async def locate(machine: Machine, base: str, *, folders: Sequence[str] | None = None, lock: Lock | None = None) -> str:
    """The folder of a base's weights on the machine, checked against the lock.

    Raises InfraFault when the machine cannot get it or has something else than was recorded, MachineLost when it does not answer.
    `folders` are looked in first (default: the variable NESTED_RL_BASES), `lock` is the record (default: the user's).
    """
    base = _named(base)
    lock = lock or Lock.of_user()
    recorded = await asyncio.to_thread(lock.read, base)
    known = _KNOWN.setdefault(machine, {})
    question = {
        "base": base,
        "revision": recorded.revision if recorded else "",
        "folders": [*(os.environ.get(FOLDERS, "").split(":") if folders is None else folders)],
        "known": {name: [file.stamp, file.sha256] for name, file in known[base].files.items()} if base in known else {},
    }
    found = await _asked(machine, question)
    if found.missing:
        raise InfraFault(f"{machine.id} has no weights of {base}: {found.missing}")
    record = Record(revision=found.revision, files={name: file.sha256 for name, file in found.files.items()})
    kept = await asyncio.to_thread(lock.settle, base, record)
    if kept.files != record.files:
        raise InfraFault(
            f"{machine.id}: the weights of {base} in {found.path} are not those that were recorded: {_differing(kept, record)}. "
            f"Replace them there, or, if the new ones are meant, remove {base!r} from {lock.path} and measure the baselines again"
        )
    known[base] = found
    return found.path


def _named(base: str) -> str:
    """A name on the Hub as it is, a folder as an absolute path."""
    if base.startswith("/") or (base.startswith((".", "~")) and Path(base).expanduser().is_dir()):
        return str(Path(base).expanduser().resolve())
    if not _HUB_NAME.fullmatch(base) or ".." in base:
        raise SettingsError(
            f"{base!r} is no base: use a name on the Hub, such as 'Qwen/Qwen3-0.6B', or a folder's path"
        )
    return base


async def _asked(machine: Machine, question: Mapping[str, Any]) -> _Found:
    script = _script()
    path = f"bases/{hashlib.sha256(script).hexdigest()[:16]}.py"
    environment = {name: os.environ[name] for name in ("HF_ENDPOINT",) if name in os.environ}
    try:
        await machine.put(path, script)
        command = ["python3", "-I", f"{machine.root}/{path}", json.dumps(question)]
        told = await machine.run(command, env=environment, timeout_s=PATIENCE_S)
        if told.returncode != 0:
            raise MachineLost(f"{machine.id} cannot look for {question['base']}: {told.stderr.strip()[-500:]}")
        return serialize.loads(told.stdout, _Found)
    except (OSError, TimeoutError, SettingsError) as error:
        raise MachineLost(f"{machine.id} does not say where {question['base']} is: {error}") from error


@functools.cache
def _script() -> bytes:
    return Path(on_machine.__file__).read_bytes()


def _differing(kept: Record, found: Record) -> str:
    names = sorted(kept.files.keys() | found.files.keys())
    return ", ".join(name for name in names if kept.files.get(name) != found.files.get(name))


_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", re.ASCII)
_KNOWN: WeakKeyDictionary[Machine, dict[str, _Found]] = WeakKeyDictionary()
