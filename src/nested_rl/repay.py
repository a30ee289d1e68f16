"""A reward that was changed before anything was learned from it: what is recorded gets its reward from the new one.

So nobody who mends a function pays twice for what it failed on. The journal tells where it stands: after `reward.changed`, which
is written before run.toml holds the new function, recorded rewards may be of either until `reward.paid` follows.
"""

from __future__ import annotations

from typing import Protocol

from nested_rl import rewards
from nested_rl.errors import RewardError
from nested_rl.interfaces import RewardFn
from nested_rl.rundir import REWARD_CHANGED, RunDir
from nested_rl.types import JSON, Episode
from nested_rl.waiting import together

REWARD_PAID = "reward.paid"


class Tell(Protocol):
    """Writes one event to the journal."""

    def __call__(self, event: str, *, sync: bool = False, **fields: JSON) -> None: ...


async def settle(run: RunDir, reward: RewardFn, *, evals: str, tell: Tell) -> None:
    """Pay every recorded episode by `reward`, if it was changed since they were recorded; those of `evals` (a prefix of names) too.

    An evaluation of these is told anew from its episodes. Raises RewardError, naming the episode.
    """
    marks = [event["event"] for event in run.events(REWARD_CHANGED, REWARD_PAID)]
    if not marks or marks[-1] == REWARD_PAID:
        return
    validations = sorted((run.path / "evals").glob(f"{evals}*"))
    places = ["episodes", *(f"evals/{folder.name}/episodes" for folder in validations)]
    recorded = [(e, under) for under in places for e in run.episodes(under=under, left_out={}) if not e.masked]
    await together([_pay(run, episode, reward, under) for episode, under in recorded])
    for folder in validations:
        (folder / "report.json").unlink(missing_ok=True)
    tell(REWARD_PAID, episodes=len(recorded), sync=True)


async def _pay(run: RunDir, episode: Episode, reward: RewardFn, under: str) -> None:
    try:
        value, parts = await rewards.evaluate(reward, episode.outcome)
    except RewardError as error:
        raise RewardError(f"{under}/{episode.group:05d}-{episode.member}: {error}") from error
    run.pay(episode, value, parts, under=under)
