"""Whatever ends a run, at whatever moment: what is done is kept, everything is given back, and the next process goes on."""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import re
import signal
import threading

import pytest
from supervised import Family, World, forever

from nested_rl import sync
from nested_rl.alarms import AlarmRules
from nested_rl.errors import RunDirError, SettingsError, SupervisionError, TrainerError
from nested_rl.interfaces import Tracker
from nested_rl.queues.sqlite import SqliteQueue

PHASES = [
    ("set-up", 1),
    ("machine", 1),
    ("baselines", 2),
    ("sampling", 1),
    ("sampling", 7),
    ("validation", 2),
    ("job", 3),
    ("scoring", 3),
    ("update", 1),
    ("update", 2),
    ("save", 1),
    ("save", 3),
    ("evaluation", 5),
    ("close", 1),
]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """What takes time and is not looked at here."""
    monkeypatch.setattr("nested_rl.loop.VALIDATION_TASKS", 2)
    monkeypatch.setattr("nested_rl.report.page.write_digest", lambda run, digest: run.path / "report.html")


@pytest.fixture(autouse=True)
def undisturbed_handlers():
    """A run leaves the handlers of signals as it found them."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    assert {number: signal.getsignal(number) for number in before} == before


@pytest.fixture
def world(tmp_path):
    return World(tmp_path / "run")


def sent(*numbers):
    """Signals arrive one after the other; then nothing goes on by itself."""

    async def act():
        for number in numbers:
            signal.raise_signal(number)
        await forever()

    return act


@pytest.mark.parametrize(
    ("name", "phase", "number"),
    [("SIGINT", *place) for place in PHASES]
    + [("SIGTERM", *place) for place in PHASES[1::4]]
    + [("SIGHUP", *PHASES[2])],
)
def test_a_signal_in_any_phase_saves_and_gives_back(world, phase, number, name):
    world.trap.set(phase, sent(signal.Signals[name]), number=number)
    with pytest.raises(KeyboardInterrupt) as stopped:
        world.run()
    assert world.trap.sprung == [phase]
    assert isinstance(stopped.value, sync.Terminated) == (name != "SIGINT")
    told = [event["event"] for event in world.files.events() if event["event"].startswith("run.")]
    assert told == ["run.started", "run.stopped"]
    world.assert_all_given_back()
    world.assert_goes_on()


def test_a_signal_while_the_report_is_written(world, monkeypatch):
    """Nothing waits there, so it is written; but whoever asked to stop is not taken on to what comes next."""
    written = []

    def interrupted(run, digest):
        signal.raise_signal(signal.SIGINT)
        written.append(run.path)

    with monkeypatch.context() as patch:
        patch.setattr("nested_rl.report.page.write_digest", interrupted)
        with pytest.raises(KeyboardInterrupt):
            world.run()
    assert written == [world.path]
    world.assert_all_given_back()
    assert [event["event"] for event in world.files.events()][-1] == "run.finished"


@pytest.mark.parametrize("phase", ["sampling", "job", "update", "evaluation"])
def test_a_second_signal_ends_a_close_that_hangs_but_gives_machines_back(world, phase):
    """The trainer's connection does not close. The machines come after it, and are given back all the same."""
    world.trap.set(phase, sent(signal.SIGINT), number=2 if phase == "update" else 3)

    async def hangs():
        signal.raise_signal(signal.SIGINT)
        await forever()

    world.trainer.close = hangs
    with pytest.raises(KeyboardInterrupt):
        world.run()
    assert not world.trainer.closed
    world.assert_all_given_back()
    world.assert_goes_on()


@pytest.mark.parametrize(("phase", "number"), [("sampling", 1), ("job", 2), ("close", 1)])
def test_a_signal_during_an_evaluation_of_its_own(world, phase, number):
    """`Experiment.evaluate`, after the run: what is there of it is thrown away, and it can be asked for again."""
    world.run()
    after = World(world.path)
    after.trap.set(phase, sent(signal.SIGINT), number=number)
    with pytest.raises(KeyboardInterrupt):
        after.experiment.evaluate([Family("fast")], policy="RUN@initial", n=3, out=world.path)
    after.assert_all_given_back()
    report = World(world.path).experiment.evaluate([Family("fast")], policy="RUN@initial", n=3, out=world.path)
    assert (len(report.rows), report.masked) == (3, 0)


def test_a_second_signal_does_not_wait_for_an_agent_that_will_not_stop(world):
    """A policy of another making swallows the cancellation and goes on waiting for its server."""

    async def stubborn():
        signal.raise_signal(signal.SIGINT)
        try:
            await forever()
        except asyncio.CancelledError:
            signal.raise_signal(signal.SIGINT)
            await forever()

    world.trap.set("sampling", stubborn, number=2)
    with pytest.raises(KeyboardInterrupt):
        world.run()
    world.assert_all_given_back()
    world.assert_goes_on()


