"""A fence around trackers: one that raises, hangs or is too slow never hurts a run."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, Full, Queue
from typing import TypeAlias

from nested_rl import redact, serialize, sync
from nested_rl.interfaces import Tracker
from nested_rl.types import Episode, Metrics

log = redact.logger(__name__)

_Call: TypeAlias = Callable[[Tracker], None]

_LOOK_S = 0.2
"""So often somebody who waits for a tracker looks whether he still should."""


def guarded(trackers: Sequence[Tracker], *, queue_size: int = 1000, close_timeout_s: float = 30.0) -> Guarded:
    """All trackers as one that returns at once and never raises. What they get holds no secrets.

    Each tracker works on a thread of its own, fed by a queue of `queue_size` calls; what does not fit is dropped and
    counted. `close` waits at most `close_timeout_s` seconds for all of them together.
    """
    return Guarded(trackers, queue_size=queue_size, close_timeout_s=close_timeout_s)


class Guarded(Tracker):
    """What `guarded` returns."""

    def __init__(self, trackers: Sequence[Tracker], *, queue_size: int, close_timeout_s: float) -> None:
        self._sides = [_Side(tracker, queue_size) for tracker in trackers]
        self._close_timeout_s = close_timeout_s

    @property
    def dropped(self) -> Mapping[str, int]:
        """Calls that never reached a tracker (queue full, or still waiting at close), by tracker; only non-zero ones."""
        return {side.name: side.dropped for side in self._sides if side.dropped}

    @property
    def failed(self) -> Mapping[str, int]:
        """Calls in which a tracker raised, by tracker; only non-zero ones."""
        return {side.name: side.failed for side in self._sides if side.failed}

    @property
    def trouble(self) -> str:
        """What went wrong so far, in a sentence; empty when nothing did."""
        told = [(self.failed, ("failed", "failed")), (self.dropped, ("was dropped", "were dropped"))]
        found = [
            f"{n} call{'s' * (n != 1)} of {name} {what[n != 1]}" for counts, what in told for name, n in counts.items()
        ]
        return "; ".join([*found, *(f"{side.name} did not close" for side in self._sides if side.hung)])

    def metrics(self, step: int, values: Metrics) -> None:
        row = redact.data(dict(values))  # a copy: the loop may go on writing into its own
        for side in self._sides:
            side.send(lambda tracker: tracker.metrics(step, row))

    def episode(self, step: int, episode: Episode) -> None:
        clean = functools.cache(lambda: _clean(episode))
        for side in self._sides:
            side.send(lambda tracker: tracker.episode(step, clean()))

    def close(self) -> None:
        deadline = time.monotonic() + self._close_timeout_s
        for side in self._sides:
            side.end()
        for side in self._sides:
            side.join(max(0.0, deadline - time.monotonic()))


def _clean(episode: Episode) -> Episode:
    plain = serialize.to_json(episode)
    clean = redact.data(plain)
    return episode if clean is plain else serialize.from_json(clean, Episode)


class _Side:
    """One tracker, its queue and its thread. The thread is a daemon: a hung tracker cannot keep the program alive."""

    def __init__(self, tracker: Tracker, queue_size: int) -> None:
        self.name = type(tracker).__name__
        self.dropped = 0
        self.failed = 0
        self.hung = False
        self._tracker = tracker
        self._calls: Queue[_Call | None] = Queue(maxsize=queue_size)
        self._closed = False
        self._warned: set[str] = set()
        self._thread = threading.Thread(target=self._work, name=f"tracker-{self.name}", daemon=True)
        self._thread.start()

    def send(self, call: _Call) -> None:
        if self._closed:
            return
        try:
            self._calls.put_nowait(call)
        except Full:
            self.dropped += 1
            self._warn("slow", "tracker %s does not keep up; what it cannot take is dropped and counted", self.name)

    def end(self) -> None:
        """Ask the thread to close the tracker after what is queued. A full queue makes room by dropping its oldest call."""
        if self._closed:
            return
        self._closed = True
        while True:
            try:
                self._calls.put_nowait(None)
            except Full:
                try:
                    self._calls.get_nowait()
                except Empty:
                    continue
                self.dropped += 1
            else:
                return

    def join(self, timeout_s: float) -> None:
        """Wait for it, at most so long, and not when the user is in a hurry."""
        deadline = time.monotonic() + timeout_s
        while self._thread.is_alive() and not sync.hurrying() and (left := deadline - time.monotonic()) > 0:
            self._thread.join(min(left, _LOOK_S))
        if self._thread.is_alive():
            self.hung = True
            self.dropped += max(0, self._calls.qsize() - 1)  # the last entry is the request to close
            self._warn("hung", "tracker %s did not close in time and was left behind", self.name)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            self._try(call)
        self._try(lambda tracker: tracker.close())

    def _try(self, call: _Call) -> None:
        try:
            call(self._tracker)
        except BaseException as error:  # noqa: BLE001  nothing a tracker does may leave its thread
            self.failed += 1
            self._warn("raises", "tracker %s failed and the run goes on without it: %r", self.name, error)

    def _warn(self, kind: str, message: str, *args: object) -> None:
        """Each kind of trouble is told once."""
        if kind not in self._warned:
            self._warned.add(kind)
            log.warning(message, *args)
