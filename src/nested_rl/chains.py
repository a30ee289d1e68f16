"""Families whose questions are chains: a start state and k operations, at two scales from one definition."""

from __future__ import annotations

import functools
import hashlib
import itertools
import random
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from attrs import frozen

from nested_rl import answers, replies
from nested_rl.cards import Card, home
from nested_rl.errors import SettingsError, UnknownName
from nested_rl.interfaces import TaskFamily
from nested_rl.types import EvalSet, EvalSplit, Grade, Item, Sampling, Scale, Split, Task

if TYPE_CHECKING:
    import jinja2

HELD_OUT_BUCKETS: Mapping[EvalSplit, int] = {"hidden": 0, "dev": 1}
TRAINING_BUCKETS = range(2, 8)
VARIANTS = 3
"""Wordings of the task text that `prompt.md` can choose between, by its variable `variant`."""

Style: TypeAlias = Literal["clean", "noisy", "lazy", "direct"]
_TRIES_PER_ITEM = 2_000


def bucket(family: str, key: str) -> int:
    """Where a question may be used: 0 hidden evaluation, 1 dev evaluation, 2-7 training.

    >>> bucket("calc_chain", "c8-1+5+4")
    4
    """
    return hashlib.sha256(f"{family}:{key}".encode()).digest()[0] % 8


@frozen
class Program:
    """A start state, k operations, and whatever else the question fixes (who is asked about, rules, facts)."""

    start: Any
    ops: tuple[Any, ...]
    given: Any = None


