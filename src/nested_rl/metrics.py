"""One row of metrics.jsonl: what a step's episodes, jobs and update amounted to. The keys are listed in docs/run-directory.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import frozen

from nested_rl.types import Episode, Group, Outcome, UpdateReport


@frozen(kw_only=True)
class Counted:
    """What only the loop knows about a step."""

    jobs_run: int = 0
    jobs_reused: int = 0
    usd: float = 0.0
    usd_total: float = 0.0
    step_s: float = 0.0
    sample_s: float = 0.0
    train_s: float = 0.0
    groups_dropped: int = 0
    usd_dropped: float = 0.0


def mean(values: Iterable[float]) -> float:
    """The mean, 0.0 of nothing.

    >>> mean([1.0, 2.0])
    1.5
    """
    found = list(values)
    return sum(found) / len(found) if found else 0.0


def strongest(outcome: Outcome) -> str | None:
    """The base with the best untrained score for this task."""
    return max(outcome.baselines, key=lambda base: outcome.baselines[base].value, default=None)


def skipped(group: Group) -> bool:
    """A group with fewer than two real members has no baseline to compare with."""
    return len(group.members) < 2


def signal(groups: Sequence[Group]) -> bool:
    """Whether there is something to learn from: a group in which one member earned more than another."""
    return any(not skipped(g) and not _flat(g) for g in groups)


def step_row(step: int, groups: Sequence[Group], report: UpdateReport, counted: Counted) -> dict[str, float]:
    """The row of one step. `groups` are those the update was given, skipped ones included."""
    everyone = [e for g in groups for e in g.episodes]
    real = [e for g in groups if not skipped(g) for e in g.members]
    lags = [float(report.version - 1 - g.version) for g in groups]
    row: dict[str, float] = {"step": step}
    row |= _rewards(real)
    row |= _choices(everyone)
    row |= {
        "staleness/mean": mean(lags),
        "staleness/max": max(lags, default=0.0),
        "ratio/mean": report.ratio_mean,
        "ratio/max": report.ratio_max,
        "ess": report.ess,
        "groups/zero_advantage": float(sum(_flat(g) for g in groups if not skipped(g))),
        "groups/skipped": float(sum(map(skipped, groups))),
        "groups/dropped": float(counted.groups_dropped),
        "episodes/masked": float(sum(e.masked for e in everyone)),
        "episodes/truncated": float(sum(e.transcript.truncated for e in everyone)),
        "jobs/run": float(counted.jobs_run),
        "jobs/reused": float(counted.jobs_reused),
        "usd": counted.usd,
        "usd/total": counted.usd_total,
        "usd/dropped": counted.usd_dropped,
        "time/step_s": counted.step_s,
        "time/sample_s": counted.sample_s,
        "time/train_s": counted.train_s,
        "time/jobs_s": sum(e.outcome.seconds for e in everyone if not e.outcome.reused),
    }
    return row | {f"update/{key}": float(value) for key, value in report.metrics.items()}


def _rewards(real: Sequence[Episode]) -> dict[str, float]:
    names = sorted({name for e in real for name in e.parts} - {"mean"})  # that is the reward's own column
    values = {"reward/mean": mean(e.reward for e in real)}
    return values | {f"reward/{name}": mean(e.parts.get(name, 0.0) for e in real) for name in names}


def _choices(everyone: Sequence[Episode]) -> dict[str, float]:
    outcomes = [e.outcome for e in everyone]
    valid = [o for o in outcomes if o.valid]
    scored = [o for o in outcomes if o.post is not None]
    return {
        "validation/first_try": mean(float(o.valid and o.attempts == 1) for o in outcomes),
        "validation/valid": mean(float(o.valid) for o in outcomes),
        "validation/attempts": mean(float(o.attempts) for o in outcomes),
        "post/mean": mean(o.post.value for o in scored if o.post),
        "uplift/mean": mean(o.uplift for o in scored),
        "base/share_strongest": mean(float(o.base == strongest(o)) for o in valid),
        "tools/baselines": mean(float(o.asked_baselines) for o in outcomes),
        "job/share_advanced": mean(float(o.advanced) for o in valid),
        "job/share_own_family": mean(float(o.task.family in o.families) for o in valid),
    }


def _flat(group: Group) -> bool:
    rewards = [e.reward for e in group.members]
    return max(rewards) - min(rewards) < 1e-9
