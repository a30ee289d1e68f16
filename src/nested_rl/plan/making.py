"""Making a plan: the run is simulated at the middle of the assumptions, at both ends, and with one thing changed at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from attrs import evolve

from nested_rl.errors import NestedRLError, SettingsError
from nested_rl.plan.figures import Assumptions, End
from nested_rl.plan.missing import Missing
from nested_rl.plan.published import published
from nested_rl.plan.simulate import Setting, Simulated, simulate
from nested_rl.plan.value import Plan, Span, WhatIf
from nested_rl.report.counting import Counting
from nested_rl.report.phrases import count
from nested_rl.types import Budget

SEEDS: Final[Mapping[End, int]] = {"mid": 0, "low": 1, "high": 2}
"""Chances of their own at each end: a range is left where nothing is a guess. What changes one thing has those of the middle."""
STANDS_OUT: Final = 0.05
"""A part of the run is called its slowest if relieving it shortens the run by this share."""

_Change: TypeAlias = tuple[str, str, Setting, Assumptions]
"""The part of the run that it relieves, or nothing; what it is; what is run then."""


def make(
    setting: Setting,
    told: Assumptions,
    *,
    missing: Sequence[Missing] = (),
    budget: Budget | None = None,
    costs_money: bool = False,
    quiet: bool = False,
) -> Plan:
    """The plan. At a terminal a line counts the simulations, unless `quiet`.

    Raises SettingsError when a run that goes as assumed would stop by itself.
    """
    changes = list(_changes(setting, told))
    done = itertools.count(1)
    with Counting("simulating the run", "times", quiet=quiet) as counting:

        def one_more() -> None:
            counting(next(done), 3 + len(changes))

        middle = _run(setting, told)
        one_more()
        ends, stopped = _ends(setting, told, one_more)
        changed = []
        for part, what, other, assumed in changes:
            one = _run(other, assumed)
            usd_then = sum(_usd(one, assumed, "mid").values())
            changed.append((part, WhatIf(what=what, wall_clock_s=one.wall_clock_s, usd=usd_then)))
            one_more()

    def span(of: Callable[[Simulated], float]) -> Span:
        return Span.around([of(middle)], *map(of, ends.values()))

    paid = _usd(middle, told, "mid")
    paid_at_ends = [_usd(one, told, end) for end, one in ends.items()]
    usd = {name: Span.around([p], *(other[name] for other in paid_at_ends)) for name, p in paid.items()}
    as_planned = WhatIf(what="as planned", wall_clock_s=middle.wall_clock_s, usd=sum(paid.values()))
    plan = Plan(
        setting=setting,
        assumptions=told,
        episodes=middle.episodes,
        jobs=span(lambda one: one.jobs),
        wall_clock_s=span(lambda one: one.wall_clock_s),
        machine_hours=span(lambda one: one.machine_hours),
        utilisation=span(lambda one: one.utilisation),
        usd=usd,
        tokens={
            "agent reads": span(lambda one: one.spent.prompt_tokens),
            "agent writes": span(lambda one: one.spent.sample_tokens),
            "training": span(lambda one: one.spent.train_tokens),
        },
        bottleneck=_bottleneck(as_planned, [(part, one) for part, one in changed if part]),
        what_ifs=tuple(one for _, one in changed),
        as_planned=as_planned,
        missing=tuple(missing),
        costs_money=costs_money or any(span.high > 0 for span in usd.values()),
        published=published(_setting(setting)) if setting.rents is not None else None,
    )
    return evolve(plan, notes=(*_notes(plan, budget), *stopped))


def _run(setting: Setting, told: Assumptions) -> Simulated:
    """At the middle of the assumptions."""
    try:
        return simulate(setting, told, seed=SEEDS["mid"])
    except NestedRLError as error:
        raise SettingsError(f"with these assumptions the run would stop by itself: {error}") from error


def _ends(setting: Setting, told: Assumptions, one_more: Callable[[], None]) -> tuple[dict[End, Simulated], list[str]]:
    """The run with everything at its cheaper, and at its dearer end; where it would stop by itself, that in words."""
    found: dict[End, Simulated] = {}
    stopped: list[str] = []
    ends: tuple[End, End] = ("low", "high")
    for end in ends:
        try:
            found[end] = simulate(setting, told, end=end, seed=SEEDS[end])
        except NestedRLError as error:
            stopped.append(f"With all assumptions at their {end} end the run would stop by itself: {error}")
        one_more()
    return found, stopped


def _usd(one: Simulated, told: Assumptions, end: End) -> dict[str, float]:
    found = {"machines": one.pods_usd}
    if told.token_prices is not None:
        found |= {"agent": one.spent.agent_usd, "training": one.spent.train_usd}
    elif told.episode_usd is not None:
        found["agent and training"] = one.episodes * told.episode_usd.at(end)
    return found


def _changes(setting: Setting, told: Assumptions) -> Iterator[_Change]:
    """One thing at a time."""
    k = setting.schedule.max_steps_off_policy
    turn, update = (evolve(g, low=g.low / 2, mid=g.mid / 2, high=g.high / 2) for g in (told.turn_s, told.update_s))
    half = max(1, setting.machines // 2)
    changes = [
        ("machines", count(2 * setting.machines, "machine"), setting.but(machines=2 * setting.machines), told),
        ("", count(half, "machine"), setting.but(machines=half), told),
        (
            "staleness pacing",
            f"at most {count(k + 1, 'step')} off-policy",
            setting.but(max_steps_off_policy=k + 1),
            told,
        ),
        ("agent", "an agent twice as fast", setting, told.with_values(turn_s=turn)),
        ("trainer", "updates twice as fast", setting, told.with_values(update_s=update)),
    ]
    for change in changes:
        if change[2:] != (setting, told):
            yield change


def _bottleneck(as_planned: WhatIf, changed: Sequence[tuple[str, WhatIf]]) -> str:
    """The part whose relief shortens the run most."""
    part, best = min(changed, key=lambda one: one[1].wall_clock_s)
    saved = 1 - best.wall_clock_s / as_planned.wall_clock_s if as_planned.wall_clock_s else 0.0
    return part if saved >= STANDS_OUT else "jobs"


def _setting(setting: Setting) -> dict[str, int]:
    schedule = setting.schedule
    names = ("steps", "groups_per_step", "group_size", "max_steps_off_policy")
    return {**{name: getattr(schedule, name) for name in names}, "machines": setting.machines}


def _notes(plan: Plan, budget: Budget | None) -> Iterator[str]:
    told, rents, usd = plan.assumptions, plan.setting.rents, plan.total_usd
    yield "Rewards are not simulated: a plan says what a run takes, not what comes of it."
    if (most := plan.setting.max_jobs) > 1:
        yield f"An episode may hand in {most} jobs and is planned with one: jobs and machines may come to {most} times as much."
    if rents is not None:
        unpriced = [one.name for one in rents.candidates if one.name not in told.usd_per_hour]
        if unpriced:
            yield f"Never rented here, for want of a known price: {', '.join(unpriced)}."
    if told.token_prices is None and told.episode_usd is None and plan.tokens["agent reads"].high:
        yield "Tokens have no price here, and are not in the dollars: give the trainer prices=…"
    if budget is not None and budget.usd is not None and usd.high > budget.usd:
        sure = "reached" if usd.low > budget.usd else "reached if things go badly"
        yield f"The budget of ${budget.usd:,.0f} would be {sure}; the run then stops, and can be resumed."
    if budget is not None and budget.hours is not None and plan.wall_clock_s.high > 3600 * budget.hours:
        yield f"The budget of {budget.hours:g} hours may be too short."
