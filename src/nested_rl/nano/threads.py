"""One BLAS thread for a while: the matrices here are so small that waiting threads cost more than they help."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

_lock = threading.Lock()
_users = 0
_before: dict[str, int] = {}


@cache
def _controller() -> ThreadpoolController:
    import numpy as np  # noqa: F401 - the controller finds the libraries that are loaded by now

    return ThreadpoolController()


@contextmanager
def single_thread() -> Iterator[None]:
    """Hold BLAS at one thread. Nests, and may be held by several threads at once: the last one out restores."""
    global _users  # noqa: PLW0603 - the limit itself is a property of the process
    with _lock:
        libraries = _controller().select(user_api="blas").lib_controllers
        if _users == 0:
            _before.update((library.filepath, library.num_threads) for library in libraries)
            for library in libraries:
                library.set_num_threads(1)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                for library in libraries:
                    library.set_num_threads(_before[library.filepath])
