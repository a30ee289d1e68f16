"""Run files: an experiment as TOML. Every key is known, or refused with the nearest right one.

families = ["calc_chain", "string_pipeline"]
reward = "rewards.py:thrifty"

[run]
steps = 20

[trainer]
name = "nano"
lr = 0.01

[evaluate]
families = ["triage"]
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attrs import asdict, field, fields, frozen

from nested_rl import parts, serialize
from nested_rl.alarms import AlarmRules
from nested_rl.errors import SettingsError, UnknownName
from nested_rl.types import Budget

if TYPE_CHECKING:
    from nested_rl.experiment import Experiment
    from nested_rl.interfaces import RewardFn


@frozen(kw_only=True)
class RunTable:
    """`[run]`: the arguments of `Experiment.run`; what is left out has its default."""

    steps: int | None = None
    groups_per_step: int | None = None
    group_size: int | None = None
    max_steps_off_policy: int | None = None
    order: Literal["index", "ready"] | None = None
    stale: Literal["keep", "drop"] | None = None
    job_seeds: int | None = None
    eval_every: int | None = None
    keep_checkpoints: int | None = None
    seed: int | None = None
    eval_salt_from: str | None = None

    def arguments(self) -> dict[str, Any]:
        """Those that were given."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@frozen(kw_only=True)
class EvaluateTable:
    """`[evaluate]`: after the run, the best version against the untrained one on test tasks of these families."""

    families: tuple[str, ...] = field()
    n: int = field(default=96)
    seed: int = 0

    @families.validator
    def _some(self, _: object, value: tuple[str, ...]) -> None:
        if not value:
            raise SettingsError("evaluate.families: name at least one family, or leave [evaluate] out")

    @n.validator
    def _one_at_least(self, _: object, value: int) -> None:
        if value < 1:
            raise SettingsError(f"evaluate.n: expected at least 1 task, got {value}")


@frozen(kw_only=True)
class RunFile:
    """The whole file. `reward` is FILE.py:NAME, MODULE:NAME, or a table with the weights of UpliftReward; `plan` changes assumptions of a plan by name."""

    families: tuple[str, ...] = ()
    out: str | None = None
    reward: Any = None
    run: RunTable = field(factory=RunTable)
    evaluate: EvaluateTable | None = None
    budget: Budget | None = None
    alarms: AlarmRules | None = None
    allow_weak_sandbox: bool = False
    plan: Mapping[str, Any] | None = None
    trainer: Mapping[str, Any] | None = None
    harness: Mapping[str, Any] | None = None
    inner: Mapping[str, Any] | None = None
    queue: Mapping[str, Any] | None = None
    compute: Mapping[str, Any] | None = None
    scorer: Mapping[str, Any] | None = None
    trackers: tuple[Mapping[str, Any], ...] = ()


KEYS = tuple(a.name for a in fields(RunFile))


def read(path: Path) -> RunFile:
    """Parse and check a run file. Raises SettingsError, naming the file and the place in it."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not TOML: {error}") from error
    try:
        for key in data:
            if key not in KEYS:
                raise UnknownName("key (at the top)", key, KEYS)
        return serialize.from_json(data, RunFile)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error


def experiment(asked: RunFile, *, beside: Path) -> Experiment:
    """The experiment it describes. Files are looked for in the folder `beside`, the run file's own."""
    from nested_rl import tasks
    from nested_rl.experiment import Experiment

    kinds = [kind for kind in parts.GROUPS if kind != "tracker"]  # of trackers there may be several: [[trackers]]
    given = {kind: table for kind in kinds if (table := getattr(asked, kind)) is not None}
    return Experiment(
        tasks=tasks.load(*asked.families) if asked.families else None,
        reward=_reward(asked.reward, beside),
        budget=asked.budget,
        alarms=asked.alarms,
        allow_weak_sandbox=asked.allow_weak_sandbox,
        trackers=[parts.build("tracker", table) for table in asked.trackers],
        **{kind: parts.build(kind, table) for kind, table in given.items()},
    )


def _reward(asked: Any, beside: Path) -> RewardFn | None:
    from nested_rl.rewards import UpliftReward

    if asked is None:
        return None
    if isinstance(asked, str):
        return parts.function(asked, beside=beside)
    if isinstance(asked, dict):
        weights = tuple(a.name for a in fields(UpliftReward))
        for key in asked:
            if key not in weights:
                raise UnknownName("key (in [reward])", key, weights)
        return serialize.from_json(asked, UpliftReward)
    raise SettingsError("reward is FILE.py:NAME, MODULE:NAME, or a table with the weights of UpliftReward")
