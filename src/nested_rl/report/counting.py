"""One line in a terminal that counts what is done; nothing where nobody looks."""

from __future__ import annotations

import contextlib
import shutil
import sys
from typing import Self, TextIO


class Counting:
    """Counts on stderr, in one line that is gone at the end. Not in a terminal, or `quiet`, it writes nothing. It never raises.

    >>> with Counting("evaluating RUN@best", "episodes", quiet=True) as counting:
    ...     counting(3, 48)
    """

    def __init__(self, doing: str, what: str, *, quiet: bool = False, file: TextIO | None = None) -> None:
        self._doing, self._what = doing, what
        self._file = file or sys.stderr
        self._shown = not quiet and self._file.isatty()
        self._width = 0

    def __call__(self, done: int, of: int) -> None:
        """So many are there, of so many."""
        self._write(f"{self._doing}: {done} of {of} {self._what}")

    def __enter__(self) -> Self:
        self._write(f"{self._doing}: getting ready")
        return self

    def __exit__(self, *_: object) -> None:
        self._write("")

    def _write(self, text: str) -> None:
        """Over what stands there; shortened from its beginning, so that it stays one line."""
        if not self._shown:
            return
        room = max(1, shutil.get_terminal_size().columns - 1)
        text = text[-room:]
        blank = "" if text else "\r"
        with contextlib.suppress(OSError, ValueError):  # a terminal that was closed
            self._file.write(f"\r{text.ljust(min(self._width, room))}{blank}")
            self._file.flush()
        self._width = len(text)
