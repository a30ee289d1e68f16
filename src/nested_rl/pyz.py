"""Programs for machines that have no nested_rl: one file that any Python can run, with what the program imports from here."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

from nested_rl import model_files

_SHARED = Path(model_files.__file__)


def packed(main: str, modules: Mapping[str, bytes]) -> bytes:
    """The program `main` beside `modules` (sources by path) and `nested_rl.model_files`; the same bytes for the same sources.

    >>> packed("import a", {"a.py": b"print(1)"})[:2]
    b'PK'
    """
    shared = {"nested_rl/__init__.py": b"", f"nested_rl/{_SHARED.name}": _SHARED.read_bytes()}
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for name, data in {"__main__.py": main.encode(), **modules, **shared}.items():
            file.writestr(zipfile.ZipInfo(name), data)
    return archive.getvalue()
