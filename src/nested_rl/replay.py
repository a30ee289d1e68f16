"""Another reward over a run that is there already: what it would have paid, and what the agent would have learned from it.

Nothing is run. Outcomes come from the episodes' records; rewards and advantages are computed as a run computes them.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from attrs import asdict, field, frozen

from nested_rl import grpo, rewards, sync
from nested_rl.errors import RewardError, SettingsError
from nested_rl.interfaces import RewardFn
from nested_rl.rundir import RunDir
from nested_rl.types import JSON, Episode

STD_FLOOR = 0.05
"""What is added to a group's standard deviation when the run does not say."""

SAME = 1e-9
"""Rewards and advantages closer than this are one and the same: two ways of adding up the same parts."""


@frozen(kw_only=True)
class Change:
    """One episode under both rewards. An advantage is None where the group has fewer than two real members."""

    group: int
    member: int
    family: str
    was: float
    now: float
    advantage_was: float | None
    advantage_now: float | None

    @property
    def gain(self) -> float:
        """How much more advantage the episode gets; 0 when it has none. In standard deviations of its group."""
        return (self.advantage_now or 0.0) - (self.advantage_was or 0.0)

    @property
    def flips(self) -> bool:
        """Whether what was encouraged is now discouraged, or the other way round."""
        was, now = self.advantage_was or 0.0, self.advantage_now or 0.0
        return (was > SAME and now < -SAME) or (was < -SAME and now > SAME)


@frozen(kw_only=True)
class GroupChange:
    """One group under both rewards: `flips` members change sign, `reversed` of `pairs` pairs change order.

    `was_flat` and `is_flat`: all members earned the same, so that the group teaches nothing. `rank_correlation` is NaN then.
    """

    group: int
    family: str
    members: int
    flips: int
    pairs: int
    reversed: int
    was_flat: bool
    is_flat: bool
    rank_correlation: float


@frozen(kw_only=True)
class FamilyChange:
    """Mean rewards of a family's episodes, and how alike the two rewards rank them."""

    family: str
    episodes: int
    was: float
    now: float
    rank_correlation: float


@frozen(kw_only=True)
class ReplayReport:
    """What `replay` found. Correlations are Spearman's, in [−1, 1]; NaN where one side is constant.

    `same` counts episodes whose new reward is exactly the recorded one. `masked` episodes have no reward in either; those of
    groups that are not whole yet are `unfinished`. Both are left out of everything else. `damaged` names the episodes whose files
    cannot be read, and why; the rest of their groups is replayed as it is.
    """

    run: str
    reward: str
    changes: tuple[Change, ...] = field(default=(), repr=False)
    groups: tuple[GroupChange, ...] = field(default=(), repr=False)
    families: tuple[FamilyChange, ...] = ()
    masked: int = 0
    unfinished: int = 0
    damaged: Mapping[str, str] = field(factory=dict)

    @property
    def same(self) -> int:
        """Episodes with exactly the recorded reward."""
        return sum(c.was == c.now for c in self.changes)

    @property
    def rank_correlation(self) -> float:
        """Over all episodes."""
        return spearman([c.was for c in self.changes], [c.now for c in self.changes])

    @property
    def rank_correlation_within(self) -> float:
        """Mean over groups that both rewards can tell apart. This is what training sees: it compares within groups only."""
        known = [g.rank_correlation for g in self.groups if not math.isnan(g.rank_correlation)]
        return _mean(known)

    @property
    def flipped(self) -> tuple[GroupChange, ...]:
        """Groups in which a sign flips or a pair changes order, most reversed first."""
        found = [g for g in self.groups if g.flips or g.reversed]
        return tuple(sorted(found, key=lambda g: (-g.flips, -g.reversed, g.group)))

    def gainers(self, n: int = 5) -> tuple[Change, ...]:
        """The episodes whose advantage rises most."""
        return tuple(sorted((c for c in self.changes if c.gain > SAME), key=lambda c: -c.gain)[:n])

    def losers(self, n: int = 5) -> tuple[Change, ...]:
        """The episodes whose advantage falls most."""
        return tuple(sorted((c for c in self.changes if c.gain < -SAME), key=lambda c: c.gain)[:n])

    def to_json(self) -> dict[str, JSON]:
        """Everything, in plain data; what is not known is null."""
        data = {
            "run": self.run,
            "reward": self.reward,
            "episodes": len(self.changes),
            "same": self.same,
            "masked": self.masked,
            "unfinished": self.unfinished,
            "damaged": dict(self.damaged),
            "rank_correlation": self.rank_correlation,
            "rank_correlation_within_groups": self.rank_correlation_within,
            "families": [asdict(f) for f in self.families],
            "groups": [asdict(g) for g in self.groups],
            "changes": [asdict(c) | {"gain": c.gain, "flips": c.flips} for c in self.changes],
        }
        known: dict[str, JSON] = _known(data)
        return known

    def __str__(self) -> str:
        n = len(self.changes)
        if not n:
            return f"{self.run}: no whole group of episodes yet, nothing to replay{self._left_out}"
        if self.same == n:
            return f"{self.reward} on {self.run}: all {n} rewards are exactly the recorded ones{self._left_out}"
        return (
            f"{self.reward} on {self.run}: {n} episodes, {self.same} with the recorded reward · rank correlation "
            f"{self.rank_correlation:.2f} overall, {self.rank_correlation_within:.2f} within groups · a sign or an order "
            f"flips in {len(self.flipped)} of {len(self.groups)} groups{self._left_out}"
        )

    @property
    def _left_out(self) -> str:
        if not self.damaged:
            return ""
        return f" · {len(self.damaged)} could not be read and left out, the first: {next(iter(self.damaged.values()))}"


