"""What a run shows while it works: a live table in a terminal, one plain line a step elsewhere.

The loop calls it synchronously, so every method is cheap, and none ever raises: a view that breaks is dropped and the run
goes on.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeAlias

from rich.console import Console, Group, RenderableType
from rich.live import Live as RichLive
from rich.table import Table
from rich.text import Text

from nested_rl import redact
from nested_rl.report.phrases import duration, money, number, percent, sparkline
from nested_rl.types import Metrics

log = redact.logger(__name__)

P = ParamSpec("P")
Mode: TypeAlias = Literal["auto", "table", "lines", "quiet"]

Wording: TypeAlias = Callable[[float], str]
_FIRST: tuple[tuple[str, str, Wording], ...] = (
    ("reward", "reward/mean", number),
    ("valid 1st", "validation/first_try", percent),
    ("strongest", "base/share_strongest", percent),
)
_LAST: tuple[tuple[str, str, Wording], ...] = (
    ("stale", "staleness/mean", lambda v: number(v, 1)),
    ("asked", "tools/baselines", percent),
    ("jobs", "jobs/run", lambda v: number(v, 0)),
    ("reused", "jobs/reused", lambda v: number(v, 0)),
    ("cost", "usd", money),
    ("time", "time/step_s", duration),
)
_BEFORE_PARTS = ("time", "stale")
"""Columns that a narrow terminal has rather than the parts of the reward."""
_GAP = 2


def _never_raises(method: Callable[Concatenate[Live, P], None]) -> Callable[Concatenate[Live, P], None]:
    """A view that fails is told about once and switched off."""

    @functools.wraps(method)
    def safe(self: Live, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if self.broken:
            return
        try:
            method(self, *args, **kwargs)
        except (Exception, SystemExit) as error:  # noqa: BLE001  whatever it is, the run is worth more than its display
            self.broken = True
            log.warning("the live view failed and is switched off; the run goes on: %r", error)

    return safe


def nobody_reads() -> None:
    """The reader of our output went away (`| head`): what is printed from now on goes nowhere, and nothing ends by it."""
    with contextlib.suppress(OSError):  # a stdout that is no file, in a notebook say
        stdout = sys.stdout.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stdout)
        os.close(nowhere)


class Screen(Console):
    """rich's console, except that a reader who went away (`| head`) does not end the program."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        if self.file is sys.stdout:  # the summary at the end is printed there too
            nobody_reads()


