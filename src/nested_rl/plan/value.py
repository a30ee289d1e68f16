"""A plan: what a run is expected to take, before anything is spent."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Self

from attrs import asdict, frozen

from nested_rl.errors import SettingsError
from nested_rl.plan.figures import Assumptions
from nested_rl.plan.missing import Missing
from nested_rl.plan.published import Published
from nested_rl.plan.simulate import Setting
from nested_rl.types import JSON

if TYPE_CHECKING:
    from rich.console import Console


@frozen
class Span:
    """The middle, and what comes out at the cheaper and the dearer end of everything that is assumed."""

    low: float
    mid: float
    high: float

    def __add__(self, other: Span) -> Span:
        return Span(self.low + other.low, self.mid + other.mid, self.high + other.high)

    @classmethod
    def around(cls, middle: Iterable[float], *ends: float) -> Span:
        """The median of `middle`, and the least and the most of all.

        >>> Span.around([2, 3, 9], 1, 5)
        Span(low=1, mid=3, high=9)
        """
        told = sorted(middle)
        return cls(min(*told, *ends), told[len(told) // 2], max(*told, *ends))


@frozen(kw_only=True)
class WhatIf:
    """The same run with one thing changed, drawn from the same chances."""

    what: str
    wall_clock_s: float
    usd: float


@frozen(kw_only=True)
class Plan:
    """What a run would take. `str(plan)` is a sentence, `show()` a table, `as_json()` everything.

    `usd` is by who is paid: "machines", "agent" and "training", or "agent and training" where only the sum is known. What has no
    known price is not in it, and `notes` say so. `missing` is what is needed and not there.
    """

    setting: Setting
    assumptions: Assumptions
    episodes: int
    jobs: Span
    wall_clock_s: Span
    machine_hours: Span
    utilisation: Span
    usd: Mapping[str, Span]
    tokens: Mapping[str, Span]
    bottleneck: str
    what_ifs: tuple[WhatIf, ...]
    as_planned: WhatIf
    missing: tuple[Missing, ...] = ()
    costs_money: bool = False
    """Whether somebody is paid, also where the price is not known."""
    published: Published | None = None
    notes: tuple[str, ...] = ()

    @property
    def total_usd(self) -> Span:
        """Of everything that has a price."""
        return sum(self.usd.values(), Span(0.0, 0.0, 0.0))

    def show(self, console: Console | None = None) -> Self:
        """Print it, at whatever width the terminal has."""
        from nested_rl.plan.show import show

        show(self, console)
        return self

    def ask(self, *, yes: bool = False) -> bool:
        """Whether to go on: asks whoever sits at the terminal. True without a question if nothing costs money, or with `yes`.

        Raises SettingsError where nobody can be asked.
        """
        if yes or not self.costs_money:
            return True
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise SettingsError(f"{self}; nobody can be asked here whether to spend that: say yes beforehand (--yes)")
        return input(f"{self}. Go on? [y/N] ").strip().lower() in ("y", "yes")

    def as_json(self) -> dict[str, JSON]:
        """Plain data; seconds, hours, dollars and tokens as the names say."""
        schedule = asdict(self.setting.schedule)
        pods = [one.name for one in self.setting.rents.candidates] if self.setting.rents is not None else None
        return {
            "setting": {**schedule, "machines": self.setting.machines, "pods": pods},
            "episodes": self.episodes,
            **{name: asdict(getattr(self, name)) for name in ("jobs", "wall_clock_s", "machine_hours", "utilisation")},
            "usd": {**{name: asdict(span) for name, span in self.usd.items()}, "total": asdict(self.total_usd)},
            "tokens": {name: asdict(span) for name, span in self.tokens.items()},
            "bottleneck": self.bottleneck,
            "what_ifs": [asdict(one) for one in (self.as_planned, *self.what_ifs)],
            "missing": [asdict(one) for one in self.missing],
            "published": asdict(self.published) if self.published is not None else None,
            "notes": list(self.notes),
            "assumptions": self.assumptions.to_json(),
        }

    def __str__(self) -> str:
        from nested_rl.report.phrases import duration, money

        usd, wall = self.total_usd, self.wall_clock_s
        price = f"{money(usd.mid)} ({money(usd.low)} to {money(usd.high)})" if usd.high else "nothing that is priced"
        return (
            f"{self.jobs.mid:,.0f} jobs in about {duration(wall.mid)} ({duration(wall.low)} to {duration(wall.high)}) for "
            f"{price}"
        )
