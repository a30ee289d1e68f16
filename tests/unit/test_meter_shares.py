"""The ledger by job, episode and step: one row of every kind, and none of them twice."""

from __future__ import annotations

import json

import pytest
from made_run import make_run

from nested_rl.episode import derived
from nested_rl.rundir import RunDir
from nested_rl.shares import shares


@pytest.fixture
def run(tmp_path):
    """A finished run whose ledger is written anew."""
    made = make_run(tmp_path / "run", steps=2, groups_per_step=1, group_size=2)
    (made.path / "costs.jsonl").unlink(missing_ok=True)
    return RunDir.open(made.path)


def pay(run, *rows):
    for number, row in enumerate(rows):
        run.costs_log.append({"id": f"row-{number}", "t": 1.0, **row})
    run.costs_log.close()


def keys(run):
    return {(e.group, e.member): e.job_key for e in run.episodes() if e.job_key}


def test_rows_of_every_kind_find_their_places(run):
    (place, key) = next(iter(keys(run).items()))
    seed = derived(int(run.spec.get("seed", 0)), "episode", *place)
    shared = [one for one, job in keys(run).items() if job == key]
    pay(
        run,
        {"id": f"{key}#1", "kind": "job.lost", "usd": 1.0, "seconds": 3.0},
        {"id": f"{key}#2", "kind": "job", "usd": 2.0, "seconds": 6.0},
        {"kind": "pod/provision", "usd": 0.5, "pod": "a", "seconds": 50.0},
        {"kind": "pod/busy", "usd": 1.0, "pod": "a", "seconds": 100.0, "job": key},
        {"kind": "pod/busy", "usd": 3.0, "pod": "a", "seconds": 300.0, "job": "of-nobody"},
        {"kind": "pod/busy", "usd": 0.25, "pod": "b", "seconds": 25.0},  # a baseline on a pod that had no job
        {"id": f"agent-{seed:x}@1.0", "kind": "agent", "usd": 0.125, "group": place[0], "member": place[1]},
        {
            "id": "agent-1234@1.0",
            "kind": "agent",
            "usd": 0.0625,
            "group": place[0],
            "member": place[1],
        },  # an evaluation's
        {"id": "update-1", "kind": "update", "usd": 8.0, "step": 0},
    )
    total = 15.9375
    by_job, by_episode, by_step = (shares(run, by) for by in ("job", "episode", "step"))
    assert by_job == pytest.approx({"of-nobody": 3.375, key: 4.125, "": 0.25 + 0.125 + 0.0625 + 8.0})
    name = f"{place[0]:05d}-{place[1]}"
    assert by_episode[name] == pytest.approx(4.125 / len(shared) + 0.125)
    assert by_step["0"] >= 8.0
    assert all(sum(found.values()) == pytest.approx(total) for found in (by_job, by_episode, by_step))
    assert list(by_step)[-1] == ""


def test_a_job_of_two_episodes_is_paid_in_equal_parts(run):
    first, second = list(run.episodes())[:2]
    for episode in (first, second):
        path = run.path / "episodes" / f"{episode.group:05d}-{episode.member}" / "reward.json"
        told = json.loads(path.read_text())
        told["job_key"], told["jobs"] = "both", []
        path.write_text(json.dumps(told))
    pay(run, {"id": "both#1", "kind": "job", "usd": 2.0, "seconds": 1.0})
    assert shares(run, "job") == {"both": 2.0}
    assert set(shares(run, "episode").values()) == {1.0}
    assert sum(shares(run, "step").values()) == pytest.approx(2.0)


def test_an_empty_ledger_has_no_shares(run):
    assert shares(run, "job") == shares(run, "episode") == shares(run, "step") == {}


@pytest.mark.parametrize("by", ["job", "episode", "step"])
def test_the_command_line_shows_them(run, told, by):
    key = next(iter(keys(run).values()))
    pay(run, {"id": f"{key}#1", "kind": "job", "usd": 2.5, "seconds": 3.0})
    code, out, _ = told("machines", "cost", run.path, "--by", by)
    assert code == 0
    assert out.splitlines()[0].split() == ["run", by, "time", "$"]
    assert out.splitlines()[-1].endswith("2.5000")
    code, _, err = told("machines", "cost", "--folder", run.path, "--by", by)
    assert code == 2
    assert err
