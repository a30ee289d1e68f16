"""Each alarm: when it is raised, when it is over, and that the live view, journal, metrics and report all say so."""

from __future__ import annotations

import io
import json
from pathlib import Path

import attrs
import pytest
from loop_doubles import Rig
from made_run import make_run
from rich.console import Console
from supervised import World

from nested_rl import alarms, cli, errors
from nested_rl.alarms import AlarmRules, Alarms, Standing
from nested_rl.cli import runfile
from nested_rl.errors import SupervisionError
from nested_rl.interfaces import Tracker
from nested_rl.report import digest, page
from nested_rl.report.live import Live
from nested_rl.types import Budget, UpdateReport

CALM = {"episodes/masked": 0.0, "ess": 0.9, "ratio/mean": 1.01, "ratio/max": 2.0, "staleness/max": 1.0}
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "when-things-break.md"


def now(**changes) -> Standing:
    return Standing(**({"signal": True, "episodes": 8, "max_steps_off_policy": 1, "free_bytes": 2**40} | changes))


class Board:
    """Alarms, and what they told."""

    def __init__(self, rules: AlarmRules | None = None, **given) -> None:
        self.told = []
        self.alarms = Alarms(
            rules or AlarmRules(), tell=lambda event, fields: self.told.append((event, fields)), **given
        )

    def step(self, *, before=0, **changes):
        facts = {key: changes.pop(key) for key in list(changes) if key in Standing.__annotations__}
        row = CALM | {key.replace("__", "/"): value for key, value in changes.items()}
        self.alarms.on_step(row, now(**facts), before=before)
        return row


@pytest.mark.parametrize(
    ("name", "bad", "words"),
    [
        (alarms.NO_SIGNAL, {"signal": False, "before": 2}, "3 steps in a row had nothing to learn from"),
        (alarms.MASKED, {"episodes__masked": 2.0}, "2 of the step's 8 episodes failed"),
        (alarms.OFF_POLICY, {"ess": 0.05}, "effective sample size is 0.05"),
        (alarms.OFF_POLICY, {"ratio__mean": 1.4}, "mean importance ratio is 1.40"),
        (alarms.NOT_FINITE, {"not_finite": ("entropy", "kl")}, "left out of the metrics: entropy, kl"),
        (alarms.STALE, {"staleness__max": 3.0}, "trained 3 versions after it was sampled"),
        (alarms.DISK, {"free_bytes": 2**29}, "0.50 GiB are free"),
        (alarms.BUDGET, {"spent_usd": 9.5}, r"$9.50 of $10.00"),
        (alarms.BUDGET, {"hours": 1.9}, "1.9 of 2 hours"),
    ],
)
def test_a_step_raises_an_alarm_once_and_the_next_good_one_ends_it(name, bad, words):
    board = Board(budget=Budget(usd=10, hours=2))
    assert board.step()[alarms.COUNT] == 0
    assert board.step(**bad)[alarms.COUNT] == 1
    board.step(**bad)
    ((event, fields),) = board.told
    assert (event, fields["name"]) == ("alarm", name)
    assert words in fields["message"]
    assert board.step()[alarms.COUNT] == 0
    assert board.told[1:] == [("alarm.over", {"name": name})]


@pytest.mark.parametrize(
    "fine",
    [
        {"signal": False, "before": 1},
        {"episodes__masked": 1.0},
        {"staleness__max": 2.0},
        {"staleness__max": 6.0, "max_steps_off_policy": 3},
        {"free_bytes": None},
        {"spent_usd": 8.9},
    ],
)
def test_what_is_still_usual_raises_none(fine):
    board = Board(budget=Budget(usd=10))
    assert board.step(**fine)[alarms.COUNT] == 0
    assert board.told == []


def test_the_rules_decide():
    board = Board(AlarmRules(masked_share=0.5, staleness=1, free_gib=0.0, ess=0.0))
    assert board.step(episodes__masked=3.0, ess=0.01, free_bytes=0)[alarms.COUNT] == 0
    assert board.step(staleness__max=2.0)[alarms.COUNT] == 1


