"""A plan in the terminal, readable at 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nested_rl.plan.value import Plan, Span
from nested_rl.report.phrases import count, duration, money, percent


def show(plan: Plan, console: Console | None = None) -> None:
    """Print it."""
    told = console or Console(highlight=False)
    told.print(Text(_heading(plan), style="bold"))
    told.print(_figures(plan))
    told.print(_sentence(plan))
    told.print(_what_ifs(plan))
    told.print(_assumptions(plan))
    if plan.published is not None:
        told.print(f"Published figures of {plan.published.name}: {plan.published.source}; not measured here.")
    for note in plan.notes:
        told.print(note, markup=False)
    if plan.missing:
        told.print(Text("Missing:", style="bold"))
        for one in plan.missing:
            told.print(Padding(f"{one.name} ({one.part}): {one.hint}", (0, 0, 0, 2)), markup=False)
    else:
        told.print("Nothing is missing: keys and packages are there.")


def _heading(plan: Plan) -> str:
    schedule, rents = plan.setting.schedule, plan.setting.rents
    where = count(plan.setting.machines, "machine")
    if rents is not None:
        kinds = list(dict.fromkeys(one.name.partition(" (")[0] for one in rents.candidates))
        where = f"at most {count(plan.setting.machines, 'pod')} ({', '.join(kinds)})"
    return (
        f"Plan: {count(schedule.steps, 'step')} of {count(schedule.groups_per_step, 'group')} of {schedule.group_size} episodes, "
        f"at most {count(schedule.max_steps_off_policy, 'step')} off-policy, {where}"
    )


def _rows(plan: Plan) -> Iterator[tuple[str, Span, Callable[[float], str]]]:
    def whole(value: float) -> str:
        return f"{value:,.0f}"

    yield "jobs", plan.jobs, whole
    yield "wall-clock", plan.wall_clock_s, duration
    yield "machine hours", plan.machine_hours, lambda hours: f"{hours:,.1f}"
    yield "machines in use", plan.utilisation, percent
    for name, span in plan.tokens.items():
        if span.high:
            yield f"{name}, M tokens", Span(span.low / 1e6, span.mid / 1e6, span.high / 1e6), lambda m: f"{m:,.1f}"
    for name, span in plan.usd.items():
        yield ("pods" if name == "machines" and plan.setting.rents is not None else name), span, money
    yield "all", plan.total_usd, money


def _figures(plan: Plan) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("", "middle", "low", "high"):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    theirs = dict(plan.published.figures) if plan.published is not None else None
    if theirs is not None:
        table.add_column("published", justify="right")
    for name, span, told in _rows(plan):
        cells = [name, told(span.mid), told(span.low), told(span.high)]
        table.add_row(*cells, *([theirs.pop(name, "")] if theirs is not None else []))
    for name, figure in (theirs or {}).items():
        table.add_row(name, "", "", "", figure)
    return table


def _sentence(plan: Plan) -> str:
    if plan.bottleneck == "jobs":
        return "\nNo one part holds the run up: each waits for the jobs in turn."
    return f"\nWhat holds the run up: {plan.bottleneck}."


def _what_ifs(plan: Plan) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("one change", "wall-clock", "dollars"):
        table.add_column(name, justify="left" if name == "one change" else "right")
    for one in (plan.as_planned, *plan.what_ifs):
        table.add_row(one.what, duration(one.wall_clock_s), money(one.usd))
    return table


def _assumptions(plan: Plan) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title="\nAssumptions", title_justify="left")
    table.add_column("", overflow="fold", max_width=26)
    table.add_column("", overflow="fold", max_width=26)
    table.add_column("rests on", overflow="fold")
    before = ""
    for name, guess in plan.assumptions.rows():
        if guess.high == 0:
            continue
        table.add_row(Text(name), Text(guess.text), Text("″" if guess.source == before else guess.source))
        before = guess.source
    for name, n in plan.assumptions.capacity.items():
        table.add_row(Text(f"capacity[{name}]"), f"{n} pods", "given")
    return table
