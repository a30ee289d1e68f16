"""The ledger by job, episode and step: every dollar of it in one place, whichever way it is looked at.

A rented pod's time between jobs belongs to the jobs that ran there, by the time that each took. A job that several episodes handed in
is paid by them in equal parts. What belongs to nobody (evaluations, baselines on a pod that had no job, episodes that were not
finished) is under "".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias

from nested_rl.episode import derived
from nested_rl.rundir import RunDir
from nested_rl.types import JSON

By: TypeAlias = Literal["job", "episode", "step"]
Row: TypeAlias = Mapping[str, JSON]
NOBODY: Final = ""


def shares(run: RunDir, by: By) -> dict[str, float]:
    """Dollars by key of a job, by episode (`00003-1`: group, member) or by step, in order; they add up to the whole ledger."""
    rows = run.costs()
    jobs = _jobs(row for row in rows if _machine(row))
    found: dict[str, float] = {NOBODY: 0.0}
    if by == "job":
        found |= jobs
        _add(found, ((NOBODY, float(row["usd"])) for row in rows if not _machine(row)))
        return _in_order(found)
    steps = {int(group): str(event["step"]) for event in run.events("step.done") for group in event["groups"]}
    authors = _authors(run)
    seed = int(run.spec.get("seed", 0))

    def place(episode: tuple[int, int] | None) -> str:
        if episode is None:
            return NOBODY
        return f"{episode[0]:05d}-{episode[1]}" if by == "episode" else steps.get(episode[0], NOBODY)

    for job, usd in jobs.items():
        who = authors.get(job, [])
        _add(found, ((place(one), usd / len(who)) for one in who) if who else [(NOBODY, usd)])
    for row in rows:
        if row["kind"] == "agent":
            _add(found, [(place(_episode(row, seed)), float(row["usd"]))])
        elif not _machine(row):
            _add(found, [(str(row.get("step", NOBODY)) if by == "step" else NOBODY, float(row["usd"]))])
    return _in_order(found)


def _machine(row: Row) -> bool:
    return str(row["kind"]).startswith(("job", "pod/"))


def _jobs(rows: Iterable[Row]) -> dict[str, float]:
    """Dollars of machines by job, with a share of each pod's time that no job had."""
    direct: dict[str, float] = {}
    rest: dict[str, float] = {}
    busy: dict[str, dict[str, float]] = {}
    for row in rows:
        usd, pod = float(row["usd"]), str(row.get("pod", ""))
        job = str(row.get("job", "")) if pod else str(row["id"]).rpartition("#")[0]
        _add(direct if job else rest, [(job or pod, usd)])
        if pod and job:
            _add(busy.setdefault(pod, {}), [(job, float(row["seconds"]))])
    for pod, usd in rest.items():
        whole = sum(busy.get(pod, {}).values())
        _add(direct, ((job, usd * s / whole) for job, s in busy[pod].items()) if whole else [(NOBODY, usd)])
    return direct


def _authors(run: RunDir) -> dict[str, list[tuple[int, int]]]:
    """Who has handed in each job."""
    found: dict[str, list[tuple[int, int]]] = {}
    for episode in run.episodes():
        for key in dict.fromkeys([*(job.key for job in episode.jobs), episode.job_key]):
            if key:
                found.setdefault(key, []).append((episode.group, episode.member))
    return found


def _episode(row: Row, seed: int) -> tuple[int, int] | None:
    """Of the agent's turns; those of an evaluation have numbers too, and another seed."""
    group, member = int(row["group"]), int(row["member"])
    told = str(row["id"]).removeprefix("agent-").partition("@")[0]
    return (group, member) if told == f"{derived(seed, 'episode', group, member):x}" else None


def _add(found: dict[str, float], more: Iterable[tuple[str, float]]) -> None:
    for name, usd in more:
        found[name] = found.get(name, 0.0) + usd


def _in_order(found: Mapping[str, float]) -> dict[str, float]:
    """Steps by number, names by letter, nobody last and only when there is something."""
    names = sorted((name for name in found if name), key=lambda name: (int(name) if name.isdigit() else 0, name))
    last = [NOBODY] if found.get(NOBODY) else []
    return {name: found[name] for name in [*names, *last]}
