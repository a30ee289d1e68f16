"""The live view: what it shows, where, and that it never hurts a run."""

import io
import logging
import math

import pytest
from rich.console import Console

from nested_rl.report.live import Live, Screen
from nested_rl.report.phrases import duration, money, number, sparkline

ROW = {
    "step": 0,
    "reward/mean": 0.41,
    "reward/validation": 0.8,
    "reward/quality": 0.2,
    "reward/speed": 0.1,
    "validation/first_try": 0.62,
    "base/share_strongest": 0.8,
    "tools/baselines": 0.5,
    "staleness/mean": 1.0,
    "usd": 0.25,
    "jobs/run": 20,
    "jobs/reused": 3,
    "time/step_s": 8.0,
}


class Watch:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def terminal(width=120, **options):
    return Console(file=io.StringIO(), force_terminal=True, width=width, _environ={"TERM": "xterm-256color"}, **options)


def drawn(live, console):
    console.print(live.view())
    return console.file.getvalue()


def after(steps, console, total=25):
    watch = Watch()
    live = Live(total, console=console, mode="quiet", monotonic=watch)
    for step in range(steps):
        watch.now += 10.0
        live.on_metrics({**ROW, "step": step, "reward/mean": step / 25})
    return live


def test_the_table_shows_the_newest_steps_and_the_time_left():
    console = terminal(color_system=None)
    text = drawn(after(12, console), console)
    assert "step 12/25" in text
    assert "left 2 min 10 s" in text
    assert "cost $3.00" in text
    for heading in ("reward", "valid 1st", "strongest", "validation", "quality", "speed", "stale"):
        assert heading in text
    first_cells = [line.split()[0] for line in text.splitlines() if line.strip()[:1].isdigit()]
    assert first_cells == [str(step) for step in range(5, 13)]


