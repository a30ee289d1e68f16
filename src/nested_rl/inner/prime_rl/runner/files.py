"""Files in a folder where a job does what it likes: no link is followed, only plain files are read, and only so much of them."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


class Folder:
    """Paths are relative; every name on the way is opened from the one above it."""

    def __init__(self, path: str) -> None:
        self.path = path

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[int]:
        """A descriptor of a plain file. Raises OSError for anything else: links, pipes, a second name for another file."""
        *above, name = path.split("/")
        with self._walk(above) as folder:
            handle = os.open(name, _FILE, dir_fd=folder)
            try:
                status = os.fstat(handle)
                if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                    raise PermissionError(f"{path}: not a plain file with one name")
                yield handle
            finally:
                os.close(handle)

    def names(self, path: str = "") -> list[str]:
        """What a folder holds, sorted; nothing if there is no such folder."""
        with contextlib.suppress(OSError), self._walk(path.split("/") if path else []) as folder:
            return sorted(os.listdir(folder))  # noqa: PTH208  of a descriptor, not of a path
        return []

    def has(self, path: str) -> bool:
        """Whether there is such a plain file."""
        with contextlib.suppress(OSError), self.open(path):
            return True
        return False

    def read(self, path: str, limit: int) -> bytes:
        """At most `limit` bytes from the start of a file."""
        with self.open(path) as handle:
            return _exactly(handle, limit)

    def tail(self, path: str, limit: int) -> str:
        """The end of a text file, decoded with replacement; "" if it cannot be read."""
        with contextlib.suppress(OSError), self.open(path) as handle:
            size = os.fstat(handle).st_size
            os.lseek(handle, max(0, size - limit), os.SEEK_SET)
            text = _exactly(handle, limit).decode("utf-8", "replace")
            return f"... {size - limit} bytes before this\n{text}" if size > limit else text
        return ""

    def used(self) -> int:
        """Bytes on disk of everything in it. What vanishes while it is counted counts nothing."""
        total, todo = 0, [self.path]
        while todo:
            with contextlib.suppress(OSError), os.scandir(todo.pop()) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
                        if entry.is_dir(follow_symlinks=False):
                            todo.append(entry.path)
        return total

    @contextlib.contextmanager
    def _walk(self, names: list[str]) -> Iterator[int]:
        with contextlib.ExitStack() as stack:
            folder = os.open(self.path, _FOLDER)
            stack.callback(os.close, folder)
            for name in names:
                if name in {"", ".", ".."}:
                    raise PermissionError(f"{'/'.join(names)}: not a path below the folder")
                folder = os.open(name, _FOLDER, dir_fd=folder)
                stack.callback(os.close, folder)
            yield folder


class Lines:
    """The complete lines that a growing file has got since the last look. A line without its end waits for the rest.

    The file may not be there yet, and may be replaced; a line longer than `longest` bytes is dropped.
    """

    def __init__(self, folder: Folder, *, at_once: int = 4 << 20, longest: int = 1 << 20) -> None:
        self._folder, self._at_once, self._longest = folder, at_once, longest
        self._path, self._offset, self._rest = "", 0, b""

    def new(self, path: str) -> list[str]:
        """What is new in the file at `path`."""
        if path != self._path:
            self._path, self._offset, self._rest = path, 0, b""
        data = b""
        with contextlib.suppress(OSError), self._folder.open(path) as handle:
            if os.fstat(handle).st_size < self._offset:
                self._offset, self._rest = 0, b""
            os.lseek(handle, self._offset, os.SEEK_SET)
            data = _exactly(handle, self._at_once)
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > self._longest:
            self._rest = b""
        return [line.decode("utf-8", "replace") for line in lines if len(line) <= self._longest]


def replace(path: str, data: bytes) -> None:
    """Write a file, all or nothing and on the disk."""
    temporary = Path(f"{path}.part")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _exactly(handle: int, limit: int) -> bytes:
    parts = bytearray()
    while len(parts) < limit:
        part = os.read(handle, min(1 << 20, limit - len(parts)))
        if not part:
            break
        parts += part
    return bytes(parts)
