"""One run, simulated: the real loop, workers, baselines and pool on a clock that jumps over every wait."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from nested_rl import session
from nested_rl.alarms import AlarmRules
from nested_rl.clock import VirtualClock
from nested_rl.compute.pool_costs import by_kind
from nested_rl.errors import SupervisionError
from nested_rl.loop import Loop, Schedule
from nested_rl.metrics import mean
from nested_rl.plan.figures import Assumptions, End
from nested_rl.plan.fleet import PlanQueue, Pods, Rents, Slots
from nested_rl.plan.paper import PaperRun
from nested_rl.plan.stand_ins import (
    ATTEMPTS,
    Chance,
    PlanFamily,
    PlanHarness,
    PlanInner,
    PlanScorer,
    PlanTrainer,
    Spent,
    no_reward,
)
from nested_rl.types import JSON, Need, Scale
from nested_rl.waiting import Overdue, within

START_S = 1_800_000_000.0
LOOKS_IN_A_BOOT = 20


@frozen(kw_only=True)
class Setting:
    """What is planned: the schedule, and the parts as far as they matter for time and money."""

    schedule: Schedule
    families: tuple[str, ...]
    bases: tuple[str, ...]
    scale: Scale = "nano"
    machines: int = 1
    rents: Rents | None = None
    """None: the machines are simply there."""
    usd_per_hour: float = 0.0
    """Of a machine that is simply there."""
    job_timeout_s: float = 3600.0
    max_jobs: int = 1
    """What an episode may hand in. A simulated one hands in one job at most."""
    alarms: AlarmRules = field(factory=AlarmRules)

    def but(self, *, machines: int | None = None, **schedule: Any) -> Setting:
        """The same with other machines, or another schedule."""
        return evolve(self, machines=machines or self.machines, schedule=evolve(self.schedule, **schedule))


@frozen(kw_only=True)
class Simulated:
    """What came of one simulation. Seconds of machines by purpose: busy, idle, provision, preflight, drain, lost."""

    wall_clock_s: float
    jobs: int
    episodes: int
    dropped: int
    deliveries: int
    machine_s: Mapping[str, float]
    pods: int
    pods_usd: float
    spent: Spent
    trained_jobs: int
    """Of the `jobs`, those of groups that an update was made of."""
    trained_job_s: float
    """Of the jobs that were trained on, the mean; `job_s` is that of all, so that less means a schedule that favours the fast."""
    job_s: float
    staleness: tuple[float, ...] = field(repr=False)
    """Of each step, the mean."""
    staleness_max: float
    """Of any group that was trained on."""

    @property
    def machine_hours(self) -> float:
        """Of all machines, for whatever purpose."""
        return sum(self.machine_s.values()) / 3600

    @property
    def utilisation(self) -> float:
        """Share of the machines' time in which a job, or a baseline, ran."""
        total = sum(self.machine_s.values())
        return self.machine_s["busy"] / total if total else 0.0


def simulate(
    setting: Setting, told: Assumptions, *, end: End = "mid", seed: int = 0, watch: session.Watcher | None = None
) -> Simulated:
    """Run it to its end, in seconds. The same seed gives the same run.

    Raises SupervisionError when a run that goes as assumed would stop by itself.
    """
    chance = Chance(told=told, end=end, seed=seed)
    return _apart(lambda: _simulate(setting, chance, watch or _unwatched))


def _unwatched(event: str, fields: Mapping[str, JSON]) -> None:
    """Nobody looks."""


