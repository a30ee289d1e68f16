"""The sync door: run a coroutine to its end from ordinary code, a notebook included, and unwind it on Ctrl-C or SIGTERM.

The first signal calls the work off: what is done is kept, jobs go back to the queue, machines are given back. The second hurries:
it ends whatever the unwinding is waiting for, except for giving things back (`waiting.uninterrupted`). The third ends that too, and
leaves the rest to those who watch from outside (orphans.py, a machine's own deadline).
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future, wait
from types import FrameType
from typing import Any, Self, TypeVar

from nested_rl import redact

log = redact.logger(__name__)
T = TypeVar("T")

PATIENCE = 2
"""So many signals leave the unwinding its time to give things back."""
_hurry = threading.Event()


ENDINGS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""What ends a program without a person at its terminal: asked to, or the terminal has gone. `nohup` keeps it going."""


class Terminated(KeyboardInterrupt):
    """SIGTERM came: the same as Ctrl-C to whoever does not ask."""


def hurrying() -> bool:
    """Whether a second signal came: whoever waits for something that is merely nice to have stops waiting."""
    return _hurry.is_set()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run `work`. Interrupted, it is cancelled and its clean-up runs to the end before KeyboardInterrupt is raised.

    After SIGTERM that is its subclass Terminated.
    """
    _hurry.clear()
    return _in_thread(work) if _in_a_loop() else _in_loop(work)


def _in_a_loop() -> bool:
    """Asked apart from the work, so that the answer no is not told as the context of whatever the work raises."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM and SIGHUP raise Terminated, also where no coroutine is run. In the main thread; elsewhere it does nothing."""
    before = {number: signal.signal(number, _terminate) for number in filter(_ours, ENDINGS)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise Terminated


def _ours(number: int) -> bool:
    """Whether a signal may be handled here: in the main thread, and nobody else wants it or has it ignored."""
    usual = (signal.SIG_DFL, signal.default_int_handler, _terminate)
    return threading.current_thread() is threading.main_thread() and signal.getsignal(number) in usual


class _Signals:
    """SIGINT, SIGTERM and SIGHUP, for as long as the `with` lasts, taken to a task."""

    def __init__(self) -> None:
        self.first: int | None = None
        self._count = 0
        self._task: asyncio.Task[Any] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in filter(_ours, (signal.SIGINT, *ENDINGS)):
            self._before[number] = signal.signal(number, self._came)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def begin(self) -> None:
        """The task that runs now is the one to call off."""
        self._task = asyncio.current_task()

    def stopped(self) -> KeyboardInterrupt:
        """What the caller is told."""
        return Terminated() if self.first in ENDINGS else KeyboardInterrupt()

    def _came(self, number: int, _frame: FrameType | None) -> None:
        self.first = self.first or number
        self._count += 1
        if self._count > PATIENCE or self._task is None or self._task.done():
            raise KeyboardInterrupt
        if self._count == PATIENCE:
            _hurry.set()
        self._task.get_loop().call_soon_threadsafe(self._call_off)

    def _call_off(self) -> None:
        if self._task is not None and not self._task.done():
            if self._count == 1:
                log.warning("stopping: what is done is kept, machines are given back; once more to hurry")
            self._task.cancel()


def _in_loop(work: Coroutine[Any, Any, T]) -> T:
    async def main() -> T:
        signals.begin()
        return await work

    with _Signals() as signals:
        try:
            with asyncio.Runner() as runner:
                found = runner.run(main())
        except (asyncio.CancelledError, KeyboardInterrupt) as stopped:
            if signals.first is None:
                raise
            raise signals.stopped() from stopped
        finally:
            work.close()  # does something only when it never began
        if signals.first is not None:  # it came when nothing waited any more; what comes next is not begun
            raise signals.stopped()
        return found


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
        for _ in range(PATIENCE):
            with contextlib.suppress(RuntimeError):  # its loop has ended
                here["loop"].call_soon_threadsafe(here["task"].cancel)
            try:
                wait([done])
            except KeyboardInterrupt:
                _hurry.set()
            else:
                break
        raise
