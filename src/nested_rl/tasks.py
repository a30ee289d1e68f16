"""Task families: what an agent can be asked to teach a small model.

A family is a folder with three files: `task.toml` (title, difficulty, ...), `prompt.md` (what the agent reads, a jinja
template) and `family.py` with a class `Family`. The built-in six are such folders; a path to one of yours loads the same way:

>>> load("triage")[0].name
'triage'

The easiest way to write one is `ChainFamily`: say how a program (start state and k operations) is drawn, what one operation
does, and how a question is spelled and read back; splits, evaluations, grading and tasks follow. `examples/03_custom_family`
is a complete one. `Family` may also be any other subclass of `nested_rl.interfaces.TaskFamily`; it is called with its `Card`.

Every question has a canonical key, and its bucket, `bucket(family, key)`, decides for ever where it may be used:
0 is the hidden evaluation, 1 the dev evaluation, 2 to 7 are for training.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import cast

from nested_rl import blame
from nested_rl.cards import Card, Level, home
from nested_rl.chains import ChainFamily, Program, bucket
from nested_rl.errors import SettingsError, UnknownName
from nested_rl.interfaces import TaskFamily
from nested_rl.types import Scale

__all__ = ["Card", "ChainFamily", "Level", "Program", "bucket", "held_out", "load", "names"]


def names() -> tuple[str, ...]:
    """The built-in families.

    >>> names()
    ('calc_chain', 'dispatch', 'ledger', 'multi_hop', 'string_pipeline', 'triage')
    """
    return tuple(sorted(path.parent.name for path in home().glob("*/task.toml")))


def load(*families: str | Path, scale: Scale | None = None) -> tuple[TaskFamily, ...]:
    """Families by name or by the path of a folder. All built-in ones when none is named.

    Without a `scale` a family comes at the full one, or at nano scale if it has no other; `Experiment` takes the one its
    inner trainer needs.
    """
    return tuple(_load(_folder(family), scale) for family in families or names())


def held_out(families: Sequence[TaskFamily]) -> Callable[[str], bool]:
    """Whether a prompt is a question that belongs to some family's evaluation.

    One on which a family's key() raises is none: the items themselves were tried before the run began.
    """

    def asked(prompt: str) -> bool:
        keys = []
        for family in families:
            with contextlib.suppress(Exception):
                keys.append((family.name, family.key(prompt)))
        return any(key is not None and bucket(name, key) < 2 for name, key in keys)

    return asked


def _folder(family: str | Path) -> Path:
    if str(family) in names():
        return home() / str(family)
    folder = Path(family).expanduser().resolve()
    if (folder / "task.toml").is_file() and (folder / "family.py").is_file():
        return _with_a_name_of_its_own(folder)
    if isinstance(family, Path) or "/" in str(family):
        raise SettingsError(f"{folder} is not a family: it needs task.toml and family.py")
    raise UnknownName("family", family, names())


def _with_a_name_of_its_own(folder: Path) -> Path:
    """A family is named as its folder; jobs, evaluations and records know it by that name."""
    if not re.fullmatch(r"[a-z]\w*", folder.name, re.ASCII):
        raise SettingsError(
            f"{folder}: a family's name is letters, digits and underscores, and begins with a small letter"
        )
    if folder.name in names() and folder != home().resolve() / folder.name:
        raise SettingsError(
            f"{folder}: there is a built-in family {folder.name!r} already; give the folder another name"
        )
    return folder


@functools.cache
def _load(folder: Path, scale: Scale | None) -> TaskFamily:
    card = Card.read(folder)
    card = card.at(scale or ("full" if card.full is not None else "nano"))
    made = getattr(_module(folder), "Family", None)
    if not callable(made):
        raise SettingsError(f"{folder / 'family.py'} has no class `Family`")
    try:
        return cast(TaskFamily, made(card))
    except SettingsError:
        raise
    except Exception as error:
        raise SettingsError(f"family {folder.name} cannot be made: {blame.said(error)}") from error


@functools.cache
def _module(folder: Path) -> ModuleType:
    name = f"nested_rl_family_{folder.name}_{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, folder / "family.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # classes defined in it look themselves up here
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, SettingsError) or not isinstance(error, Exception):
            raise
        raise SettingsError(f"{folder / 'family.py'} cannot be loaded: {blame.said(error)}") from error
    return module
