"""Two runs on one page: what differs in the question and in the answer, and how sure one may be of it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from nested_rl import redact
from nested_rl.errors import SettingsError
from nested_rl.report import charts, digest, intervals, pictures
from nested_rl.report.charts import Series
from nested_rl.report.digest import Digest, StepSums
from nested_rl.report.intervals import Interval
from nested_rl.report.markup import templates
from nested_rl.report.phrases import count, duration, money, percent
from nested_rl.report.pictures import Picture
from nested_rl.rundir import RunDir, write_atomic

MOST_FAILURES = 15
AT_THE_END: tuple[tuple[str, Callable[[StepSums], Sequence[float]]], ...] = (
    ("reward", lambda sums: sums.rewards),
    ("uplift (0 without a scored job)", lambda sums: sums.uplift),
    ("valid at the first try", lambda sums: sums.first_try),
    ("valid in the end", lambda sums: sums.valid),
    ("quality of valid jobs", lambda sums: sums.quality_given_valid),
)
DEFAULT = "(the default)"
_NOT_ASKED = ("nested_rl",)


@frozen(kw_only=True)
class Difference:
    """One measure on both sides, and second minus first with its 95 % interval. `paired` task by task; else of unrelated episodes."""

    name: str
    ours: float
    theirs: float
    difference: Interval
    paired: bool = False

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.difference.low > 0 or self.difference.high < 0


@frozen(kw_only=True)
class Comparison:
    """What `compare` found: the first run is `ours`, the second `theirs`. `print(comparison)` says it in a paragraph."""

    ours: RunDir
    theirs: RunDir
    names: tuple[str, str]
    digests: tuple[Digest, Digest]
    differences: tuple[Difference, ...]
    families: tuple[Difference, ...]
    settings: tuple[tuple[str, str, str], ...]
    """(name, first, second) of what was asked differently; a side that does not say has the default."""
    cautions: tuple[str, ...]
    """Why the numbers are not to be compared one to one."""

    def __str__(self) -> str:
        return redact.text(" ".join(sentences(self)))

    def write(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write the page, by default `comparison-NAME.html` in the first run's directory, and return its path."""
        target = (
            Path(path) if path is not None else self.ours.path / f"comparison-{self.theirs.path.resolve().name}.html"
        )
        write_atomic(target, render(self, beside=target.parent).encode("utf-8", "replace"))
        return target


def compare(ours: RunDir, theirs: RunDir) -> Comparison:
    """Both runs as far as they are. Raises SettingsError where one has no step yet, or both are the same directory."""
    if ours.path.resolve() == theirs.path.resolve():
        raise SettingsError(f"{ours.path} is both runs; name two")
    a, b = digest.read(ours), digest.read(theirs)
    for run, found in ((ours, a), (theirs, b)):
        if not found.rows:
            raise SettingsError(f"{run.path} has no step yet: there is nothing to compare")
    shared = [family for family in a.families if family in b.families]
    return Comparison(
        ours=ours,
        theirs=theirs,
        names=_names(ours, theirs),
        digests=(a, b),
        differences=(*_at_the_end(a, b), *_evaluated(ours, theirs)),
        families=tuple(_apart(f, a.rewards(a.last_steps, f), b.rewards(b.last_steps, f)) for f in shared),
        settings=tuple(_settings(a.spec, b.spec)),
        cautions=tuple(_cautions(ours, theirs, a, b)),
    )


def sentences(found: Comparison) -> list[str]:
    """The headline, sentence by sentence."""
    first, second = found.names
    told = [f"{second} against {first}, over the last {digest.LAST_STEPS} steps of each:"]
    told[0] += " " + "; ".join(_said(d) for d in found.differences if not d.paired) + "."
    told += [f"{d.name}: {_said(d, named=False)}." for d in found.differences if d.paired]
    a, b = found.digests
    told.append(
        f"It took {duration(b.seconds)} against {duration(a.seconds)}, and cost {money(b.usd)} against {money(a.usd)}."
    )
    if found.settings:
        names = dict.fromkeys(".".join(name.split(".")[:2]) for name, _, _ in found.settings)
        told.append(f"Asked differently: {', '.join(names)}.")
    return [*told, *found.cautions]


def verdict(found: Comparison) -> str:
    """What is clear and what is not, in two short sentences."""
    clear = [f"{d.name[0].lower()}{d.name[1:]} {d.difference.value:+.2f}" for d in found.differences if d.clear]
    open_ = [f"{d.name[0].lower()}{d.name[1:]}" for d in found.differences if not d.clear]
    told = [f"{found.names[1]} minus {found.names[0]}: {', '.join(clear)}." if clear else "No difference is clear."]
    if clear and open_:
        told.append(f"No clear difference in {', '.join(open_)}.")
    return " ".join(told)


