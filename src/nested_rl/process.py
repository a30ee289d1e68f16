"""Which process this is, told so that a later one can see whether it still lives.

A process id alone is given out again; together with its start time and its PID namespace (containers) it is unique on
this computer until the next boot.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path


def identity(pid: int | None = None) -> str:
    """`namespace-pid-start` of a process, of this one by default. The start is empty where it cannot be known.

    >>> alive(identity())
    True
    """
    return _own(os.getpid()) if pid is None else f"{_namespace()}-{pid}-{_started(pid)}"


@functools.lru_cache(maxsize=1)
def _own(pid: int) -> str:
    return identity(pid)  # it never changes, and every file that is written asks for it


def alive(told: str) -> bool:
    """Whether the process of an `identity` may still run. Unsure (another container, no /proc) means yes."""
    namespace, _, rest = told.partition("-")
    pid, _, started = rest.partition("-")
    if namespace != _namespace() or not pid.isdigit():
        return True
    if not started or not Path("/proc/self/stat").exists():
        return _answers(int(pid))
    return _started(int(pid)) == started


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").stat().st_ino)
    except OSError:
        return "0"


def _started(pid: int) -> str:
    """Clock ticks from boot to its start; "" when there is no such process (a zombie is none)."""
    try:
        # The name in parentheses may hold spaces and parentheses itself.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
