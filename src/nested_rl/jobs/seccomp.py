"""A list of system calls that plain Python needs to compute; every other one fails with EPERM. Linux, standard library only.

There is no way to open a file, make a socket, start a process or thread, or signal one: what an environment has is memory, its
pipe and its log.
"""

from __future__ import annotations

import ctypes
import platform
import struct
import sys
from typing import Final

_ARCHITECTURES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CALLS: Final = {
    # reading its pipe, writing its pipe and log; looking at open descriptors and (empty) folders
    "read write readv writev pread64 close lseek fstat newfstatat statx stat lstat getcwd": (
        (0, 1, 19, 20, 17, 3, 8, 5, 262, 332, 4, 6, 79),
        (63, 64, 65, 66, 67, 57, 62, 80, 79, 291, None, None, 17),
    ),
    # memory
    "mmap munmap mremap mprotect brk madvise": ((9, 11, 25, 10, 12, 28), (222, 215, 216, 226, 214, 233)),
    # locks and signals inside the process
    "futex rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack restart_syscall rseq membarrier sched_yield": (
        (202, 13, 14, 15, 131, 219, 334, 324, 24),
        (98, 134, 135, 139, 132, 128, 293, 283, 124),
    ),
    # time, waiting, randomness
    "clock_gettime clock_getres gettimeofday time nanosleep clock_nanosleep getrandom poll ppoll select pselect6": (
        (228, 229, 96, 201, 35, 230, 318, 7, 271, 23, 270),
        (113, 114, 169, None, 101, 115, 278, None, 73, None, 72),
    ),
    # who and how much
    "getpid getppid gettid getuid geteuid getgid getegid getrusage times uname sysinfo sched_getaffinity": (
        (39, 110, 186, 102, 107, 104, 108, 98, 100, 63, 99, 204),
        (172, 173, 178, 174, 175, 176, 177, 165, 153, 160, 179, 123),
    ),
    "exit exit_group": ((60, 231), (93, 94)),
}

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # BPF: load a word, jump if ==, jump if >=, return
_ALLOW, _FAIL, _KILL = 0x7FFF0000, 0x00050000 | 1, 0x80000000  # _FAIL: errno EPERM
_X32: Final = 0x40000000  # calls of the x32 ABI carry this bit; none is on the list
_PR_SET_SECCOMP: Final = 22


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]


class Filter:
    """The compiled filter. Make it before forking, apply it in the child: it cannot be taken off again."""

    def __init__(self) -> None:
        code = _code(platform.machine())
        self._buffer = ctypes.create_string_buffer(code, len(code))
        self._program = _Program(len(code) // 8, ctypes.addressof(self._buffer))

    def apply(self, libc: ctypes.CDLL) -> bool:
        """For this process, for ever. Needs no_new_privs. False when the kernel refuses."""
        done = libc.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(self._program), 0, 0)
        return bool(done == 0)


def supported() -> bool:
    """Whether there is a list for this machine."""
    return sys.platform == "linux" and platform.machine() in _ARCHITECTURES and sys.maxsize > 2**32


def _code(machine: str) -> bytes:
    column = list(_ARCHITECTURES).index(machine)
    allowed = sorted(number for columns in _CALLS.values() for number in columns[column] if number is not None)
    rows = [
        (_LOAD, 0, 0, 4),  # the architecture of the call
        (_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),  # its number
        (_AT_LEAST, len(allowed), 0, _X32),
        *((_EQUAL, len(allowed) - i, 0, number) for i, number in enumerate(allowed)),
        (_RETURN, 0, 0, _FAIL),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("HBBI", *row) for row in rows)
