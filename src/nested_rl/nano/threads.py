"""One BLAS thread for a while: the matrices here are so small that waiting threads cost more than they help.

Memory that the engine frees stays with the process: it needs as much again for the next step, and fetching a megabyte anew
from the system takes longer than computing on it. And one thread for the engine beside an event loop: many would each keep their own freed memory, and gain nothing.
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from typing import ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

P = ParamSpec("P")
T = TypeVar("T")

_MMAP_THRESHOLD, _TRIM_THRESHOLD, _TOP_PAD = -3, -1, -2
"""Names of glibc's `mallopt`."""
_KEPT_BYTES = 1 << 28
_LARGEST_KEPT = 1 << 25
"""The most that glibc takes for the size from which every allocation is a mapping of its own."""

_ENGINE = ThreadPoolExecutor(max_workers=1, thread_name_prefix="nano-engine")


@cache
def _controller() -> ThreadpoolController:
    import numpy as np  # noqa: F401 - the controller finds the libraries that are loaded by now

    return ThreadpoolController()


@cache
def keep_memory() -> None:
    """Have the allocator keep what is freed, up to 256 MiB, for the rest of this process. Does nothing where it is not glibc's."""
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for name, value in (
            (_MMAP_THRESHOLD, _LARGEST_KEPT),
            (_TRIM_THRESHOLD, _KEPT_BYTES),
            (_TOP_PAD, _LARGEST_KEPT >> 1),
        ):
            mallopt(name, value)


@contextmanager
def single_thread() -> Iterator[None]:
    """Hold BLAS at one thread, in this thread of the program, and put back what was there. Nests. Calls `keep_memory`."""
    keep_memory()
    libraries = _controller().select(user_api="blas").lib_controllers
    before = [library.num_threads for library in libraries]
    for library in libraries:
        library.set_num_threads(1)
    try:
        yield
    finally:
        for library, threads in zip(libraries, before, strict=True):
            library.set_num_threads(threads)


async def in_engine(work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` returns, computed beside the event loop, one call after the other."""
    return await asyncio.wrap_future(_ENGINE.submit(work, *args, **kwargs))
