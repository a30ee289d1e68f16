"""Metrics and data in the real packages that they go out to: trackio, wandb (offline), pandas, datasets."""

import inspect
import json
import os
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from made_run import make_run
from test_dashboard import StandIn

import nested_rl as nrl
from nested_rl import cli
from nested_rl.errors import UnknownName
from nested_rl.testing import TrackerSuite
from nested_rl.trackers import DashboardTracker
from nested_rl.trackers.guard import guarded

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session", autouse=True)
def _offline(tmp_path_factory):
    """Set before the packages are imported; nothing is sent anywhere, nothing is written at home."""
    place = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
            patch.setenv(name, "1")
        patch.setenv("WANDB_MODE", "offline")
        for name in ("TRACKIO_DIR", "WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR", "HF_HOME"):
            (place / name).mkdir()
            patch.setenv(name, str(place / name))
        yield place


def tracked(tracker):
    """Three steps through the fence that a run puts around trackers."""
    sides = guarded([tracker], close_timeout_s=60)
    for step, reward in enumerate((0.1, 0.2, 0.4)):
        sides.metrics(step, {"step": step, "reward/mean": reward, "ess": float("nan"), "jobs/run": 3})
    sides.close()
    assert (sides.trouble, dict(sides.failed), dict(sides.dropped)) == ("", {}, {})


@pytest.mark.filterwarnings("ignore")
class TestTrackio:
    def test_steps_are_in_its_database_and_the_same_name_goes_on(self):
        pytest.importorskip("trackio")
        from trackio.sqlite_storage import SQLiteStorage

        tracked(DashboardTracker("trackio", project="pilots", run="p7", config={"lr": 0.01}))
        tracked(DashboardTracker("trackio", project="pilots", run="p7"))
        assert SQLiteStorage.get_runs("pilots") == ["p7"]
        rows = SQLiteStorage.get_logs("pilots", "p7")
        assert [(row["step"], row["reward/mean"]) for row in rows[:3]] == [(0, 0.1), (1, 0.2), (2, 0.4)]
        assert rows[0]["jobs/run"] == 3
        assert "ess" not in rows[0]


@pytest.mark.filterwarnings("ignore")
class TestWandb:
    def test_steps_are_in_a_file_to_sync_later(self):
        wandb = pytest.importorskip("wandb")
        tracked(DashboardTracker("wandb", project="pilots", run="p7", config={"lr": 0.01}, tags=["tier"]))
        wandb.teardown()  # as at the end of a program: its own process writes what it has
        (file,) = Path(os.environ["WANDB_DIR"]).rglob("*p7.wandb")
        assert b"reward/mean" in file.read_bytes()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["trackio", "wandb"])
def test_the_packages_have_what_we_ask_of_them(name):
    package = pytest.importorskip(name)
    takes = inspect.signature(package.init).parameters
    stand_in = set(inspect.signature(StandIn(name).init).parameters)
    own = {"trackio": {"id", "mode"}, "wandb": set()}[name]  # what the other one alone takes
    assert stand_in - own <= takes.keys()
    assert {"project", "name", "config", "resume"} <= takes.keys()
    assert {"step"} <= inspect.signature(package.Run.log).parameters.keys()
    inspect.signature(package.Run.finish).bind(None)
    if name == "wandb":
        assert "prompt" in inspect.signature(package.login).parameters
        assert package.setup().settings.mode == "offline"
    with pytest.raises(UnknownName, match="did you mean 'group'"):
        DashboardTracker(name, groop="x")


@pytest.mark.filterwarnings("ignore")
class TestTrackioContract(TrackerSuite):
    @pytest.fixture
    def tracker(self):
        pytest.importorskip("trackio")
        return DashboardTracker("trackio", project="contract")


@pytest.mark.filterwarnings("ignore")
class TestWandbContract(TrackerSuite):
    @pytest.fixture
    def tracker(self):
        pytest.importorskip("wandb")
        return DashboardTracker("wandb", project="contract")


def test_a_table_of_episodes_for_pandas(run):
    pandas = pytest.importorskip("pandas")
    opened = nrl.Run(run.path)
    frame = opened.to_pandas()
    assert len(frame) == len(list(opened.episodes)) == 16
    by_step = frame[~frame.masked].groupby("step")["reward"].mean()
    assert by_step.tolist() == pytest.approx([row["reward/mean"] for row in opened.metrics])
    assert pandas.api.types.is_bool_dtype(frame.valid)
    assert pandas.api.types.is_float_dtype(frame.post)
    assert frame[frame.valid].groupby("base")["uplift"].describe().notna().any().any()


