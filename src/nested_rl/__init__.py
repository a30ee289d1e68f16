"""Nested reinforcement learning: an outer RL loop trains an agent whose action is to write an RL training job.

>>> import nested_rl as nrl
>>> exp = nrl.Experiment()                        # every part local: real models, real RL, one CPU
>>> exp.run(steps=25, out="runs/pilot")           # doctest: +SKIP

Names load when they are first used, so that `import nested_rl` stays fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_NAMES = {
    "Experiment": "nested_rl.experiment",
    "Run": "nested_rl.run",
    "EvalReport": "nested_rl.evaluation",
    "Task": "nested_rl.types",
    "Job": "nested_rl.types",
    "JobSpec": "nested_rl.types",
    "JobResult": "nested_rl.types",
    "Score": "nested_rl.types",
    "Outcome": "nested_rl.types",
    "Episode": "nested_rl.types",
    "Group": "nested_rl.types",
    "Transcript": "nested_rl.types",
    "Message": "nested_rl.types",
    "Turn": "nested_rl.types",
    "Budget": "nested_rl.types",
    "AlarmRules": "nested_rl.alarms",
    "Sweep": "nested_rl.sweeps",
    "sweep": "nested_rl.sweeps",
}
_MODULES = (
    "plan",
    "tasks",
    "trainers",
    "policies",
    "harness",
    "inner",
    "compute",
    "queues",
    "scorers",
    "rewards",
    "trackers",
    "errors",
    "testing",
)

if TYPE_CHECKING:
    from nested_rl import (
        compute,
        errors,
        harness,
        inner,
        plan,
        policies,
        queues,
        rewards,
        scorers,
        tasks,
        testing,
        trackers,
        trainers,
    )
    from nested_rl.alarms import AlarmRules
    from nested_rl.evaluation import EvalReport
    from nested_rl.experiment import Experiment
    from nested_rl.run import Run
    from nested_rl.sweeps import Sweep, sweep
    from nested_rl.types import (
        Budget,
        Episode,
        Group,
        Job,
        JobResult,
        JobSpec,
        Message,
        Outcome,
        Score,
        Task,
        Transcript,
        Turn,
    )

__all__ = [
    "AlarmRules",
    "Budget",
    "Episode",
    "EvalReport",
    "Experiment",
    "Group",
    "Job",
    "JobResult",
    "JobSpec",
    "Message",
    "Outcome",
    "Run",
    "Score",
    "Sweep",
    "Task",
    "Transcript",
    "Turn",
    "compute",
    "errors",
    "harness",
    "inner",
    "plan",
    "policies",
    "queues",
    "rewards",
    "scorers",
    "sweep",
    "tasks",
    "testing",
    "trackers",
    "trainers",
]


def __getattr__(name: str) -> object:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"nested_rl.{name}")
    raise AttributeError(f"module 'nested_rl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
