"""The sync door: run a coroutine to its end from ordinary code, a notebook included, and unwind it on Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, wait
from typing import Any, TypeVar

T = TypeVar("T")


class Terminated(KeyboardInterrupt):
    """SIGTERM came: the same as Ctrl-C to whoever does not ask."""


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run `work`. Interrupted, it is cancelled and its clean-up runs to the end before KeyboardInterrupt is raised.

    After SIGTERM that is its subclass Terminated.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _in_loop(work)
    return _in_thread(work)


def _in_loop(work: Coroutine[Any, Any, T]) -> T:
    """SIGTERM means the same as Ctrl-C."""
    came = False

    def on_sigterm() -> None:
        nonlocal came
        came = True
        signal.raise_signal(signal.SIGINT)

    async def main() -> T:
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, on_sigterm)
        return await work

    try:
        return asyncio.run(main())
    except KeyboardInterrupt as stopped:
        if came:
            raise Terminated from stopped
        raise


def _in_thread(work: Coroutine[Any, Any, T]) -> T:
    """For notebooks, where a loop runs already.

    Waiting on a Future, not on Thread.join: an interrupted join returns at once in CPython 3.11 and the process would leave
    before machines are given back.
    """
    done: Future[T] = Future()
    ready = threading.Event()
    here: dict[str, Any] = {}

    async def main() -> T:
        here.update(loop=asyncio.get_running_loop(), task=asyncio.current_task())
        ready.set()
        return await work

    def target() -> None:
        try:
            done.set_result(asyncio.run(main()))
        except BaseException as error:  # noqa: BLE001  it belongs to the waiting thread
            done.set_exception(error)

    threading.Thread(target=target, name="nested-rl").start()
    ready.wait()
    try:
        return done.result()
    except KeyboardInterrupt:
        here["loop"].call_soon_threadsafe(here["task"].cancel)
        wait([done])
        raise
