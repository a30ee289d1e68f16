"""`report.html`: one page a run, self-contained, offline, readable while the run is still going."""

from __future__ import annotations

import functools
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from nested_rl import redact
from nested_rl.alarms import KINDS
from nested_rl.report import digest as digests
from nested_rl.report import gantt, index, pictures, transcripts
from nested_rl.report.digest import Digest, Failure
from nested_rl.report.markup import templates
from nested_rl.report.notable import GAP
from nested_rl.report.phrases import count, duration, money, number, percent
from nested_rl.report.showcase import inert
from nested_rl.rundir import RunDir, write_atomic

_TABLE_ROWS = 200
MOST_FAILURES = 40
"""Kinds that are told with an example."""
CUT_OFF_SHARE = 0.1
"""Of answers, above which the headline says so."""
_COLUMNS = (
    ("reward", "reward/mean"),
    ("valid at first try", "validation/first_try"),
    ("valid", "validation/valid"),
    ("attempts", "validation/attempts"),
    ("after training", "post/mean"),
    ("uplift", "uplift/mean"),
    ("strongest base", "base/share_strongest"),
    ("asked for baselines", "tools/baselines"),
    ("advanced", "job/share_advanced"),
    ("staleness", "staleness/mean"),
    ("ratio max", "ratio/max"),
    ("ESS", "ess"),
    ("jobs run", "jobs/run"),
    ("reused", "jobs/reused"),
    ("dollars", "usd"),
    ("seconds", "time/step_s"),
)


def write_report(run: RunDir) -> Path:
    """Write `report.html` into the run directory and return its path. Works at any moment of a run."""
    return write_digest(run, digests.read(run))


def write_elsewhere(run: RunDir, digest: Digest, out: Path) -> Path:
    """Write the page to a file of your own, and nothing into the run: it leads to what is there."""
    write_atomic(out, render_digest(run, digest, beside=out.parent).encode("utf-8", "replace"))
    return out


def write_digest(run: RunDir, digest: Digest) -> Path:
    """The same, of what was read already. The episodes that the page links to get pages of their own, once while the run goes on."""
    there = set() if digest.finished else {path.stem for path in (run.path / transcripts.FOLDER).glob("*.html")}
    transcripts.write_transcripts(run, [place for place in _linked(digest) if place not in there])
    index.write_index(run, digest)
    path = run.path / "report.html"
    write_atomic(path, render_digest(run, digest).encode("utf-8", "replace"))
    return path


def _linked(digest: Digest) -> list[str]:
    """The episodes that the page tells of, which can be read from the run's own folder."""
    notable = [transcripts.name((e.group, e.member)) for _, e in digest.notable.found.values()]
    return sorted({*notable, *(failure.place for failure in _failures(digest)[:MOST_FAILURES])})


def render(run: RunDir) -> str:
    """The page as text."""
    return render_digest(run, digests.read(run))


def render_digest(run: RunDir, digest: Digest, *, beside: Path | None = None) -> str:
    """The same, of what was read already; only the files of the jobs that are shown are read from `run`.

    Links are for a page in the folder `beside`, by default the run's own.
    """
    up = "" if beside is None else os.path.relpath(run.path.resolve(), beside.resolve()) + "/"
    up = "" if up == "./" else quote(up)
    shown = pictures.showcases(run, digest)
    page = templates().get_template("page.html.j2")
    return page.render(
        d=digest,
        headline=[*sentences(digest), *missing(digest)],
        status=_status(digest),
        failed=when_failed(digest) if digest.failure else "",
        started=_date(digest.started_at),
        pictures=pictures.draw(digest),
        gantt=gantt.draw(digest.timeline, digest.episode_of_job),
        showcases=shown,
        surprises=[told for told in digest.notable.told() if told[0] not in [one.episode for one in shown]],
        failures=_failures(digest),
        most_failures=MOST_FAILURES,
        link=functools.partial(_link, run, up),
        episodes=index.count(run, digest),
        index=f"{up}{index.PLACE.as_posix()}",
        baselines=_baselines(digest),
        table=_table(digest),
        asked=digests.flat(digest.spec) + ([("sandbox", digest.sandbox)] if digest.sandbox else []),
        hygiene=_hygiene(digest),
        alarms=[(a, KINDS.get(a.name, "")) for a in digest.alarms],
    )


def _failures(digest: Digest) -> list[Failure]:
    """What is not the agent's fault first, then by how often."""
    return sorted(digest.failures.values(), key=lambda f: (f.fault != "infra", -f.count))


def _link(run: RunDir, up: str, place: str) -> str:
    """The page of an episode, or its folder while it has none."""
    page = Path(transcripts.FOLDER) / f"{place}.html"
    return f"{up}{page.as_posix() if (run.path / page).is_file() else f'episodes/{place}/'}"


def summary(run: RunDir, digest: Digest | None = None) -> str:
    """One paragraph: what ended it where that was an error, what was learned, what it took, where to read more."""
    return said(digest or digests.read(run), run.path / "report.html")


def said(digest: Digest, path: Path | None) -> str:
    """The same, of what was read already; without a page where none could be written."""
    return redact.text(" ".join([*paragraph(digest), *([f"Report: {path}"] if path else [])]))


def paragraph(digest: Digest) -> list[str]:
    """`sentences`, and before them what somebody must know first."""
    first = (
        f"The run failed {when_failed(digest)}: {inert(digest.failure)[:600].rstrip('.')}." if digest.failure else ""
    )
    return [*([first] if first else []), *sentences(digest), *missing(digest)]


