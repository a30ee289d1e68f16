"""The GPU matrix: one reference job on each kind of machine with each base, measured as the worker runs every job.

What it writes (`matrix.py`) is where a pool starts from and what a plan reckons with.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import tomli_w
from attrs import Factory, define, evolve, field, frozen

from nested_rl import matrix, redact, tasks
from nested_rl.clock import Clock, SystemClock
from nested_rl.errors import BudgetExceeded, SettingsError
from nested_rl.interfaces import ComputeBackend, InnerTrainer, Machine, Scorer, TaskFamily
from nested_rl.jobs.folder import digest
from nested_rl.matrix import Row
from nested_rl.meter import Meter
from nested_rl.report.phrases import money
from nested_rl.types import Budget, Checkpoint, Draft, Job, JobResult, JobSpec
from nested_rl.worker import Delivery

log = redact.logger(__name__)
FAMILY: Final = "calc_chain"
NANO_JOB: Final[Mapping[str, str]] = {
    "job.toml": (
        '[model]\nbase = "nano-m"\n\n[training]\nsteps = 25\nlearning_rate = 1e-3\nbatch_size = 128\ngroup_size = 8\n'
    ),
    "environment.py": (
        "from nested_rl.jobkit import make, parse\n\n\ndef examples(rng, n):\n    return make('calc_chain', rng, n)\n\n\n"
        "def reward(prompt, completion, answer):\n    return float(parse(completion) == answer)\n"
    ),
}
"""The reference job at nano scale. At full scale it is a folder, such as examples/jobs/calc_chain of the repository."""


@frozen(kw_only=True)
class Kind:
    """One kind of machine: its name in the table, where such machines come from, what is known of it before.

    `usd_per_hour` is what one is said to cost, by default what its backend says; live prices may differ. `expected_s` is what a job took before.
    """

    name: str
    compute: ComputeBackend
    usd_per_hour: float = field(
        default=Factory(lambda self: float(getattr(self.compute, "usd_per_hour", 0.0)), takes_self=True)
    )
    expected_s: float | None = None


@define
class _Noting:
    """An inner trainer that keeps what it made last."""

    inner: InnerTrainer
    made: Checkpoint | None = None

    async def train(self, job: Job, machine: Machine) -> Checkpoint:
        self.made = None
        self.made = await self.inner.train(job, machine)
        return self.made


@define(kw_only=True)
class Bench:
    """`jobs` reference jobs for each kind and base; the kinds at the same time, on one machine each.

    `files` is the job, whose base is replaced by each of `bases`. No job begins that `usd` does not cover.
    """

    kinds: Sequence[Kind]
    inner: InnerTrainer
    scorer: Scorer
    bases: Sequence[str]
    files: Mapping[str, str] = NANO_JOB
    family: TaskFamily = field(factory=lambda: tasks.load(FAMILY, scale="nano")[0])
    jobs: int = 1
    items: int = 256
    usd: float | None = None
    clock: Clock = field(factory=SystemClock)
    source: str = "nested-rl bench-gpus"

    async def run(self, on_row: Callable[[Row], None]) -> list[Row]:
        """Every row; `on_row` is told of each as soon as it is there. Everything is given back at the end.

        Raises SettingsError when the job is not valid, or when settings alone kept everything from being measured.
        """
        refused: list[str] = []
        meter = Meter(Budget(usd=self.usd), clock=self.clock, write=lambda _: None)
        for kind in self.kinds:
            if hasattr(kind.compute, "metered"):  # it pays for whole machines
                kind.compute.metered(meter, ledger="bench")
        for part in (self.inner, self.scorer):
            bind = getattr(part, "bind", None)
            if bind is not None:
                bind((self.family,))
        try:
            specs = [await self._spec(base) for base in self.bases]
            rows = await asyncio.gather(*(self._kind(kind, specs, meter, on_row, refused) for kind in self.kinds))
        finally:
            for held in (*(kind.compute for kind in self.kinds), self.inner, self.scorer):
                close = getattr(held, "close", None)
                if close is not None:
                    await close()
        found = [row for of_kind in rows for row in of_kind]
        if refused and not found:
            raise SettingsError("nothing was measured: " + "; ".join(dict.fromkeys(refused)))
        return found

    async def _spec(self, base: str) -> JobSpec:
        """The job with this base, validated as an agent's is."""
        files = rebased(self.files, base)
        draft = Draft(task=next(self.family.tasks()), files=files)
        if hasattr(self.inner, "offered"):
            self.inner.offered([offer for kind in self.kinds for offer in kind.compute.offers()])
        verdict = await self.inner.validate(draft)
        if not verdict.ok:
            raise SettingsError(f"the reference job is not valid with {base}: {verdict.problems[0].message}")
        return JobSpec(
            task=draft.task,
            files=files,
            digest=digest(files),
            base=base,
            scale=self.inner.scale,
            need=self.inner.need(draft),
            timeout_s=float(getattr(self.inner, "timeout_s", 3600.0)),
        )

    async def _kind(
        self,
        kind: Kind,
        specs: Sequence[JobSpec],
        meter: Meter,
        on_row: Callable[[Row], None],
        refused: list[str],
    ) -> list[Row]:
        rows = []
        for spec in specs:
            results, peaks, errors = [], [], []
            for number in range(self.jobs):
                try:
                    result, peak = await self._one(kind, evolve(spec, seed=number), meter)
                except (BudgetExceeded, SettingsError) as error:  # says nothing of the machine: no measurement
                    errors.append(str(error))
                    refused += [f"{kind.name}: {error}"] if isinstance(error, SettingsError) else []
                    break
                results.append(result)
                errors += [result.error] if result.error else []
                peaks += [peak] if peak is not None else []
            if results:
                rows.append(self._row(kind, spec.base, results, peaks, errors))
                on_row(rows[-1])
            else:
                log.warning("%s with %s was not measured: %s", kind.name, spec.base, errors[-1])
        return rows

    async def _one(self, kind: Kind, spec: JobSpec, meter: Meter) -> tuple[JobResult, float | None]:
        """One job on one machine, as a worker runs it. Whatever fails is in the result.

        Raises BudgetExceeded before it begins, and SettingsError when no machine of this kind will do.
        """
        name = hashlib.sha256(f"{kind.name}/{spec.base}/{spec.seed}".encode()).hexdigest()[:12]
        pays = not hasattr(kind.compute, "metered")
        meter.reserve(name, kind.usd_per_hour * spec.timeout_s / 3600 if pays else 0.0)
        inner: Any = _Noting(self.inner)
        job = Job(id=name, key=name, spec=spec, delivery=1)
        delivery = Delivery(job=job, inner=inner, scorer=self.scorer, clock=self.clock)
        try:
            result = await delivery.run(
                kind.compute, lambda asked: self.family.eval_set(asked.task, "hidden", salt="bench", n=self.items)
            )
        finally:
            meter.settle(name, delivery.usd if pays else 0.0, kind="bench")
        return result, inner.made.peak_memory_gib if inner.made is not None else None

    def _row(
        self, kind: Kind, base: str, results: Sequence[JobResult], peaks: Sequence[float], errors: Sequence[str]
    ) -> Row:
        good = [result for result in results if result.post is not None]
        usd, seconds = (sum(getattr(result, name) for result in results) for name in ("usd", "seconds"))
        now = dt.datetime.fromtimestamp(self.clock.now(), tz=dt.UTC)
        return Row(
            candidate=kind.name,
            base=base,
            jobs=len(results),
            succeeded=len(good),
            seconds=sum(result.seconds for result in good) / len(good) if good else None,
            usd=usd / len(good) if good else None,
            usd_per_hour=usd / seconds * 3600 if seconds else kind.usd_per_hour,
            peak_memory_gib=max(peaks, default=None),
            measured=now.isoformat(timespec="seconds").replace("+00:00", "Z"),
            source=f"{self.source}, job {digest(rebased(self.files, base))[:12]}",
            machines=tuple(dict.fromkeys(result.machine for result in results if result.machine)),
            errors=tuple(error[:300] for error in errors),
        )

    def plan(self) -> str:
        """What would be run and what it is expected to cost, in words."""
        lines, total, known = [], 0.0, True
        each_s = float(getattr(self.inner, "timeout_s", 3600.0))
        for kind in self.kinds:
            most = kind.usd_per_hour * each_s / 3600
            likely = kind.usd_per_hour * (kind.expected_s or each_s) / 3600
            total += likely * self.jobs * len(self.bases)
            known = known and kind.expected_s is not None
            took = f"{kind.expected_s:.0f} s a job before" if kind.expected_s is not None else "never measured"
            lines.append(
                f"  {kind.name}: {self.jobs * len(self.bases)} jobs ({', '.join(self.bases)}), ${kind.usd_per_hour:.3f} an hour, "
                f"{took}, at most {each_s:.0f} s or {money(most)} each"
            )
        limit = f", and no job begins that would exceed {money(self.usd)}" if self.usd is not None else ""
        words = "about" if known else "at most about"
        return "\n".join(
            [*lines, f"in all {words} {money(total)} for jobs, and the time that machines take to start{limit}"]
        )


def rebased(files: Mapping[str, str], base: str) -> dict[str, str]:
    r"""The job with another base.

    >>> print(rebased({"job.toml": '[model]\nbase = "a"\n'}, "b")["job.toml"].strip())
    [model]
    base = "b"
    """
    try:
        asked = tomllib.loads(files["job.toml"])
        model = dict(asked["model"])
    except (KeyError, TypeError, ValueError) as error:
        raise SettingsError(f"the reference job has no job.toml with a table [model]: {error}") from None
    return {**files, "job.toml": tomli_w.dumps({**asked, "model": {**model, "base": base}})}


def known_seconds(name: str, rows: Sequence[Row]) -> float | None:
    """What a table says of a kind of machine."""
    return matrix.paid_seconds(rows).get(matrix.kind(name))
