"""A small real run, read in every way there is: what is told of it agrees with what it recorded."""

import re

import pytest

import nested_rl as nrl
from nested_rl.report import digest, timeline
from nested_rl.retro import retro
from nested_rl.rundir import RunDir


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Real models, real jobs: two steps of two groups."""
    out = tmp_path_factory.mktemp("runs") / "small"
    return nrl.Experiment().run(2, groups_per_step=2, group_size=4, eval_every=0, out=out, quiet=True)


@pytest.mark.timeout(600)
def test_replay_with_the_default_reward_gives_exactly_the_recorded_rewards(run):
    report = run.replay(nrl.rewards.UpliftReward())
    recorded = {(e.group, e.member): e.reward for e in run.episodes if not e.masked}
    assert recorded
    assert {(c.group, c.member): c.now for c in report.changes} == recorded
    assert report.same == len(recorded)
    assert all(c.advantage_was == c.advantage_now for c in report.changes)


@pytest.mark.timeout(600)
def test_the_timeline_has_every_delivery_and_its_phases_add_up(run):
    directory = RunDir.open(run.path)
    line = timeline.read(directory)
    done = {event["key"]: event for event in directory.events("job.done")}
    assert {delivery.key for delivery in line.deliveries} == set(done)
    for delivery in line.deliveries:
        phases = {bar.phase: bar.end_s - bar.start_s for bar in delivery.bars}
        assert phases["train"] + phases.get("score", 0.0) == pytest.approx(done[delivery.key]["seconds"], abs=0.2)
        assert phases["queue"] >= 0
        assert delivery.machine.startswith("local-")
        assert [bar.end_s for bar in delivery.bars[:-1]] == [bar.start_s for bar in delivery.bars[1:]]
        assert delivery.end_s <= line.seconds


@pytest.mark.timeout(600)
def test_report_and_retrospective_say_what_the_records_say(run):
    directory = RunDir.open(run.path)
    found = digest.read(directory)
    page, text = run.report.read_text(encoding="utf-8"), retro(directory)
    started = sum(1 for _ in directory.events("job.started"))
    assert started == len(found.timeline.deliveries)
    assert f"It ran {round(found.total('jobs/run'))} job" in text
    assert re.search(r"\$0\b", text)
    assert "2 steps" in text
    links = re.findall(r'href="(transcripts/[^"]*)"', page)
    assert links
    assert all((run.path / link).is_file() for link in links)
