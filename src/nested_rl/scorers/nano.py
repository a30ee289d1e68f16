"""Scores of nano models: the machine gets prompts, the answers stay here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nested_rl import redact, tasks
from nested_rl.clock import Clock, SystemClock
from nested_rl.errors import InfraFault, SettingsError
from nested_rl.interfaces import Machine, Scorer, TaskFamily
from nested_rl.nano.lines import OutOfTime, ask
from nested_rl.types import Checkpoint, EvalSet, Item, Sampling, Score

log = redact.logger(__name__)

KEY = "nano-sampler"
ARGV = ("python", "-s", "-P", "-m", "nested_rl.nano.serve")
"""The sampling server of a machine."""


class NanoScorer(Scorer):
    """Asks the machine's sampling server and grades on the controller.

    A completion that was cut off at `max_tokens` is wrong, and counted. `families` are those to grade by; built-in ones need not be
    given. Past `wall_s` the server is taken for dead.
    """

    def __init__(
        self,
        families: Sequence[TaskFamily] = (),
        *,
        wall_s: float = 120.0,
        clock: Clock | None = None,
    ) -> None:
        self._families: dict[str, TaskFamily] = {}
        self.bind(families)
        self._wall_s = wall_s
        self._clock = clock or SystemClock()

    def bind(self, families: Sequence[TaskFamily]) -> None:
        """Grade by these families too."""
        self._families |= {family.name: family for family in families}

    async def score(self, model: Checkpoint | str, eval_set: EvalSet, machine: Machine, *, seed: int = 0) -> Score:
        """The same seed gives the same score.

        Raises SettingsError for an unknown base, family or a prompt that no nano model can read; InfraFault when the machine
        fails, or when the checkpoint is not the file that training wrote.
        """
        family, started = self._family(eval_set.family), self._clock.monotonic()
        answer = await self._sampled(model, eval_set, machine, seed)
        samples = _sampling(model, eval_set).samples
        texts, finished = answer["completions"], answer["finished"]
        if len(texts) != len(finished) or len(texts) != samples * len(eval_set.items):
            raise InfraFault(
                f"{KEY} on {machine.id} gave {len(texts)} completions of {samples} x {len(eval_set.items)}"
            )
        right = graded(family, eval_set.items, texts, finished)
        return Score.of(
            [sum(right[i : i + samples]) / samples for i in range(0, len(right), samples)],
            tokens=int(answer["tokens"]),
            truncated=finished.count(False),
            seconds=self._clock.monotonic() - started,
        )

    async def _sampled(
        self, model: Checkpoint | str, eval_set: EvalSet, machine: Machine, seed: int
    ) -> Mapping[str, Any]:
        sampling = _sampling(model, eval_set)
        question: dict[str, Any] = {
            "prompts": [item.prompt for item in eval_set.items],
            "samples": sampling.samples,
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_tokens,
            "seed": seed,
        }
        if isinstance(model, Checkpoint):
            question |= {"base": model.base, "path": model.path, "digest": model.digest}
        else:
            question |= {"base": model}
        try:
            answer = await ask(machine, KEY, ARGV, question, timeout_s=self._wall_s)
        except OutOfTime as late:
            raise InfraFault(str(late)) from late
        if "refused" in answer:
            raise SettingsError(f"{eval_set.family} cannot be scored: {answer['refused']}")
        return answer

    def _family(self, name: str) -> TaskFamily:
        """The nano-scale form of a family; raises UnknownName."""
        family = self._families.get(name)
        if family is None:
            (family,) = tasks.load(name, scale="nano")
        return family.at("nano") if isinstance(family, tasks.ChainFamily) and family.scale != "nano" else family


def graded(family: TaskFamily, items: Sequence[Item], texts: Sequence[str], finished: Sequence[bool]) -> list[bool]:
    """Which texts are right; those of one item are next to each other, and one that was cut off is wrong."""
    samples = len(texts) // len(items)
    return [
        bool(ended) and _right(family, items[i // samples], text)
        for i, (text, ended) in enumerate(zip(texts, finished, strict=True))
    ]


def _right(family: TaskFamily, item: Item, text: str) -> bool:
    """A text that the family's code fails on is wrong: as a fault of ours it would have the job left out."""
    try:
        return family.grade(item, text).correct
    except Exception as error:  # noqa: BLE001  a family of the user's may raise anything
        log.warning("grade() of family %s raised on %r, which counts as wrong: %r", family.name, text[:200], error)
        return False


def _sampling(model: Checkpoint | str, eval_set: EvalSet) -> Sampling:
    return eval_set.sampling if isinstance(model, Checkpoint) else eval_set.baseline_sampling