class Live:
    """The view of one run. A context manager: `with Live(25) as live: ...`.

    `mode` "auto" is "table" in a terminal and "lines" elsewhere. `done_steps` are the rows of an earlier part of the run.
    """

    def __init__(
        self,
        total_steps: int,
        *,
        mode: Mode = "auto",
        rows: int = 8,
        console: Console | None = None,
        done_steps: tuple[Metrics, ...] = (),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.broken = False
        self._console = console or Screen()
        self._mode: Mode = self._choose(mode)
        self._total = total_steps
        self._shown_rows = rows
        self._rows: list[Metrics] = list(done_steps)
        self._earlier = len(self._rows)
        self._monotonic = monotonic
        self._started_s = monotonic()
        self._last_step_s = self._started_s
        self._step_times_s: list[float] = []
        self._queued: int | None = None  # not known until an event tells
        self._running = 0
        self._episodes = 0
        self._note = ""
        self._alarms: dict[str, str] = {}
        self._rich: RichLive | None = None

    def _choose(self, mode: Mode) -> Mode:
        if mode != "auto":
            return mode
        return "table" if self._console.is_terminal and not self._console.is_dumb_terminal else "lines"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @_never_raises
    def start(self) -> None:
        """Show it."""
        if self._mode == "table":
            self._rich = RichLive(
                get_renderable=self._safe_view, console=self._console, refresh_per_second=2, vertical_overflow="crop"
            )
            self._rich.start()

    def stop(self) -> None:
        """Leave the last state on the screen and give the terminal back. Safe to call twice, and after a failure."""
        rich, self._rich = self._rich, None
        if rich is None:
            return
        try:
            rich.stop()
        except Exception as error:  # noqa: BLE001  as above
            log.warning("the live view could not be closed: %r", error)

    @_never_raises
    def on_event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Take note of one journal event. Unknown names are fine.

        Events may carry `queued` and `running`, the queue's own counts; without them the view counts for itself.
        """
        match name:
            case "job.queued":
                self._queued = (self._queued or 0) + 1
            case "job.started":
                self._queued = None if self._queued is None else max(0, self._queued - 1)
                self._running += 1
            case "job.done":
                self._running = max(0, self._running - 1)
            case "episode.done":
                self._episodes += 1
            case "eval.done":
                self._say(f"evaluated {fields.get('name', '')}".strip() + _value(fields))
            case "alarm":
                self._alarms[str(fields["name"])] = str(fields["message"])
                self._print_line(f"ALARM {fields['name']}: {fields['message']}")
            case "alarm.over":
                self._alarms.pop(str(fields["name"]), None)
                self._print_line(f"alarm over: {fields['name']}")
            case "run.finished":
                self._note = "finished"
        if "queued" in fields:
            self._queued = int(fields["queued"])
        self._running = int(fields.get("running", self._running))

    @_never_raises
    def on_metrics(self, row: Metrics) -> None:
        """One step is done. `row` has the keys of metrics.jsonl."""
        now = self._monotonic()
        self._step_times_s.append(now - self._last_step_s)
        self._last_step_s = now
        self._rows.append(dict(row))
        self._episodes = 0
        if self._mode == "lines":
            self._print(self._line(row))

    @_never_raises
    def note(self, text: str) -> None:
        """One remark: under the table, or as a line of its own."""
        self._say(text)

    def _say(self, text: str) -> None:
        self._note = text
        self._print_line(text)

    def _print_line(self, text: str) -> None:
        if self._mode == "lines":
            self._print(text)

    def _print(self, text: str) -> None:
        text = _plain(text) if self._console.options.ascii_only else text
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)

    # ---------------------------------------------------------------- what is shown

    @property
    def left_s(self) -> float | None:
        """Seconds until the last step, from the pace of the newest ten; None before the first."""
        recent = self._step_times_s[-10:]
        if not recent:
            return None
        since = self._monotonic() - self._last_step_s
        return max(0.0, sum(recent) / len(recent) * (self._total - len(self._rows)) - since)

    @property
    def usd(self) -> float:
        """Dollars spent, over all steps."""
        return sum(row.get("usd", 0.0) for row in self._rows)

    def _line(self, row: Metrics) -> str:
        named = " ".join(f"{part} {number(row.get(f'reward/{part}'))}" for part in _parts(row))
        parts = [
            f"step {len(self._rows):>{len(str(self._total))}}/{self._total}",
            f"reward {number(row.get('reward/mean'))}",
            *([f"({named})"] if named else []),
            f"valid at first try {percent(row.get('validation/first_try'))}",
            f"strongest base {percent(row.get('base/share_strongest'))}",
            f"staleness {number(row.get('staleness/mean'), 1)}",
            f"cost {money(self.usd)}",
        ]
        if len(self._rows) < self._total:
            parts.append(f"left {duration(self.left_s)}")
        return "  ".join(parts)

    def _safe_view(self) -> RenderableType:
        """Called on rich's own thread: it must not raise there either."""
        try:
            return self.view()
        except Exception as error:  # noqa: BLE001  as above
            self.broken = True
            return Text(f"(the live view failed: {error!r})")

    def view(self) -> RenderableType:
        """The table as it stands."""
        width = self._console.width
        ascii_only = self._console.options.ascii_only
        rewards = [row.get("reward/mean", math.nan) for row in self._rows]
        parts: list[RenderableType] = [self._headline(width, ascii_only=ascii_only)]
        if rewards:
            line = sparkline(rewards, width=max(8, min(40, width - 20)), ascii_only=ascii_only)
            newest = number(rewards[-1]) if math.isfinite(rewards[-1]) else "-"
            parts.append(Text.assemble(("reward ", "dim"), (line, "green"), " ", newest, overflow="crop"))
        if self._rows:
            parts.append(self._table(width, ascii_only=ascii_only))
        for name, message in self._alarms.items():
            parts.append(Text(f"! {name}: {message}", style="bold red"))  # however narrow, it is read whole
        if self._note:
            parts.append(Text(self._note, style="dim", overflow="ellipsis", no_wrap=True))
        return Group(*parts)

    def _headline(self, width: int, *, ascii_only: bool) -> Text:
        done, total = len(self._rows), self._total
        bar_width = 10
        filled = min(bar_width, round(bar_width * done / total)) if total else bar_width
        full, empty = ("#", ".") if ascii_only else ("━", "─")
        head = Text.assemble(
            (f"step {done}/{total} ", "bold"), (full * filled, "green"), (empty * (bar_width - filled), "dim")
        )
        left = duration(self.left_s) if done < total else "0 s"
        facts = [
            f"jobs {self._running} running" + ("" if self._queued is None else f" {self._queued} queued"),
            f"episodes {self._episodes}",
            f"cost {money(self.usd)}",
            f"time {duration(self._monotonic() - self._started_s)}",
            f"left {_plain(left) if ascii_only else left}",
        ]
        used = len(head)
        for fact in facts:  # a fact is never broken over two lines
            fits = used + 2 + len(fact) <= width
            head.append(("  " if fits else "\n") + fact)
            used = used + 2 + len(fact) if fits else len(fact)
        return head

    def _table(self, width: int, *, ascii_only: bool) -> Table:
        first = max(0, len(self._rows) - self._shown_rows)
        columns = [("step", [str(index) for index in range(first + 1, len(self._rows) + 1)])]
        parts = [(name, f"reward/{name}", number) for name in _parts(self._rows[-1])]
        for heading, key, wording in (*_FIRST, *parts, *_LAST):
            cells = [wording(row.get(key, math.nan)) for row in self._rows[first:]]
            columns.append((heading, [_plain(cell) if ascii_only else cell for cell in cells]))
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
        shown = _fitting(columns, width, kept=1 + len(_FIRST))
        for heading, _ in shown:
            table.add_column(heading, justify="right", no_wrap=True, style="bold" if heading == "reward" else "")
        for line in zip(*(cells for _, cells in shown), strict=True):
            table.add_row(*line)
        return table


def _fitting(columns: Sequence[tuple[str, list[str]]], width: int, *, kept: int) -> list[tuple[str, list[str]]]:
    """The columns that a terminal has room for, whole: the first `kept` before the others, and what a step took before its parts."""
    order = [*columns[:kept], *(c for name in _BEFORE_PARTS for c in columns[kept:] if c[0] == name)]
    order += [column for column in columns if column not in order]
    room, chosen = width + _GAP, []
    for heading, cells in order:
        needed = max(len(heading), *map(len, cells)) + _GAP
        if needed > room:
            break
        room -= needed
        chosen.append((heading, cells))
    return [column for column in columns if column in chosen]


def _parts(row: Metrics) -> list[str]:
    """The reward's parts, whatever the reward function calls them."""
    return [key.removeprefix("reward/") for key in row if key.startswith("reward/") and key != "reward/mean"]


def _plain(text: str) -> str:
    return text.replace("–", "-")


def _value(fields: Mapping[str, Any]) -> str:
    reward = fields.get("reward")
    return f": reward {number(reward)}" if isinstance(reward, int | float) else ""
