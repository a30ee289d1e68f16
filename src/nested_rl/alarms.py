"""Alarms: what a run says aloud when it goes on but somebody should look. Every kind has its name here and nowhere else.

An alarm stands from when its condition begins to hold until it no longer does. Both moments are in the journal (`alarm`,
`alarm.over`), the live view and the report show it, and `alarms` of a metrics row counts those that stand. What to do about each
is in docs/guides/when-things-break.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from attrs import Attribute, field, frozen, validators

from nested_rl.errors import SettingsError, SupervisionError
from nested_rl.types import JSON, Budget

NO_SIGNAL: Final = "no-signal"
MASKED: Final = "masked"
INFRA_STREAK: Final = "infra-streak"
OFF_POLICY: Final = "off-policy"
NOT_FINITE: Final = "not-finite"
STALE: Final = "stale"
DISK: Final = "disk"
TRACKER: Final = "tracker"
BUDGET: Final = "budget"
FAMILY: Final = "family"

KINDS: Final[Mapping[str, str]] = {
    NO_SIGNAL: "the last steps had nothing to learn from: in no group did one member earn more than another",
    MASKED: "many episodes failed for reasons that are not the agent's",
    INFRA_STREAK: "job after job fails for reasons that are not the job's",
    OFF_POLICY: "the trained policy is far from the one that sampled",
    NOT_FINITE: "the trainer reports something that is not a finite number",
    STALE: "groups are trained long after they were sampled",
    DISK: "the disk of the run directory is nearly full",
    TRACKER: "a tracker fails, or does not keep up",
    BUDGET: "the budget is nearly used up",
    FAMILY: "the code of a task family fails on what agents write",
}
"""Every alarm there is, and what it means."""

COUNT: Final = "alarms"
IN_A_ROW: Final = "steps/no_signal"
"""Columns of a metrics row: alarms that stand; steps without a signal up to this one."""

UNREADABLE: Final = "unreadable/"
"""Before the name of a family in the notes of a validation: on how many rows its key() raised."""

Tell = Callable[[str, Mapping[str, JSON]], None]


def _count(_: object, attribute: Attribute[Any], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SettingsError(f"alarms: {attribute.name} must be a whole number of at least 1, not {value!r}")


def _share(_: object, attribute: Attribute[float], value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise SettingsError(f"alarms: {attribute.name} must be a share from 0 to 1, not {value!r}")


def _positive(_: object, attribute: Attribute[float], value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise SettingsError(f"alarms: {attribute.name} must be a finite number, 0 or more, not {value!r}")


@frozen(kw_only=True)
class AlarmRules:
    """When an alarm is raised, and after what a run stops by itself. `Experiment(alarms=AlarmRules(no_signal_steps=5))`.

    `stop_after_faults` (deliveries in a row that fail, over more than one job) and `stop_after_masked` (episodes in a row) end a
    run in which something of ours is broken; `stop_after_no_signal` (steps in a row) does so only when it is given.
    """

    no_signal_steps: int = field(default=3, validator=_count)
    masked_share: float = field(default=0.25, validator=_share)
    """Of a step's episodes, from which on."""
    faults_in_a_row: int = field(default=3, validator=_count)
    ess: float = field(default=0.3, validator=_share)
    """Effective sample size, below which."""
    ratio_mean: float = field(default=0.3, validator=_positive)
    """How far the mean importance ratio may be from 1."""
    staleness: int | None = field(default=None, validator=validators.optional(_count))
    """Versions, above which; None: twice the run's `max_steps_off_policy`, at least 2."""
    free_gib: float = field(default=1.0, validator=_positive)
    budget_share: float = field(default=0.9, validator=_share)
    stop_after_faults: int = field(default=10, validator=_count)
    stop_after_masked: int = field(default=16, validator=_count)
    stop_after_no_signal: int | None = field(default=None, validator=validators.optional(_count))


@frozen(kw_only=True)
class Standing:
    """What the loop knows when a step is done."""

    signal: bool
    """Whether some group told its members apart."""
    episodes: int
    max_steps_off_policy: int
    not_finite: tuple[str, ...] = ()
    """Names of the trainer's own metrics that were left out of the row."""
    spent_usd: float = 0.0
    """With what is set aside for jobs under way."""
    hours: float = 0.0
    free_bytes: int | None = None