@pytest.mark.parametrize("width", [20, 28, 40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal_and_no_cell_is_cut(width):
    console = terminal(width=width, color_system=None)
    text = drawn(after(9, console), console)
    assert all(len(line) <= width for line in text.splitlines())
    if width >= 28:
        assert "…" not in text
        assert "valid 1st" in text


def test_a_reward_of_ones_own_has_columns_of_its_own():
    console = terminal(width=80, color_system=None)
    live = Live(5, console=console, mode="quiet")
    live.on_metrics({"reward/mean": 0.5, "reward/thrift": 0.25, "validation/first_try": 1.0})
    text = drawn(live, console)
    assert "thrift" in text
    assert "0.25" in text
    assert "quality" not in text


def test_what_a_step_took_comes_before_the_parts_where_there_is_little_room():
    narrow, wide = terminal(width=42, color_system=None), terminal(width=130, color_system=None)
    first, second = (drawn(after(3, console), console).splitlines() for console in (narrow, wide))
    headings = [next(line for line in lines if line.startswith("step  ")).split() for lines in (first, second)]
    assert headings[0] == ["step", "reward", "valid", "1st", "strongest", "time"]
    assert headings[1][-6:] == ["stale", "asked", "jobs", "reused", "cost", "time"]


@pytest.mark.parametrize("width", [24, 40, 80])
def test_an_alarm_is_read_whole_however_narrow_the_terminal(width):
    console = terminal(width=width, color_system=None)
    live = after(2, console)
    live.on_event("alarm", {"name": "disk", "message": "0.52 GiB are free where the run is written"})
    assert "! disk: 0.52 GiB are free where the run is written" in " ".join(drawn(live, console).split())


def test_no_colour_means_no_colour_codes():
    plain, coloured = terminal(no_color=True), terminal()
    assert "\x1b[32m" not in drawn(after(3, plain), plain)
    assert "\x1b[32m" in drawn(after(3, coloured), coloured)


def test_an_ascii_terminal_gets_ascii():
    raw = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console = Console(file=raw, force_terminal=True, width=80, _environ={"TERM": "xterm"})
    live = after(3, console)
    live.on_metrics({"reward/mean": math.nan})
    console.print(live.view())
    raw.flush()
    assert b"step 4/25" in raw.buffer.getvalue()


def test_jobs_are_counted_from_their_events_or_taken_from_the_queue():
    console = terminal(color_system=None)
    live = Live(25, console=console, mode="quiet")
    for name in ("job.queued", "job.queued", "job.queued", "job.started", "job.started", "job.done", "never.heard.of"):
        live.on_event(name, {})
    assert "jobs 1 running 1 queued" in drawn(live, console)
    live.on_event("job.started", {"running": 2, "queued": 7})
    assert "jobs 2 running 7 queued" in drawn(live, console)


def test_without_a_terminal_there_is_one_plain_line_a_step():
    out = io.StringIO()
    with Live(2, console=Console(file=out, width=80)) as live:
        live.on_event("group.started", {"group": 0})
        live.on_metrics(ROW)
        live.on_metrics(ROW)
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert "\x1b" not in out.getvalue()
    assert lines[0].startswith(
        "step 1/2  reward 0.41  (validation 0.80 quality 0.20 speed 0.10)  valid at first try 62 %"
    )
    assert "left" in lines[0]
    assert "left" not in lines[1]


def test_a_reward_without_named_parts_has_no_brackets():
    out = io.StringIO()
    with Live(2, console=Console(file=out, width=80)) as live:
        live.on_metrics({key: value for key, value in ROW.items() if key in ("reward/mean", "validation/first_try")})
    assert out.getvalue().startswith("step 1/2  reward 0.41  valid at first try")


def test_a_dumb_terminal_gets_lines():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, _environ={"TERM": "dumb"})
    with Live(2, console=console) as live:
        live.on_metrics(ROW)
    assert len(out.getvalue().splitlines()) == 1


def test_quiet_says_nothing():
    out = io.StringIO()
    with Live(2, console=Console(file=out, force_terminal=True), mode="quiet") as live:
        live.on_metrics(ROW)
        live.note("hello")
    assert out.getvalue() == ""


def test_earlier_steps_count_when_a_run_is_resumed():
    console = terminal(color_system=None)
    live = Live(25, console=console, mode="quiet", done_steps=tuple(ROW for _ in range(10)))
    assert live.left_s is None
    live.on_metrics(ROW)
    assert "step 11/25" in drawn(live, console)


class Broken(io.StringIO):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def write(self, text):
        raise self.error


@pytest.mark.parametrize("mode", ["table", "lines"])
def test_a_view_that_fails_is_told_about_once_and_the_run_goes_on(mode, caplog):
    console = Screen(file=Broken(OSError(28, "disk full")), force_terminal=True, width=80, _environ={"TERM": "xterm"})
    live = Live(3, console=console, mode=mode)
    with caplog.at_level(logging.WARNING):
        live.start()
        for _ in range(3):
            live.on_metrics(ROW)
            live.on_event("job.done", {"queued": "many"})
        live.stop()
        live.stop()
    assert live.broken
    assert sum("live view failed" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("mode", ["table", "lines"])
def test_a_reader_who_goes_away_does_not_end_the_run(mode):
    console = Screen(file=Broken(BrokenPipeError()), force_terminal=True, width=80, _environ={"TERM": "xterm"})
    with Live(3, console=console, mode=mode) as live:
        live.on_metrics(ROW)
        live.on_metrics(ROW)
    assert console.quiet


def test_the_table_really_draws_in_a_terminal():
    console = terminal(color_system=None)
    with Live(3, console=console) as live:
        live.on_metrics(ROW)
        live.on_event("run.finished", {})
    assert "step 1/3" in console.file.getvalue()
    assert "finished" in console.file.getvalue()


def test_how_numbers_are_spoken():
    assert duration(None) == duration(math.inf) == number(None) == money(math.nan) == "–"
    assert duration(59.6) == "1 min"
    assert sparkline([0, math.nan, 2.0]) == "▁ █"
    assert len(sparkline([0.1] * 100, width=7)) == 7
