"""Hosts and data centres where pods go wrong are left alone for a while."""

from __future__ import annotations

from collections import Counter
from typing import Final

from nested_rl.clock import Clock
from nested_rl.compute.provider import Pod
from nested_rl.errors import InfraFault

FAILURES: Final = 2
"""In a row at one place: one may happen anywhere."""
AVOIDED_S: Final = 1800.0


class BadPlace(InfraFault):
    """The provider has put a pod where others went wrong."""


class Places:
    """Failures in a row by host address and by data centre."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._failures: Counter[str] = Counter()
        self._until_s: dict[str, float] = {}

    def check(self, pod: Pod) -> None:
        """Raises BadPlace."""
        for place in _of(pod):
            if self._until_s.get(place, 0.0) > self._clock.monotonic():
                raise BadPlace(f"{place} is left alone: {self._failures[place]} pods in a row went wrong there")

    def failed(self, pod: Pod) -> None:
        """Something went wrong there that was not the request's doing."""
        for place in _of(pod):
            self._failures[place] += 1
            if self._failures[place] >= FAILURES:
                self._until_s[place] = self._clock.monotonic() + AVOIDED_S

    def good(self, pod: Pod) -> None:
        """One came up there."""
        for place in _of(pod):
            self._failures.pop(place, None)
            self._until_s.pop(place, None)


def _of(pod: Pod) -> list[str]:
    host = [f"host {pod.ssh[0]}"] if pod.ssh else []
    return [*host, f"data centre {pod.data_center}"] if pod.data_center else host