def replay(run: RunDir, reward: RewardFn, *, std_floor: float | None = None) -> ReplayReport:
    """Rewards and advantages of `reward` over everything a run recorded, beside the recorded ones.

    `std_floor` is the trainer's; by default what run.toml says, else 0.05. Raises RewardError, naming the episode, when the
    function raises or gives anything but finite numbers.
    """
    floor = _std_floor(run) if std_floor is None else std_floor
    if not (math.isfinite(floor) and floor >= 0):
        raise SettingsError(f"std_floor must be a finite number, 0 or more, not {floor!r}")
    return sync.run(_replay(run, reward, floor))


async def _replay(run: RunDir, reward: RewardFn, std_floor: float) -> ReplayReport:
    size = int(run.spec.get("group_size", 0))
    changes: list[Change] = []
    groups: list[GroupChange] = []
    masked = unfinished = 0
    damaged: dict[str, str] = {}
    for group, several in itertools.groupby(run.episodes(left_out=damaged), key=lambda e: e.group):
        episodes = list(several)
        lost = sum(name.startswith(f"{group:05d}-") for name in damaged)
        if len(episodes) + lost < size:
            unfinished += len(episodes)
            continue
        masked += sum(e.masked for e in episodes)
        found = await _group(episodes, reward, std_floor)
        changes += found
        if len(found) > 1:
            groups.append(_compare(found))
    return ReplayReport(
        run=str(run.path),
        reward=_name(reward),
        changes=tuple(changes),
        groups=tuple(groups),
        families=tuple(_families(changes)),
        masked=masked,
        unfinished=unfinished,
        damaged=damaged,
    )


async def _group(episodes: Sequence[Episode], reward: RewardFn, std_floor: float) -> list[Change]:
    real = [e for e in episodes if not e.masked]
    now = await asyncio.gather(*(_reward(e, reward) for e in real))
    was_advantages = grpo.advantages([e.reward for e in real], std_floor=std_floor)
    now_advantages = grpo.advantages(now, std_floor=std_floor)
    return [
        Change(
            group=e.group,
            member=e.member,
            family=e.task.family,
            was=e.reward,
            now=value,
            advantage_was=before,
            advantage_now=after,
        )
        for e, value, before, after in zip(real, now, was_advantages, now_advantages, strict=True)
    ]


async def _reward(episode: Episode, reward: RewardFn) -> float:
    try:
        value, _ = await rewards.evaluate(reward, episode.outcome)
    except RewardError as error:
        raise RewardError(f"episode {episode.group:05d}-{episode.member}: {error}") from error
    return value


def _compare(members: Sequence[Change]) -> GroupChange:
    pairs = [
        (a.was - b.was, a.now - b.now)
        for a, b in itertools.combinations(members, 2)
        if abs(a.was - b.was) > SAME or abs(a.now - b.now) > SAME
    ]
    was, now = [c.was for c in members], [c.now for c in members]
    return GroupChange(
        group=members[0].group,
        family=members[0].family,
        members=len(members),
        flips=sum(c.flips for c in members),
        pairs=len(pairs),
        reversed=sum((was > SAME and now < -SAME) or (was < -SAME and now > SAME) for was, now in pairs),
        was_flat=max(was) - min(was) <= SAME,
        is_flat=max(now) - min(now) <= SAME,
        rank_correlation=spearman(was, now),
    )


def _families(changes: Sequence[Change]) -> Iterator[FamilyChange]:
    by_family: defaultdict[str, list[Change]] = defaultdict(list)
    for change in changes:
        by_family[change.family].append(change)
    for family, those in sorted(by_family.items()):
        was, now = [c.was for c in those], [c.now for c in those]
        yield FamilyChange(
            family=family, episodes=len(those), was=_mean(was), now=_mean(now), rank_correlation=spearman(was, now)
        )


def spearman(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Spearman's rank correlation, equal values sharing their mean rank; NaN when one side is constant.

    >>> spearman([1, 2, 3, 4], [10, 20, 40, 30])
    0.8
    """
    a, b = _ranks(ours), _ranks(theirs)
    mean = (len(a) + 1) / 2
    spread = math.fsum((x - mean) ** 2 for x in a) * math.fsum((y - mean) ** 2 for y in b)
    if not spread:
        return math.nan
    return math.fsum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True)) / math.sqrt(spread)


def _ranks(values: Sequence[float]) -> list[float]:
    """From 1; values closer than SAME to their neighbour are equal."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    ranks = [0.0] * len(values)
    start = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or values[order[end]] - values[order[end - 1]] > SAME:
            for i in order[start:end]:
                ranks[i] = (start + 1 + end) / 2
            start = end
    return ranks


def _std_floor(run: RunDir) -> float:
    trainer = run.spec.get("parts", {}).get("trainer", {})
    return float(trainer.get("std_floor", STD_FLOOR))


def _name(reward: Callable[..., object]) -> str:
    return str(getattr(reward, "__qualname__", type(reward).__qualname__))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _known(value: JSON) -> JSON:
    """JSON has no NaN."""
    if isinstance(value, dict):
        return {key: _known(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_known(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value
