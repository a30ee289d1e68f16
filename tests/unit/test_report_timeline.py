"""The timeline: what each job waited for, on which machine, with pauses of the run cut out."""

import json
import sqlite3

import pytest
from made_run import make_run

from nested_rl.report import gantt, timeline
from nested_rl.report.page import render
from nested_rl.report.timeline import Timeline


def started(t, job, delivery=1):
    return {"t": t, "event": "job.started", "job": job, "key": f"calc_chain-k3-{job}", "delivery": delivery}


def ended(t, job, event="job.done", delivery=1, **fields):
    return {"t": t, "event": event, "job": job, "key": f"calc_chain-k3-{job}", "delivery": delivery, **fields}


def bars(delivery):
    return [(bar.phase, bar.start_s, bar.end_s) for bar in delivery.bars]


def test_a_job_waits_is_trained_and_is_scored():
    events = [
        {"t": 100.0, "event": "run.started"},
        started(110.0, "1"),
        ended(120.0, "1", seconds=8.0, machine="m0"),
        {"t": 121.0, "event": "step.done"},
    ]
    asked = {"calc_chain-k3-1": {"put_at": 104.0, "train_s": 6.0, "score_s": 2.0, "delivery": 1}}
    line = timeline.build(events, asked)
    assert bars(line.deliveries[0]) == [
        ("queue", 4.0, 10.0),
        ("boot", 10.0, 12.0),
        ("train", 12.0, 18.0),
        ("score", 18.0, 20.0),
    ]
    assert (line.seconds, line.steps_s, line.machines) == (21.0, [21.0], ["m0"])
    assert line.busy_share("m0") == pytest.approx(8 / 21)
    assert [(p.name, p.count, p.total_s) for p in line.phases] == [
        ("queue", 1, 6.0),
        ("boot", 1, 2.0),
        ("train", 1, 6.0),
        ("score", 1, 2.0),
    ]


def test_a_delivery_that_failed_is_not_training():
    events = [
        {"t": 0.0, "event": "run.started"},
        started(1.0, "1"),
        ended(5.0, "1", "job.released", seconds=3.0, machine="m1", usd=0.0),
        started(6.0, "1", 2),
        ended(9.0, "1", seconds=3.0, machine="m0", delivery=2),
    ]
    first, second = timeline.build(events, {}).deliveries
    assert bars(first) == [("boot", 1.0, 2.0), ("failed", 2.0, 5.0)]
    assert bars(second) == [("boot", 6.0, 6.0), ("train", 6.0, 9.0)]


def test_the_time_between_two_processes_is_left_out_and_a_lost_job_ends_where_its_process_did():
    events = [
        {"t": 0.0, "event": "run.started"},
        started(1.0, "1"),
        {"t": 10.0, "event": "episode.done"},
        {"t": 5000.0, "event": "run.started"},
        ended(5000.5, "1", "job.lost", usd=0.0, seconds=9.0),
        started(5002.0, "2"),
        ended(5004.0, "2", seconds=2.0, machine="m0"),
    ]
    line = timeline.build(events, {})
    assert line.seconds == 14.0
    assert line.stops_s == [10.0]
    assert [(d.start_s, d.end_s) for d in line.deliveries] == [(1.0, 10.0), (12.0, 14.0)]


def test_what_is_under_way_or_never_began_is_no_delivery():
    assert not timeline.build([{"t": 0.0, "event": "run.started"}, started(1.0, "1")], {}).deliveries
    assert not timeline.build([ended(3.0, "9", seconds=1.0)], {}).deliveries
    assert gantt.draw(Timeline()) is None


def test_a_lane_has_at_most_its_columns_however_many_jobs_there_were():
    events = [{"t": 0.0, "event": "run.started"}]
    for number in range(4000):
        t = 1.0 + number
        events += [started(t, str(number)), ended(t + 0.9, str(number), seconds=0.8, machine="m0")]
    line = timeline.build(events, {})
    (lane,) = timeline.lanes(line, ["m0"], columns=300)
    assert len(lane.runs) <= 300
    assert all(start + width <= 300 for _, start, width in lane.runs)
    assert lane.busy_share == pytest.approx(0.8, abs=0.01)
    assert {phase for phase, _, _ in lane.runs} == {"train"}
    drawn = gantt.draw(line)
    assert len(drawn.rows) == gantt.MOST_JOBS
    assert not drawn.steps


def test_idle_machines_have_gaps():
    events = [{"t": 0.0, "event": "run.started"}]
    for number, t in enumerate((10.0, 80.0)):
        events += [started(t, str(number)), ended(t + 10, str(number), seconds=10.0, machine="m0")]
    (lane,) = timeline.lanes(timeline.build(events, {}), ["m0"], columns=90)
    assert lane.runs == (("train", 10, 10), ("train", 80, 10))


def test_the_page_has_the_timeline_of_a_run_with_a_queue(tmp_path):
    run = make_run(tmp_path / "run", steps=2, groups_per_step=2, group_size=4)
    t = max(float(e["t"]) for e in run.events())
    run.journal.append(started(t + 1, "1"))
    run.journal.append(ended(t + 5, "1", seconds=3.0, machine="local-0 <b>"))
    run.close()
    with sqlite3.connect(run.path / "queue.sqlite") as file:
        file.execute("CREATE TABLE jobs (key, put_at, result)")
        result = json.dumps({"train_s": 2.0, "score_s": 1.0, "deliveries": 1})
        file.execute("INSERT INTO jobs VALUES (?, ?, ?)", ("calc_chain-k3-1", t, result))
    file.close()
    text = render(run)
    assert "Jobs over time" in text
    assert "local-0 &lt;b&gt;" in text
    assert "waiting in the queue 1.0 s; waiting for a machine 1.0 s; training 2.0 s; scoring 1.0 s" in text


def test_reading_the_queue_leaves_nothing_behind(tmp_path):
    run = make_run(tmp_path / "run", steps=1, groups_per_step=1, group_size=2)
    queue = sqlite3.connect(run.path / "queue.sqlite")
    queue.execute("PRAGMA journal_mode=WAL")
    queue.execute("CREATE TABLE jobs (key, put_at, result)")
    queue.execute("INSERT INTO jobs VALUES ('a', 5.0, NULL)")
    queue.commit()
    assert timeline._asked(run)["a"]["put_at"] == 5.0, "while its owner has it open"
    queue.close()
    assert timeline._asked(run)["a"]["put_at"] == 5.0
    assert [path.name for path in run.path.glob("queue*")] == ["queue.sqlite"]


def test_a_queue_that_cannot_be_read_leaves_its_part_out(tmp_path):
    run = make_run(tmp_path / "run", steps=1, groups_per_step=1, group_size=2)
    (run.path / "queue.sqlite").write_bytes(b"no database at all, but long enough to be looked into" * 9)
    assert "Jobs over time" not in render(run)


def test_the_newest_jobs_are_those_of_episodes_by_their_names_and_machines():
    def one(n, key, machine):
        bars = (timeline.Bar(phase="train", start_s=n, end_s=n + 1),)
        return timeline.Delivery(key=key, number=1, machine=machine, end="job.done", bars=bars)

    line = Timeline(deliveries=[one(0, "calc-k3-a", "gpu-1"), one(1, "triage-k3-b", "gpu-1")], seconds=2.0)
    (row,) = gantt.draw(line, {"calc-k3-a": "00003-1"}).rows
    assert row.label == "00003-1 gpu-1"
    assert row.told.startswith("00003-1; calc-k3-a; gpu-1; ")
    assert [row.label for row in gantt.draw(line).rows] == ["calc gpu-1", "triage gpu-1"]