def when_failed(digest: Digest) -> str:
    """At which point an error ended it."""
    if digest.finished:
        return "after its last step"
    return f"after {digest.done} of {count(digest.steps_asked, 'step')}" if digest.done else "before a step was done"


def sentences(digest: Digest) -> list[str]:
    """The headline, sentence by sentence."""
    if not digest.rows:
        return [f"No step is done yet ({count(digest.episodes, 'episode')} so far)."]
    steps = (
        f"{digest.done} of {count(digest.steps_asked, 'step')}" if not digest.finished else count(digest.done, "step")
    )
    if digest.done == 1:
        told = [f"Reward is {digest.start()} after {steps}."]
    else:
        of_last = f"mean of the last {min(digests.LAST_STEPS, digest.done)} steps, 95 % interval"
        told = [f"Reward went from {digest.start()} to {digest.end()} ({of_last}) in {steps}."]
        first, last = (side("validation/first_try").value for side in (digest.start, digest.end))
        told.append(f"Jobs valid at the first try: {percent(first)} at the start, {percent(last)} at the end.")
    for pair in digest.held_out:
        told.append(
            f"On {' and '.join(pair.families)}, held out from training: {number(pair.reward)} against "
            f"{number(pair.other_reward)} untrained, difference {pair.difference.signed()} "
            f"({count(pair.difference.n, 'pair')})."
        )
    reused = round(digest.total("jobs/reused"))
    again = f" ({reused:,} more {'was' if reused == 1 else 'were'} answered from identical ones)" if reused else ""
    told.append(
        f"It ran {count(round(digest.total('jobs/run')), 'job')} for training{again}, took {duration(digest.seconds)} "
        f"and cost {money(digest.usd)}."
    )
    if digest.cut_off > CUT_OFF_SHARE * digest.answers:
        told.append(
            f"{percent(digest.cut_off / digest.answers)} of the trained models' answers were cut off at their length limit, and count as wrong."
        )
    if digest.masked:
        told.append(
            f"{count(digest.masked, 'episode')} failed for reasons that are not the agent's and {_were(digest.masked)} left out."
        )
    standing = [alarm for alarm in digest.alarms if alarm.until is None]
    if standing:
        told.append(f"Alarms: {'; '.join(f'{alarm.name} ({alarm.message})' for alarm in standing)}.")
    return told


def missing(digest: Digest) -> list[str]:
    """What could not be read is no silent gap."""
    n = len(digest.left_out)
    return (
        [
            f"{count(n, 'episode')} could not be read and {_were(n)} left out, the first because of {inert(next(iter(digest.left_out.values())))}."
        ]
        if n
        else []
    )


def _were(n: int) -> str:
    return "was" if n == 1 else "were"


def _status(digest: Digest) -> str:
    if digest.failure:
        return f"failed {when_failed(digest)}"
    if digest.finished:
        return "finished"
    return f"{'stopped, ' if digest.stopped else ''}{digest.done} of {count(digest.steps_asked, 'step')} done"


def _date(time: float | None) -> str:
    return "" if time is None else datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _baselines(digest: Digest) -> list[tuple[str, list[tuple[str, Any]], str]]:
    """(task, [(base, hidden score)], name of the strongest)."""
    found = []
    for task, by_split in sorted(digest.baselines.items()):
        scores = sorted(by_split.get("hidden", {}).items())
        if scores:
            found.append((task, scores, max(scores, key=lambda pair: pair[1].value)[0]))
    return found


def _table(digest: Digest) -> dict[str, Any]:
    """The metrics, at most `_TABLE_ROWS` of them, evenly chosen, the last one always."""
    columns = [(heading, key) for heading, key in _COLUMNS if any(key in row for row in digest.rows)]
    stride = max(1, -(-digest.done // _TABLE_ROWS))
    first = (digest.done - 1) % stride if digest.done else 0
    rows = [
        (index + 1, [number(digest.rows[index].get(key), 0 if key.startswith("jobs/") else 2) for _, key in columns])
        for index in range(first, digest.done, stride)
    ]
    return {"headings": [heading for heading, _ in columns], "rows": rows, "stride": stride}


def _hygiene(digest: Digest) -> list[tuple[str, str, str]]:
    """What was set aside, cut or repeated, as (what, how often, what it means): nothing is silent."""
    facts = (
        ("groups/zero_advantage", "groups with equal rewards", "they give no signal and keep their place in the step"),
        ("groups/skipped", "groups skipped", "fewer than two members were left to compare"),
        ("groups/dropped", "groups dropped as stale", 'only with stale="drop"'),
        ("episodes/masked", "episodes masked", "a fault of ours or of the provider; never part of a group's mean"),
        ("episodes/truncated", "episodes truncated", "the agent ran out of turns or tokens"),
        ("jobs/reused", "jobs answered from an identical one", "same files, same seed: trained once"),
    )
    cut_off = (
        "answers cut off",
        f"{digest.cut_off:,} of {digest.answers:,}",
        "a trained model reached its length limit; they count as wrong",
    )
    gap = (
        "jobs with a reward of their own",
        f"{digest.own_above:,} of {digest.scored:,}",
        f"at the end it was at least {GAP} above the hidden score: it pays on another scale, or for something else than the task",
    )
    return [*((what, f"{round(digest.total(key)):,}", why) for key, what, why in facts), cut_off, gap]
