"""The line to the controller: one request in, then lines out, each with the request's nonce.

Standard output is taken away from everything else at the start: what is printed goes to standard error, programs that are started do
not get the pipe, and other processes of the same user may not open it (tree.close_to_others).
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Mapping
from types import FrameType
from typing import Any

from . import tree

REQUEST_BYTES = 4 << 20


class Wire:
    """`stopped` is whether the controller wants no more: it said so, hung up, or a signal to end came."""

    def __init__(self, source: int, sink: int) -> None:
        self._source, self._sink = source, sink
        self._rest = b""
        self._nonce = ""
        self._beat_s, self._last_s = 10.0, 0.0
        self.stopped = False

    @classmethod
    def claim(cls) -> Wire:
        """Take standard input and output."""
        tree.close_to_others()
        source, sink = os.dup(0), os.dup(1)  # closed on exec
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        wire = cls(source, sink)
        signal.signal(signal.SIGTERM, wire._signalled)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        return wire

    def request(self) -> dict[str, Any]:
        """The one question."""
        while b"\n" not in self._rest and len(self._rest) < REQUEST_BYTES:
            part = os.read(self._source, 1 << 16)
            if not part:
                break
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        request: dict[str, Any] = json.loads(line)
        self._nonce = str(request["nonce"])
        return request

    def pace(self, beat_s: float) -> None:
        """Say at least so often that this program lives."""
        self._beat_s = beat_s

    def tell(self, event: str, **values: Any) -> None:
        """One line out. A controller that is gone hears nothing, and that is no error."""
        data = json.dumps({"nonce": self._nonce, "event": event, **values}).encode() + b"\n"
        self._last_s = time.monotonic()
        try:
            while data:
                data = data[os.write(self._sink, data) :]
        except OSError:
            self.stopped = True

    def beat(self, values: Mapping[str, Any] | None = None) -> None:
        """Tell that there is life, if nothing has been told lately."""
        if time.monotonic() - self._last_s >= self._beat_s:
            self.tell("beat", **(values or {}))

    def wait(self, seconds: float, *others: int) -> None:
        """Until there is news on one of `others`, or the controller wants no more, or the time is up."""
        watched = [*others] if self.stopped else [self._source, *others]
        ready, _, _ = select.select(watched, [], [], max(0.0, seconds))
        if self._source in ready:
            os.read(self._source, 1 << 16)  # the end, or the word to stop: nothing else is ever said
            self.stopped = True

    def _signalled(self, _number: int, _frame: FrameType | None) -> None:
        self.stopped = True
