"""The host program (`host.py`) as an actor of a Ray cluster starts it. Standard library only.

It is no child of the actor, since Ray kills those first and what they have started goes on; it holds the end of a pipe whose other
end only the actor has. When the actor is dead, for whatever reason, it ends everything that it runs, and itself.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from pathlib import Path
from typing import Final

from nested_rl.compute import host, orphans

PREFIX: Final = "nested_rl-ray-"
LEFT_S: Final = 600.0
"""So old is a folder that is taken for what a killed host program has left: a new one takes its lock within a second."""


def main(base: str) -> None:
    """Serve `base`, a new folder that is told on standard output and removed at the end, until standard input is closed."""
    place = Path(base)
    lifeline = os.dup(0)
    sweep(place.parent)
    print(base, flush=True)  # noqa: T201  this is how it speaks
    sys.argv[1:] = [base, "an actor of a Ray cluster", "inf"]
    host.main(lifeline)  # comes back in the background only, when everything has ended
    orphans.remove(place)


def sweep(folder: Path, *, left_s: float = LEFT_S) -> None:
    """Remove the folders of host programs that were killed before they could."""
    for old in folder.glob(f"{PREFIX}*"):
        try:
            status = old.lstat()
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < left_s or _held(old / "lock"):
                continue
        except OSError:
            continue
        orphans.end(str(old))
        orphans.remove(old)


def _held(lock: Path) -> bool:
    """Whether a host program has it."""
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
