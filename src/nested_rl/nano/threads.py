"""One BLAS thread for a while: the matrices here are so small that waiting threads cost more than they help.

And one thread for the engine beside an event loop: many would each keep their own freed memory, and gain nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

P = ParamSpec("P")
T = TypeVar("T")

_ENGINE = ThreadPoolExecutor(max_workers=1, thread_name_prefix="nano-engine")


@cache
def _controller() -> ThreadpoolController:
    import numpy as np  # noqa: F401 - the controller finds the libraries that are loaded by now

    return ThreadpoolController()


@contextmanager
def single_thread() -> Iterator[None]:
    """Hold BLAS at one thread, in this thread of the program, and put back what was there. Nests."""
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
