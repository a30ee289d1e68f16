"""Everything that a job started, to be found whatever it does, and ended.

This process adopts orphans (PR_SET_CHILD_SUBREAPER), so a program that forks twice, opens a session of its own and wipes its
environment is still below us. What an earlier runner left behind when it was killed is found by the jobs' user, if they have one.
Linux only; elsewhere the process group is all there is.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

_SET_DEATH_SIGNAL = 1
_SET_DUMPABLE = 4
_SET_CHILD_SUBREAPER = 36
_SET_NO_NEW_PRIVS = 38
_PAUSE_S = 0.005

LIBC = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> bool:
    try:
        return int(LIBC.prctl(option, value, 0, 0, 0)) == 0
    except AttributeError:  # not Linux
        return False


def adopt_orphans() -> bool:
    """Make this process the parent of every orphan below it."""
    return _prctl(_SET_CHILD_SUBREAPER, 1)


def close_to_others() -> None:
    """No process of the same user may look into this one, or open its pipes through /proc; root may."""
    _prctl(_SET_DUMPABLE, 0)


def end_with_parent(how: int) -> None:
    """Get the signal `how` when the parent dies. To be set after a change of user, which clears it."""
    _prctl(_SET_DEATH_SIGNAL, how)


def no_more_rights() -> None:
    """Nothing that is started from here gains rights, by sudo or otherwise."""
    _prctl(_SET_NO_NEW_PRIVS, 1)


def descendants(root: int) -> list[int]:
    """Ids of the running processes below `root`. Zombies are none, but ours are collected."""
    children: dict[int, list[int]] = {}
    states: dict[int, str] = {}
    for pid, state, parent, _ in _processes():
        children.setdefault(parent, []).append(pid)
        states[pid] = state
    below, todo = [], list(children.get(root, ()))
    while todo:
        pid = todo.pop()
        below.append(pid)
        todo += children.get(pid, ())
    return [pid for pid in below if states[pid] not in "ZX"]


def abandoned(uid: int) -> list[int]:
    """Ids of a user's running processes that belong to nobody else: above them is nothing but more of them, and the first process.

    Jobs of other machines on this computer may have the same user; they have a runner above them.
    """
    known = {pid: (state, parent, user) for pid, state, parent, user in _processes()}
    found = []
    for pid, (state, parent, user) in known.items():
        above = parent
        while above > 1 and above in known and known[above][2] == uid:
            above = known[above][1]
        if user == uid and state not in "ZX" and (above <= 1 or above not in known):
            found.append(pid)
    return found


def end_all(*, group: int | None, leader: int, uid: int | None, patience_s: float) -> list[int]:
    """Kill the group, all descendants, and what the user has abandoned. Ids of what does not die in time."""
    deadline_s = time.monotonic() + patience_s
    while True:
        if group is not None:
            with contextlib.suppress(OSError):
                os.killpg(group, signal.SIGKILL)
        left = set(descendants(os.getpid()))
        if uid is not None and uid not in {0, os.getuid()}:
            left |= set(abandoned(uid))
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        _collect(but=leader)
        if not left or time.monotonic() > deadline_s:
            return sorted(left)
        time.sleep(_PAUSE_S)


def _collect(*, but: int) -> None:
    """Collect zombies that were adopted. The leader's status is its owner's to collect."""
    for pid, state, parent, _ in _processes():
        if state == "Z" and parent == os.getpid() and pid != but:
            with contextlib.suppress(OSError):
                os.waitpid(pid, os.WNOHANG)


def _processes() -> list[tuple[int, str, int, int]]:
    """(id, state, parent, user) of everything there is; nothing where there is no /proc."""
    found: list[tuple[int, str, int, int]] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, KeyError):
            lines = (folder / "status").read_text("utf-8", "replace").splitlines()
            told = dict(line.split(":", 1) for line in lines if ":" in line)
            state, parent, user = told["State"].split()[0], int(told["PPid"]), int(told["Uid"].split()[0])
            found.append((int(folder.name), state, parent, user))
    return found
