"""A disk that fails when it is told to: every call that changes it is counted, and the n-th goes wrong.

What is replaced is the system's own door (`os`, `io.open`, SQLite's statements), for the product as for its libraries. After a
kill nothing reaches the disk any more, whatever the dying program's clean-up tries.
"""

from __future__ import annotations

import errno
import io
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from nested_rl import process

KINDS = ("kill", "torn", "ENOSPC", "EIO")
CREATES = os.O_CREAT | os.O_WRONLY | os.O_RDWR
SHRINKS = ("unlink", "rmdir", "truncate", "ROLLBACK")
"""What a full disk still does."""


class Killed(BaseException):
    """kill -9, as far as the files can tell."""


class Disk:
    """`ops` are the side effects so far, by name; the one with number `at` fails in the way of `kind`.

    kill: it does not happen, the process is dead. torn: half of it lands (of what has no halves, all), the process is dead.
    ENOSPC: half lands, and the disk stays full until `restart`. EIO: once. A function as `kind` is called, and all goes well.
    """

    def __init__(self) -> None:
        self.ops: list[str] = []
        self.at, self.kind = -1, ""
        self.dead = self.full = False
        self.lives = 0
        self.connections: list[sqlite3.Connection] = []
        self.hit = ""

    def arm(self, at: int, kind: str | Callable[[], None]) -> None:
        self.ops, self.at, self.kind, self.hit = [], at, kind, ""

    def restart(self) -> None:
        """A new process, on a disk in good order."""
        self.arm(-1, "")
        self.dead = self.full = False
        self.lives += 1
        for connection in self.connections:
            sqlite3.Connection.close(connection)
        self.connections.clear()

    def identity(self, pid: int | None = None) -> str:
        """Of a process that cannot be: whoever looks finds it dead."""
        return f"{process._namespace()}-{2**22 + 1 + self.lives}-1"

    def effect(self, name: str, act: Callable[[], Any], half: Callable[[], Any] | None = None) -> Any:
        """One side effect."""
        if self.dead:
            raise Killed
        if self.full and not name.startswith(SHRINKS):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.ops.append(name)
        if len(self.ops) - 1 != self.at:
            return act()
        self.hit = name
        if callable(self.kind):
            self.kind()
            return act()
        self.dead, self.full = self.kind in ("kill", "torn"), self.kind == "ENOSPC"
        if self.kind == "torn":
            (half or act)()
        if self.dead:
            raise Killed
        if half is not None and self.full:
            half()
        number = getattr(errno, self.kind)
        raise OSError(number, os.strerror(number))


class File:
    """A file open for writing. Every write reaches the disk before the next side effect."""

    def __init__(self, disk: Disk, file: Any, name: str) -> None:
        self._disk, self._file, self._name = disk, file, name

    def write(self, data: Any) -> int:
        def land(part: Any) -> int:
            size = self._file.write(part)
            self._file.flush()
            return size

        return self._disk.effect(f"write {self._name}", lambda: land(data), lambda: land(data[: len(data) // 2]))

    def truncate(self, size: int | None = None) -> int:
        return self._disk.effect(f"truncate {self._name}", lambda: self._file.truncate(size))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def connection(disk: Disk) -> type[sqlite3.Connection]:
    """SQLite's statements, on this disk."""

    class Connection(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> Any:
            word = sql.partition(" ")[0].strip()
            act = lambda: super(Connection, self).execute(sql, *values)  # noqa: E731
            if word in ("", "SELECT", "PRAGMA"):
                return act()
            try:
                return disk.effect(word, act)
            except OSError as error:
                full = error.errno == errno.ENOSPC
                told = sqlite3.OperationalError("database or disk is full" if full else "disk I/O error")
                told.sqlite_errorname = "SQLITE_FULL" if full else "SQLITE_IOERR_WRITE"
                raise told from error

        def close(self) -> None:
            if disk.dead:
                raise Killed
            super().close()

    return Connection


def named(path: Any) -> str:
    """A file as a reader knows it, without what differs from run to run."""
    if isinstance(path, int):
        try:
            path = Path(f"/proc/self/fd/{path}").readlink()
        except OSError:
            return "a handle"
    name = Path(os.fsdecode(path)).name
    return ".draft" if name.startswith(".draft-") else name


def install(disk: Disk, monkeypatch: Any) -> None:
    """Everything that changes the disk from now on is counted."""
    real_io_open, real_os_open, real_connect = io.open, os.open, sqlite3.connect

    def io_open(file: Any, mode: str = "r", *args: Any, **how: Any) -> Any:
        if not set(mode) & set("wax+"):
            return real_io_open(file, mode, *args, **how)
        if isinstance(file, int):
            return File(disk, real_io_open(file, mode, *args, **how), named(file))
        name, act = named(file), lambda: real_io_open(file, mode, *args, **how)
        return File(disk, disk.effect(f"open {name}", act, lambda: act().close()), name)

    def os_open(path: Any, flags: int, *args: Any, **how: Any) -> int:
        act = lambda: real_os_open(path, flags, *args, **how)  # noqa: E731
        return disk.effect(f"open {named(path)}", act, lambda: os.close(act())) if flags & CREATES else act()

    def connect(*args: Any, **how: Any) -> sqlite3.Connection:
        made = real_connect(*args, **how, factory=connection(disk))
        disk.connections.append(made)
        return made

    def plain(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(path: Any, *args: Any, **how: Any) -> Any:
            target = args[0] if name in ("rename", "replace") else path
            return disk.effect(f"{name} {named(target)}", lambda: real(path, *args, **how))

        return call

    monkeypatch.setattr(io, "open", io_open)
    monkeypatch.setattr(os, "open", os_open)
    monkeypatch.setattr(sqlite3, "connect", connect)
    for name in ("fsync", "replace", "rename", "mkdir", "unlink", "rmdir"):
        monkeypatch.setattr(os, name, plain(name))
    monkeypatch.setattr(process, "identity", disk.identity)
