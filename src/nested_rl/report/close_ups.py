"""The numbers of one episode, ready for a page: its jobs, its scores item by item, the parts of its reward."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from attrs import frozen
from markupsafe import Markup

from nested_rl import redact
from nested_rl.report.phrases import number
from nested_rl.report.showcase import inert
from nested_rl.rewards import UpliftReward
from nested_rl.types import JSON, Episode, Score, Submitted

MOST_LOG = 20_000
"""Characters of a job's log that are shown: its end, where an error is. result.json has the rest."""
_WIDTH, _HEIGHT, _LEFT, _UNDER = 560, 130, 34, 16


@frozen(kw_only=True)
class ShownJob:
    """A job that was run. `post` is None for one whose hidden score stays sealed; `log_cut` characters are left out before `log`."""

    job: Submitted
    curve: Markup
    log: str
    log_cut: int


@frozen(kw_only=True)
class Items:
    """The hidden items, trained against the best untrained base: how many it gains and loses, and a picture of all."""

    base: str
    gained: int
    lost: int
    same: int
    picture: Markup


@frozen(kw_only=True)
class Part:
    """A part of the reward as it is, and what it adds to the reward (None where the weights are not known)."""

    name: str
    value: float
    weight: float | None = None
    adds: float | None = None


def jobs(episode: Episode) -> list[ShownJob]:
    """Every job of the episode, with its curve and the end of its log."""
    found = []
    for job in episode.jobs:
        log = redact.text(job.result.log)
        curve = _curve(job.result.curve)
        found.append(ShownJob(job=job, curve=curve, log=inert(log[-MOST_LOG:]), log_cut=max(0, len(log) - MOST_LOG)))
    return found


def baselines(episode: Episode) -> list[tuple[str, Score, bool]]:
    """The untrained bases, best first: (name, hidden score, whether the job chose it)."""
    outcome = episode.outcome
    ordered = sorted(outcome.baselines.items(), key=lambda pair: -pair[1].value)
    return [(base, score, base == outcome.base) for base, score in ordered]


def items(episode: Episode) -> Items | None:
    """Item by item, where trained and untrained score are known on the same items. The items themselves are nowhere on disk."""
    outcome = episode.outcome
    best, post = outcome.best_baseline, outcome.post
    if best is None or post is None or not post.items or len(post.items) != len(best.items):
        return None
    base = next(name for name, score in outcome.baselines.items() if score is best)
    pairs = sorted(zip(best.items, post.items, strict=True), reverse=True)
    gained, lost = sum(b < a for b, a in pairs), sum(b > a for b, a in pairs)
    alt = f"Of {len(pairs)} items {gained} are better, {lost} worse, {len(pairs) - gained - lost} equal."
    return Items(base=base, gained=gained, lost=lost, same=len(pairs) - gained - lost, picture=_strips(pairs, alt))


def weights(spec: Mapping[str, JSON]) -> Mapping[str, float]:
    """What the run's reward multiplies its parts by, if it is the default kind; else nothing."""
    told = spec.get("parts", {}).get("reward")
    if told is None:
        return UpliftReward().weights
    if not isinstance(told, Mapping) or not str(told.get("name", "")).endswith("UpliftReward"):
        return {}
    return {key: float(told.get(key, value)) for key, value in UpliftReward().weights.items()}


def parts(episode: Episode, weights: Mapping[str, float]) -> list[Part]:
    """The parts, with what each adds when these weights give the recorded reward."""
    found = episode.parts
    fit = found.keys() == weights.keys() and math.isclose(
        sum(weights[name] * value for name, value in found.items()), episode.reward, abs_tol=1e-9
    )
    return [
        Part(name=name, value=value, weight=weights[name], adds=weights[name] * value)
        if fit
        else Part(name=name, value=value)
        for name, value in found.items()
    ]


# ---------------------------------------------------------------- pictures


def _curve(values: Sequence[float]) -> Markup:
    """The job's own reward by training step, from 0 (or less) to 1 (or more)."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 2:
        return Markup("")
    low, high = min(0.0, *finite), max(1.0, *finite)
    stride = max(1, len(values) // 400)
    shown = [(at, value) for at, value in enumerate(values) if math.isfinite(value) and at % stride == 0]

    def x(at: int) -> float:
        return _LEFT + (_WIDTH - _LEFT - 6) * at / (len(values) - 1)

    def y(value: float) -> float:
        return 5 + (_HEIGHT - _UNDER - 10) * (high - value) / (high - low)

    rules = "".join(
        f'<line x1="{_LEFT}" x2="{_WIDTH - 6}" y1="{y(v):.1f}" y2="{y(v):.1f}"/>'
        f'<text x="{_LEFT - 5}" y="{y(v) + 4:.1f}" text-anchor="end">{number(v, 1)}</text>'
        for v in (low, (low + high) / 2, high)
    )
    steps = "".join(
        f'<text x="{x(at):.1f}" y="{_HEIGHT - 2}" text-anchor="{anchor}">{at + 1}</text>'
        for at, anchor in ((0, "start"), (len(values) - 1, "end"))
    )
    line = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in shown)
    alt = f"Reward of the job while it trained: {number(finite[0])} at first, {number(finite[-1])} at the end."
    return Markup(  # noqa: S704  made of numbers
        f'<svg class="curve" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{alt}">'
        f'{rules}{steps}<polyline points="{line}"/></svg>'
    )


def _strips(pairs: Sequence[tuple[float, float]], alt: str) -> Markup:
    """Two rows of cells, one cell an item: untrained above, trained below; the darker, the more often right."""
    cells = []
    for row in (0, 1):
        at = 0
        for value, same in itertools.groupby(pair[row] for pair in pairs):
            n = len(list(same))
            cells.append(
                f'<rect class="r{row}" x="{at}" y="{13 * row}" width="{n}" height="12" fill-opacity="{value:.2f}"/>'
            )
            at += n
    return Markup(  # noqa: S704  made of numbers
        f'<svg class="strips" viewBox="0 0 {len(pairs)} 25" preserveAspectRatio="none" role="img" aria-label="{alt}">'
        f"{''.join(cells)}</svg>"
    )
