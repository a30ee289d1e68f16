"""What exists only for a while, named after the process that made it: what a killed one has left can be told, and removed.

Drafts are files and folders on their way to their final name. Temporary folders are in /tmp/nested_rl-UID.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from nested_rl import process
from nested_rl.errors import SettingsError

DRAFT = ".draft-"
DESKS = "desks"


def named() -> str:
    """A name that nobody else has, and that tells whose it is.

    >>> left_behind(named())
    False
    """
    return f"{process.identity()}-{secrets.token_hex(4)}"


def left_behind(name: str) -> bool:
    """Whether the process of a `named` name is certainly gone."""
    return not process.alive(name.rpartition("-")[0])


def draft(folder: Path) -> Path:
    """A new path in `folder` for what is still being written."""
    return folder / f"{DRAFT}{named()}"


def sweep(folder: Path) -> None:
    """Remove the drafts of processes that no longer run, in `folder` and everywhere below it."""
    for path, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            if name.startswith(DRAFT) and left_behind(name.removeprefix(DRAFT)):
                _remove(Path(path) / name)
        folders[:] = [name for name in folders if not name.startswith(DRAFT)]


def home() -> Path:
    """The folder of this user's temporary folders, made if missing. Raises SettingsError when it is somebody else's."""
    path = Path(tempfile.gettempdir()) / f"nested_rl-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    if path.lstat().st_uid != os.getuid() or not path.is_dir() or path.is_symlink():
        raise SettingsError(f"{path} is not a folder of this user; remove it, or set TMPDIR to a place of your own")
    return path


@contextlib.contextmanager
def desk() -> Iterator[Path]:
    """An empty folder for as long as the `with` lasts. What killed processes have left is removed, once a process."""
    desks = home() / DESKS
    desks.mkdir(mode=0o700, exist_ok=True)
    _clear(desks)
    path = desks / named()
    path.mkdir(mode=0o700)
    try:
        yield path
    finally:
        _remove(path)


@functools.cache
def _clear(desks: Path) -> None:
    for old in desks.iterdir():
        if left_behind(old.name):
            _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
