"""A run in its beginning, middle and end: what each was like, and what clearly changed from one to the next."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from attrs import frozen

from nested_rl.report import intervals
from nested_rl.report.digest import Digest, StepSums
from nested_rl.report.intervals import Interval

FEWEST_STEPS = 6
"""A shorter run is told as a whole."""
NAMES = ("beginning", "middle", "end")


@frozen(kw_only=True)
class Stage:
    """Some steps in a row, counted from 1."""

    name: str
    steps: tuple[int, ...]

    def __str__(self) -> str:
        first, last = self.steps[0], self.steps[-1]
        return f"step {first}" if first == last else f"steps {first}–{last}"


@frozen(kw_only=True)
class Measure:
    """What is told of a stage: a share, or a number in [0, 1] by default."""

    name: str
    values: Callable[[StepSums], Sequence[float]]
    share: bool = False


MEASURES = (
    Measure(name="reward", values=lambda sums: sums.rewards),
    Measure(name="uplift, 0 without a scored job", values=lambda sums: sums.uplift),
    Measure(name="valid at the first try", values=lambda sums: sums.first_try, share=True),
    Measure(name="valid in the end", values=lambda sums: sums.valid, share=True),
    Measure(
        name="strongest base, of valid jobs", values=lambda s: [x for v in s.strongest.values() for x in v], share=True
    ),
)


def of(digest: Digest) -> list[Stage]:
    """Thirds of what is done; one stage of a short run, none of one without steps."""
    done = digest.done
    if not done:
        return []
    if done < FEWEST_STEPS:
        return [Stage(name="all", steps=tuple(range(1, done + 1)))]
    edges = [round(done * third / 3) for third in range(4)]
    return [
        Stage(name=name, steps=tuple(range(first + 1, last + 1)))
        for name, (first, last) in zip(NAMES, itertools.pairwise(edges), strict=True)
    ]


def values(digest: Digest, stage: Stage, measure: Measure) -> list[float]:
    """One number an episode."""
    return [v for step in stage.steps if step in digest.sums for v in measure.values(digest.sums[step])]


def change(digest: Digest, before: Stage, after: Stage, measure: Measure) -> Interval:
    """Later minus earlier, with its interval."""
    return intervals.apart(values(digest, after, measure), values(digest, before, measure))


def clear(found: Interval) -> bool:
    """Whether the interval leaves out 0."""
    return found.low > 0 or found.high < 0
