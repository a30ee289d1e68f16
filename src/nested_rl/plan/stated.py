"""Stated assumptions: what a plan takes where neither the GPU matrix nor a past run says anything. Each says what it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from nested_rl.plan.figures import ANY, Guess

_STATED: Final = "stated, not measured"
_PILOT: Final = "the local pilot on 2 cores (benchmarks/results/first_commands.json), roughly"
_PODS: Final = "reports of users, 2026: half a minute with the image cached, 9 to 13 minutes without"
_CATALOG: Final = "the provider's catalog as reported {}; pods are paid at the live price"
_PUBLISHED_VALID: Final = "published run: about 1,750 jobs from 2,160 episodes of at most three attempts"
_PUBLISHED_JOB: Final = (
    "stated; the published run's $0.13 to $0.30 a job are 14 to 56 paid minutes at $0.32 to $0.54 an hour"
)


def _guess(low: float, mid: float, high: float, unit: str, source: str = _STATED) -> Guess:
    return Guess(low, mid, high, unit=unit, source=source)


NO_PODS: Final[Mapping[str, Any]] = {
    "boot_s": Guess.of(0.0, "s", "nothing is rented"),
    "preflight_s": Guess.of(0.0, "s", "nothing is rented"),
    "boot_failure": Guess.of(0.0, "share", "nothing is rented"),
    "refused": Guess.of(0.0, "share", "nothing is rented"),
    "lost_per_hour": Guess.of(0.0, "1/h", "nothing is rented"),
}
PODS: Final[Mapping[str, Any]] = {
    "boot_s": _guess(60, 300, 600, "s", _PODS),
    "preflight_s": _guess(15, 30, 60, "s"),
    "boot_failure": _guess(0.02, 0.05, 0.1, "share"),
    "refused": _guess(0.0, 0.3, 0.6, "share"),
    "lost_per_hour": _guess(0.0, 0.01, 0.05, "1/h"),
}
NANO: Final[Mapping[str, Any]] = {
    "job_s": {(ANY, ANY): _guess(0.12, 0.25, 0.8, "s", _PILOT)},
    "job_spread": _guess(0.2, 0.3, 0.5, "of ln s"),
    "job_failure": Guess.of(0.0, "share", _STATED),
    "baseline_s": _guess(0.1, 0.2, 0.5, "s", _PILOT),
    "tries": _guess(0.8, 0.95, 1.0, "share", _PILOT),
    "valid": _guess(0.3, 0.6, 0.95, "share", _PILOT),
    "distinct": _guess(0.7, 0.82, 0.95, "share", _PILOT),
    "probe_s": _guess(0.01, 0.03, 0.1, "s", _PILOT),
    "turns": _guess(2, 3, 5, "turns", _PILOT),
    "turn_s": _guess(0.05, 0.1, 0.3, "s", _PILOT),
    "prompt_tokens": Guess.of(0.0, "tokens", "the agent runs here"),
    "sample_tokens": Guess.of(0.0, "tokens", "the agent runs here"),
    "train_tokens": Guess.of(0.0, "tokens", "the agent is trained here"),
    "update_s": _guess(0.2, 0.4, 1.0, "s", _PILOT),
    **NO_PODS,
}
FULL: Final[Mapping[str, Any]] = {
    "job_s": {(ANY, ANY): _guess(600, 1200, 2400, "s", _PUBLISHED_JOB)},
    "job_spread": _guess(0.3, 0.5, 0.7, "of ln s"),
    "job_failure": _guess(0.005, 0.02, 0.05, "share"),
    "baseline_s": _guess(60, 120, 300, "s"),
    "tries": Guess.of(1.0, "share", "stated: a large agent uses all of its attempts"),
    "valid": _guess(0.35, 0.43, 0.6, "share", _PUBLISHED_VALID),
    "distinct": Guess.of(1.0, "share", "large agents do not write the same job twice: stated"),
    "probe_s": _guess(2, 5, 15, "s"),
    "turns": _guess(5, 8, 14, "turns"),
    "turn_s": _guess(8, 15, 30, "s"),
    "prompt_tokens": _guess(6_000, 9_000, 14_000, "tokens"),
    "sample_tokens": _guess(300, 600, 1_200, "tokens"),
    "train_tokens": _guess(15_000, 25_000, 40_000, "tokens"),
    "update_s": _guess(20, 60, 180, "s"),
    **PODS,
}

LARGE_AGENT: Final = (
    "turns",
    "turn_s",
    "prompt_tokens",
    "sample_tokens",
    "train_tokens",
    "update_s",
    "tries",
    "valid",
    "distinct",
)
"""What a large agent changes, whatever its jobs are."""


def _price(community: float | None, secure: float | None, date: str) -> Mapping[str, Guess]:
    both = {"community": community, "secure": secure}
    unit, source = "$/h a GPU", _CATALOG.format(date)
    return {c: Guess(0.9 * usd, usd, 1.2 * usd, unit=unit, source=source) for c, usd in both.items() if usd is not None}


PRICES: Final[Mapping[str, Mapping[str, Guess]]] = {
    "NVIDIA A40": _price(None, 0.44, "2026-08-27"),
    "NVIDIA GeForce RTX 4090": _price(0.34, 0.74, "2026-08-27"),
    "NVIDIA RTX A5000": _price(0.16, 0.27, "2026-08-12"),
}
"""Dollars an hour of one GPU by cloud. Others must be given (`usd_per_hour`)."""
