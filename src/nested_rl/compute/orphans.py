"""Ends what a dead controller left running on this computer. Standard library only.

Started once by LocalCompute, in a session of its own, with a pipe that only the controller holds. When the pipe closes, for
whatever reason (kill -9 included), it kills every process group it was told of and every process that carries the mark, removes
the folder and the controller's other ones (see scratch.py), and ends. This was chosen over PR_SET_PDEATHSIG, which reaches children but not their children, follows the thread
and not the process that started them, and needs a preexec_fn, which is unsafe in a program with threads.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

MARK = "NESTED_RL_MACHINE"
"""The variable by which a process is known to belong to a machine; children inherit it."""

_PATIENCE_S = 10.0


def processes() -> Iterator[tuple[int, str, int]]:
    """Every running process: its id, its state, its group. Nothing where there is no /proc."""
    for entry in Path("/proc").iterdir() if Path("/proc/self/stat").exists() else ():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                # The name in parentheses may hold spaces and parentheses itself.
                state, _, group = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:3]
                yield int(entry.name), state, int(group)


def in_group(group: int) -> bool:
    """Whether a process of the group still runs. Zombies do not: somebody else may never collect them."""
    return any(own == group and state not in "ZX" for _, state, own in processes())


def marked(mark: str) -> list[int]:
    """Processes that carry `mark` or a mark below it (this one excepted)."""
    found = []
    exact, below = f"{MARK}={mark}".encode(), f"{MARK}={mark}/".encode()
    for pid, state, _ in processes():
        with contextlib.suppress(OSError):
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if pid != os.getpid() and state not in "ZX" and any(v == exact or v.startswith(below) for v in variables):
                found.append(pid)
    return found


def end(mark: str, groups: Collection[int] = ()) -> None:
    """Kill the groups and everything that carries the mark; return when nothing of it runs, or after ten seconds."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline_s:
        left = marked(mark)
        alive = [group for group in groups if _kill(os.killpg, group) and in_group(group)]
        for pid in left:
            _kill(os.kill, pid)
        if not left and not alive:
            return
        time.sleep(0.005)


def remove(folder: Path) -> None:
    """Remove a folder, whatever a job may have done to it, as well as can be."""

    def open_up(_function: Callable[..., Any], path: str, _error: Any) -> None:
        with contextlib.suppress(OSError):
            Path(path).parent.chmod(stat.S_IRWXU)
            Path(path).chmod(stat.S_IRWXU)

    for _ in range(2):  # what could not be read the first time can be the second
        with contextlib.suppress(OSError, RecursionError):
            shutil.rmtree(folder, onerror=open_up)
        if not folder.exists():
            return
    # Nested deeper than Python goes.
    subprocess.run(["rm", "-rf", "--", str(folder)], stderr=subprocess.DEVNULL, check=False)


def _kill(how: Callable[[int, int], None], number: int) -> bool:
    try:
        how(number, signal.SIGKILL)
    except OSError:
        return False
    return True


def main() -> None:
    """Keep book of the groups (`+12`, `-12`) until the controller is gone, or lets go of its machines (`.`); then end them."""
    mark = sys.argv[1]
    controller, groups, rest, killed = os.getppid(), set[int](), b"", True
    while os.getppid() == controller:
        # A forked copy of the controller may hold the pipe open: its parent is looked at too.
        if not select.select([0], [], [], 1.0)[0]:
            continue
        data = os.read(0, 65536)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line == b".":
                killed = False
                continue
            (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
    end(mark, groups)
    remove(Path(mark))
    if killed:
        for other in Path(mark).parent.glob(f"*/{Path(mark).name.rpartition('-')[0]}-*"):
            remove(other)


if __name__ == "__main__":
    main()
