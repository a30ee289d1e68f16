"""Processes to kill, and what is left of them. Linux: everything is read from /proc."""

from __future__ import annotations

import os
import select
from pathlib import Path

from nested_rl.compute import orphans


def descendants(pid: int) -> list[int]:
    """Living processes below one."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            parents.setdefault(parent, []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        todo += (children := parents.get(todo.pop(), []))
        found += children
    return found


def on_machines(pid: int) -> list[int]:
    """The programs on the machines of a controller, which are its own children."""
    try:
        children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [child for child in children if orphans.MARK in _file(child, "environ")]


def speaking_of(text: str) -> list[int]:
    """Living processes with `text` in their arguments or environment, this one excepted."""
    living = [pid for pid, state, _ in orphans.processes() if pid != os.getpid() and state not in "ZX"]
    return [pid for pid in living if text in _file(pid, "cmdline") or text in _file(pid, "environ")]


def outlived(pids: list[int], seconds: float) -> list[int]:
    """Which of them have not ended in time."""
    left = []
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        ended, _, _ = select.select([handle], [], [], seconds)
        os.close(handle)
        left += [] if ended else [pid]
    return left


def _file(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace")
    except OSError:
        return ""
