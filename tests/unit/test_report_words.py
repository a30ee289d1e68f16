"""What the report and the retrospective say in words: no plural of one, no interval that reads like a subtraction, no rash claim."""

import re
import shutil

import pytest
from made_run import make_run
from test_report import Page

from nested_rl import cli, retro
from nested_rl.report import advice, digest, intervals
from nested_rl.report.page import render, sentences, write_report
from nested_rl.report.phrases import number
from nested_rl.report.timeline import Bar, Delivery, Timeline
from nested_rl.rundir import RunDir


@pytest.fixture
def short(tmp_path):
    """One step of one group."""
    return RunDir.open(make_run(tmp_path / "run", steps=1, groups_per_step=1, group_size=4, evals=False).path)


def figures(run):
    return re.search(r'<dl class="figures">.*?</dl>', render(run), re.DOTALL).group()


def test_a_run_of_one_step_has_one_number_a_card(short):
    assert "→" not in figures(short)
    text = retro.retro(short)
    assert "1 step; 1 group a step; 4 episodes a group." in text
    assert not re.search(r"\b1 (steps|groups|episodes|jobs|machines)\b", text + Page(render(short)).text)


def test_an_interval_is_in_brackets_and_nought_has_no_sign(tmp_path):
    run = make_run(tmp_path / "run", steps=4, groups_per_step=2, group_size=4, evals=False)
    assert re.search(r"95&nbsp;%: \[\d\.\d\d, \d\.\d\d\]", figures(run))
    assert str(intervals.Interval(-0.001, -0.004, 0.1, 9)) == "0.00 [0.00, 0.10]"
    assert number(-0.004) == "0.00"
    assert number(-0.4) == "-0.40"


def test_per_cent_is_written_one_way(tmp_path):
    run = make_run(tmp_path / "run", steps=4, groups_per_step=2, group_size=4)
    assert not re.search(r"\d%", Page(re.sub(r"<style>.*?</style>", "", render(run), flags=re.DOTALL)).text)


def test_of_no_reused_job_nothing_is_said(short):
    found = digest.read(short)
    found.rows = [row | {"jobs/reused": 0.0} for row in found.rows]
    assert "answered" not in " ".join(sentences(found))
    found.rows[0]["jobs/reused"] = 1.0
    assert "(1 more was answered from identical ones)" in " ".join(sentences(found))


@pytest.mark.parametrize(
    ("shares", "told"),
    [
        ([0.1, 0.2], "never half of the episodes"),
        ([0.1, 0.6, 0.5], "half or more of the episodes first at step 2 and ever since"),
        ([0.1, 0.6, 0.4, 0.7], "half or more of the episodes first at step 2, but not ever since"),
    ],
)
def test_the_first_crossing_is_not_taken_for_the_last(shares, told):
    assert retro._crossed(shares) == told


@pytest.mark.parametrize(("seconds", "advised"), [(20.0, True), (100.0, False)])
def test_machines_that_idle_are_no_reason_for_more(short, seconds, advised):
    bars = (Bar(phase="queue", start_s=0, end_s=60), Bar(phase="train", start_s=60, end_s=80))
    one = Delivery(key="k", number=1, machine="gpu-1", end="job.done", bars=bars)
    found = digest.read(short)
    found.timeline = Timeline(deliveries=[one], seconds=seconds)
    assert any(line.startswith("More machines") for line in advice.of(found)) == advised


def test_where_the_page_cannot_be_written_the_summary_is_printed(short, capsys):
    (short.path / "transcripts").write_text("no folder")  # as a read-only folder does, for root too
    code = cli.main(["report", str(short.path)])
    said = capsys.readouterr()
    assert code == 5
    assert "Reward is " in said.out
    assert "Report:" not in said.out
    assert "--out FILE" in said.err


def test_a_page_elsewhere_leads_to_the_run_and_writes_nothing_into_it(short, tmp_path, capsys):
    write_report(short)
    before = {path: path.stat().st_mtime_ns for path in short.path.rglob("*")}
    out = tmp_path / "other place" / "page.html"
    assert cli.main(["report", str(short.path), "--out", str(out)]) == 0
    assert capsys.readouterr().out.rstrip().endswith(f"Report: {out}")
    assert {path: path.stat().st_mtime_ns for path in short.path.rglob("*")} == before
    links = [link for link in Page(out.read_text()).links if not link.startswith(("#", "data:"))]
    assert "../run/transcripts/index.html" in links
    assert all((out.parent / link).exists() for link in links)
    shutil.rmtree(short.path / "transcripts")
    assert cli.main(["report", str(short.path), "--out", str(out)]) == 0
    links = [link for link in Page(out.read_text()).links if not link.startswith(("#", "data:"))]
    assert all((out.parent / link).exists() for link in links)
