"""The timeline as the page shows it: a lane a machine over the whole run, and the newest jobs one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen

from nested_rl.report import timeline
from nested_rl.report.phrases import duration
from nested_rl.report.timeline import Delivery, Lane, Phase, Timeline

COLUMNS = 600
MOST_LANES = 16
MOST_JOBS = 24
NAMES = {
    "queue": "waiting in the queue",
    "boot": "waiting for a machine",
    "train": "training",
    "score": "scoring",
    "failed": "came to nothing",
}


@frozen(kw_only=True)
class Row:
    """One job of the newest: its label, and its bars as (phase, start, width), both in per mille of the window."""

    label: str
    told: str
    bars: tuple[tuple[str, float, float], ...]


@frozen(kw_only=True)
class Gantt:
    """Everything the section needs. `left_out` machines have no lane; ticks are (place in per cent, words)."""

    columns: int
    lanes: tuple[Lane, ...]
    left_out: int
    steps: tuple[float, ...]
    """Where steps end, in columns."""
    stops: tuple[float, ...]
    ticks: tuple[tuple[float, str], ...]
    rows: tuple[Row, ...]
    row_ticks: tuple[tuple[float, str], ...]
    phases: tuple[tuple[str, Phase], ...]
    """(in words, how long it took)."""
    key: tuple[tuple[str, str], ...]
    """(phase, in words), those that occur."""
    alt: str


def draw(line: Timeline, episodes: Mapping[str, str] | None = None) -> Gantt | None:
    """None before the first job has ended. `episodes` names those that jobs were trained for, by the jobs' keys.

    With it the newest jobs are those of episodes: after the evaluations at the end of a run, all the newest ones would be theirs.
    """
    if not line.deliveries or not line.seconds:
        return None
    shown = sorted(line.machines[:MOST_LANES])
    busy = sum(line.busy_share(name) for name in shown) / len(shown) if shown else 0.0
    newest, row_ticks = _newest(line.deliveries, episodes or {})
    phases = tuple((NAMES[phase.name], phase) for phase in line.phases)
    return Gantt(
        columns=COLUMNS,
        lanes=tuple(timeline.lanes(line, shown, columns=COLUMNS)),
        left_out=len(line.machines) - len(shown),
        steps=_places(line.steps_s, line.seconds) if len(line.steps_s) <= 100 else (),
        stops=_places(line.stops_s, line.seconds),
        ticks=_ticks(0.0, line.seconds),
        rows=newest,
        row_ticks=row_ticks,
        phases=phases,
        key=tuple((phase.name, NAMES[phase.name]) for phase in line.phases),
        alt=f"{len(line.deliveries)} deliveries on {len(line.machines)} machines, busy {100 * busy:.0f} % of {duration(line.seconds)}.",
    )


def _places(times_s: Sequence[float], length_s: float) -> tuple[float, ...]:
    return tuple(COLUMNS * t / length_s for t in times_s)


def _ticks(start_s: float, length_s: float) -> tuple[tuple[float, str], ...]:
    """Three, at the ends and in the middle: more would not fit on a phone."""
    return tuple((100 * share, duration(start_s + share * length_s)) for share in (0.0, 0.5, 1.0))


def _newest(
    deliveries: Sequence[Delivery], episodes: Mapping[str, str]
) -> tuple[tuple[Row, ...], tuple[tuple[float, str], ...]]:
    known = [one for one in deliveries if one.key in episodes] or deliveries
    chosen = sorted(known[-MOST_JOBS:], key=lambda d: (d.start_s, d.end_s))
    first, last = min(d.start_s for d in chosen), max(d.end_s for d in chosen)
    span = (last - first) or 1.0
    rows = []
    for one in chosen:
        spans = [(bar.phase, bar.end_s - bar.start_s) for bar in one.bars]
        label = episodes.get(one.key, one.key.partition("-k")[0])
        rows.append(
            Row(
                label=f"{label} {one.machine}".rstrip(),
                told="; ".join(
                    [label, one.key, one.machine or "no machine", *(f"{NAMES[phase]} {s:.1f} s" for phase, s in spans)]
                ),
                bars=tuple(
                    (bar.phase, 1000 * (bar.start_s - first) / span, 1000 * (bar.end_s - bar.start_s) / span)
                    for bar in one.bars
                ),
            )
        )
    return tuple(rows), _ticks(0.0, span)