def test_deliveries_that_fail_one_after_the_other_raise_an_alarm_before_anything_stops():
    board = Board()
    released = {"key": "a", "error": "MachineLost: gone", "state": "queued"}
    board.alarms.on_event("job.released", {"key": "z", "error": "called off"})
    for key in "ab":
        board.alarms.on_event("job.released", released | {"key": key})
    board.alarms.on_event("job.started", {"key": "c"})
    assert board.told == []
    board.alarms.on_event("job.released", released)
    ((_, fields),) = board.told
    assert fields == {
        "name": alarms.INFRA_STREAK,
        "message": "3 deliveries in a row failed, of 2 jobs; the last: MachineLost: gone",
    }
    board.alarms.on_event("job.done", {"key": "a"})
    assert board.told[1:] == [("alarm.over", {"name": alarms.INFRA_STREAK})]


# ---------------------------------------------------------------- in a run


async def test_steps_without_a_signal_are_recorded_alarm_and_do_not_loop(tmp_path):
    """Every episode earns the same: each step is done, none takes an optimiser step, and after three somebody is told."""
    rig = Rig(tmp_path / "run", steps=5)
    loop = rig.loop()
    loop.parts.reward = lambda outcome: 0.35
    stepped = []

    async def update(groups):
        rig.trainer.version += 1
        stepped.append(len({e.reward for g in groups for e in g.members}) > 1)
        return UpdateReport(version=rig.trainer.version, stepped=stepped[-1])

    rig.trainer.update = update
    await rig.go(loop)
    rows = rig.run.metrics()
    assert [row[alarms.IN_A_ROW] for row in rows] == [1, 2, 3, 4, 5]
    assert [row[alarms.COUNT] for row in rows] == [0, 0, 1, 1, 1]
    assert not any(stepped)
    (alarm,) = rig.run.events("alarm")
    assert alarm["name"] == alarms.NO_SIGNAL
    assert ("alarm", {k: alarm[k] for k in ("name", "message")}) in rig.events


async def test_the_count_goes_on_in_the_next_process(tmp_path):
    rig = Rig(tmp_path / "run", steps=2)
    loop = rig.loop()
    loop.parts.reward = lambda outcome: 0.35
    await rig.go(loop)
    assert list(rig.run.events("alarm")) == []
    longer = Rig(rig.path, steps=3).after(rig)
    loop = longer.loop()
    loop.parts.reward = lambda outcome: 0.35
    await longer.go(loop)
    assert longer.run.metrics()[-1][alarms.IN_A_ROW] == 3
    assert [event["name"] for event in longer.run.events("alarm")] == [alarms.NO_SIGNAL]


def test_a_run_can_be_told_to_stop_for_lack_of_a_signal_and_gone_on_with(tmp_path):
    world = World(tmp_path / "run", alarms=AlarmRules(stop_after_no_signal=2))
    object.__setattr__(world.experiment, "reward", flat)
    with pytest.raises(
        SupervisionError, match="2 steps in a row had nothing to learn from, and stop_after_no_signal=2"
    ):
        world.run(steps=9)
    assert len(world.files.metrics()) == 2
    world.assert_all_given_back()
    more = World(world.path, alarms=AlarmRules(stop_after_no_signal=5))
    object.__setattr__(more.experiment, "reward", flat)
    more.run(steps=3)
    assert len(more.files.metrics()) == 3


def flat(outcome):
    return 0.35


def test_a_metric_of_the_trainer_that_is_not_finite_is_left_out_and_told(tmp_path):
    world = World(tmp_path / "run")
    update = world.trainer.update

    async def odd(groups):
        report = await update(groups)
        return UpdateReport(version=report.version, stepped=True, metrics={"kl": float("nan"), "lr": 0.1})

    world.trainer.update = odd
    world.run()
    rows = world.files.metrics()
    assert ["update/kl" in row for row in rows] == [False, False]
    assert [row["update/lr"] for row in rows] == [0.1, 0.1]
    (alarm,) = world.files.events("alarm")
    assert (alarm["name"], alarm["message"]) == (alarms.NOT_FINITE, "left out of the metrics: kl")


