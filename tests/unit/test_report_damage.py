"""Runs that went wrong: what ended them is told first, and a file that is torn takes only its own episode with it."""

import json

import pytest
from made_run import make_run

from nested_rl import cli, export
from nested_rl.replay import replay
from nested_rl.report import digest
from nested_rl.report.during import DuringRun
from nested_rl.report.page import render, summary, write_report
from nested_rl.report.transcripts import select, write_transcripts
from nested_rl.retro import retro
from nested_rl.rewards import UpliftReward
from nested_rl.rundir import RunDir

ERROR = "RuntimeError: the <b>provider</b> has no credit\u202e left"
SAID = "RuntimeError: the <b>provider</b> has no credit⟨U+202E⟩ left"


def failed(tmp_path, done):
    """A run of six steps that an error ended after some."""
    run = make_run(tmp_path / "run", steps=6, done=done, groups_per_step=2, group_size=2, evals=False)
    t = max(float(event["t"]) for event in run.events()) + 1
    run.journal.append({"t": t, "event": "run.failed", "error": ERROR})
    run.close()
    return RunDir.open(run.path)


@pytest.mark.parametrize(("done", "when"), [(0, "before a step was done"), (2, "after 2 of 6 steps")])
def test_what_ended_a_run_is_told_first(tmp_path, capsys, done, when):
    run = failed(tmp_path, done)
    assert summary(run).startswith(f"The run failed {when}: {SAID}. ")
    page = render(run)
    head = page[page.index("<h1>") : page.index("</header>")]
    assert f"failed {when} ·" in head
    assert SAID.replace("<", "&lt;").replace(">", "&gt;") in head
    assert "<b>provider" not in page
    short = retro(run).partition("## In short\n")[2].strip()
    assert short.startswith(f"**The run failed {when}**: `{SAID}`.")
    assert "What ended the run" in retro(run).partition("## What to try next\n")[2].strip().splitlines()[0]
    assert cli.main(["watch", str(run.path), "--once"]) == 0
    assert capsys.readouterr().out.endswith(f"  failed: {SAID}\n")
    cli.main(["watch", str(run.path), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert (told["state"], told["error"], told["step"]) == ("failed", SAID, done)


def test_another_process_that_takes_over_ends_the_failure(tmp_path, capsys):
    run = failed(tmp_path, 2)
    t = max(float(event["t"]) for event in run.events()) + 1
    run.journal.append({"t": t, "event": "run.started", "steps": 6})
    run.close()
    assert digest.read(run).failure == ""
    assert "failed" not in summary(run)
    cli.main(["watch", str(run.path), "--json"])
    assert json.loads(capsys.readouterr().out)["error"] is None


def test_a_run_that_somebody_stopped_says_so(tmp_path):
    run = make_run(tmp_path / "run", steps=6, done=2, groups_per_step=2, group_size=2, evals=False)
    run.journal.append({"t": 1.9e9, "event": "run.stopped"})
    run.close()
    assert "stopped, 2 of 6 steps done" in render(run)
    assert digest.read(run).failure == ""


@pytest.fixture
def torn(tmp_path):
    """A run of 24 episodes, one of them torn in the middle of its last file."""
    run = make_run(tmp_path / "run", steps=3, groups_per_step=2, group_size=4, evals=False)
    path = run.episode_dir(2, 1) / "reward.json"
    path.write_bytes(path.read_bytes()[:100])
    return RunDir.open(run.path), path


def test_one_torn_episode_is_left_out_and_named(torn):
    run, path = torn
    found = digest.read(run)
    assert found.episodes == 23
    assert list(found.left_out) == ["00002-1"]
    written = write_report(run).read_text()
    assert "Episodes that could not be read" in written
    for told in (summary(run), written, retro(run)):
        assert "1 episode could not be read and was left out" in told
        assert "reward.json: damaged" in told
    assert str(path) in summary(run)


def test_the_others_of_its_group_are_replayed_and_exported(torn, tmp_path):
    run, path = torn
    found = replay(run, UpliftReward())
    assert list(found.damaged) == ["00002-1"]
    assert found.to_json()["damaged"].keys() == {"00002-1"}
    assert str(path) in str(found)
    masked = sum(e.masked for e in run.episodes(left_out={}))
    assert (len(found.changes), found.unfinished) == (23 - masked, 0)
    made = export.write(run, tmp_path / "chats.jsonl")
    assert made.left_out["that could not be read"] == 1
    assert str(path) in str(made)
    assert made.chats == len((tmp_path / "chats.jsonl").read_text().splitlines()) > 0
    left_out = {}
    assert len(list(export.rows(run, damaged=left_out))) == 23
    assert list(left_out) == ["00002-1"]


def test_a_log_to_look_at_leaves_it_out_too(torn, tmp_path, capsys):
    run, path = torn
    assert cli.main(["export", str(run.path), "--format", "inspect", "--out", str(tmp_path / "log.json")]) == 0
    said = capsys.readouterr().out
    assert "log.json: 23 episodes; " in said
    assert f"Left out: 1 episode; the first: {path}: damaged" in said


def test_all_pages_but_its_own_are_written(torn):
    run, _ = torn
    pages = write_transcripts(run, select(run, ["all"]))
    assert len(pages) == 23
    assert "00002-1" not in {page.stem for page in pages}


def test_a_page_while_the_run_goes_on_passes_it_over_too(torn):
    run, _ = torn
    clock = iter((0.0, *[100.0] * 9))
    pages = DuringRun(run, monotonic=lambda: next(clock))
    pages.step_done()
    pages._thread.join()
    assert not pages.broken
    assert "could not be read" in (run.path / "report.html").read_text()


@pytest.mark.parametrize("damage", ["missing", "torn"])
def test_steps_are_in_the_journal_where_the_metrics_are_gone(tmp_path, damage):
    run = make_run(tmp_path / "run", steps=3, groups_per_step=2, group_size=2, evals=False)
    rows, before = run.metrics(), summary(run)
    path = run.path / "metrics.jsonl"
    path.unlink() if damage == "missing" else path.write_text("{\n" + path.read_text())
    assert digest.read(run).rows == rows
    assert summary(run) == before
