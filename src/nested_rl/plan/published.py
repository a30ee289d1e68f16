"""What was published of one run, to be shown beside a plan of the same setting. Nothing here was measured by this package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import frozen

from nested_rl.plan.figures import Guess

MODEL: Final = "Qwen/Qwen3.6-35B-A3B"
_FIGURE: Final = "published figure of the run that is planned here, so that it predicts nothing: $0.15 to $0.25 an episode, $465 in all"


@frozen(kw_only=True)
class Published:
    """A run that others have made and told of."""

    name: str
    setting: Mapping[str, int]
    """The arguments that make a plan one of this run: steps, groups_per_step, group_size, max_steps_off_policy, machines."""
    figures: Mapping[str, str]
    source: str


PILOT_7: Final = Published(
    name="pilot 7",
    setting={"steps": 54, "groups_per_step": 5, "group_size": 8, "max_steps_off_policy": 2, "machines": 16},
    figures={
        "jobs": "about 1,750",
        "pods": "about $810",
        "agent and training": "about $465 (Tinker)",
        "all": "about $1,275 to $1,300",
        "dropped as stale": "0",
    },
    source="README and model card of ai-trains-ai v0.1, July 2026",
)
EPISODE_USD: Final = Guess(0.15, 465 / 2160, 0.25, unit="$ an episode", source=_FIGURE)


def published(setting: Mapping[str, int]) -> Published | None:
    """The published run that has this setting."""
    return PILOT_7 if dict(setting) == dict(PILOT_7.setting) else None