def test_chats_load_as_a_data_set(tmp_path):
    datasets = pytest.importorskip("datasets")
    made = make_run(tmp_path / "run", steps=4, groups_per_step=2, group_size=4, evals=False)
    assert cli.main(["export", str(made.path), "--format", "datasets", "--out", str(tmp_path / "chats")]) == 0
    loaded = datasets.load_dataset(str(tmp_path / "chats"), split="train", cache_dir=str(tmp_path / "cache"))
    valid = [e for e in made.episodes() if e.outcome.valid and not e.masked]
    assert len(loaded) == len(valid)
    assert set(loaded["family"]) == {e.task.family for e in valid}
    assert loaded[0]["messages"][0]["role"] == "user"
    assert json.loads(loaded[0]["tools"])[0]["type"] == "function"
    assert max(loaded["reward"]) == pytest.approx(max(e.reward for e in valid))


OUTSIDE = """
() => {
  const page = document.documentElement.getBoundingClientRect();
  return [...document.querySelectorAll('text')].filter(node => {
    const box = node.getBoundingClientRect();
    return box.left < page.left || box.right > page.right;
  }).map(node => node.textContent);
}
"""
COLOURS = """
() => {
  const light = (query, what) => Math.max(
    ...getComputedStyle(document.querySelector(query))[what].match(/[\\d.]+/g).slice(0, 3).map(Number));
  return [light('#patch_1 path', 'fill'), light('text', 'fill'), light('#patch_3 path', 'stroke')];
}
"""


def test_a_sweep_makes_a_picture_that_a_browser_draws(tmp_path, visit):
    made = [
        make_run(tmp_path / f"seed-{n}", steps=8 + n, groups_per_step=1, group_size=4, seed=n, evals=False)
        for n in range(5)
    ]
    found = nrl.Sweep(runs=[nrl.Run(one.path) for one in made])
    path = found.plot(tmp_path / "sweep.svg")
    ET.parse(path)
    page, seen = visit(path, width=700, height=420)
    seen.nothing_but(path.as_uri())
    box = page.locator("svg").first.bounding_box()
    assert box["width"] > 400
    assert "5 runs: mean, and 95 % interval over runs" in page.content()
    page.screenshot(path=str(tmp_path / "sweep.png"))
    assert (tmp_path / "sweep.png").stat().st_size > 5_000
    assert page.evaluate(OUTSIDE) == []
    lights = [page.evaluate(COLOURS)]
    page, _ = visit(path, width=700, height=420, scheme="dark")
    lights.append(page.evaluate(COLOURS))
    (paper, words, axis), (dark_paper, dark_words, dark_axis) = lights
    assert paper > 240 > 100 > max(words, axis)
    assert dark_paper < 60 < 180 < min(dark_words, dark_axis)


@pytest.mark.filterwarnings("ignore")
def test_the_tensorboard_tracker_of_the_guide_works(tmp_path, monkeypatch):
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    guide = (ROOT / "docs" / "guides" / "trackers.md").read_text()
    (block,) = (code for code in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "SummaryWriter" in code)
    monkeypatch.chdir(tmp_path)
    briefly = {"steps": 1, "groups_per_step": 1, "group_size": 2, "eval_every": 0, "quiet": True}
    run = nrl.Experiment.run
    monkeypatch.setattr(nrl.Experiment, "run", lambda self, steps, **asked: run(self, **asked | briefly))
    exec(compile(block, "trackers.md", "exec"), {"nrl": nrl, "__name__": "guide"})
    (file,) = (tmp_path / "runs" / "board").iterdir()
    data, seen = file.read_bytes(), {}
    while data:
        size = int.from_bytes(data[:8], "little")
        assert int.from_bytes(data[12 + size : 16 + size], "little") == masked_crc32c(data[12 : 12 + size])
        event = Event.FromString(data[12 : 12 + size])
        seen |= {value.tag: value.simple_value for value in event.summary.value}
        data = data[16 + size :]
    (row,) = nrl.Run(tmp_path / "runs" / "boarded").metrics
    assert seen["reward/mean"] == pytest.approx(row["reward/mean"])
    assert set(row) <= set(seen)