def _said(found: Difference, *, named: bool = True) -> str:
    name = f"{found.name} " if named else ""
    n = f", {count(found.difference.n, 'pair')}" if found.paired else ""
    return f"{name}{found.theirs:.2f} against {found.ours:.2f}, difference {found.difference.signed()}{n}"


def _names(ours: RunDir, theirs: RunDir) -> tuple[str, str]:
    """The folders' names; with their parents' where these are equal."""
    first, second = ours.path.resolve(), theirs.path.resolve()
    if first.name != second.name:
        return first.name, second.name
    return f"{first.parent.name}/{first.name}", f"{second.parent.name}/{second.name}"


# ---------------------------------------------------------------- what differs


def _at_the_end(a: Digest, b: Digest) -> list[Difference]:
    found = []
    for name, values in AT_THE_END:
        ours, theirs = _values(a, values), _values(b, values)
        if ours and theirs:
            found.append(_apart(name, ours, theirs))
    return found


def _values(one: Digest, values: Callable[[StepSums], Sequence[float]]) -> list[float]:
    return [v for step in one.last_steps if step in one.sums for v in values(one.sums[step])]


def _apart(name: str, ours: Sequence[float], theirs: Sequence[float]) -> Difference:
    return Difference(
        name=name,
        ours=intervals.of(ours).value,
        theirs=intervals.of(theirs).value,
        difference=intervals.apart(theirs, ours),
    )


def _evaluated(ours: RunDir, theirs: RunDir) -> list[Difference]:
    """The newest evaluations of both that were of the same tasks, task by task."""
    mine, yours = _newest(ours), _newest(theirs)
    found = []
    for key in sorted(mine.keys() & yours.keys()):
        rows = [{row["task"]: float(row["reward"]) for row in side[key]["rows"]} for side in (mine, yours)]
        tasks = sorted(rows[0].keys() & rows[1].keys())
        first, second = [[side[task] for task in tasks] for side in rows]
        if not tasks:
            continue
        split, families = key[0], key[2]
        name = "validation tasks, last version" if split == "validation" else f"{families}, last version evaluated"
        found.append(
            Difference(
                name=f"Reward on {name}",
                ours=intervals.of(first).value,
                theirs=intervals.of(second).value,
                difference=intervals.paired(second, first),
                paired=True,
            )
        )
    return found


def _newest(run: RunDir) -> dict[tuple[str, int, str], Mapping[str, Any]]:
    """Split, seed and families → the evaluation of the highest of the run's own versions, untrained ones left out."""
    found: dict[tuple[str, int, str], Mapping[str, Any]] = {}
    for report in run.evals().values():
        own = report["split"] == "validation" or digest.OF_THE_RUN.search(str(report["policy"]))
        key = (str(report["split"]), int(report["seed"]), ", ".join(sorted({row["family"] for row in report["rows"]})))
        if own and report["version"] > 0 and (key not in found or report["version"] > found[key]["version"]):
            found[key] = report
    return found


