"""Nano-scale jobs: what they may say, how their authors are told, and how they are trained on a machine's CPU."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from functools import cached_property

from nested_rl import replies, tasks
from nested_rl.clock import Clock, SystemClock
from nested_rl.errors import AgentFault, SettingsError
from nested_rl.inner import nano_dialect
from nested_rl.interfaces import InnerTrainer, Machine, TaskFamily
from nested_rl.jobs.confine import WEAK
from nested_rl.jobs.folder import digest, parse
from nested_rl.jobs.sandbox import Level, SandboxUnavailable, Zygote, require_walls
from nested_rl.jobs.surface import Surface
from nested_rl.jobs.validate import validate
from nested_rl.nano.lines import OutOfTime, ask
from nested_rl.types import Checkpoint, Draft, Job, Need, Scale, Task, Validation

KEY = "nano-job"
ARGV = ("python", "-s", "-P", "-m", "nested_rl.inner.nano_job")
"""The warm training program of a machine."""


class NanoInnerTrainer(InnerTrainer):
    """Trains nano bases on the machine's CPU, with real GRPO.

    `max_work` is what one job may use, in (sampled + trained tokens) × parameters, and what the reward's speed part is
    measured against. A sound job of 25 steps on nano-m uses 2 to 4.5e9 of it, one of 40 steps at most 7e9, in about as many
    CPU-seconds as units of 5e9. `wall_s` only catches hangs: it is more than ten times what a job at its work limit needs.
    """

    scale: Scale = "nano"

    def __init__(
        self,
        bases: Sequence[str] = ("nano-s", "nano-m"),
        *,
        max_work: float = 1e10,
        wall_s: float = 60.0,
        clock: Clock | None = None,
    ) -> None:
        from nested_rl.nano.folder import weights_path

        if not bases:
            raise SettingsError("NanoInnerTrainer needs at least one base, such as 'nano-m'")
        for base in bases:
            weights_path(base)
        for name, value in (("max_work", max_work), ("wall_s", wall_s)):
            if not (math.isfinite(value) and value > 0):
                raise SettingsError(f"NanoInnerTrainer({name}={value!r}): it must be a finite number above 0")
        self.bases = tuple(bases)
        self.max_work, self.wall_s = max_work, wall_s
        self._clock = clock or SystemClock()
        self._families: tuple[TaskFamily, ...] | None = None
        self._zygote: Zygote | None = None
        self._walls = False

    @property
    def timeout_s(self) -> float:
        """The most that training and scoring of one job take together."""
        return 2 * self.wall_s

    def settings(self) -> dict[str, object]:
        """What of this trainer changes results; recorded with a run."""
        return {"bases": self.bases, "max_work": self.max_work, "wall_s": self.wall_s}

    def bind(self, families: Sequence[TaskFamily]) -> None:
        """Know these families too, besides the built-in ones.

        Their questions are recognised, held-out ones dropped, and jobs may ask the kit for them by name.
        """
        builtin = tasks.load(scale="nano")
        own = {family.name for family in builtin}
        self._families = (*builtin, *(family for family in families if family.name not in own))

    # ---- what a job is

    @cached_property
    def surface(self) -> Surface:
        """Everything that a nano job may say."""
        from nested_rl.nano.folder import load_model, weights_path

        model, tokenizer = load_model(weights_path(self.bases[0]))
        letters = frozenset(letter for letter in tokenizer.vocab if letter not in tokenizer.special_ids)
        return nano_dialect.surface(self.bases, letters=letters, context=model.config.max_position_embeddings)

    def guide(self, task: Task, *, brief: bool) -> str:  # noqa: ARG002 - the same for every task
        """The whole dialect with an example, or one line of it."""
        return replies.README if brief else nano_dialect.guide(self.surface, max_work=self.max_work)

    def need(self, draft: Draft) -> Need:  # noqa: ARG002 - any machine will do
        """Any machine."""
        return Need()

    async def validate(self, draft: Draft) -> Validation:
        """Checks and probe, in one warm sandbox that all validations share."""
        zygote = await self._sandbox()
        if self._walls and await asyncio.to_thread(lambda: zygote.level) in WEAK:
            raise SandboxUnavailable("agent-written code is not run: there are only resource limits around it")
        return await validate(draft, self.surface, zygote=zygote, families=self._families or ())

    async def sandbox_level(self) -> Level:
        """Of this computer."""
        zygote = await self._sandbox()
        return await asyncio.to_thread(lambda: zygote.level)

    async def require_walls(self) -> None:
        """Refuse to run agent-written code where nothing but resource limits holds it."""
        self._walls = True
        require_walls(await self.sandbox_level())

    async def _sandbox(self) -> Zygote:
        if self._families is None:
            self.bind(())
        folders = tuple(family.card.folder for family in self._further())
        if self._zygote is not None and self._zygote.families != folders:
            await self.close()
        if self._zygote is None:
            self._zygote = Zygote(families=folders)
        return self._zygote

    async def close(self) -> None:
        """End the sandbox. A later `validate` starts another."""
        zygote, self._zygote = self._zygote, None
        if zygote is not None:
            await asyncio.to_thread(zygote.close)

    # ---- how it is trained

    async def train(self, job: Job, machine: Machine) -> Checkpoint:
        """One job on the machine's warm training program.

        Raises AgentFault when its code misbehaves, or when it uses more than `max_work` or `wall_s`; InfraFault when the program
        or the machine fails.
        """
        spec, started = job.spec, self._clock.monotonic()
        config, problems = parse(spec.files, self.surface)
        if config is None:
            raise AgentFault(f"the job is not valid: {problems[0].message}")
        out = f"{machine.root}/job-{digest(spec.files)[:24]}-{spec.seed}-{job.delivery}"
        question = {
            "base": config.base,
            "files": dict(spec.files),
            "recipe": {**config["training"], **config["rollout"], **config["nano"]},
            "seed": spec.seed,
            "work_limit": self.max_work,
            "walls": self._walls,
            "families": [await _shipped(family, machine) for family in self._further()],
            "out": out,
        }
        try:
            answer = await ask(machine, KEY, ARGV, question, timeout_s=self.wall_s)
        except OutOfTime as late:
            raise AgentFault(f"the job ran for more than {self.wall_s:g} s and was killed") from late
        if "fault" in answer:
            raise AgentFault(str(answer["fault"]))
        return Checkpoint(
            path=out,
            base=config.base,
            kind="full",
            digest=answer["digest"],
            work=answer["work"],
            work_limit=self.max_work,
            seconds=self._clock.monotonic() - started,
            curve=tuple(answer["curve"]),
            log=answer["log"],
        )

    def _further(self) -> list[tasks.ChainFamily]:
        """Families of the user's, which a machine does not have yet."""
        own = set(tasks.names())
        further = (f for f in self._families or () if f.name not in own and isinstance(f, tasks.ChainFamily))
        return [family for family in further if family.card.nano is not None]


async def _shipped(family: tasks.ChainFamily, machine: Machine) -> str:
    """Put a family's folder on the machine; its path there. It holds a generator, never an item of an evaluation."""
    for file in sorted(family.card.folder.iterdir()):
        if file.is_file():
            await machine.put(f"families/{family.name}/{file.name}", file.read_bytes())
    return f"{machine.root}/families/{family.name}"
