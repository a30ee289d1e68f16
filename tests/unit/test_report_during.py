"""The report while the run goes on: each episode read once, a page now and then, and no harm to the run."""

import logging
import random

import pytest
from made_run import made_episode, make_run

from nested_rl import rundir
from nested_rl.errors import RunDirError
from nested_rl.report import digest, during, page
from nested_rl.report.during import DuringRun
from nested_rl.rundir import RunDir


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def run(tmp_path):
    """Three of five steps done, and a group in flight."""
    return make_run(tmp_path / "run", steps=5, done=3, groups_per_step=2, group_size=3, seed=4)


@pytest.fixture
def counted(monkeypatch):
    """The names of the episodes that were read."""
    names, plain = [], RunDir.read_episode
    monkeypatch.setattr(
        RunDir, "read_episode", lambda self, g, m, **kw: names.append((g, m)) or plain(self, g, m, **kw)
    )
    return names


def write(pages):
    pages.step_done()
    pages._thread.join()


def add_step(run, step):
    """One more step, of groups that are on disk already."""
    row = {**run.metrics()[-1], "step": step}
    groups = [2 * step, 2 * step + 1]
    for index in groups:
        for member in range(3):
            episode, files = made_episode(
                random.Random(index * 10 + member),
                group=index,
                member=member,
                family="dispatch",
                version=step,
                skill=1.0,
            )
            run.write_episode(episode, files=files)
    run.journal.append(
        {"t": 1.9e9, "event": "step.done", "step": step, "version": step + 1, "groups": groups, "row": row}
    )
    run.metrics_log.append(row)


def test_each_episode_is_read_once(run, counted):
    growing = digest.Growing(run)
    assert growing.catch_up().episodes == 18
    assert sorted(counted) == [(group, member) for group in range(6) for member in range(3)]
    add_step(run, 3)
    assert growing.catch_up().episodes == 24
    assert len(counted) == len(set(counted)) == 24
    assert len(growing.catch_up().rows) == 4
    run.close()


def test_the_last_page_reads_only_what_no_page_has_read(run, monkeypatch):
    """It has the group in flight too, and what is said of the run is of the same reading."""
    opened, plain = [], rundir._read_episode
    monkeypatch.setattr(rundir, "_read_episode", lambda root: opened.append(root.name) or plain(root))
    there = {path.parent.name for path in run.path.glob("episodes/*/reward.json")}
    pages = DuringRun(run, monotonic=Clock())
    pages._not_before_s = 0.0
    write(pages)
    trained = set(opened)
    assert trained < there
    opened.clear()
    told = pages.last()
    assert there - trained <= set(opened)
    assert trained & set(opened) <= set(page._linked(told))  # for the pages of their own
    assert told.episodes == len(there)
    assert page.summary(run, told) == page.summary(run)
    run.close()


def test_what_has_grown_is_what_is_read_at_once(run):
    growing = digest.Growing(run)
    growing.catch_up()
    add_step(run, 3)
    add_step(run, 4)
    run.close()
    grown, read = growing.catch_up(), digest.read(run)
    assert page.sentences(grown) == page.sentences(read)
    assert grown.sums == read.sums
    assert grown.failures == read.failures
    assert grown.points == read.points
    assert {name: e for name, (_, e) in grown.notable.found.items()} == {
        name: e for name, (_, e) in read.notable.found.items()
    }
    assert page.render_digest(run, grown) == page.render(run)


def test_a_page_comes_after_a_while_and_then_only_so_often(run):
    clock, work = Clock(), Clock()
    work.now = [0.0, 2.0, 2.0, 2.0]  # the first page is two seconds' work
    with DuringRun(run, monotonic=clock, worked_s=lambda: work.now.pop(0)) as pages:
        pages.step_done()
        assert pages._thread is None, "too early"
        clock.now = during.FIRST_S
        write(pages)
        assert "3 of 5 steps done" in (run.path / "report.html").read_text()
        first = pages._thread
        clock.now += 2.0 / during.SHARE - 1
        pages.step_done()
        assert pages._thread is first, "too soon after one of two seconds' work"
        clock.now += 1
        write(pages)
        assert pages._thread is not first


def test_a_page_that_fails_is_told_once_and_the_run_goes_on(run, monkeypatch, caplog):
    clock = Clock()
    monkeypatch.setattr(page, "render_digest", lambda run, digest: 1 / 0)
    with caplog.at_level(logging.WARNING), DuringRun(run, monotonic=clock) as pages:
        clock.now = during.FIRST_S
        write(pages)
        clock.now += 1000
        pages.step_done()
    assert [record.message for record in caplog.records] == [
        "the report could not be written and is left for the end of the run: ZeroDivisionError('division by zero')"
    ]
    assert not (run.path / "report.html").exists()


def test_at_the_end_of_the_run_a_page_in_the_middle_is_given_up(run, counted):
    pages = DuringRun(run, monotonic=Clock())
    pages.close()
    pages._write()
    assert not counted
    assert not (run.path / "report.html").exists()


def test_the_last_page_is_of_the_whole_run_and_a_mistake_in_it_ends_nothing(run, monkeypatch, caplog):
    pages = DuringRun(run, monotonic=Clock())
    pages.last()
    assert "3 of 5 steps done" in (run.path / "report.html").read_text()
    monkeypatch.setattr(page, "render_digest", lambda run, digest: 1 / 0)
    with caplog.at_level(logging.WARNING):
        pages.last()
    assert ["could not be written: ZeroDivisionError" in record.message for record in caplog.records] == [True]


def test_a_last_page_that_has_no_room_is_an_error_of_the_run(run, monkeypatch):
    def full(path, data):
        raise RunDirError("no room")

    monkeypatch.setattr(page, "write_atomic", full)
    with pytest.raises(RunDirError, match="no room"):
        DuringRun(run, monotonic=Clock()).last()
