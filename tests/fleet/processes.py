"""Processes of this computer, and ports that are free on it."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path


def tree(leader: int) -> list[int]:
    """A process and all that come from it, itself first."""
    found, new = [], [leader]
    while new:
        found += new
        new = [child for pid in new for child in _children(pid)]
    return found


def told_of(home: Path) -> list[int]:
    """Processes that know of this folder. A mere name could be part of anybody's command line."""
    own = re.compile(re.escape(os.fsencode(home)) + rb"(?![^/\0\s])")
    return [
        int(folder.name)
        for folder in Path("/proc").glob("[0-9]*")
        if own.search(_read(folder / "environ") + b"\0" + _read(folder / "cmdline")) and int(folder.name) != os.getpid()
    ]


def _children(pid: int) -> list[int]:
    """None of a process that ends meanwhile."""
    try:
        return [
            int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()
        ]
    except OSError:
        return []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
