"""Walls around agent-written code: namespaces, a system-call filter, resource limits. Linux, standard library only.

`Walls.build` prepares them once in the zygote with the strongest mechanism there is; `fork` and `enter` put one child inside.

* "namespaces": own user, network, mount, IPC and process namespaces. No network, an empty read-only file system, and every
  process of an environment dies with its first one. The system-call filter is on top, where there is one for this machine.
* "seccomp": the filter alone: no opening of files, no sockets, no processes or threads.
* "limits": resource limits alone (not Linux, or a kernel that grants nothing). Honest mistakes are caught, attacks are not.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import tempfile
from contextlib import suppress
from typing import Final, Literal, TypeAlias

from nested_rl.jobs import seccomp

Level: TypeAlias = Literal["namespaces", "seccomp", "limits"]
NOBODY: Final = 65534
WEAK: Final[frozenset[Level]] = frozenset({"limits"})
"""Levels that stop accidents only."""

_NEW_USER, _NEW_MOUNT, _NEW_PID = 0x10000000, 0x00020000, 0x20000000
_NEW_NET, _NEW_IPC, _NEW_HOSTNAME = 0x40000000, 0x08000000, 0x04000000
_READ_ONLY, _NO_SUID, _NO_DEVICES, _NO_EXEC = 1, 2, 4, 8
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_CAPABILITY_VERSION = 0x20080522

_LINUX: Final = sys.platform == "linux"
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Be killed when the thread that started this process ends, however it ends."""
    if _LINUX:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Walls:
    """What the zygote has prepared. `level` is what was found to work, by trying it in a child."""

    def __init__(self, level: Level, filter_: seccomp.Filter | None, root: str, own: int) -> None:
        self.level = level
        self._filter = filter_
        self._root = root
        self._own = own

    @classmethod
    def build(cls, strongest: Level = "namespaces") -> Walls:
        """Give up root, enter new namespaces if they are granted, compile the filter.

        All imports must be done: this process may no longer be able to read any file. With namespaces, a fork takes over
        and the calling process only waits for it; its descriptors are closed.
        """
        die_with_parent()
        _drop_root()
        die_with_parent()  # a change of user resets it
        root, own, level = "/", -1, strongest
        if level == "namespaces":
            root = tempfile.gettempdir()
            if _namespaces(root):
                _take_over()
                own = os.pidfd_open(os.getpid())
            else:
                level, root = "seccomp", "/"
        wanted = seccomp.Filter() if level != "limits" and seccomp.supported() else None
        for filter_ in [wanted, None] if wanted is not None else [None]:
            if filter_ is None and level == "seccomp":
                level = "limits"
            walls = cls(level, filter_, root, own)
            if walls._stand():
                return walls
        raise OSError("a confined process cannot be started here")

    def fork(self) -> int:
        """Like os.fork; with namespaces the child is the first process of its own process namespace."""
        if self.level != "namespaces":
            return os.fork()
        _must(_LIBC.unshare(_NEW_PID), "unshare")
        pid = -1
        try:
            pid = os.fork()
        finally:
            if pid != 0:
                _must(_LIBC.setns(self._own, _NEW_PID), "setns")
        return pid

    def enter(self, *, cpu_s: int, memory_bytes: int, file_bytes: int) -> None:
        """Put up the walls around this process, for ever. Raises OSError when one does not stand."""
        with suppress(OSError):
            os.setsid()
        if self.level == "namespaces":
            os.chroot(self._root)
        os.chdir("/")
        for kind, value in (
            (resource.RLIMIT_CPU, cpu_s),
            (resource.RLIMIT_AS, memory_bytes),
            (resource.RLIMIT_FSIZE, file_bytes),
            (resource.RLIMIT_NPROC, 1),
            (resource.RLIMIT_NOFILE, 16),
            (resource.RLIMIT_CORE, 0),
        ):
            _limit(kind, value)
        if not _LINUX:
            return
        if self.level == "namespaces":
            _no_capabilities()
        _must(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
        _must(_LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "dumpable")
        die_with_parent()
        if self._filter is not None and not self._filter.apply(_LIBC):
            raise OSError("the system-call filter was refused")

    def _stand(self) -> bool:
        """Whether a child inside can do what it must, and nothing that the filter forbids."""
        pid = self.fork()
        if pid == 0:
            code = 1
            with suppress(BaseException):
                self.enter(cpu_s=5, memory_bytes=1 << 30, file_bytes=1 << 16)
                code = 0 if self._filter is None or _harmless() else 1
            os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _harmless() -> bool:
    for forbidden in (lambda: os.open("/", os.O_RDONLY), os.fork, os.pipe):
        with suppress(OSError):
            forbidden()
            return False
    return len(bytearray(1 << 22)) > 0


def _must(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _limit(kind: int, value: int) -> None:
    """Lower a limit; never above what this process may have itself."""
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _drop_root() -> None:
    """Root becomes nobody: the kernel does not limit root's processes, and root's files should not be ours."""
    if _LINUX and os.geteuid() == 0:
        with suppress(OSError):  # a container without the right to do so
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)


def _namespaces(root: str) -> bool:
    """New namespaces, with an empty read-only file system over `root` that only we see."""
    if not _LINUX or not hasattr(os, "pidfd_open"):
        return False
    if _LIBC.unshare(_NEW_USER | _NEW_MOUNT | _NEW_NET | _NEW_IPC | _NEW_HOSTNAME) != 0:
        return False
    flags = _READ_ONLY | _NO_SUID | _NO_DEVICES | _NO_EXEC
    if _LIBC.mount(b"none", os.fsencode(root), b"tmpfs", flags, b"size=4k,mode=555") != 0:
        return False
    return bool(_LIBC.unshare(_NEW_PID) == 0)


def _take_over() -> None:
    """Go on as the first process of the new process namespace; the old one waits and ends with it."""
    pid = os.fork()
    if pid == 0:
        die_with_parent()
        return
    os.closerange(0, 65_536)
    os.waitpid(pid, 0)
    os._exit(0)


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


def _no_capabilities() -> None:
    header, sets = _Header(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    _must(_LIBC.capset(ctypes.byref(header), sets), "capset")