def test_two_signals_at_once_do_not_keep_a_machine_from_being_given_back(world):
    """Giving back takes a while, and both signals have come before it is done."""
    world.trap.set("job", sent(signal.SIGINT, signal.SIGINT))
    given = []
    world.compute.trap = slow = type(world.trap)()

    async def slowly():
        for _ in range(20):
            await asyncio.sleep(0)
        given.append("back")

    slow.set("release", slowly, number=2)  # the first one was lent for the baselines
    with pytest.raises(KeyboardInterrupt):
        world.run()
    assert given == ["back"]
    world.assert_all_given_back()
    world.assert_goes_on()


def test_a_third_signal_ends_even_giving_back(world):
    """A provider that never answers: whoever asks three times is not kept. What watches from outside does the rest."""
    world.trap.set("job", sent(signal.SIGINT))
    world.compute.trap = stuck = type(world.trap)()
    stuck.set("release", sent(signal.SIGINT, signal.SIGINT), number=2)
    with pytest.raises(KeyboardInterrupt):
        world.run()
    assert stuck.sprung == ["release"]
    assert world.compute.held == 1
    world.assert_goes_on()


def test_a_second_signal_does_not_wait_for_a_tracker(tmp_path, monkeypatch):
    """Its server does not answer. It may take its time after one signal, and is left behind after two."""
    from nested_rl.trackers import guard

    class Slow(Tracker):
        def metrics(self, step, values):
            pass

        def episode(self, step, episode):
            pass

        def close(self):
            os.kill(os.getpid(), signal.SIGINT)  # from a thread: the main one waits for this one
            ended.wait()

    ended = threading.Event()
    patient = functools.partial(guard.guarded, close_timeout_s=1e6)
    monkeypatch.setattr(guard, "guarded", patient)
    world = World(tmp_path / "run", trackers=[Slow()])
    world.trap.set("job", sent(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        world.run()
    ended.set()
    world.assert_all_given_back()
    world.assert_goes_on()


def test_a_handler_of_the_users_own_is_left_alone(world):
    came = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    try:
        world.trap.set("update", lambda: signal.raise_signal(signal.SIGTERM))
        world.run()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert came == [signal.SIGTERM]
    assert len(world.files.metrics()) == 2


async def test_in_a_notebook_an_interrupt_unwinds_the_run_too(world, monkeypatch):
    """The run has a thread of its own there; the cell waits for it, and the interrupt is raised in the cell."""
    reached = threading.Event()

    class Interrupted(sync.Future):
        def result(self, timeout=None):
            assert reached.wait(30)
            raise KeyboardInterrupt

    async def here():
        reached.set()
        await forever()

    monkeypatch.setattr(sync, "Future", Interrupted)
    world.trap.set("job", here)
    with pytest.raises(KeyboardInterrupt):
        world.run()
    world.assert_all_given_back()
    monkeypatch.undo()


# ---------------------------------------------------------------- what dies in the background


def raises(error):
    def act():
        raise error

    return act


def test_an_error_of_the_trainer_ends_the_run_with_its_place_and_what_is_kept(world):
    world.trap.set("update", raises(KeyError("adapter")), number=2)
    with pytest.raises(KeyError, match="adapter") as ended:
        world.run()
    (note,) = ended.value.__notes__
    assert f"Kept in {world.path}: 1 step with its checkpoint" in note
    assert "run the same again to go on" in note
    (failed,) = world.files.events("run.failed")
    assert failed["error"] == "KeyError: 'adapter'"
    world.assert_all_given_back()
    world.assert_goes_on()


def test_an_update_that_is_not_finite_is_not_saved(world):
    """The checkpoint that is gone on with is the last good one."""
    from nested_rl.types import UpdateReport

    async def poisoned(groups):
        world.trainer.version += 1
        return UpdateReport(version=world.trainer.version, stepped=True, ratio_max=float("inf"))

    world.trainer.update = poisoned
    with pytest.raises(
        TrainerError, match=r"update 1 gave ratio_max = inf, so it was not saved; the run is at version 0"
    ):
        world.run()
    assert sorted(p.name for p in (world.path / "checkpoints").iterdir()) == ["00000"]
    world.assert_all_given_back()
    world.assert_goes_on()


def test_what_kills_a_group_is_the_cause_of_the_end(world):
    works, asked = world.experiment.tasks[0].eval_set, itertools.count()

    def broken(task, split, *, salt, n=4):
        if next(asked):  # it is tried once before anything begins
            raise ZeroDivisionError("in the family")
        return works(task, split, salt=salt, n=n)

    world.experiment.tasks[0].eval_set = broken
    with pytest.raises(
        SupervisionError, match=r"(group|validation)-\d+ died: ZeroDivisionError: in the family"
    ) as ended:
        world.run()
    assert isinstance(ended.value.__cause__, ZeroDivisionError)
    world.assert_all_given_back()
    world.assert_goes_on()


def test_what_kills_an_evaluation_is_the_cause_of_the_end(world, monkeypatch):
    from nested_rl.rundir import RunDir

    def broken(self, name, report):
        raise ZeroDivisionError("in the report")

    with monkeypatch.context() as patch:
        patch.setattr(RunDir, "write_eval", broken)
        with pytest.raises(SupervisionError, match=r"validation-\d+ died: ZeroDivisionError: in the report"):
            world.run()
    world.assert_all_given_back()
    world.assert_goes_on()


@pytest.mark.parametrize("call", ["lease", "finish"])
def test_a_queue_that_breaks_ends_the_run_at_once(world, monkeypatch, call):
    whole = getattr(SqliteQueue, call)
    calls = []

    async def broken(self, *given, **named):
        calls.append(call)
        if len(calls) > 3:
            raise OSError(5, "Input/output error")
        return await whole(self, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(SqliteQueue, call, broken)
        with pytest.raises((SupervisionError, RunDirError), match="Input/output error"):
            world.run()
    world.assert_all_given_back()
    world.assert_goes_on()


def test_a_worker_that_dies_ends_an_update_that_hangs(world, monkeypatch):
    """The loop may be anywhere, also in a call to a trainer that never comes back."""

    async def hangs():
        monkeypatch.setattr(SqliteQueue, "lease", broken)
        await forever()

    async def broken(self, owner, *, ttl_s):
        raise ValueError("no such table")

    world.trap.set("update", hangs)
    with pytest.raises(SupervisionError, match=r"worker-\d died: ValueError: no such table"):
        world.run()
    monkeypatch.undo()
    world.assert_all_given_back()
    world.assert_goes_on()


def test_something_below_that_cancels_itself_masks_the_episode_and_stops_nothing(world):
    """A client library that gives up by CancelledError: the run would end without a word."""
    world.trap.set("sampling", raises(asyncio.CancelledError()), number=3)
    world.run()
    (masked,) = [episode for episode in world.files.episodes() if episode.masked]
    assert "CancelledError" in masked.outcome.error
    assert len(world.files.metrics()) == 2


# ---------------------------------------------------------------- circuit breakers


def test_faults_in_a_row_over_several_jobs_stop_the_run(tmp_path):
    world = World(tmp_path / "run", alarms=AlarmRules(stop_after_faults=4, faults_in_a_row=2))

    async def dead(job, machine):
        raise ConnectionError(f"no route to {machine.id}")

    world.experiment.inner.train = dead
    with pytest.raises(SupervisionError) as ended:
        world.run()
    told = "\n".join([str(ended.value), *ended.value.__notes__])
    assert re.search(r"4 deliveries in a row failed, of [234] jobs, and no job is to blame", told)
    assert "the last: ConnectionError: no route to box" in told
    assert "Kept in" in told
    alarm = next(world.files.events("alarm"))
    assert alarm["name"] == "infra-streak"
    assert "no route to box" in alarm["message"]
    world.assert_all_given_back()


def test_masked_episodes_in_a_row_stop_the_run(tmp_path):
    world = World(tmp_path / "run", alarms=AlarmRules(stop_after_masked=3))

    async def down(task, policy, desk, *, seed=0):
        raise ConnectionError("the sampler is down")

    world.experiment.harness.run = down
    with pytest.raises(SupervisionError, match=r"\d episodes in a row failed .* the sampler is down"):
        world.run()
    world.assert_all_given_back()
    world.assert_goes_on()


@pytest.mark.parametrize(
    "wrong",
    [
        {"no_signal_steps": 0},
        {"masked_share": 1.5},
        {"free_gib": float("inf")},
        {"stop_after_no_signal": True},
        {"stop_after_faults": 2.5},
    ],
)
def test_rules_that_make_no_sense_are_refused(wrong):
    (name,) = wrong
    with pytest.raises(SettingsError, match=f"alarms: {name}"):
        AlarmRules(**wrong)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_between_two_parts_of_a_command(told, monkeypatch, number, code):
    """Models are loaded, a report is written: no coroutine runs, and the command ends with its sentence all the same."""
    monkeypatch.setattr("nested_rl.experiment.Experiment.run", lambda *_, **__: signal.raise_signal(number))
    found, _, err = told("pilot", "--out", "somewhere")
    assert (found, err) == (code, "nested-rl: stopped; run the same command again to resume\n")