def _settings(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    ours, theirs = dict(digest.flat(a)), dict(digest.flat(b))
    names = dict.fromkeys([*ours, *theirs])
    return [
        (name, ours.get(name, DEFAULT), theirs.get(name, DEFAULT))
        for name in names
        if name not in _NOT_ASKED and ours.get(name, DEFAULT) != theirs.get(name, DEFAULT)
    ]


def _cautions(ours: RunDir, theirs: RunDir, a: Digest, b: Digest) -> list[str]:
    found = []
    if a.spec.get("parts", {}).get("reward") != b.spec.get("parts", {}).get("reward"):
        found.append(
            "The two runs pay with different rewards, so their rewards are not the same measure; uplift and validity are."
        )
    mine, yours = ours.eval_digests(), theirs.eval_digests()
    shared = mine.keys() & yours.keys() - {"grader"}
    if any(mine[task].get("hidden") != yours[task].get("hidden") for task in shared):
        found.append(
            "Each run drew hidden items of its own, so scores differ a little for that reason alone "
            "(eval_salt_from takes another run's)."
        )
    if a.spec.get("tasks") != b.spec.get("tasks"):
        found.append("They were trained on different families.")
    if not (a.finished and b.finished):
        found.append("Not both runs are finished.")
    return found


# ---------------------------------------------------------------- the page


def render(found: Comparison, *, beside: Path) -> str:
    """The page as text, for a file in the folder `beside`."""
    a, b = found.digests
    return (
        templates()
        .get_template("compare.html.j2")
        .render(
            names=found.names,
            headline=verdict(found),
            links=[os.path.relpath(run.path / "report.html", beside) for run in (found.ours, found.theirs)],
            there=[(run.path / "report.html").is_file() for run in (found.ours, found.theirs)],
            c=found,
            pictures=_pictures(found.names, a, b),
            costs=_costs(a, b),
            failures=_failures(a, b),
        )
    )


def _pictures(names: tuple[str, str], a: Digest, b: Digest) -> list[Picture]:
    shown = [
        _over("Reward", names, (a, b), "reward/mean", lambda sums: sums.rewards),
        _over("Uplift", names, (a, b), None, lambda sums: sums.uplift),
        _over("Valid at the first try", names, (a, b), "validation/first_try", lambda sums: sums.first_try),
        _over("Quality of valid jobs", names, (a, b), None, lambda sums: sums.quality_given_valid),
        _over("Strongest base chosen", names, (a, b), "base/share_strongest", None),
        _over("Asked for baselines", names, (a, b), "tools/baselines", None),
        _over("Effective sample share", names, (a, b), "ess", None),
        _over("Seconds a step", names, (a, b), "time/step_s", None),
    ]
    return [picture for picture in shown if picture is not None]


def _over(
    title: str,
    names: tuple[str, str],
    both: tuple[Digest, Digest],
    key: str | None,
    values: Callable[[StepSums], Sequence[float]] | None,
) -> Picture | None:
    """One measure of both runs over each other; None where one of them does not have it."""
    series = []
    for name, one in zip(names, both, strict=True):
        if values is not None:
            series.append(pictures.banded(name, one, key, values))
        else:
            steps = [float(step) for step in range(1, one.done + 1)]
            series.append(Series(name=name, x=steps, y=one.column(key or "")))
    if not all(any(map(math.isfinite, line.y)) for line in series):
        return None
    alt = f"{title}: " + "; ".join(f"{line.name} {pictures.from_to(line.y)}" for line in series) + "."
    chart = charts.lines(
        f"both-{title.split(maxsplit=1)[0].lower()}",
        series,
        alt=alt,
        y_max=pictures.top(series),
        x_max=max(one.steps_asked for one in both),
    )
    return Picture(title=title, caption="With 95 % intervals of each step." if values else "By step.", chart=chart)


def _costs(a: Digest, b: Digest) -> list[tuple[str, str, str]]:
    kinds = sorted(kind for kind in a.usd_by_kind.keys() | b.usd_by_kind.keys() if a.usd or b.usd)
    rows = [
        ("steps", f"{a.done} of {a.steps_asked}", f"{b.done} of {b.steps_asked}"),
        ("time", duration(a.seconds), duration(b.seconds)),
        *(
            (f"dollars, {kind}", money(a.usd_by_kind.get(kind, 0.0)), money(b.usd_by_kind.get(kind, 0.0)))
            for kind in kinds
        ),
        ("dollars, all", money(a.usd), money(b.usd)),
    ]
    for name, key in (
        ("jobs trained", "jobs/run"),
        ("jobs answered from an identical one", "jobs/reused"),
        ("groups with equal rewards", "groups/zero_advantage"),
        ("episodes masked", "episodes/masked"),
    ):
        rows.append((name, f"{a.total(key):,.0f}", f"{b.total(key):,.0f}"))
    return rows


def _failures(a: Digest, b: Digest) -> list[tuple[str, str, str]]:
    """Kinds of what went wrong as shares of all episodes, what differs most first."""
    kinds = a.failures.keys() | b.failures.keys()
    shares = {
        kind: tuple(one.failures[kind].count / one.episodes if kind in one.failures else 0.0 for one in (a, b))
        for kind in kinds
    }
    order = sorted(kinds, key=lambda kind: (-abs(shares[kind][0] - shares[kind][1]), kind))[:MOST_FAILURES]
    return [(kind[1], percent(shares[kind][0]), percent(shares[kind][1])) for kind in order]


def of_json(found: Comparison) -> str:
    """The differences for a script."""
    rows = [
        {
            "name": d.name,
            "first": d.ours,
            "second": d.theirs,
            "difference": d.difference.value,
            "low": d.difference.low,
            "high": d.difference.high,
            "n": d.difference.n,
            "paired": d.paired,
        }
        for d in (*found.differences, *found.families)
    ]
    known = [{k: None if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()} for row in rows]
    settings = [{"name": name, "first": first, "second": second} for name, first, second in found.settings]
    told = {"runs": found.names, "differences": known, "settings": settings, "cautions": found.cautions}
    return redact.text(json.dumps(told, allow_nan=False))