class Alarms:
    """The alarms of one run. `tell` is given each `alarm` and `alarm.over` once, when it begins and when it ends."""

    def __init__(self, rules: AlarmRules, *, tell: Tell, budget: Budget | None = None) -> None:
        self.rules = rules
        self.standing: dict[str, str] = {}
        self._tell = tell
        self._budget = budget or Budget()
        self._faults: list[tuple[str, str]] = []

    def set(self, name: str, message: str) -> None:
        """Raise an alarm, or end it with an empty message. Told only when that is news."""
        assert name in KINDS, name
        if message and name not in self.standing:
            self._tell("alarm", {"name": name, "message": message})
        elif not message and name in self.standing:
            self._tell("alarm.over", {"name": name})
        if message:
            self.standing[name] = message
        else:
            self.standing.pop(name, None)

    def on_event(self, event: str, fields: Mapping[str, JSON]) -> None:
        """The workers' news: deliveries that failed one after the other."""
        if event == "job.done":
            self._faults.clear()
        elif event == "job.released" and "state" in fields:  # one that was called off is nobody's fault
            self._faults.append((str(fields["key"]), str(fields["error"])))
        else:
            return
        there = len(self._faults) >= self.rules.faults_in_a_row
        self.set(INFRA_STREAK, self._streak() if there else "")

    def _streak(self) -> str:
        jobs = len({key for key, _ in self._faults})
        return (
            f"{len(self._faults)} deliveries in a row failed, of {jobs} job{'s' if jobs > 1 else ''}; the last: "
            f"{self._faults[-1][1][:300]}"
        )

    def on_step(self, row: dict[str, float], now: Standing, *, before: int = 0) -> None:
        """Judge a step by its metrics, and put into `row` what was found. `before`: steps without a signal just before."""
        in_a_row = 0 if now.signal else before + 1
        row[IN_A_ROW] = float(in_a_row)
        for name, message in (
            (NO_SIGNAL, self._no_signal(in_a_row)),
            (MASKED, self._masked(row, now)),
            (OFF_POLICY, self._off_policy(row)),
            (NOT_FINITE, f"left out of the metrics: {', '.join(now.not_finite)}" if now.not_finite else ""),
            (STALE, self._stale(row, now)),
            (DISK, self._disk(now)),
            (BUDGET, self._near(now)),
        ):
            self.set(name, message)
        row[COUNT] = float(len(self.standing))

    def stop(self, row: Mapping[str, float]) -> None:
        """Raises SupervisionError when a run was told to stop after so many steps without a signal."""
        most = self.rules.stop_after_no_signal
        if most is not None and row[IN_A_ROW] >= most:
            raise SupervisionError(
                f"{row[IN_A_ROW]:.0f} steps in a row had nothing to learn from, and stop_after_no_signal={most} says to stop; "
                "look at the last episodes, then change the reward or the tasks in a new run, or go on with a larger number"
            )

    def _no_signal(self, in_a_row: int) -> str:
        if in_a_row < self.rules.no_signal_steps:
            return ""
        return f"{in_a_row} steps in a row had nothing to learn from: every group's members earned the same"

    def _masked(self, row: Mapping[str, float], now: Standing) -> str:
        masked = row["episodes/masked"]
        if not masked or masked < self.rules.masked_share * now.episodes:
            return ""
        return f"{masked:.0f} of the step's {now.episodes} episodes failed for reasons that are not the agent's"

    def _off_policy(self, row: Mapping[str, float]) -> str:
        ess, mean = row["ess"], row["ratio/mean"]
        if ess < self.rules.ess:
            return f"the effective sample size is {ess:.2f}: a few tokens decide the update"
        if abs(mean - 1) > self.rules.ratio_mean:
            return f"the mean importance ratio is {mean:.2f}: sampler and trainer do not agree on what was likely"
        return ""

    def _stale(self, row: Mapping[str, float], now: Standing) -> str:
        most = self.rules.staleness or max(2, 2 * now.max_steps_off_policy)
        lag = row["staleness/max"]
        return f"a group was trained {lag:.0f} versions after it was sampled" if lag > most else ""

    def _disk(self, now: Standing) -> str:
        if now.free_bytes is None or now.free_bytes >= self.rules.free_gib * 2**30:
            return ""
        return f"{now.free_bytes / 2**30:.2f} GiB are free where the run is written"

    def _near(self, now: Standing) -> str:
        share, budget = self.rules.budget_share, self._budget
        if budget.usd and now.spent_usd >= share * budget.usd:
            return f"${now.spent_usd:.2f} of ${budget.usd:.2f} are spent or set aside"
        if budget.hours and now.hours >= share * budget.hours:
            return f"{now.hours:.1f} of {budget.hours:g} hours have passed"
        return ""
