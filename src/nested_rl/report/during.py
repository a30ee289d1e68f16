"""The report while the run goes on: written again and again beside it, never at its cost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from nested_rl import redact
from nested_rl.errors import RunDirError
from nested_rl.report.digest import Digest, Growing
from nested_rl.rundir import RunDir

log = redact.logger(__name__)

FIRST_S = 10.0
"""Nobody looks at a page of the first seconds, and a run that is shorter writes one at its end anyway."""
SHARE = 0.03
"""The most of a core that pages take: after one of a second's work, the next comes 33 seconds later at the earliest."""


class DuringRun:
    """Writes `report.html` after steps, for as long as the `with` lasts, in a thread of its own.

    Each episode is read once, so that a page costs the same after ten steps and after a thousand. A page that fails is told about
    once, and no other is tried: the run is worth more than its report.
    """

    def __init__(
        self,
        run: RunDir,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        worked_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._run = RunDir(run.path)  # its files are read beside the loop, which has them open to write
        self._monotonic, self._worked_s = monotonic, worked_s
        self._growing: Growing | None = None
        self._not_before_s = monotonic() + FIRST_S
        self._thread: threading.Thread | None = None
        self._stop = False
        self.broken = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def step_done(self) -> None:
        """Write a page if it is time for one. Returns at once."""
        working = self._thread is not None and self._thread.is_alive()
        if self.broken or self._stop or working or self._monotonic() < self._not_before_s:
            return
        self._thread = threading.Thread(target=self._write, name="report", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let the page that is being written be finished, or given up, before the last one is."""
        self._stop = True
        if self._thread is not None:
            self._thread.join()

    def last(self) -> Digest | None:
        """The page of the whole run, and what it is made of.

        A mistake in it is told, and ends nothing; RunDirError where it cannot be put on the disk.
        """
        from nested_rl.report.page import write_digest

        self.close()
        try:
            growing = Growing(self._run) if self.broken or self._growing is None else self._growing
            write_digest(self._run, digest := growing.whole())
        except RunDirError:
            raise
        except Exception as error:  # noqa: BLE001  as above
            log.warning("the run is finished, but its report could not be written: %r", error)
            return None
        return digest

    def _write(self) -> None:
        from nested_rl.report.page import write_digest

        before_s = self._worked_s()
        try:
            self._growing = self._growing or Growing(self._run)
            digest = self._growing.catch_up(stop=lambda: self._stop)
            if not self._stop:
                write_digest(self._run, digest)
        except Exception as error:  # noqa: BLE001  whatever it is, the run goes on without
            self.broken = True
            log.warning("the report could not be written and is left for the end of the run: %r", error)
        self._not_before_s = self._monotonic() + (self._worked_s() - before_s) / SHARE
