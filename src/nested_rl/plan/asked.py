"""From the parts of an experiment to what is simulated, and to what is assumed of it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nested_rl import matrix
from nested_rl.alarms import AlarmRules
from nested_rl.compute.provider import Candidate
from nested_rl.errors import SettingsError
from nested_rl.loop import Schedule
from nested_rl.plan import stated
from nested_rl.plan.figures import ANY, Assumptions, Guess, TokenPrices
from nested_rl.plan.fleet import Rents
from nested_rl.plan.past import measured
from nested_rl.plan.published import EPISODE_USD, MODEL
from nested_rl.plan.simulate import Setting
from nested_rl.session import Choice

NANO_BASES = ("nano-s", "nano-m")


def setting(chosen: Choice, schedule: Schedule, families: Sequence[str]) -> Setting:
    """The experiment as far as time and money are concerned."""
    from nested_rl.compute.local import LocalCompute

    compute: Any = chosen.compute or LocalCompute()
    candidates = getattr(compute, "candidates", None)
    inner = chosen.inner
    return Setting(
        schedule=schedule,
        families=tuple(families),
        bases=tuple(inner.bases) if inner is not None else NANO_BASES,
        scale=inner.scale if inner is not None else "nano",
        machines=compute.max_machines,
        rents=Rents(candidates=tuple(candidates), terms=compute.terms) if candidates else None,
        usd_per_hour=0.0 if candidates else float(getattr(compute, "usd_per_hour", 0.0)),
        job_timeout_s=float(getattr(inner, "timeout_s", 3600.0)),
        max_jobs=int(getattr(chosen.harness, "max_jobs", 1)),
        alarms=chosen.alarms or AlarmRules(),
    )


def spends(chosen: Choice) -> bool:
    """Whether somebody is paid: for machines, or for the agent's tokens. A server of one's own takes none."""
    trainer: Any = getattr(chosen, "trainer", None)
    hosted = trainer is not None and not trainer.embedded and not getattr(trainer, "base_url", None)
    priced = getattr(trainer, "prices", None) is not None
    return hosted or priced or bool(getattr(getattr(chosen, "compute", None), "usd_per_hour", 0.0))


def assumptions(
    chosen: Choice,
    asked: Setting,
    *,
    given: Assumptions | Mapping[str, Any] | None = None,
    like: str | os.PathLike[str] | None = None,
    table: str | os.PathLike[str] | None = None,
) -> Assumptions:
    """What is stated, then what the GPU matrix in `table` says, then a past run, then what is given; the later counts.

    Raises SettingsError when no pod that may be rented has a price.
    """
    if isinstance(given, Assumptions):
        return given
    told = _stated(chosen, asked)
    if table is not None:
        told = _of_matrix(told, asked, table)
    if like is not None:
        names = [one.name for one in asked.rents.candidates] if asked.rents else []
        told = measured(Path(like), told, candidates=names)
    told = told.with_values(**(given or {}))
    if asked.rents is not None and not any(one.name in told.usd_per_hour for one in asked.rents.candidates):
        unknown = ", ".join(repr(one.name) for one in asked.rents.candidates)
        raise SettingsError(
            f"no price is known of {unknown}; give assumptions={{'usd_per_hour': {{NAME: Guess.of(…)}}}}"
        )
    return told


def _stated(chosen: Choice, asked: Setting) -> Assumptions:
    told = Assumptions.stated(asked.scale)
    told = told.with_values(**(stated.PODS if asked.rents is not None else stated.NO_PODS))
    if asked.rents is not None:
        told = told.with_values(usd_per_hour=_catalog(asked.rents.candidates))
    if chosen.trainer is not None and not chosen.trainer.embedded:
        told = told.with_values(**{name: stated.FULL[name] for name in stated.LARGE_AGENT})
        return told.with_values(**_prices(chosen.trainer))
    return told.with_values(**{name: stated.NANO[name] for name in stated.LARGE_AGENT})


def _catalog(candidates: Sequence[Candidate]) -> dict[str, Guess]:
    """Of whole machines; those without a known price are left out, and so never rented in a plan."""
    found: dict[str, Guess] = {}
    for one in candidates:
        guess = stated.PRICES.get(one.gpu, {}).get(one.cloud)
        if guess is not None:
            low, mid, high = (one.gpus * usd for usd in (guess.low, guess.mid, guess.high))
            found[one.name] = Guess(low, mid, high, unit="$/h", source=guess.source)
    return found


def _prices(trainer: Any) -> Mapping[str, Any]:
    """As given to the trainer; of the published model, else, what was published."""
    prices = getattr(trainer, "prices", None)
    if prices is not None:
        source = ", ".join(filter(None, ("given to the trainer", prices.source, prices.as_of)))
        kinds = ("prefill", "sample", "train")
        told = {k: Guess.of(getattr(prices, f"{k}_usd_per_mtok"), "$ a Mtok", source) for k in kinds}
        return {"token_prices": TokenPrices(**told)}
    hosted = not getattr(trainer, "base_url", None)
    return {"episode_usd": EPISODE_USD} if hosted and getattr(trainer, "model", "") == MODEL else {}


def _of_matrix(told: Assumptions, asked: Setting, table: str | os.PathLike[str]) -> Assumptions:
    """Its job times and shares of failures, of these bases. A row is the mean of few jobs: a fifth either way is left open."""
    rows = [row for row in matrix.read(table) if row.base in asked.bases and row.seconds is not None]
    if not rows:
        return told
    seconds: dict[tuple[str, str], Guess] = {}
    for row in rows:
        assert row.seconds is not None
        source = f"{Path(table).name}, {row.measured[:10] or 'no date'}, {row.jobs} jobs"
        guess = Guess(0.8 * row.seconds, row.seconds, 1.2 * row.seconds, unit="s", source=source)
        seconds[row.base, matrix.kind(row.candidate)] = guess
    jobs, good = sum(row.jobs for row in rows), sum(row.succeeded for row in rows)
    failed = 1 - good / jobs
    failure = Guess(0.5 * failed, failed, min(1.0, 2 * failed), unit="share", source=f"{Path(table).name}, {jobs} jobs")
    return told.with_values(job_s={(ANY, ANY): told.seconds(ANY, ANY), **seconds}, job_failure=failure)
