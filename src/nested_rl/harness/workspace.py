"""The agent's folder. Every access walks down from one directory handle and never follows a link.

A path is checked as text first, then again by the system at the moment of use (`openat` with `O_NOFOLLOW`), so that nothing
which changes in between can lead outside. Files are plain UTF-8 text, replaced whole.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from attrs import frozen

from nested_rl.errors import NestedRLError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a fifo would wait for a writer for ever.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_HALF_WRITTEN = ".half-written-"


class WorkspaceError(NestedRLError):
    """A request that the workspace refuses. The message says why; `name` is the path that was asked for."""

    def __init__(self, name: str, why: str) -> None:
        self.name = name
        super().__init__(f"{name!r}: {why}" if name else why)


class BadPath(WorkspaceError):
    """Not a plain relative path to a plain file inside the workspace."""


class NoFile(WorkspaceError):
    """There is no such file."""


class NotText(WorkspaceError):
    """Not UTF-8 text."""


class TextNotFound(WorkspaceError):
    """The text to replace is not in the file."""


class TextNotUnique(WorkspaceError):
    """The text to replace is in the file more than once, or is empty."""


class TooBig(WorkspaceError):
    """A file, or the whole workspace, would grow past its limit."""


@frozen(kw_only=True)
class Limits:
    """What a workspace may hold. Bytes are of UTF-8 text; `depth` counts the parts of a path."""

    file_bytes: int = 256 * 1024
    total_bytes: int = 2 * 1024 * 1024
    files: int = 64
    depth: int = 4
    path_chars: int = 200


class Workspace:
    r"""A folder on disk with text files in it; what the agent's tools work on.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Workspace(Path(folder)) as workspace:
    ...     workspace.write("job.toml", "steps = 10\n")
    ...     workspace.edit("job.toml", "10", "25")
    ...     workspace.files()
    {'job.toml': 'steps = 25\n'}
    """

    def __init__(self, root: Path, limits: Limits = Limits()) -> None:
        self.root = root
        self.limits = limits
        self._fd = os.open(root, _FOLDER)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the folder; it stays on disk."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def paths(self) -> tuple[str, ...]:
        """Paths of the plain files, sorted; anything else in the folder is not shown."""
        return tuple(sorted(path for path, info in self._walk() if _plain(info)))

    def files(self) -> dict[str, str]:
        """Everything in it: path → text. Raises BadPath when something in it is not a plain file."""
        for path, info in self._walk():
            _require_plain(path, info)
        return {path: self.read(path) for path in self.paths()}

    def read(self, path: str) -> str:
        """The text of a file. Raises NoFile, BadPath, NotText or TooBig."""
        parts = self._parts(path)
        try:
            with self._folder(path, parts[:-1]) as folder:
                handle = os.open(parts[-1], _READ, dir_fd=folder)
        except FileNotFoundError:
            raise NoFile(path, "no such file") from None
        except OSError as error:
            raise BadPath(path, f"cannot be opened as a file ({error.strerror})") from None
        try:
            _require_plain(path, os.fstat(handle))
            with os.fdopen(handle, "rb", closefd=False) as file:
                data = file.read(self.limits.file_bytes + 1)
        finally:
            os.close(handle)
        if len(data) > self.limits.file_bytes:
            raise TooBig(path, f"larger than {self.limits.file_bytes} bytes")
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise NotText(path, "not UTF-8 text") from None

    def write(self, path: str, text: str) -> None:
        """Make or replace a file, all or nothing. Raises BadPath, NotText or TooBig."""
        parts = self._parts(path)
        try:
            data = text.encode()
        except UnicodeEncodeError:
            raise NotText(path, "not UTF-8 text") from None
        self._check_room(path, len(data))
        try:
            with self._folder(path, parts[:-1], make=True) as folder:
                _replace(path, folder, parts[-1], data)
        except (NotADirectoryError, FileExistsError, IsADirectoryError) as error:
            raise BadPath(path, f"cannot be written ({error.strerror})") from None

    def remove(self, path: str) -> None:
        """Take a file away. Raises NoFile or BadPath."""
        parts = self._parts(path)
        try:
            with self._folder(path, parts[:-1]) as folder:
                os.unlink(parts[-1], dir_fd=folder)
        except FileNotFoundError:
            raise NoFile(path, "no such file") from None
        except OSError as error:
            raise BadPath(path, f"cannot be removed ({error.strerror})") from None

    def edit(self, path: str, old: str, new: str) -> None:
        """Replace the one place where `old` stands. Raises TextNotFound or TextNotUnique, or as read and write do."""
        text = self.read(path)
        if not old:
            raise TextNotUnique(path, "the text to replace is empty; give the exact text to replace")
        first = text.find(old)
        if first < 0:
            raise TextNotFound(path, "the text to replace is not in the file; read the file and copy it exactly")
        if text.find(old, first + 1) >= 0:
            raise TextNotUnique(path, "the text to replace is there more than once; include more lines around it")
        self.write(path, text[:first] + new + text[first + len(old) :])

    def _parts(self, path: str) -> list[str]:
        """The parts of a plain relative path, or BadPath."""
        limits = self.limits
        shown = path if len(path) <= limits.path_chars else path[: limits.path_chars] + "…"
        if not path or path != path.strip():
            raise BadPath(shown, "empty, or with blanks around it")
        if len(path) > limits.path_chars:
            raise BadPath(shown, f"longer than {limits.path_chars} characters")
        if not path.isprintable() or not path.isascii() or any(c in path for c in "\\~:"):
            raise BadPath(shown, "use plain letters, digits, '.', '-', '_' and '/'")
        if path.startswith("/"):
            raise BadPath(shown, "absolute; give a path relative to the workspace")
        parts = path.split("/")
        if any(part in ("", ".", "..") for part in parts):
            raise BadPath(shown, "'.', '..' and empty parts are not allowed")
        if len(parts) > limits.depth:
            raise BadPath(shown, f"more than {limits.depth} folders deep")
        if any(part.startswith(_HALF_WRITTEN) for part in parts):
            raise BadPath(shown, "this name is reserved")
        return parts

    @contextmanager
    def _folder(self, path: str, parts: list[str], *, make: bool = False) -> Iterator[int]:
        """A handle on the folder that holds the file, one part at a time, so that no part can be a link."""
        handle = os.dup(self._fd)
        try:
            for part in parts:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, 0o700, dir_fd=handle)
                try:
                    deeper = os.open(part, _FOLDER, dir_fd=handle)
                except FileNotFoundError:
                    raise
                except OSError:
                    raise BadPath(path, f"{part!r} is not a folder") from None
                os.close(handle)
                handle = deeper
            yield handle
        finally:
            os.close(handle)

    def _walk(self) -> Iterator[tuple[str, os.stat_result]]:
        """Everything but folders, as (path, lstat); never through a link."""
        todo = [""]
        while todo:
            prefix = todo.pop()
            with self._folder(prefix, prefix.split("/")[:-1]) as folder:
                for name in os.listdir(folder):  # noqa: PTH208 - a handle, not a path
                    info = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    if stat.S_ISDIR(info.st_mode):
                        todo.append(f"{prefix}{name}/")
                    elif not name.startswith(_HALF_WRITTEN):
                        yield prefix + name, info

    def _check_room(self, path: str, size: int) -> None:
        limits = self.limits
        if size > limits.file_bytes:
            raise TooBig(path, f"{size} bytes; a file may have {limits.file_bytes}")
        others = [info.st_size for name, info in self._walk() if name != path]
        if len(others) + 1 > limits.files:
            raise TooBig(path, f"the workspace may hold {limits.files} files")
        if sum(others) + size > limits.total_bytes:
            raise TooBig(path, f"the workspace may hold {limits.total_bytes} bytes")


def _plain(info: os.stat_result) -> bool:
    return stat.S_ISREG(info.st_mode) and info.st_nlink == 1


def _require_plain(path: str, info: os.stat_result) -> None:
    if stat.S_ISDIR(info.st_mode):
        raise BadPath(path, "is a folder")
    if not _plain(info):
        raise BadPath(path, "is not a plain file (a link, a device or a pipe)")


def _replace(path: str, folder: int, name: str, data: bytes) -> None:
    """Write beside the target, then rename over it. A link or a device in its place is refused, not replaced."""
    with suppress(FileNotFoundError):
        _require_plain(path, os.stat(name, dir_fd=folder, follow_symlinks=False))
    half = _HALF_WRITTEN + secrets.token_hex(8)
    handle = os.open(half, _CREATE, 0o600, dir_fd=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.rename(half, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(half, dir_fd=folder)
        raise
