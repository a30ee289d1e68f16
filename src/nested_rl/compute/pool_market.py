"""Which kind of pod to rent next: the one that a job is expected to cost least on, of those that are to be had.

Expected dollars a job = paid seconds a job on that kind (a moving average that starts from a table) × live price ÷ share of pods that
did what they were rented for. What was never tried is taken for a little better than its prior, so that it is tried.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from attrs import define

from nested_rl.clock import Clock
from nested_rl.compute.provider import Candidate, Price
from nested_rl.types import Need

JOB_S: Final = 900.0
"""Paid seconds of a job on a kind that no table knows."""
WEIGHT: Final = 0.3
"""Of the newest job in the moving average."""
OPTIMISM: Final = 0.8
REST_S: Final = 30.0
LONGEST_REST_S: Final = 600.0
REFUSED_S: Final = 3600.0


@define
class Record:
    """What is known of one kind."""

    seconds: float
    jobs: int = 0
    good: int = 0
    tried: int = 0
    strikes: int = 0
    rests_until_s: float = 0.0
    proven: bool = False
    usd_per_hour: float | None = None

    @property
    def usd_per_job(self) -> float:
        """Expected; infinite while nobody knows a price."""
        if self.usd_per_hour is None:
            return float("inf")
        success = (self.good + 2) / (self.tried + 2)
        usd = self.seconds / 3600 * self.usd_per_hour / success
        return usd if self.tried else usd * OPTIMISM


class Market:
    """The candidates of a pool with what was learnt of each. `job_s` are priors: paid seconds a job, by kind ("2x NVIDIA A40") or by GPU."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        *,
        clock: Clock,
        job_s: Mapping[str, float] | None = None,
        chance: random.Random | None = None,
    ) -> None:
        known = job_s or {}
        self.records = {
            one: Record(seconds=known.get(f"{one.gpus}x {one.gpu}", known.get(one.gpu, JOB_S))) for one in candidates
        }
        self._clock, self._chance = clock, chance or random.Random()
        self._quiet_until_s = 0.0

    def priced(self, prices: Sequence[Price]) -> None:
        """The catalog of now: a kind that is not in it is not to be had."""
        told = {price.candidate: price.usd_per_hour for price in prices}
        for candidate, record in self.records.items():
            record.usd_per_hour = told.get(candidate)

    def price(self, candidate: Candidate) -> float:
        """Dollars an hour, 0 when unknown."""
        record = self.records.get(candidate)
        return (record.usd_per_hour or 0.0) if record else 0.0

    def offered(self) -> list[Candidate]:
        """Those that have a price."""
        return [candidate for candidate, record in self.records.items() if record.usd_per_hour is not None]

    def choose(self, need: Need, *, asked: Collection[Candidate] = ()) -> Candidate | None:
        """The best kind for a job, or None to wait. `asked` are kinds with a request under way: one at a time until one succeeds."""
        now = self._clock.monotonic()
        if now < self._quiet_until_s:
            return None
        usable = [
            (record.usd_per_job, candidate.name, candidate)
            for candidate, record in self.records.items()
            if need.fits(candidate.offer) and record.rests_until_s <= now and record.usd_per_hour is not None
        ]
        if not usable:
            return None
        best = min(usable)[2]
        return None if best in asked and not self.records[best].proven else best

    def made(self, candidate: Candidate) -> None:
        """The provider has made one."""
        record = self._record(candidate)
        record.proven, record.tried = True, record.tried + 1

    def good(self, candidate: Candidate) -> None:
        """One came up and passed its checks."""
        record = self._record(candidate)
        record.good, record.strikes = record.good + 1, 0

    def lost(self, candidate: Candidate) -> None:
        """One that was good went by itself."""
        record = self._record(candidate)
        record.good = max(0, record.good - 1)

    def rest(self, candidate: Candidate, *, seconds: float | None = None) -> None:
        """Leave it alone: 30 s, twice as long each time up to ten minutes, give or take a quarter."""
        record = self._record(candidate)
        usual = min(LONGEST_REST_S, REST_S * 2 ** min(record.strikes, 10)) * self._chance.uniform(0.75, 1.25)
        record.strikes, record.proven = record.strikes + 1, False
        record.rests_until_s = self._clock.monotonic() + (usual if seconds is None else seconds)

    def pause(self, seconds: float) -> None:
        """Choose nothing for so long: the provider is too busy, or not there."""
        self._quiet_until_s = max(self._quiet_until_s, self._clock.monotonic() + seconds)

    def job_done(self, candidate: Candidate, paid_s: float) -> None:
        """A job took so many paid seconds, with what was paid before it began."""
        record = self._record(candidate)
        record.seconds = paid_s if not record.jobs else (1 - WEIGHT) * record.seconds + WEIGHT * paid_s
        record.jobs += 1

    def _record(self, candidate: Candidate) -> Record:
        """Also of a kind that only an earlier controller wanted."""
        return self.records.setdefault(candidate, Record(seconds=JOB_S))