class ChainFamily(TaskFamily):
    """A family whose questions are programs. Subclasses define the seven abstract methods, with `self.scale` at hand."""

    def __init__(self, card: Card) -> None:
        self.card = card
        self.name, self.held_out = card.name, card.held_out
        self.scale, self.difficulty = card.scale, card.difficulty

    def at(self, scale: Scale, *, difficulty: int | None = None) -> ChainFamily:
        """The same family at another scale or difficulty."""
        return type(self)(self.card.at(scale, difficulty))

    # ---- what a family is

    @abstractmethod
    def sample(self, rng: random.Random, k: int) -> Program:
        """A random program with k operations."""

    @abstractmethod
    def step(self, program: Program, i: int, state: Any) -> Any:
        """The state after operation i."""

    @abstractmethod
    def answer(self, program: Program, state: Any) -> str:
        """The answer, given the last state, in the form in which it is graded."""

    @abstractmethod
    def spell(self, program: Program) -> str:
        """The canonical key: the same for every wording."""

    @abstractmethod
    def question(self, program: Program, rng: random.Random) -> str:
        """The question; `rng` chooses the wording."""

    @abstractmethod
    def read(self, text: str) -> Program | None:
        """The program that a question at this scale asks about, or None if the text is not one."""

    @abstractmethod
    def show(self, program: Program, i: int, state: Any) -> str:
        """How nano-scale working spells the state after operation i; "" to leave it out."""

    def mark(self, program: Program, i: int) -> str:  # noqa: ARG002 - for subclasses
        """What nano-scale working says before operation i."""
        return ""

    def garble(self, state: Any, rng: random.Random, rate: float) -> Any:  # noqa: ARG002 - for subclasses
        """The state with every part replaced by a random one with probability `rate`: noise for pre-training."""
        return state

    def lazy(self, program: Program) -> Any:
        """The state a hasty solver stops at: after the first operation."""
        return self.step(program, 0, program.start)

    def canonical(self, text: str) -> str:
        """A candidate answer in the form in which answers are compared, "" if it cannot be one."""
        return answers.words(text)

    # ---- what follows from it

    def states(self, program: Program) -> list[Any]:
        """The state after every operation."""
        steps = itertools.accumulate(
            range(len(program.ops)), lambda s, i: self.step(program, i, s), initial=program.start
        )
        return list(steps)[1:]

    def solve(self, program: Program) -> str:
        """The right answer."""
        return self.answer(program, self.states(program)[-1])

    def working(self, program: Program, style: Style, rng: random.Random, *, rate: float = 0.0) -> str:
        """A nano-scale completion for pre-training, without the end mark.

        "clean" is the chain and its answer, "noisy" the same with garbled states, "lazy" only the answer of a hasty
        solver, "direct" only the right answer.
        """
        if style == "lazy":
            return answers.MARK + self.answer(program, self.lazy(program))
        if style == "direct":
            return answers.MARK + self.solve(program)
        text, state = "", program.start
        for i in range(len(program.ops)):
            state = self.step(program, i, state)
            if style == "noisy":
                state = self.garble(state, rng, rate)
            text += self.mark(program, i) + self.show(program, i, state)
        return text + answers.MARK + self.answer(program, state)

    def key(self, prompt: str) -> str | None:
        for family in self._scales:
            if (program := family.read(prompt)) is not None:
                return family.spell(program)
        return None

    @functools.cached_property
    def _scales(self) -> tuple[ChainFamily, ...]:
        """The family at every scale that it has: each row of each job is asked about."""
        has = [scale for scale in get_args(Scale) if getattr(self.card, scale) is not None]
        return tuple(self if scale == self.scale else self.at(scale) for scale in has)

    def programs(
        self, rng: random.Random, k: int, buckets: Sequence[int] = TRAINING_BUCKETS
    ) -> Iterator[tuple[str, Program]]:
        """Endless (key, program) from some buckets; not unique. SettingsError when there seem to be none."""
        misses = 0
        while misses < _TRIES_PER_ITEM:
            program = self.sample(rng, k)
            key = self.spell(program)
            if bucket(self.name, key) in buckets:
                misses = 0
                yield key, program
            misses += 1
        raise SettingsError(f"{self.name} at k {k} has no questions in buckets {list(buckets)}; choose a larger k")

    def examples(self, rng: random.Random, n: int, k: int | tuple[int, int] | None = None) -> list[Item]:
        """Items that a job may train on. `k` is a length or an inclusive range; the task's own difficulty when None."""
        a, b = self._lengths(k)
        if not isinstance(n, int) or n < 0:
            raise SettingsError(f"{self.name}: n must be a whole number from 0, not {n!r}")
        streams = {length: self.programs(rng, length) for length in range(a, b + 1)}
        return [self._item(*next(streams[rng.randint(a, b)]), rng) for _ in range(n)]

    def _lengths(self, k: object) -> tuple[int, int]:
        low, high = self.card.level.k
        pair = (self.difficulty, self.difficulty) if k is None else (k, k) if isinstance(k, int) else k
        match pair:
            case [int(a), int(b)] if low <= a <= b <= high:
                return a, b
        raise SettingsError(f"{self.name}: k must be a length in {low}..{high} or a pair of them, not {k!r}")

    def eval_set(self, task: Task, split: EvalSplit, *, salt: str, n: int = 256) -> EvalSet:
        if split not in HELD_OUT_BUCKETS:
            raise UnknownName("split", split, HELD_OUT_BUCKETS)
        if task.family != self.name:
            raise SettingsError(f"task {task.id!r} is of family {task.family!r}, not {self.name!r}")
        k, _ = self._lengths(task.difficulty)
        rng = _rng("eval", self.name, self.scale, k, split, salt, n)
        items: dict[str, Item] = {}
        repeats = 0
        for key, program in self.programs(rng, k, [HELD_OUT_BUCKETS[split]]):
            if len(items) == n:
                break
            if key in items and (repeats := repeats + 1) > 20 * n:
                raise SettingsError(f"{self.name} at k {k} has fewer than {n} {split} items; lower n or raise k")
            if key not in items:
                items[key] = self._item(key, program, rng)
        nano, tokens = self.scale == "nano", self.card.level.max_tokens
        return EvalSet(
            family=self.name,
            difficulty=k,
            split=split,
            items=tuple(items.values()),
            digest=_digest(*(part for i in items.values() for part in (i.prompt, i.answer, i.key))),
            sampling=Sampling(temperature=1.0 if nano else 0.0, max_tokens=tokens),
            baseline_sampling=Sampling(temperature=1.0 if nano else 0.0, max_tokens=tokens, samples=4 if nano else 1),
        )

    def _item(self, key: str, program: Program, rng: random.Random) -> Item:
        return Item(prompt=self.question(program, rng), answer=self.solve(program), key=key)

    def grade(self, item: Item, text: str) -> Grade:
        found = answers.nano(text) if self.scale == "nano" else answers.last_line(text)
        if not found:
            return Grade(correct=False, why="empty" if not text.strip() else "no well-formed answer")
        given = self.canonical(found)
        if not given:
            return Grade(correct=False, parsed=found[:80], why=f"{found[:80]!r} has the wrong form")
        if given == self.canonical(item.answer):
            return Grade(correct=True, parsed=given[:80])
        return Grade(correct=False, parsed=given[:80], why=self._why(item, given))

    def _why(self, item: Item, given: str) -> str:
        program = self.read(item.prompt)
        if program is not None:
            for i, state in enumerate([program.start, *self.states(program)[:-1]]):
                if self.canonical(self.answer(program, state)) == given:
                    return f"the answer after step {i} of {len(program.ops)}, not the last"
        return f"{given[:80]!r} is not the answer"

    # ---- what the agent is given

    def tasks(self, split: Split = "train", *, seed: int = 0) -> Iterator[Task]:
        offset = get_args(Split).index(split) if split in get_args(Split) else None
        if offset is None:
            raise UnknownName("split", split, get_args(Split))
        rng = _rng("tasks", self.name, split, seed)
        while True:
            yield self.task(seed=rng.randrange(100_000) * len(get_args(Split)) + offset)

    def task(self, *, seed: int = 0) -> Task:
        """One task. Its seed chooses the wording and the examples shown; splits use different seeds."""
        variant = seed // len(get_args(Split)) % VARIANTS
        return Task(
            id=f"{self.name}-k{self.difficulty}-v{variant}-s{seed}",
            family=self.name,
            difficulty=self.difficulty,
            variant=variant,
            seed=seed,
            prompt=self._prompt(variant, seed),
            brief=replies.task(self.name, self.difficulty),
            held_out=self.held_out,
        )

    def _prompt(self, variant: int, seed: int) -> str:
        examples = self.examples(_rng("prompt", self.name, self.scale, seed), 3)
        template = _prompts(self.card.folder).get_template("prompt.md")
        return template.render(family=self, k=self.difficulty, variant=variant, examples=examples).strip()


@functools.cache
def _prompts(folder: Path) -> jinja2.Environment:
    import jinja2  # only agents read prompts

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, home()]),  # a family of yours may include the shared rules.md
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # noqa: S701 - plain text, not HTML
    )


def _digest(*parts: object) -> str:
    return hashlib.sha256("\x1f".join(map(str, parts)).encode()).hexdigest()


def _rng(*parts: object) -> random.Random:
    return random.Random(int(_digest(*parts), 16))
