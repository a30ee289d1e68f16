"""Full-scale jobs: prime-rl runs on machines with one or two GPUs."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

from attrs import evolve

from nested_rl import redact, tasks, weights
from nested_rl.clock import Clock, SystemClock
from nested_rl.errors import AgentFault, InfraFault, MissingExtra, SettingsError
from nested_rl.inner.prime_rl import guide, job, pin
from nested_rl.inner.prime_rl.keys.render import render
from nested_rl.inner.prime_rl.launch import Terms, launch
from nested_rl.inner.prime_rl.memory import SHAPES, Placement, Shape, place
from nested_rl.inner.prime_rl.order import Order
from nested_rl.inner.prime_rl.preflight import NotApart
from nested_rl.inner.prime_rl.probe import Probe
from nested_rl.inner.prime_rl.problems import told
from nested_rl.inner.prime_rl.shelf import Shelf
from nested_rl.inner.prime_rl.taskset import HARNESS, dialect, package
from nested_rl.interfaces import InnerTrainer, Machine, TaskFamily
from nested_rl.jobs.folder import CODE, JOB, JobConfig, parse
from nested_rl.jobs.probe import Findings
from nested_rl.jobs.problems import problem
from nested_rl.jobs.sandbox import Level, require_walls
from nested_rl.jobs.surface import Surface
from nested_rl.types import Checkpoint, Draft, Job, JobSpec, Need, Problem, Scale, Task, Validation
from nested_rl.waiting import Overdue, within

log = redact.logger(__name__)

GPUS: Final = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
_TRAINING_SHARE: Final = 0.65
_SETUP_SHARE: Final = 0.05
_KEEPING_SHARE: Final = 0.04
"""Of a job's time limit; a worker keeps a quarter for scoring. A machine that takes too long to get ready is ours to replace, and
weights that take too long to fetch are not kept: neither is a job's fault."""
_ASKING_S: Final = 60.0


