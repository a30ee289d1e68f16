"""Assumptions from a past run: what its own files say that jobs, agent, updates and pods took."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nested_rl.plan.figures import ANY, Assumptions, Guess, spread
from nested_rl.plan.stand_ins import ATTEMPTS
from nested_rl.rundir import RunDir
from nested_rl.types import JSON, Episode


def measured(path: Path, told: Assumptions, *, candidates: Sequence[str] = ()) -> Assumptions:
    """`told` with everything that the run in `path` knows better. What it does not tell stays as it was.

    `candidates` are the kinds of pods that the new run may rent; they are taken to cost what the past run's pods did.
    """
    run = RunDir.open(path)
    source, episodes = f"measured in {path}", list(run.episodes())
    values: dict[str, Any] = dict(_jobs(run, episodes, source))
    values |= _agent(episodes, source, tokens=told.prompt_tokens.high > 0)
    values |= _updates(run, len(episodes), source)
    values |= _pods([row for row in run.costs() if str(row["kind"]).startswith("pod/")], candidates, source)
    scored = [
        s.seconds for by in run.baselines().values() for bases in by.values() for s in bases.values() if s.seconds
    ]
    values["baseline_s"] = spread(scored, "s", source)
    return told.with_values(**{name: value for name, value in values.items() if value})


def _jobs(run: RunDir, episodes: Sequence[Episode], source: str) -> Iterator[tuple[str, Any]]:
    """Jobs by base, each once; how often a delivery failed; how often a job was an earlier one."""
    first = {e.job_key: e for e in reversed(episodes) if e.result is not None and e.result.fault != "infra"}
    seconds: dict[str, list[float]] = defaultdict(list)
    for episode in first.values():
        assert episode.result is not None
        seconds[episode.outcome.base or ANY].append(episode.result.seconds)
    everything = [s for of_base in seconds.values() for s in of_base]
    if everything:
        table = {(base, ANY): spread(of_base, "s", source) for base, of_base in seconds.items() if len(of_base) > 1}
        yield "job_s", {**table, (ANY, ANY): spread(everything, "s", source)}
        logs = [math.log(s / statistics.fmean(of)) for of in seconds.values() for s in of if s > 0 and len(of) > 1]
        yield "job_spread", Guess.of(statistics.pstdev(logs) if logs else 0.0, "of ln s", source)
    started = len(list(run.events("job.started")))
    failed = sum("state" in event for event in run.events("job.released"))
    if started:
        yield "job_failure", Guess.of(failed / started, "share", source)
    accepted = [e for e in episodes if e.job_key]
    if accepted:
        yield "distinct", Guess.of(len({e.job_key for e in accepted}) / len(accepted), "share", source)


def _agent(episodes: Sequence[Episode], source: str, *, tokens: bool) -> Iterator[tuple[str, Any]]:
    whole = [e for e in episodes if not e.masked]
    checked = [v for e in whole for v in e.validations]
    if not checked:
        return
    turns = [turn for e in whole for turn in e.transcript.turns]
    given_up = sum(not e.outcome.valid and len(e.validations) < ATTEMPTS for e in whole)
    chances, probes_s = len(checked) + given_up, sum(v.seconds for v in checked)
    yield "tries", Guess.of(len(checked) / chances, "share", source)
    yield "valid", spread([float(v.ok) for v in checked], "share", source)
    yield "probe_s", spread([v.seconds for v in checked], "s", source)
    if turns:
        yield "turns", Guess.of(len(turns) / chances, "turns", source)
        agent_s = max(0.0, sum(e.agent_s for e in whole) - probes_s)
        yield "turn_s", Guess.of(agent_s / len(turns), "s", source)
    if turns and tokens:
        yield "prompt_tokens", spread([float(t.usage.prompt_tokens) for t in turns], "tokens", source)
        yield "sample_tokens", spread([float(t.usage.completion_tokens) for t in turns], "tokens", source)


def _updates(run: RunDir, episodes: int, source: str) -> Iterator[tuple[str, Any]]:
    rows = run.metrics()
    yield "update_s", spread([row["time/train_s"] for row in rows], "s", source)
    if episodes and rows and "update/used_train_tokens" in rows[-1]:
        yield "train_tokens", Guess.of(rows[-1]["update/used_train_tokens"] / episodes, "tokens", source)
    paid = sum(float(row["usd"]) for row in run.costs() if row["kind"] in ("agent", "update"))
    if paid and episodes:
        yield "episode_usd", Guess.of(paid / episodes, "$ an episode", source)


def _pods(rows: Sequence[Mapping[str, JSON]], candidates: Sequence[str], source: str) -> Iterator[tuple[str, Any]]:
    """From the ledger, which has a row for each stretch of each pod's time."""
    seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows:
        seconds[str(row["kind"]).removeprefix("pod/")][str(row["pod"])] += float(row.get("seconds", 0.0))
    hours = sum(s for of_kind in seconds.values() for s in of_kind.values()) / 3600
    if not hours:
        return
    up = set(seconds["busy"]) | set(seconds["idle"])
    every = {pod for of_kind in seconds.values() for pod in of_kind}
    yield "boot_s", spread([s for pod, s in seconds["provision"].items() if pod in up], "s", source)
    yield "preflight_s", spread([s for pod, s in seconds["preflight"].items() if pod in up], "s", source)
    yield "boot_failure", Guess.of(1 - len(up) / len(every), "share", source)
    yield "lost_per_hour", Guess.of(len(seconds["lost"]) / hours, "1/h", source)
    usd = sum(float(row["usd"]) for row in rows)
    yield "usd_per_hour", {name: Guess.of(usd / hours, "$/h", source) for name in candidates}
