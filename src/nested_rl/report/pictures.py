"""Which charts the page has, and what each says in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from attrs import evolve, frozen

from nested_rl.report import charts, intervals
from nested_rl.report.charts import Chart, Series
from nested_rl.report.digest import Digest, StepSums
from nested_rl.report.phrases import number, percent
from nested_rl.report.showcase import Showcase, show
from nested_rl.rundir import RunDir


@frozen(kw_only=True)
class Picture:
    """A chart with its heading and a caption that says how to read it."""

    title: str
    caption: str
    chart: Chart


def draw(digest: Digest) -> dict[str, list[Picture]]:
    """Charts by section of the page. Sections without data are empty."""
    if not digest.rows:
        return {"learning": [], "jobs": _scatters(digest), "health": [], "cost": []}
    drawn = {
        "learning": [_reward(digest), _parts(digest), _rungs(digest), _choices(digest), *_by_family(digest)],
        "jobs": _scatters(digest),
        "health": _health(digest),
        "cost": _cost(digest),
    }
    return {section: [one for one in several if not one.chart.empty] for section, several in drawn.items()}


def showcases(run: RunDir, digest: Digest) -> list[Showcase]:
    """The best job, the most instructive and the worst; an episode is shown once."""
    wanted = (
        ("Best job", "the highest reward of the run", digest.notable["best"]),
        (
            "Most instructive job",
            "refused at first, mended by the agent, then the best of those",
            digest.notable["instructive"],
        ),
        ("Worst job", "the lowest reward among jobs that were accepted", digest.notable["worst"]),
    )
    seen: set[tuple[int, int]] = set()
    found = []
    for title, why, episode in wanted:
        if episode is not None and (episode.group, episode.member) not in seen:
            seen.add((episode.group, episode.member))
            found.append(show(run, episode, title=title, why=why))
    return found


def _steps(digest: Digest) -> list[float]:
    return [float(step) for step in range(1, digest.done + 1)]


def _reward(digest: Digest) -> Picture:
    series = [banded("reward, training tasks", digest, "reward/mean", lambda sums: sums.rewards)]
    means = series[0].y
    if digest.validation:
        versions, found = [float(v) for v, _ in digest.validation], [i for _, i in digest.validation]
        series.append(
            Series(
                name="reward, fixed validation tasks",
                x=versions,
                y=[i.value for i in found],
                low=[_known(i.low, i.value) for i in found],
                high=[_known(i.high, i.value) for i in found],
                points=True,
            )
        )
    alt = f"Reward by step: {from_to(means)}."
    chart = charts.lines("reward", series, alt=alt, x_max=digest.steps_asked, y_max=top(series))
    return Picture(title="Reward", caption="Mean over the step's episodes; the band is its 95 % interval.", chart=chart)


def _parts(digest: Digest) -> Picture:
    series = [
        banded(part, digest, f"reward/{part}", lambda sums, part=part: sums.parts.get(part, []))  # type: ignore[misc]
        for part in digest.reward_parts[:6]
    ]
    alt = "Parts of the reward by step: " + "; ".join(f"{one.name} {from_to(one.y)}" for one in series) + "."
    chart = charts.lines("parts", series, alt=alt, x_max=digest.steps_asked, y_max=top(series))
    return Picture(title="Parts of the reward", caption="As they are, before they are weighted.", chart=chart)


def _rungs(digest: Digest) -> Picture:
    series = [
        banded("valid at the first try", digest, "validation/first_try", lambda sums: sums.first_try),
        banded("valid in the end", digest, "validation/valid", lambda sums: sums.valid),
    ]
    quality = banded("quality of valid jobs", digest, None, lambda sums: sums.quality_given_valid)
    if not any(
        map(math.isfinite, quality.y)
    ):  # a reward of one's own need not have such a part; every outcome has an uplift
        quality = banded("uplift of valid jobs", digest, None, _uplift_given_valid)
    if any(map(math.isfinite, quality.y)):
        series.append(quality)
    alt = "; ".join(f"{one.name} {from_to(one.y)}" for one in series) + "."
    return Picture(
        title="The two rungs",
        caption="First the agent learns to write jobs that are accepted, then jobs that are good.",
        chart=charts.lines("rungs", series, alt=alt, x_max=digest.steps_asked),
    )


def _uplift_given_valid(sums: StepSums) -> list[float]:
    return [uplift for uplift, valid in zip(sums.uplift, sums.valid, strict=True) if valid]


def _choices(digest: Digest) -> Picture:
    keys = (
        ("strongest base chosen", "base/share_strongest"),
        ("asked for baselines", "tools/baselines"),
        ("own family's data", "job/share_own_family"),
        ("advanced table used", "job/share_advanced"),
    )
    series = [
        Series(name=name, x=_steps(digest), y=digest.column(key))
        for name, key in keys
        if any(key in row for row in digest.rows)
    ]
    alt = "; ".join(f"{one.name} {from_to(one.y)}" for one in series) + "."
    return Picture(
        title="What the agent chooses",
        caption="Shares of valid jobs; asking for baselines is a share of all episodes.",
        chart=charts.lines("choices", series, alt=alt, x_max=digest.steps_asked),
    )


def _by_family(digest: Digest) -> list[Picture]:
    """Where the agent learned it; a run on one family has nothing to compare."""
    families = digest.families[:6]
    if len(families) < 2:
        return []
    rewards = [banded(f, digest, None, lambda sums, f=f: sums.families.get(f, [])) for f in families]  # type: ignore[misc]
    bases = [banded(f, digest, None, lambda sums, f=f: sums.strongest.get(f, [])) for f in families]  # type: ignore[misc]
    return [
        Picture(
            title="Reward by family",
            caption="A family is not in every step of a short run; its line goes from one such step to the next.",
            chart=charts.lines(
                "families",
                [_without_gaps(one) for one in rewards],
                alt="; ".join(f"{one.name} {from_to(one.y)}" for one in rewards) + ".",
                x_max=digest.steps_asked,
                y_max=top(rewards),
            ),
        ),
        Picture(
            title="Choice of base by family",
            caption="The share of valid jobs on the base with the best untrained score for their task.",
            chart=charts.lines(
                "bases",
                [evolve(_without_gaps(one), low=(), high=()) for one in bases],
                alt="; ".join(f"{one.name} {from_to(one.y)}" for one in bases) + ".",
                x_max=digest.steps_asked,
            ),
        ),
    ]


def _scatters(digest: Digest) -> list[Picture]:
    bases = sorted({p.base for points in digest.points.values() for p in points})
    found = []
    for index, (family, points) in enumerate(sorted(digest.points.items())):
        better = sum(p.post > p.best for p in points) / len(points)
        alt = f"{family}: {len(points)} scored jobs, {percent(better)} of them above the best untrained base."
        found.append(
            Picture(
                title=family,
                caption=f"{len(points):,} scored jobs; {percent(better)} beat the best untrained base.",
                chart=charts.scatter(f"scatter{index}", points, bases=bases, alt=alt),
            )
        )
    return found


def _health(digest: Digest) -> list[Picture]:
    x = _steps(digest)
    stale = [
        Series(name="mean", x=x, y=digest.column("staleness/mean")),
        Series(name="most", x=x, y=digest.column("staleness/max")),
    ]
    ratio = [
        Series(name="largest ratio", x=x, y=digest.column("ratio/max")),
        Series(name="mean ratio", x=x, y=digest.column("ratio/mean")),
        Series(name="effective sample share", x=x, y=digest.column("ess")),
    ]
    most = max(digest.column("staleness/max"), default=0.0)
    return [
        Picture(
            title="Staleness",
            caption="Updates between sampling an episode and training on it.",
            chart=charts.lines(
                "staleness",
                stale,
                alt=f"Staleness; at most {number(most, 0)}.",
                y_max=max(1.0, most) * 1.1,
                x_max=digest.steps_asked,
            ),
        ),
        Picture(
            title="Importance ratios",
            caption="Near 1 the episodes still fit the policy; a falling sample share says they do not.",
            chart=charts.lines(
                "ratios", ratio, alt=f"Largest ratio {from_to(ratio[0].y)}.", y_max=None, x_max=digest.steps_asked
            ),
        ),
    ]


def _cost(digest: Digest) -> list[Picture]:
    x = _steps(digest)
    keys = (
        ("whole step", "time/step_s"),
        ("agent", "time/sample_s"),
        ("update", "time/train_s"),
        ("jobs, added up", "time/jobs_s"),
    )
    times = [
        Series(name=name, x=x, y=digest.column(key)) for name, key in keys if any(key in row for row in digest.rows)
    ]
    pictures = []
    if times:
        alt = f"Seconds a step {from_to(times[0].y)}."
        chart = charts.lines("seconds", times, alt=alt, y_max=None, x_max=digest.steps_asked)
        caption = "Jobs run side by side, so their sum may exceed the step."
        pictures.append(Picture(title="Seconds a step", caption=caption, chart=chart))
    if digest.usd > 0:
        total, spent = 0.0, []
        for usd in digest.column("usd"):
            total += 0.0 if math.isnan(usd) else usd
            spent.append(total)
        chart = charts.lines(
            "dollars",
            [Series(name="dollars", x=x, y=spent)],
            alt=f"Dollars spent {from_to(spent)}.",
            y_max=None,
            x_max=digest.steps_asked,
        )
        pictures.append(Picture(title="Dollars so far", caption="Added up over the steps.", chart=chart))
    return pictures


def banded(name: str, digest: Digest, key: str | None, values: Callable[[StepSums], Sequence[float]]) -> Series:
    """A line over steps with its 95 % band: the metric `key`, or without one the mean of the step's `values`, which make the band."""
    found = [intervals.of(values(digest.sums.get(step, StepSums()))) for step in range(1, digest.done + 1)]
    means = digest.column(key) if key else [i.value for i in found]
    halves = [_known(i.high - i.value, 0.0) for i in found]
    return Series(
        name=name,
        x=_steps(digest),
        y=means,
        low=[m - h for m, h in zip(means, halves, strict=True)],
        high=[m + h for m, h in zip(means, halves, strict=True)],
    )


def _without_gaps(one: Series) -> Series:
    """Only the steps that have a value."""
    kept = [i for i, v in enumerate(one.y) if math.isfinite(v)]
    x, y, low, high = ([values[i] for i in kept] for values in (one.x, one.y, one.low, one.high))
    return evolve(one, x=x, y=y, low=low, high=high)


def _known(value: float, otherwise: float) -> float:
    return value if math.isfinite(value) else otherwise


def top(series: Sequence[Series]) -> float | None:
    """Rewards of ours lie in [0, 1] and get that axis; a reward function of yours may do otherwise."""
    finite = [v for one in series for v in one.y if math.isfinite(v)]
    return 1.0 if all(0.0 <= v <= 1.0 for v in finite) else None


def from_to(values: Sequence[float]) -> str:
    """A line in words."""
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return "not known"
    return f"from {finite[0]:.2f} at the first step to {finite[-1]:.2f} at the last"
