"""Trackers: the JSONL file is always readable, and nothing a tracker does reaches the run."""

import json
import logging
import math
import threading

import pytest

from nested_rl.errors import RunDirError
from nested_rl.interfaces import Tracker
from nested_rl.trackers.guard import guarded
from nested_rl.trackers.jsonl import JsonlTracker
from nested_rl.types import Episode, Outcome, Score, Task, Transcript

TASK = Task(id="calc_chain-3", family="calc_chain", difficulty=3)


def an_episode(**changes):
    outcome = Outcome(task=TASK, valid=True, attempts=1, base="nano-m", post=Score.of([1.0, 0.0]))
    fields = {
        "group": 2,
        "member": 1,
        "task": TASK,
        "version": 0,
        "transcript": Transcript(conversation=(), end="submitted"),
        "outcome": outcome,
        "reward": 0.5,
        "parts": {"validation": 1.0},
    }
    return Episode(**fields | changes)


def rows(path):
    return [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]


def test_every_row_is_one_json_object_and_is_there_at_once(tmp_path):
    tracker = JsonlTracker(tmp_path / "deep" / "log.jsonl")
    tracker.metrics(3, {"step": 3, "reward/mean": 0.25})
    tracker.episode(3, an_episode())
    metrics, episode = rows(tracker.path)
    assert metrics == {"kind": "metrics", "step": 3, "reward/mean": 0.25}
    assert episode["family"] == "calc_chain"
    assert episode["reward/validation"] == 1.0
    assert episode["post"] == 0.5
    assert episode["pre"] is None
    tracker.close()


def test_numbers_that_json_cannot_hold_become_null(tmp_path):
    tracker = JsonlTracker(tmp_path / "log.jsonl")
    tracker.metrics(0, {"ratio/max": math.inf, "ess": math.nan, "usd": 0.0})
    tracker.close()
    assert rows(tracker.path) == [{"kind": "metrics", "step": 0, "ratio/max": None, "ess": None, "usd": 0.0}]


def test_a_torn_line_of_a_killed_process_spoils_only_itself(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"kind": "metrics", "step": 0}\n{"kind": "met')
    tracker = JsonlTracker(path)
    tracker.metrics(1, {})
    tracker.close()
    lines = path.read_text().splitlines()
    assert json.loads(lines[-1])["step"] == 1
    assert lines[1] == '{"kind": "met'


def test_episodes_can_be_left_out(tmp_path):
    tracker = JsonlTracker(tmp_path / "log.jsonl", episodes=False)
    tracker.episode(0, an_episode())
    tracker.close()
    assert tracker.path.read_text() == ""


def test_a_place_that_cannot_be_written_is_said_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirError, match="cannot write the tracker's file"):
        JsonlTracker(tmp_path / "file" / "log.jsonl")


class Recorder(Tracker):
    def __init__(self):
        self.seen = []

    def metrics(self, step, values):
        self.seen.append((step, dict(values)))

    def episode(self, step, episode):
        self.seen.append((step, episode.group))

    def close(self):
        self.seen.append("closed")


class Broken(Recorder):
    def metrics(self, step, values):
        raise SystemExit("no more")

    def close(self):
        raise OSError("gone")


class Hung(Recorder):
    def __init__(self):
        super().__init__()
        self.called, self.release = threading.Event(), threading.Event()

    def metrics(self, step, values):
        self.called.set()
        self.release.wait(30)


def test_calls_arrive_in_order_and_the_last_one_is_close():
    recorder = Recorder()
    trackers = guarded([recorder])
    row = {"reward/mean": 0.1}
    trackers.metrics(0, row)
    row["reward/mean"] = 99.0
    trackers.episode(0, an_episode())
    trackers.close()
    assert recorder.seen == [(0, {"reward/mean": 0.1}), (0, 2), "closed"]
    assert not trackers.dropped
    assert not trackers.failed


def test_a_tracker_that_raises_is_told_about_once_and_the_others_go_on(caplog):
    recorder = Recorder()
    trackers = guarded([Broken(), recorder])
    with caplog.at_level(logging.WARNING):
        for step in range(5):
            trackers.metrics(step, {})
        trackers.close()
    assert [step for step, _ in recorder.seen[:-1]] == list(range(5))
    assert trackers.failed == {"Broken": 6}
    assert len(caplog.records) == 1
    assert "Broken failed" in caplog.text


def test_a_tracker_that_hangs_holds_nothing_up_and_what_it_misses_is_counted(caplog):
    hung, recorder = Hung(), Recorder()
    trackers = guarded([hung, recorder], queue_size=4, close_timeout_s=0.2)
    with caplog.at_level(logging.WARNING):
        trackers.metrics(0, {})
        assert hung.called.wait(30)
        for step in range(1, 10):
            trackers.metrics(step, {})
        trackers.close()
    hung.release.set()
    # One call hangs, nine follow, none of them arrived.
    assert trackers.dropped["Hung"] == 9
    assert caplog.text.count("does not keep up") >= 1
    assert "did not close in time" in caplog.text


def test_a_call_after_close_is_nothing():
    recorder = Recorder()
    trackers = guarded([recorder])
    trackers.close()
    trackers.metrics(1, {})
    trackers.close()
    assert recorder.seen == ["closed"]
