"""What no further try would mend stops all creating, with a reason that says what to do."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from nested_rl import redact
from nested_rl.compute.provider import Candidate
from nested_rl.errors import NestedRLError, SettingsError

AUTH: Final = 2
"""Pods that refuse the login: a second one is no accident."""
FULL: Final = 2
"""Pods that had no room for the image, with none in between that came up."""
IN_A_ROW: Final = 6
"""Pods that did not come up, or requests that were rejected, with none in between that went well."""
log = redact.logger(__name__)


class Breaker:
    """Closed until something is plainly wrong with the request or the account; then `error` says what, and nothing is created."""

    def __init__(self) -> None:
        self.error: NestedRLError | None = None
        self.came_up = 0
        """Pods so far that did."""
        self._rejected: dict[Candidate, str] = {}
        self._times = self._auth = self._failed = self._full = 0

    def open(self, error: NestedRLError) -> None:
        """For good: the first reason counts."""
        if self.error is None:
            log.error("no more pods are created: %s", error)
            self.error = error

    def rejected(self, candidate: Candidate, said: str, *, among: Collection[Candidate]) -> None:
        """The provider did not like the request. When it likes none of them, the request is wrong."""
        self._rejected[candidate] = said
        self._times += 1
        if set(among) <= set(self._rejected) or self._times >= IN_A_ROW:
            self.open(
                SettingsError(f"the provider rejects whatever is asked of it: {said}; check the image and the request")
            )

    def taken(self) -> None:
        """A request was accepted, so requests are right."""
        self._rejected.clear()
        self._times = 0

    def no_login(self, said: str) -> None:
        """A pod came up that does not let us in."""
        self._auth += 1
        if self._auth >= AUTH:
            self.open(SettingsError(f"{self._auth} pods refused the login: {said}; check PUBLIC_KEY and the image"))

    def no_room(self, candidate: Candidate) -> None:
        """A pod's disk was full while its image was unpacked. Once it may be the host's."""
        self._full += 1
        if self._full >= FULL:
            self.open(
                SettingsError(
                    f"{self._full} pods had no space left for the image on {candidate.disk_gib} GiB; give them more: "
                    "Candidate(disk_gib=…)"
                )
            )

    def failed(self, said: str, *, before: int | None = None) -> None:
        """A pod did not come up; `before` is what `came_up` was when it began.

        Pods that were asked for together reach their deadline together: if one of them came up, nothing is wrong with the request.
        """
        if before is not None and self.came_up > before:
            return
        self._failed += 1
        if self._failed >= IN_A_ROW:
            self.open(SettingsError(f"{self._failed} pods in a row did not come up; the last: {said}"))

    def good(self) -> None:
        """A pod came up."""
        self.came_up += 1
        self._auth = self._failed = self._full = 0