def _apart(work: Callable[[], Simulated]) -> Simulated:
    """In an event loop of its own; a loop that runs here already has things of its own to do."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    found: list[Simulated | BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:  # noqa: BLE001  it belongs to the waiting thread
            found.append(error)

    thread = threading.Thread(target=run, name="plan")
    thread.start()
    thread.join()
    (what,) = found
    if isinstance(what, BaseException):
        raise what
    return what


def _simulate(setting: Setting, chance: Chance, watch: session.Watcher) -> Simulated:
    clock = VirtualClock(start=START_S)
    with tempfile.TemporaryDirectory(prefix="nested-rl-plan-") as folder, _loop() as runner, _silent():
        run = _Run(setting, chance, clock, PaperRun(Path(folder)), watch)
        runner.run(clock.run(run.go(), sealed=True))
        return run.found()


def _loop() -> asyncio.Runner:
    """The standard library's loop, whatever the program's is: a sealed clock looks into it."""
    return asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """What goes wrong in a simulation, as it should, is no news: it is in the figures."""
    loggers = logging.getLogger("nested_rl")
    before = loggers.level
    loggers.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        loggers.setLevel(before)


class _Run:
    """The parts of one simulation, and what they had to say."""

    def __init__(
        self, setting: Setting, chance: Chance, clock: VirtualClock, run: PaperRun, watch: session.Watcher
    ) -> None:
        self.setting, self.chance, self.clock, self.run, self.watch = setting, chance, clock, run, watch
        self.spent, self.wall_clock_s = Spent(), 0.0
        self.told = {"job.done": 0, "job.started": 0}
        self.rows: list[Mapping[str, float]] = []
        self.compute: Pods | Slots

    async def go(self) -> None:
        setting, chance, clock = self.setting, self.chance, self.clock
        self.compute = self._machines()
        need = Need(gpus=1) if setting.rents is not None else Need()
        choice = session.Choice(
            trainer=PlanTrainer(chance, clock, self.spent),
            harness=PlanHarness(chance),
            inner=PlanInner(
                chance,
                clock,
                scale=setting.scale,
                bases=setting.bases,
                timeout_s=setting.job_timeout_s,
                need=need,
            ),
            scorer=PlanScorer(chance, clock),
            queue=PlanQueue(clock=clock),
            compute=self.compute,
            reward=no_reward,
            alarms=setting.alarms,
            clock=clock,
        )
        families = tuple(map(PlanFamily, setting.families))
        async with session.opened(choice, self.run, families, job_seeds=1, watch=self._on_event) as opened:
            loop = Loop(
                run=self.run,
                families=families,
                trainer=opened.trainer,
                parts=opened.parts,
                baselines=opened.baselines,
                meter=opened.meter,
                schedule=setting.schedule,
                clock=clock,
                workers_failed=opened.workers.failed,
                on_event=self.watch,
                on_row=lambda step, row, episodes: self.rows.append(row),  # noqa: ARG005
                alarms=opened.alarms,
            )
            try:
                await opened.workers.supervise(within(clock, self._endless_s(), loop.run()))
            except Overdue:
                raise SupervisionError("it would not come to an end: no machines are to be had") from None
            self.wall_clock_s = clock.monotonic() - START_S

    def _endless_s(self) -> float:
        """What no run takes that has one machine at all times."""
        told, value, schedule = self.chance.told, self.chance.value, self.setting.schedule
        attempt_s = value(told.turns) * value(told.turn_s) + value(told.probe_s)
        job_s = max(value(guess) for guess in told.job_s.values())
        episodes = schedule.steps * schedule.groups_per_step * schedule.group_size
        return 2 * 86_400 + 3 * (episodes * (ATTEMPTS * attempt_s + job_s) + schedule.steps * value(told.update_s))

    def _machines(self) -> Pods | Slots:
        setting = self.setting
        if setting.rents is None:
            return Slots(setting.machines, self.clock, usd_per_hour=setting.usd_per_hour)
        # A look at all pods every 5 s of a run of days is most of the work, and tells nothing new between two boots.
        boot_s, terms = self.chance.value(self.chance.told.boot_s), setting.rents.terms
        rents = evolve(setting.rents, terms=evolve(terms, look_s=max(terms.look_s, boot_s / LOOKS_IN_A_BOOT)))
        return Pods(rents, self.chance, self.clock, max_machines=setting.machines)

    def _on_event(self, event: str, fields: Mapping[str, JSON]) -> None:
        if event in self.told:
            self.told[event] += 1
        self.watch(event, fields)

    def found(self) -> Simulated:
        machine_s, usd, pods = self._machine_s()
        trained, everything = (list(self._job_s(trained=only).values()) for only in (True, False))
        return Simulated(
            wall_clock_s=self.wall_clock_s,
            jobs=self.told["job.done"],
            episodes=self.run.episodes_written,
            dropped=int(self.rows[-1].get("groups/dropped", 0.0)) if self.rows else 0,
            deliveries=self.told["job.started"],
            machine_s=machine_s,
            pods=pods,
            pods_usd=usd,
            spent=self.spent,
            trained_jobs=len(trained),
            trained_job_s=mean(trained),
            job_s=mean(everything),
            staleness=tuple(row["staleness/mean"] for row in self.rows),
            staleness_max=max((row["staleness/max"] for row in self.rows), default=0.0),
        )

    def _job_s(self, *, trained: bool) -> dict[str, float]:
        """Seconds of each job, by its key."""
        groups = {int(i) for event in self.run.events("step.done") for i in event["groups"]} if trained else None
        of_groups = [of for group, of in self.run.job_s.items() if groups is None or group in groups]
        return {key: seconds for of in of_groups for key, seconds in of.items()}

    def _machine_s(self) -> tuple[dict[str, float], float, int]:
        """Seconds by purpose, dollars, and how many there were."""
        if isinstance(self.compute, Slots):
            busy_s, n = self.compute.busy_s, self.setting.machines
            idle_s = max(0.0, n * self.wall_clock_s - busy_s)
            return {"busy": busy_s, "idle": idle_s}, busy_s / 3600 * self.setting.usd_per_hour, n
        rows = self.compute.costs()
        seconds: dict[str, float] = {"busy": 0.0}
        for row in rows:
            seconds[row.kind] = seconds.get(row.kind, 0.0) + row.seconds
        return seconds, sum(by_kind(rows).values()), len({row.pod for row in rows})
