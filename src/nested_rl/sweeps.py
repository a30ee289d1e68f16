"""One experiment over several seeds: a single run says little about a method, and a mean with its interval says more.

>>> import nested_rl as nrl
>>> found = nrl.sweep(nrl.Experiment(), seeds=5, steps=25, out="runs/sweep")   # doctest: +SKIP
>>> print(found)                                                       # doctest: +SKIP
>>> found.plot("sweep.svg")                                            # doctest: +SKIP
"""

from __future__ import annotations

import io
import math
import os
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from attrs import field, frozen

from nested_rl.errors import SettingsError
from nested_rl.experiment import Experiment
from nested_rl.report.phrases import count
from nested_rl.run import Run
from nested_rl.rundir import write_atomic

LAST_STEPS = 3
"""The end of a run is the mean of its last three steps."""


@frozen(kw_only=True)
class Mean:
    """A mean over `n` runs with its 95 % interval (Student's t over runs); NaN where fewer than two runs tell."""

    n: int
    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """From one number a run; those that are not finite are left out.

        >>> print(Mean.of([0.4, 0.5, 0.6]))
        0.500 [0.252, 0.748]
        """
        known = [v for v in values if math.isfinite(v)]
        n = len(known)
        mean = math.fsum(known) / n if n else math.nan
        if n < 2:
            return cls(n=n, value=mean, low=math.nan, high=math.nan)
        deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in known) / (n - 1))
        half = t_quantile(n - 1) * deviation / math.sqrt(n)
        return cls(n=n, value=mean, low=mean - half, high=mean + half)

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "unknown"
        return f"{self.value:.3f}" + ("" if math.isnan(self.low) else f" [{self.low:.3f}, {self.high:.3f}]")


def _in_order(runs: Iterable[Run]) -> tuple[Run, ...]:
    return tuple(runs)


@frozen(kw_only=True)
class Sweep:
    """Runs of one experiment that differ in their seed. `print(sweep)` says it in a sentence.

    Runs that are there already can be looked at the same way: `Sweep(runs=[Run("a"), Run("b")])`.
    """

    runs: tuple[Run, ...] = field(converter=_in_order)

    def by_step(self, key: str = "reward/mean") -> tuple[Mean, ...]:
        """A metric at each step, over the runs that have come so far."""
        columns = self._columns(key)
        longest = max(map(len, columns), default=0)
        return tuple(Mean.of([c[step] for c in columns if step < len(c)]) for step in range(longest))

    def start(self, key: str = "reward/mean") -> Mean:
        """A metric at the first step."""
        return Mean.of([c[0] for c in self._columns(key) if c])

    def end(self, key: str = "reward/mean") -> Mean:
        """A metric over each run's last three steps."""
        lasts = [[v for v in c[-LAST_STEPS:] if math.isfinite(v)] for c in self._columns(key)]
        return Mean.of([math.fsum(last) / len(last) for last in lasts if last])

    def gain(self, key: str = "reward/mean") -> Mean:
        """End minus start, run by run: the part of the spread that runs share with their own start cancels."""
        alone = [Sweep(runs=(run,)) for run in self.runs]
        return Mean.of([one.end(key).value - one.start(key).value for one in alone])

    def plot(self, path: str | os.PathLike[str], key: str = "reward/mean") -> Path:
        """Write an SVG: every run as a thin line; over the steps that all have done, the mean with its interval as a band."""
        target = Path(path)
        if target.suffix != ".svg":
            raise SettingsError(f"{target}: the picture is an SVG; end its name with .svg")
        if not any(self._columns(key)):
            raise SettingsError("no run has done a step yet: there is nothing to draw")
        write_atomic(
            target, _svg([c for c in self._columns(key) if c], self.by_step(key), key, " ".join(self.cautions))
        )
        return target

    @property
    def cautions(self) -> tuple[str, ...]:
        """Why a mean over these runs says little: they were trained on different families. `print` and `plot` say it too."""
        asked = {tuple(run.tasks) for run in self.runs}
        if len(asked) < 2:
            return ()
        told = " / ".join(sorted(", ".join(names) for names in asked))
        return (f"They were trained on different families ({told}).",)

    def __str__(self) -> str:
        n = len(self.runs)
        if not any(run.metrics for run in self.runs):
            return f"{count(n, 'run')}, none of which has done a step yet"
        return (
            f"reward over {count(n, 'run')}: {self.start()} at the start → {self.end()} at the end, gain {self.gain()} "
            f"(mean, 95 % interval over runs){''.join(f'. {said}' for said in self.cautions).removesuffix('.')}"
        )

    def _columns(self, key: str) -> list[list[float]]:
        rows = [run.metrics for run in self.runs]
        known = {name for run in rows for row in run for name in row}
        if known and key not in known:
            raise SettingsError(f"no run has a metric {key!r}; docs/run-directory.md lists them")
        return [[float(row.get(key, math.nan)) for row in run] for run in rows]


