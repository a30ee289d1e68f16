"""An error in somebody's own code, in one line: what Python says of it, what was likely meant, and where it is."""

from __future__ import annotations

import builtins
import difflib
import os
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

_OURS = str(Path(__file__).parent)
_PYTHON = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def said(error: BaseException) -> str:
    """Kind, message, a near name where one does not exist, and the file and line of the code that is neither ours nor Python's.

    >>> try:
    ...     {}.itmes()
    ... except AttributeError as error:
    ...     said(error).partition(" (")[0]
    "AttributeError: 'dict' object has no attribute 'itmes'. Did you mean: 'items'?"
    """
    place = where(error)
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {message}{_meant(error)}{f' ({place})' if place else ''}"


def where(error: BaseException) -> str:
    """`FILE:LINE`, or nothing when all of it happened elsewhere."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename)}:{error.lineno}"
    frames = [(f.f_code.co_filename, line) for f, line in traceback.walk_tb(error.__traceback__)]
    theirs = [(name, line) for name, line in frames if not name.startswith((_OURS, *_PYTHON, "<frozen"))]
    named = getattr(error, "filename", None), getattr(error, "lineno", None)  # of a template that cannot be read
    if isinstance(named[0], str) and isinstance(named[1], int):
        theirs.append((named[0], named[1]))
    return f"{_short(theirs[-1][0])}:{theirs[-1][1]}" if theirs else ""


def _short(name: str) -> str:
    """Relative to where one is, when it is below."""
    below = os.path.relpath(name) if Path(name).is_absolute() else name
    return name if below.startswith("..") else below


def _meant(error: BaseException) -> str:
    """Python says this itself, but only when it prints a traceback."""
    name = getattr(error, "name", None)
    if not isinstance(name, str) or not isinstance(error, AttributeError | NameError):
        return ""
    near = difflib.get_close_matches(name, _known(error), n=1)
    return f". Did you mean: {near[0]!r}?" if near else ""


def _known(error: AttributeError | NameError) -> Iterable[str]:
    if isinstance(error, AttributeError):
        return [known for known in dir(error.obj) if not known.startswith("_")]
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return _visible(frames[-1]) if frames else ()


def _visible(frame: FrameType) -> list[str]:
    return [*frame.f_locals, *frame.f_globals, *dir(builtins)]
