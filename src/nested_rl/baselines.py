"""Untrained scores, measured once per run, and the evaluation sets that they and every checkpoint are scored on.

Pre and post use the same items and engine settings; baselines take more samples, since the best of several noisy numbers
is biased upwards. The secret salt picks the items; neither it nor an answer leaves the controller.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence

from nested_rl import describe, soundness
from nested_rl.episode import derived
from nested_rl.errors import InfraFault, SettingsError, UnknownName
from nested_rl.interfaces import ComputeBackend, Scorer, TaskFamily
from nested_rl.rundir import RunDir
from nested_rl.types import EvalSet, EvalSplit, JobSpec, Need, Score, Task

N_ITEMS = 256
TRIES = 3
ANY = Need()
SPLITS: tuple[EvalSplit, ...] = ("hidden", "dev")


GRADER = "grader"


class Baselines:
    """The bases' scores for the tasks of a run: read from the run directory, measured when missing."""

    def __init__(
        self,
        run: RunDir,
        families: Sequence[TaskFamily],
        *,
        bases: Sequence[str],
        scorer: Scorer,
        compute: ComputeBackend,
        need: Need = ANY,
        n: int = N_ITEMS,
    ) -> None:
        self._run = run
        self._families = {f.name: f for f in families}
        self._bases = bases
        self._scorer = scorer
        self._compute, self._need = compute, need
        self._n = n
        self._salt = run.salt
        self._known = run.baselines()
        self._digests = run.eval_digests()
        self._checked: set[str] = set()
        self._sets: dict[tuple[str, int, EvalSplit], EvalSet] = {}
        self._measuring = asyncio.Lock()

    def eval_set(self, task: Task, split: EvalSplit) -> EvalSet:
        """The evaluation of a task in this run."""
        place = (task.family, task.difficulty, split)
        if place not in self._sets:
            if task.family not in self._families:
                raise UnknownName("family", task.family, self._families)
            family = self._families[task.family]
            self._sets[place] = family.eval_set(task, split, salt=self._salt, n=self._n)
        return self._sets[place]

    def hidden_set(self, spec: JobSpec) -> EvalSet:
        """What a job's checkpoint is scored on. Raises SettingsError when it is no longer what the baselines were scored on."""
        if (key := _key(spec.task)) in self._digests:
            self._check(key, self._digests_of(spec.task))
        return self.eval_set(spec.task, "hidden")

    def dev_set(self, spec: JobSpec) -> EvalSet:
        """What its author is told a score on, if he may hand in several."""
        return self.eval_set(spec.task, "dev")

    async def of(self, task: Task) -> Mapping[str, Mapping[str, Score]]:
        """Split → base → score. The first caller measures; the others wait for it.

        Raises SettingsError when the family's own code does not hold (see soundness.py), and when they were measured on another evaluation than the present one: nothing may be compared.
        """
        key = _key(task)
        async with self._measuring:
            if key not in self._checked:
                soundness.check(self._families[task.family], [self.eval_set(task, split) for split in SPLITS])
            self._check(key, self._digests_of(task))
            if key not in self._checked:
                await self._measure(key, task)
                self._checked.add(key)
        return self._known[key]

    def _check(self, key: str, digests: dict[str, str]) -> None:
        """Scores that are there already, all or some, must be of this very evaluation."""
        before = digests | self._digests.get(key, {})
        if key in self._known and before[GRADER] != digests[GRADER]:
            raise SettingsError(
                f"the code that grades {key} has changed since this run measured its baselines; put back what was changed, or "
                "start a new run"
            )
        if key in self._known and before != digests:
            raise SettingsError(
                f"the evaluation of {key} has changed since this run measured its baselines (its salt, its items or how "
                "they are asked); put back what was changed, or start a new run"
            )
        if self._digests.get(key) != digests:
            self._digests[key] = digests
            self._run.write_eval_digests(self._digests)

    def _digests_of(self, task: Task) -> dict[str, str]:
        """Of items, sampling and the scorer's engine, by split; and of the code that grades."""
        sets = {split: self.eval_set(task, split) for split in SPLITS}
        settings = getattr(self._scorer, "settings", None)
        engine = f"/{json.dumps(settings(), sort_keys=True)}" if callable(settings) else ""
        texts = {split: f"{s.digest}/{s.sampling}/{s.baseline_sampling}{engine}" for split, s in sets.items()}
        found: dict[str, str] = {split: hashlib.sha256(text.encode()).hexdigest() for split, text in texts.items()}
        return found | {GRADER: self.grader(task.family)}

    def grader(self, *families: str) -> str:
        """Names the code that grades these families: the families' own and the scorer's."""
        return describe.code(self._scorer, *(self._families[name] for name in families))

    async def _measure(self, key: str, task: Task) -> None:
        """Whatever is missing. Each score is kept as soon as it is there; a machine that fails is replaced, twice."""
        found = self._known.setdefault(key, {split: {} for split in SPLITS})
        # A base at a time: a scorer may have a server to start for each.
        missing = [(split, base) for base in self._bases for split in SPLITS if base not in found[split]]
        faults = 0
        while missing:
            try:
                async with self._compute.machine(self._need) as machine:
                    while missing:
                        split, base = missing[0]
                        seed = derived("baseline", base, split)
                        found[split][base] = await self._scorer.score(
                            base, self.eval_set(task, split), machine, seed=seed
                        )
                        self._run.write_baselines(self._known)
                        missing.pop(0)
            except InfraFault:
                faults += 1
                if faults == TRIES:
                    raise


def _key(task: Task) -> str:
    return f"{task.family}-k{task.difficulty}"
