"""Watch: one line or the run's own view from another terminal, read-only, until the run ends."""

import io
import json
from pathlib import Path

import pytest
from made_run import make_run
from rich.console import Console

from nested_rl import cli
from nested_rl.cli import watching
from nested_rl.cli.watching import Watched, follow
from nested_rl.errors import RunDirError
from nested_rl.rundir import RunDir


@pytest.fixture
def told(capsys):
    def call(*argv):
        code = cli.main(["watch", *map(str, argv)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def run(tmp_path):
    """Three of five steps are done; nobody works on it."""
    return RunDir.open(make_run(tmp_path / "run", steps=5, done=3, groups_per_step=2, group_size=2, evals=False).path)


@pytest.fixture
def owned(run):
    """The same, while its process works."""
    own = RunDir(run.path)
    own.own()
    yield own
    own.close()


class Clock:
    """Starts at the newest event of the run."""

    def __init__(self, run):
        self.now = max(float(e["t"]) for e in run.events())

    def __call__(self):
        return self.now


def finish(run):
    """What `run.started` … `run.finished` looks like."""
    row = run.metrics()[-1]
    t = max(float(e["t"]) for e in run.events())
    for step in range(3, 5):
        t += 4
        run.journal.append({"t": t, "event": "job.started", "running": 2, "queued": 3})
        run.journal.append(
            {"t": t + 1, "event": "step.done", "row": {**row, "step": step}, "version": step, "ref": "x"}
        )
    run.journal.append({"t": t + 2, "event": "run.finished"})


def test_one_line_says_how_a_run_stands(told, run):
    code, out, err = told(run.path, "--once")
    row = run.metrics()[-1]
    assert (code, err) == (0, "")
    assert out == (
        f"step 3/5  reward {row['reward/mean']:.2f}  valid {100 * row['validation/valid']:.0f} %  "
        "jobs 0 running 0 queued  cost $0.06  stopped\n"
    )


def test_a_run_at_work_tells_its_jobs_and_the_time_left(owned):
    owned.journal.append({"t": Clock(owned).now + 1, "event": "job.started", "running": 2, "queued": 7})
    status = Watched(owned, now=Clock(owned)).status()
    assert (status.state, status.running, status.queued) == ("running", 2, 7)
    assert status.left_s == pytest.approx(2 * 4 - 1)  # two steps of 4 s, of which 1 s is over
    assert str(status).endswith("jobs 2 running 7 queued  cost $0.06  left 7 s  running")


def test_watching_takes_no_lock_and_writes_nothing(owned, told):
    before = {p: p.stat().st_mtime_ns for p in owned.path.rglob("*")}
    assert told(owned.path, "--once")[0] == 0
    with pytest.raises(ValueError, match="another process"):
        RunDir(owned.path).own()  # it is still the other's
    assert {p: p.stat().st_mtime_ns for p in owned.path.rglob("*")} == before


def test_json_for_scripts(told, run):
    data = json.loads(told(run.path, "--json")[1])
    assert (data["state"], data["step"], data["steps"], data["left_s"]) == ("stopped", 3, 5, None)
    assert data["usd"] == pytest.approx(0.06)


def test_a_finished_run_stays_finished_while_it_is_evaluated(owned):
    finish(owned)
    owned.journal.append({"t": 2e9, "event": "job.started", "running": 2, "queued": 9})
    status = Watched(owned, now=Clock(owned)).status()
    assert (status.state, status.step, status.running, status.queued) == ("finished", 5, 0, 0)


def test_more_steps_make_it_unfinished_again(owned):
    finish(owned)
    toml = owned.path / "run.toml"
    toml.write_text(toml.read_text().replace("steps = 5", "steps = 9"))
    owned.journal.append({"t": Clock(owned).now + 100, "event": "run.started"})
    status = Watched(owned, now=Clock(owned)).status()
    assert (status.state, status.step, status.steps, status.left_s) == ("running", 5, 9, None)


def test_it_follows_to_the_end_line_by_line(owned):
    out, slept, clock = io.StringIO(), [], Clock(owned)
    clock.now += 3  # somewhere in the middle of a step of 5 s

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 2:
            finish(owned)

    follow(owned, Console(file=out, width=200), sleep=sleep, now=clock)
    lines = out.getvalue().splitlines()
    assert len(slept) == 2
    assert [line.split("  ")[0] for line in lines] == ["step 3/5", "step 4/5", "step 5/5", "step 5/5"]
    assert lines[0].endswith("running")
    assert lines[1].endswith("left 5 s")
    assert lines[-1].endswith("finished")


def test_it_draws_the_table_in_a_terminal(owned):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, color_system=None, _environ={"TERM": "xterm"})
    follow(owned, console, sleep=lambda _: finish(owned), now=Clock(owned))
    text = out.getvalue()
    assert "step 5/5" in text
    assert "valid 1st" in text
    assert "finished" in text


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="this system has no list of locks")
def test_a_run_that_is_killed_ends_the_watch_and_says_what_to_do(owned):
    out = io.StringIO()
    follow(owned, Console(file=out, width=200), sleep=lambda _: owned.close(), now=Clock(owned))
    assert "stopped; the command that started it resumes it" in out.getvalue()
    assert out.getvalue().splitlines()[-1].endswith("stopped")


def test_a_run_that_ends_between_two_looks_is_finished_not_stopped(owned, monkeypatch):
    watched = Watched(owned, now=Clock(owned))

    def ends(_):
        monkeypatch.setattr(watching, "_held", lambda _: False)
        finish(owned)
        return False

    monkeypatch.setattr(watching, "_held", ends)
    assert watched.status().state == "finished"


def test_a_torn_line_waits_until_it_is_whole(owned):
    watched = Watched(owned, now=Clock(owned))
    line = json.dumps({"t": 1.8e9, "event": "step.done", "row": {"reward/mean": 0.75}}).encode() + b"\n"
    with owned.journal.path.open("ab") as file:
        file.write(line[:20])
        file.flush()
        watched.catch_up()
        assert watched.status().step == 3
        file.write(line[20:])
    watched.catch_up()
    assert (watched.status().step, watched.status().reward) == (4, 0.75)


def test_a_run_that_is_started_over_or_deleted_ends_the_watch(owned):
    watched = Watched(owned)
    owned.journal.path.write_text("")
    with pytest.raises(RunDirError, match="started over"):
        watched.catch_up()
    owned.journal.path.unlink()
    with pytest.raises(RunDirError, match="deleted"):
        watched.catch_up()


def test_without_a_list_of_locks_silence_decides(run, monkeypatch):
    monkeypatch.setattr(watching, "_held", lambda _: None)
    clock = Clock(run)
    assert Watched(run, now=clock).status().state == "running"
    clock.now += watching.SILENT_S + 1
    assert Watched(run, now=clock).status().state == "stopped"


def test_a_run_that_has_only_begun(tmp_path, told):
    RunDir.create(tmp_path / "run", {"steps": 5}).close()
    assert told(tmp_path / "run", "--once")[1].startswith("step 0/5  reward –  valid –")


def test_a_path_that_is_no_run(told, tmp_path):
    code, out, err = told(tmp_path)
    assert (code, out) == (2, "")
    assert "not a run directory" in err


def test_ctrl_c_leaves_without_a_word(told, run, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(watching, "follow", interrupted)
    assert told(run.path) == (130, "", "")