def sweep(
    experiment: Experiment | Callable[[int], Experiment],
    *,
    seeds: int | Sequence[int] = 5,
    out: str | os.PathLike[str] = "runs/sweep",
    **arguments: Any,
) -> Sweep:
    """Run an experiment once a seed, one after the other, in OUT/seed-N; `arguments` are those of `Experiment.run`.

    `seeds` is how many (0, 1, …) or which. A trainer or a queue belongs to one run: for an experiment that is given one, pass
    a function seed → Experiment that makes each its own. Interrupted, the same call goes on where it was.
    """
    chosen = range(seeds) if isinstance(seeds, int) else tuple(seeds)
    if not chosen or len(set(chosen)) < len(chosen):
        raise SettingsError(f"seeds must be at least 1, or different whole numbers, not {seeds!r}")
    if "seed" in arguments:
        raise SettingsError("give `seeds`, not `seed`: a sweep sets the seed of every run")
    if isinstance(experiment, Experiment) and len(chosen) > 1:
        own = [name for name in ("trainer", "queue") if getattr(experiment, name) is not None]
        if own:
            raise SettingsError(
                f"a {own[0]} belongs to one run; pass a function instead: sweep(lambda seed: Experiment({own[0]}=…), …)"
            )
    runs = []
    for seed in chosen:
        made = experiment if isinstance(experiment, Experiment) else experiment(seed)
        runs.append(made.run(seed=seed, out=Path(out) / f"seed-{seed}", **arguments))
    return Sweep(runs=runs)


_T = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622)
_Z = 1.959964


def t_quantile(freedom: int) -> float:
    """The 97.5 % point of Student's t: from tables up to 9 degrees of freedom, then by expansion (to four digits).

    >>> round(t_quantile(4), 3), round(t_quantile(30), 3)
    (2.776, 2.042)
    """
    if freedom <= len(_T):
        return _T[freedom - 1]
    terms = (
        (_Z**3 + _Z) / 4,
        (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / 96,
        (3 * _Z**7 + 19 * _Z**5 + 17 * _Z**3 - 15 * _Z) / 384,
    )
    return _Z + sum(term / float(freedom) ** power for power, term in enumerate(terms, 1))


_PAPER, _INK, _GRID, _RUN, _MEAN = "#ffffff", "#000000", "#e3e7eb", "#7a8794", "#1f6fb4"
_DARK = {_PAPER: "#14181d", _INK: "#e6e9ed", _GRID: "#2c333b", _RUN: "#8b98a5", _MEAN: "#6cb0ee"}
"""What a viewer that prefers the dark sees instead."""


def _svg(columns: Sequence[Sequence[float]], means: Sequence[Mean], key: str, caution: str) -> bytes:
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    for column in columns:
        axes.plot(range(1, len(column) + 1), column, color=_RUN, lw=0.7, alpha=0.6, marker=_dot(column), ms=3)
    shared = means[: min(map(len, columns))]  # beyond, the mean would jump because a run is missing
    steps = range(1, len(shared) + 1)
    axes.fill_between(steps, [m.low for m in shared], [m.high for m in shared], color=_MEAN, alpha=0.2, lw=0)
    axes.plot(steps, [m.value for m in shared], color=_MEAN, lw=2, marker=_dot(shared))
    axes.set_xlabel("step")
    axes.set_ylabel(key)
    title = [_title(len(columns), len(shared), len(means)), *textwrap.wrap(caution, 80)]
    axes.set_title("\n".join(title), fontsize=10, loc="left", parse_math=False)
    axes.grid(color=_GRID, lw=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    text = io.BytesIO()
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": key}  # the same numbers give the same file
    with mpl.rc_context(settings):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return _both_ways(text.getvalue().decode()).encode()


def _dot(values: Sequence[object]) -> str | None:
    """One value makes no line."""
    return "o" if len(values) == 1 else None


def _title(runs: int, shared: int, longest: int) -> str:
    if runs == 1:
        return "1 run"
    told = f"{runs} runs: mean, and 95 % interval over runs"
    return told if shared == longest else f"{told}, up to step {shared}, which all have done"


def _both_ways(svg: str) -> str:
    """With the colours for dark pages. Rules, not variables: a program without them shows the light picture."""
    rules = [f'[style*="{p}: {a}"] {{ {p}: {b} !important }}' for a, b in _DARK.items() for p in ("fill", "stroke")]
    dark = " ".join([f"text {{ fill: {_DARK[_INK]} }}", *rules])
    style = f"<style>@media (prefers-color-scheme: dark) {{ {dark} }}</style>"
    return svg.replace("<defs>", f"{style}\n <defs>", 1)
