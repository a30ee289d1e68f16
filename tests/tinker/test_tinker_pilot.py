"""The nested pilot with its agent on a real Tinker-API server: on-policy, and two versions behind. Jobs are real nano jobs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import nested_rl as nrl
from nested_rl.trainers import TinkerTrainer

pytestmark = [
    pytest.mark.tinker,
    # the SDK leaves its connections to the garbage collector
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

LR = 4e-3
FIRST = LAST = 3


def rewards(run: nrl.Run) -> tuple[float, float]:
    """Mean reward of the first and of the last steps; each step is printed."""
    rows = run.metrics
    for row in rows:
        told = ("step", "reward/mean", "validation/valid", "ratio/max", "ess", "staleness/mean", "time/step_s")
        print({name: round(row[name], 3) for name in told})
    means = [row["reward/mean"] for row in rows]
    return sum(means[:FIRST]) / FIRST, sum(means[-LAST:]) / LAST


def staleness(run: nrl.Run) -> Counter[int]:
    """Sequences by how many versions behind they were sampled."""
    found: Counter[int] = Counter()
    for row in run.metrics:
        for name, count in row.items():
            if name.startswith("update/stale_"):
                found[int(name.removeprefix("update/stale_"))] += int(count)
    return found


@pytest.mark.timeout(360)
def test_on_policy_the_reward_rises(server: str, agent: str, tmp_path: Path) -> None:
    trainer = TinkerTrainer(agent, base_url=server, lr=LR)
    run = nrl.Experiment(trainer=trainer).run(
        12,
        groups_per_step=3,  # one of each family
        group_size=8,
        max_steps_off_policy=0,
        job_seeds=1,
        eval_every=0,
        out=tmp_path / "on-policy",
        quiet=True,
    )
    first, last = rewards(run)
    print(f"reward/mean: first {FIRST} steps {first:.3f}, last {LAST} steps {last:.3f}, gain {last - first:+.3f}")
    assert last - first >= 0.15
    assert set(staleness(run)) == {0}
    for row in run.metrics:
        assert row.get("update/logprob_gap", 0.0) < 1e-4
        assert row.get("update/canary_proven", 1.0) == 1.0


@pytest.mark.timeout(360)
def test_two_versions_behind_nothing_is_lost(server: str, agent: str, tmp_path: Path) -> None:
    trainer = TinkerTrainer(agent, base_url=server, lr=LR)
    run = nrl.Experiment(trainer=trainer).run(
        8,
        groups_per_step=2,
        group_size=8,
        max_steps_off_policy=2,
        job_seeds=1,
        eval_every=0,
        out=tmp_path / "behind",
        quiet=True,
    )
    first, last = rewards(run)
    behind = staleness(run)
    print(f"staleness of the sequences: {dict(sorted(behind.items()))}")
    print(f"reward/mean: first {FIRST} steps {first:.3f}, last {LAST} steps {last:.3f}, change {last - first:+.3f}")
    assert last >= first - 0.05
    assert max(behind) == 2
    assert all(row["groups/dropped"] == 0 for row in run.metrics)
