"""A folder in which jobs may do what they like, read and written without ever being led out of it."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from nested_rl.compute import orphans
from nested_rl.errors import SettingsError

READ_BYTES = 1 << 30
"""A larger file is not read: a job can make one that is bigger than memory."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class Root:
    """Every path is walked from a handle on the folder, one name at a time, and no symbolic link is followed.

    Raises SettingsError for a path that leads out, FileNotFoundError, PermissionError for what is not a plain file or folder.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        self.folder = folder
        self._handle = os.open(folder, _FOLDER)

    def put(self, path: str, data: bytes) -> None:
        """Write a file, all or nothing, with the folders above it."""
        *above, name = self._names(path)
        with self._walk(above, path, make=True) as folder:
            temporary = f".{secrets.token_hex(8)}"
            try:
                handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                raise

    def get(self, path: str) -> bytes:
        """Read a file."""
        *above, name = self._names(path)
        with self._walk(above, path) as folder:
            with _no_link(path):
                handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            with os.fdopen(handle, "rb") as file:
                status = os.fstat(handle)
                if not stat.S_ISREG(status.st_mode):
                    raise PermissionError(f"{path}: not a plain file")
                data = file.read(READ_BYTES + 1)
        if len(data) > READ_BYTES:
            raise PermissionError(f"{path}: more than {READ_BYTES} bytes")
        return data

    def empty(self) -> bool:
        """Remove everything in the folder. False when that cannot be done, or the folder has been put elsewhere."""
        try:
            if not os.path.samestat(os.fstat(self._handle), self.folder.lstat()):
                return False
            for entry in list(os.scandir(self._handle)):
                if entry.is_dir(follow_symlinks=False):
                    orphans.remove(self.folder / entry.name)
                else:
                    os.unlink(entry.name, dir_fd=self._handle)
            return not os.listdir(self._handle)  # noqa: PTH208  of a handle, not of a path
        except OSError:
            return False

    def remove(self) -> None:
        """Remove the folder and let go of it. More than once does nothing."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)
            orphans.remove(self.folder)

    def _names(self, path: str) -> tuple[str, ...]:
        inside = path.removeprefix(f"{self.folder}/")
        names = PurePosixPath(inside).parts
        if not names or inside.startswith("/") or ".." in names or "\0" in inside:
            raise SettingsError(
                f"{path!r}: a path on a machine is relative to its root {self.folder} and never goes up"
            )
        return names

    @contextlib.contextmanager
    def _walk(self, names: list[str], path: str, *, make: bool = False) -> Iterator[int]:
        with contextlib.ExitStack() as stack:
            folder = self._handle
            for name in names:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, 0o700, dir_fd=folder)
                with _no_link(path):
                    folder = os.open(name, _FOLDER, dir_fd=folder)
                stack.callback(os.close, folder)
            yield folder


@contextlib.contextmanager
def _no_link(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such file") from None
    except OSError as error:
        raise PermissionError(f"{path}: a part of it is a link or not a folder ({error.strerror})") from None