class PrimeRLTrainer(InnerTrainer):
    """Trains Qwen3-0.6B and 1.7B with the pinned prime-rl, from plain environments or verifiers tasksets.

    A base that is not one of these is given with its `Shape` in `shapes`. `machines` are what jobs will run on (a run tells it
    from its compute backend): a job that fits none of them is refused. `timeout_s` bounds training and scoring of one job
    together. `python` is an interpreter with verifiers for the probe of tasksets (None: this one); `argv` starts prime-rl, and
    `terms` say how it runs on a machine and how closely it is watched. `allow_weak_sandbox` lets verifiers tasksets, which run
    unconfined there, run as the runner's own user too, where there is no other; without it they are refused there. A run keeps every adapter, and `keep_best` full fine-tunes.

    >>> PrimeRLTrainer().bases
    ('Qwen/Qwen3-0.6B', 'Qwen/Qwen3-1.7B')
    """

    scale: Scale = "full"

    def __init__(
        self,
        bases: Sequence[str] = tuple(SHAPES),
        *,
        shapes: Mapping[str, Shape] | None = None,
        machines: Sequence[Need] = (),
        timeout_s: float = 5400.0,
        python: str | None = None,
        argv: Sequence[str] = ("rl", "@", JOB),
        terms: Terms | None = None,
        allow_weak_sandbox: bool = False,
        keep_best: int = 3,
        clock: Clock | None = None,
    ) -> None:
        self._shapes = {**SHAPES, **(shapes or {})}
        unknown = [base for base in bases if base not in self._shapes]
        if unknown or not bases:
            known = ", ".join(self._shapes)
            raise SettingsError(
                f"PrimeRLTrainer: bases {unknown or 'must not be empty'}; known: {known}, or give shapes="
            )
        if not (math.isfinite(timeout_s) and timeout_s > 0):
            raise SettingsError(f"PrimeRLTrainer(timeout_s={timeout_s!r}): it must be a finite number above 0")
        self.bases = tuple(bases)
        self.timeout_s = timeout_s
        self._machines = tuple(machines)
        terms = terms or Terms()
        self._terms = evolve(terms, allow_weak_sandbox=allow_weak_sandbox or terms.allow_weak_sandbox)
        self._python, self._argv = python, tuple(argv)
        self._refuses_tasksets = False
        self._clock = clock or SystemClock()
        self._keep_best = keep_best
        self._shelf: Shelf | None = None
        self._families: tuple[TaskFamily, ...] = tasks.load(scale="full")
        self._probe: Probe | None = None
        self._told_missing = False

    def settings(self) -> dict[str, object]:
        """What of this trainer changes results; recorded with a run."""
        return {"bases": self.bases, "timeout_s": self.timeout_s, "prime_rl": pin.COMMIT, "verifiers": pin.VERIFIERS}

    def bind(self, families: Sequence[TaskFamily]) -> None:
        """Know these families too, besides the built-in ones: their questions are recognised, and held-out ones dropped."""
        builtin = tasks.load(scale="full")
        own = {family.name for family in builtin}
        self._families = (*builtin, *(family for family in families if family.name not in own))

    def keep_in(self, folder: Path) -> None:
        """Keep what is trained in this folder: adapters, and the `keep_best` full fine-tunes of the best training rewards."""
        self._shelf = Shelf(folder, best=self._keep_best, clock=self._clock)

    def offered(self, offers: Sequence[Need]) -> None:
        """Know what the machines have. What was given as `machines` goes before."""
        self._machines = self._machines or tuple(offers)

    # ---- what a job is

    @cached_property
    def surface(self) -> Surface:
        """Everything that a job may say."""
        return job.surface(self.bases)

    def guide(self, task: Task, *, brief: bool) -> str:  # noqa: ARG002 - the same for every task
        """Both dialects with an example of each, or the least that one has to know."""
        if brief:
            return guide.brief(self.surface)
        shapes = {base: self._shapes[base] for base in self.bases}
        whole = job.whole(shapes, self._machines) if self._machines else None
        return guide.full(self.surface, native=self._takes_tasksets(), whole=whole)

    @property
    def scoring_need(self) -> Need:
        """What an untrained base is scored on: any machine with a GPU."""
        return Need(gpus=1)

    def need(self, draft: Draft) -> Need:
        """One GPU for trainer and server together, or two smaller ones where only such machines fit."""
        config, problems = parse(draft.files, self.surface)
        if config is None:
            raise SettingsError(f"the job is not valid: {problems[0].message}")
        return job.need(config, self._shapes[config.base], self._machines)

    async def validate(self, draft: Draft) -> Validation:
        """What is written and what the machines have room for; if nothing is wrong, the probe. Raises SandboxUnavailable."""
        started = time.perf_counter()
        config, problems = await asyncio.to_thread(self._written, draft)
        if config is None or problems:
            code = await asyncio.to_thread(self._prober.written, draft.files, self._families)
            findings = Findings(problems=(*problems, *code))
        elif dialect(draft.files) == "native" and not self._takes_tasksets():
            hint = "define examples and reward instead"
            found = told("environment.dialect", CODE, "verifiers tasksets are not accepted here", hint)
            findings = Findings(problems=(found,))
        else:
            findings = await self._prober.examine(draft, config, self._families)
        return Validation(
            ok=not findings.problems,
            problems=findings.problems,
            base=config.base if config is not None else None,
            advanced=config is not None and config.advanced,
            families=findings.families,
            notes=findings.notes,
            seconds=time.perf_counter() - started,
        )

    async def sandbox_level(self) -> Level:
        """Of this computer, where jobs are probed."""
        self._probe = self._probe or Probe(self.surface, python=self._python)
        return await asyncio.to_thread(lambda probe: probe.level, self._probe)

    async def require_walls(self) -> None:
        """Raises SettingsError when only resource limits would hold agent-written code here."""
        require_walls(await self.sandbox_level())

    def _written(self, draft: Draft) -> tuple[JobConfig | None, tuple[Problem, ...]]:
        """What depends on the text of the files alone. So does a failure in here, and it counts as a problem of the job."""
        try:
            config, problems = parse(draft.files, self.surface)
            if config is None:
                return None, problems
            shape = self._shapes[config.base]
            unfit = [
                *job.dialect_problems(config, draft.files, dialect(draft.files)),
                *job.memory_problems(config, shape, self._machines),
            ]
        except Exception:
            log.exception("the checks failed on a job, which is refused; this is a bug of nested_rl")
            return None, (problem("job.syntax", JOB, "the job cannot be checked", "write plainer files"),)
        return config, tuple(unfit)

    @property
    def _prober(self) -> Probe:
        self._probe = self._probe or Probe(self.surface, python=self._python)
        return self._probe

    def _probes_tasksets(self) -> bool:
        """Whether verifiers is at hand. Without it tasksets are refused: a fault of ours would let an agent call an episode off."""
        try:
            self._prober.require()
        except MissingExtra as missing:
            if not self._told_missing:
                log.warning("jobs that are verifiers tasksets are refused: %s", missing)
            self._told_missing = True
            return False
        return True

    def _takes_tasksets(self) -> bool:
        """Not any more when a machine has turned one away: a fault of ours that an agent can repeat would be a way out for it."""
        return not self._refuses_tasksets and self._probes_tasksets()

    async def close(self) -> None:
        """End the sandboxes. A later `validate` starts others."""
        probe, self._probe = self._probe, None
        if probe is not None:
            await probe.close()

    # ---- how it is trained

    async def train(self, job: Job, machine: Machine) -> Checkpoint:
        """One prime-rl run. Raises AgentFault when the job fails, InfraFault when the machine does, or is too small."""
        setup_s = _SETUP_SHARE * job.spec.timeout_s
        try:
            order = await within(self._clock, setup_s, self.order(job.spec, machine))
        except Overdue:
            raise InfraFault(f"{machine.id} did not have the weights of {job.spec.base} within {setup_s:g} s") from None
        try:
            ended = await launch(machine, order, terms=self._terms, clock=self._clock)
        except NotApart:
            self._refuses_tasksets = True
            raise
        if self._shelf is not None:
            await self._shelf.take(
                machine, ended, full=order.kind == "full", within_s=_KEEPING_SHARE * job.spec.timeout_s
            )
        return Checkpoint(
            path=ended.path,
            base=order.base,
            kind=order.kind,
            digest=ended.digest,
            seconds=ended.seconds,
            curve=ended.curve,
            log=ended.log,
            peak_memory_gib=ended.peak_memory_gib,
        )

    async def order(self, spec: JobSpec, machine: Machine) -> Order:
        """What the machine is told: the TOML for its GPUs, the environment package, limits."""
        config, problems = parse(spec.files, self.surface)
        if config is None:
            raise AgentFault(f"the job is not valid: {problems[0].message}")
        placement = self._placed(config, await gpus(machine), machine.id)
        base_path = await weights.locate(machine, config.base)
        env = package(spec.files, family=self._family(spec.task.family), name=f"job-{spec.digest[:12]}")
        return Order(
            config=render(config, env, placement, base_path=base_path, harness=HARNESS, seed=spec.seed),
            env=env,
            base=config.base,
            base_path=base_path,
            kind=job.kind(config),
            steps=config["training"]["steps"],
            digest=spec.digest,
            gpus=_named(placement.devices, machine),
            argv=self._argv,
            deadline_s=_TRAINING_SHARE * spec.timeout_s,
        )

    def _placed(self, config: JobConfig, gpu_gib: Sequence[float], machine: str) -> Placement:
        shape = self._shapes[config.base]
        placement = place(shape, job.kind(config), config["training"]["seq_len"], gpu_gib[:2])
        if placement is None:
            have = ", ".join(f"{gib:.0f} GiB" for gib in gpu_gib) or "none"
            raise InfraFault(f"{machine} is too small for {config.base} ({job.kind(config)}): its GPUs are {have}")
        return placement

    def _family(self, name: str) -> str:
        """A built-in family by name, one of the user's by its folder."""
        own = set(tasks.names())
        further = (f for f in self._families if f.name == name and isinstance(f, tasks.ChainFamily))
        return name if name in own else next((str(f.card.folder) for f in further), name)


def _held(machine: Machine) -> tuple[int, ...] | None:
    """Which GPUs of its computer a machine has, as the driver counts them; None where it has them all. See `compute.ray.RayMachine`."""
    held: tuple[int, ...] | None = getattr(machine, "gpu_ids", None)
    return held


def _named(devices: str, machine: Machine) -> str:
    """Devices that are counted among a machine's own, as its computer counts them."""
    held = _held(machine)
    return devices if held is None else ",".join(str(held[int(place)]) for place in devices.split(","))


async def gpus(machine: Machine) -> tuple[float, ...]:
    """The memory of each GPU of a machine, in GiB. InfraFault when it has none that answers."""
    try:
        done = await machine.run(GPUS, timeout_s=_ASKING_S)
        found = tuple(int(line) / 1024 for line in done.stdout.split()) if done.returncode == 0 else ()
    except (OSError, TimeoutError, ValueError) as error:
        raise InfraFault(f"{machine.id}: its GPUs could not be asked for: {error}") from error
    held = _held(machine)
    if held is not None and found:
        found = tuple(found[place] for place in held if place < len(found))
    if not found:
        raise InfraFault(f"{machine.id} has no GPU: nvidia-smi ended with {done.returncode}: {done.stderr[:200]}")
    return found
