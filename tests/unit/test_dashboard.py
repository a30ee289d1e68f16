"""One tracker for trackio and wandb: what it asks of them, what it says before a run starts, and that a run outlives it."""

import asyncio
import functools
import math
import sys
import threading
from types import ModuleType, SimpleNamespace

import pytest
from supervised import World

import nested_rl as nrl
from nested_rl import parts
from nested_rl.cli import runfile
from nested_rl.clock import VirtualClock
from nested_rl.errors import MissingExtra, SettingsError, UnknownName
from nested_rl.interfaces import Tracker
from nested_rl.trackers import guard
from nested_rl.trackers.dashboard import DashboardTracker


class StandIn(ModuleType):
    """A package with `init`, as trackio and wandb have it; tests/browser holds its arguments against the real ones."""

    def __init__(self, name):
        super().__init__(name)
        self.asked, self.rows, self.finished = [], [], 0
        self.credentials, self.mode = True, "online"

    def init(self, project=None, name=None, id=None, group=None, config=None, resume=None, mode=None, settings=None):  # noqa: A002
        given = dict(locals())
        self.asked.append({key: value for key, value in given.items() if key != "self" and value is not None})
        return SimpleNamespace(log=lambda data, step: self.rows.append((step, data)), finish=self._finish)

    def _finish(self):
        self.finished += 1

    def login(self, *, prompt):
        assert not prompt
        return self.credentials

    def setup(self):
        return SimpleNamespace(settings=SimpleNamespace(mode=self.mode))


@pytest.fixture
def package(monkeypatch):
    def install(name):
        monkeypatch.setitem(sys.modules, name, StandIn(name))
        return sys.modules[name]

    return install


@pytest.mark.parametrize("name", ["trackio", "wandb"])
def test_steps_arrive_under_the_projects_and_the_runs_name(package, name):
    told = package(name)
    tracker = DashboardTracker(name, project="pilots", run="p7", config={"lr": 0.01}, group="a")
    assert told.asked == []
    tracker.metrics(0, {"step": 0, "reward/mean": 0.25, "ess": math.nan, "ratio/max": math.inf, "jobs/run": 3})
    tracker.metrics(1, {"step": 1, "reward/mean": 0.5})
    tracker.close()
    (asked,) = told.asked
    assert {
        "project": "pilots",
        "name": "p7",
        "resume": "allow",
        "config": {"lr": 0.01},
        "group": "a",
    }.items() <= asked.items()
    assert told.rows == [(0, {"reward/mean": 0.25, "jobs/run": 3}), (1, {"reward/mean": 0.5})]
    assert told.finished == 1


def test_wandb_goes_on_with_a_run_by_id_and_leaves_the_terminal_alone(package):
    told = package("wandb")
    DashboardTracker("wandb", run="p7", settings={"init_timeout": 5}).metrics(0, {})
    assert told.asked[0]["id"] == "p7"
    assert told.asked[0]["settings"] == {"console": "off", "init_timeout": 5}


@pytest.mark.parametrize("name", ["trackio", "wandb"])
def test_without_a_name_each_process_is_a_run_of_its_own(package, name):
    told = package(name)
    DashboardTracker(name).metrics(0, {})
    assert not {"name", "id", "resume"} & told.asked[0].keys()


def test_what_would_fail_later_is_said_at_once(package, monkeypatch):
    told = package("wandb")
    with pytest.raises(UnknownName, match="did you mean 'group'"):
        DashboardTracker("wandb", groop="a")
    with pytest.raises(UnknownName, match="setting"):
        DashboardTracker("wandb", resume="must")
    with pytest.raises(UnknownName, match="dashboard"):
        DashboardTracker("mlflow")
    told.credentials = False
    with pytest.raises(SettingsError, match="wandb login"):
        DashboardTracker("wandb")
    DashboardTracker("wandb", mode="offline")
    told.mode = "offline"  # WANDB_MODE
    DashboardTracker("wandb")
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(MissingExtra, match=r"nested-rl\[trackio\]"):
        DashboardTracker("trackio")


def test_a_close_without_a_step_and_a_step_after_close_are_nothing(package):
    told = package("trackio")
    tracker = DashboardTracker("trackio")
    tracker.close()
    tracker.metrics(0, {})
    tracker.close()
    assert (told.asked, told.finished) == ([], 0)


def test_a_run_file_names_its_trackers(package, tmp_path):
    package("wandb")
    file = tmp_path / "run.toml"
    rows = tmp_path / "rows.jsonl"
    file.write_text(f"""
        [[trackers]]
        name = "jsonl"
        path = "{rows}"
        [[trackers]]
        name = "wandb"
        project = "pilots"
        run = "p7"
    """)
    made = runfile.experiment(runfile.read(file), beside=tmp_path)
    assert [type(tracker).__name__ for tracker in made.trackers] == ["JsonlTracker", "DashboardTracker"]
    for tracker in made.trackers:
        tracker.close()
    assert {"jsonl", "trackio", "wandb"} <= set(parts.names("tracker"))
    with pytest.raises(UnknownName, match="tracker"):
        runfile.experiment(runfile.RunFile(trackers=({"name": "wandbb"},)), beside=tmp_path)


class Stuck(Tracker):
    """Never comes back from its first call."""

    def __init__(self):
        self.called, self.release = threading.Event(), threading.Event()

    def metrics(self, step, values):
        self.called.set()
        self.release.wait()

    def episode(self, step, episode):
        raise AssertionError("it never gets here")

    def close(self):
        raise AssertionError("it never gets here")


def test_a_run_ends_though_a_tracker_never_comes_back(tmp_path, monkeypatch):
    """Time is virtual: whatever the run waited for would have to be woken by it, and a stuck thread never is."""
    monkeypatch.setattr(guard, "guarded", functools.partial(guard.guarded, close_timeout_s=0.05))
    stuck, clock = Stuck(), VirtualClock()
    world = World(tmp_path / "run", trackers=[stuck], clock=clock)
    asked = {"steps": 3, "groups_per_step": 2, "group_size": 2, "eval_every": 1, "out": world.path, "quiet": True}
    try:
        asyncio.run(clock.run(world.experiment.run_async(**asked)))
        assert stuck.called.is_set()
        assert world.files.finished
        told = [row["message"] for row in world.files.events("alarm") if row["name"] == "tracker"]
        assert "Stuck did not close" in told[-1]
        world.assert_all_given_back()
    finally:
        stuck.release.set()


def test_the_same_run_comes_of_it_with_and_without_a_tracker_that_fails(tmp_path, package):
    told = package("trackio")
    told.init = lambda project, config: 1 / 0
    asked = {"groups_per_step": 1, "group_size": 2, "eval_every": 0, "quiet": True}
    plain = nrl.Experiment().run(1, out=tmp_path / "plain", **asked)
    tracked = nrl.Experiment(trackers=[DashboardTracker("trackio")]).run(
        1, out=tmp_path / "tracked", eval_salt_from=plain.path, **asked
    )
    assert tracked.metrics[0]["reward/mean"] == plain.metrics[0]["reward/mean"]
    assert any("failed" in row["message"] for row in tracked._dir.events("alarm") if row["name"] == "tracker")