def test_a_tracker_that_fails_is_an_alarm_of_the_run(tmp_path):
    class Broken(Tracker):
        def metrics(self, step, values):
            raise ConnectionError("no server")

        def episode(self, step, episode):
            pass

        def close(self):
            pass

    world = World(tmp_path / "run", trackers=[Broken()])
    world.run()
    (alarm,) = world.files.events("alarm")
    assert alarm["name"] == alarms.TRACKER
    assert alarm["message"] == "1 call of Broken failed"
    assert len(world.files.metrics()) == 2


# ---------------------------------------------------------------- where it is seen


def test_the_table_shows_what_stands_and_lines_say_when_it_began_and_ended():
    console = Console(file=io.StringIO(), width=100, color_system=None)
    live = Live(9, mode="lines", console=console)
    live.on_event("alarm", {"name": alarms.DISK, "message": "0.50 GiB are free"})
    console.print(live.view())
    live.on_event("alarm.over", {"name": alarms.DISK})
    shown = console.file.getvalue()
    assert "ALARM disk: 0.50 GiB are free\n" in shown
    assert "! disk: 0.50 GiB are free" in shown
    assert shown.endswith("alarm over: disk\n")
    console.file.truncate(0)
    console.print(live.view())
    assert "disk" not in console.file.getvalue()


def test_the_report_lists_them_with_their_steps(tmp_path):
    run = make_run(tmp_path / "run", steps=2)
    journal = [row for row in run.events() if row["event"] != "run.finished"]
    first = next(i for i, row in enumerate(journal) if row["event"] == "step.done")
    told = lambda event, **fields: {"t": 1.0, "event": event, **fields}  # noqa: E731
    journal.insert(first + 1, told("alarm.over", name=alarms.MASKED))
    journal.insert(first, told("alarm", name=alarms.MASKED, message="2 of 8 <b>"))
    journal += [
        told("alarm", name=alarms.DISK, message="0.5 GiB are free"),
        told("run.started"),
        told("alarm", name=alarms.DISK, message="0.4 GiB are free"),
    ]
    run.journal.path.write_text("".join(json.dumps(row) + "\n" for row in journal))
    spans = [(a.name, a.since, a.until) for a in digest.read(run).alarms]
    assert spans == [(alarms.MASKED, 1, 2), (alarms.DISK, 3, 3), (alarms.DISK, 3, None)]
    text = page.render(run)
    assert "2 of 8 &lt;b&gt;" in text
    assert "the disk of the run directory is nearly full" in text
    assert "Alarms: disk (0.4 GiB are free)." in " ".join(page.sentences(digest.read(run)))


def test_a_run_file_sets_the_rules(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("[alarms]\nno_signal_steps = 5\nstop_after_no_signal = 20\n")
    made = runfile.experiment(runfile.read(file), beside=tmp_path)
    assert made.alarms == AlarmRules(no_signal_steps=5, stop_after_no_signal=20)


def test_every_alarm_is_explained():
    text = GUIDE.read_text(encoding="utf-8")
    assert [name for name in alarms.KINDS if f"### `{name}`" not in text] == []


def test_every_error_and_exit_code_is_explained():
    text = GUIDE.read_text(encoding="utf-8")
    known = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.NestedRLError)
    ]
    assert [kind.__name__ for kind in known if f"| `{kind.__name__}` |" not in text] == ["NestedRLError"]
    codes = {kind.exit_code for kind in known} | {cli.UNFORESEEN}
    assert [code for code in sorted(codes) if f"| {code} |" not in text] == []


def test_every_rule_is_explained_with_its_default():
    text = GUIDE.read_text(encoding="utf-8")
    for field in attrs.fields(AlarmRules):
        (row,) = [
            line for line in text.splitlines() if line.startswith("|") and f"`{field.name}`" in line.split("|")[1]
        ]
        if field.default is not None:
            assert f"{field.default:g}" in row.split("|")[2]
