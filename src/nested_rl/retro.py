"""`retrospective.md`: what was asked, what happened, what it cost, what went wrong and what to try next.

Every sentence is made from the run's records, by a rule that can be read here; where the records do not tell, nothing is said.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from nested_rl import redact
from nested_rl.alarms import KINDS
from nested_rl.report import advice, intervals, stages
from nested_rl.report import digest as digests
from nested_rl.report.digest import Digest
from nested_rl.report.gantt import NAMES as PHASES
from nested_rl.report.page import missing, sentences, when_failed
from nested_rl.report.phrases import count, duration, money, number, percent
from nested_rl.report.showcase import inert
from nested_rl.rundir import RunDir, write_atomic
from nested_rl.types import Episode

MOST_FAILURES = 12
MOST_LINES = 60
"""Of a job that is shown."""


def write_retro(run: RunDir, out: Path | None = None) -> Path:
    """Write RUN/retrospective.md, or `out`, and return its path. Episodes are linked only from within the run directory."""
    path = out or run.path / "retrospective.md"
    inside = path.resolve().parent == run.path.resolve()
    write_atomic(path, retro(run, linked=inside).encode("utf-8", "replace"))
    return path


def retro(run: RunDir, *, linked: bool = True) -> str:
    """The page as Markdown. `linked`: episodes are links to their folders, else names only."""
    digest = digests.read(run)
    place: Callable[[str], str] = lambda name: f"[{name}](episodes/{name}/)" if linked else f"`{name}`"  # noqa: E731
    blocks = [
        f"# Retrospective: {_words(digest.name)}",
        _when(digest),
        *_section("In short", [*_failure(digest), " ".join([*sentences(digest), *map(_words, missing(digest))])]),
    ]
    blocks += _section("What was asked", list(_asked(digest)))
    if digest.rows:
        blocks += _section("What happened", [*_stages(digest), *_story(digest)])
        blocks += _section("What it cost", list(_cost(digest)))
    blocks += _section("What went wrong", list(_failures(digest, place)))
    blocks += _section("Episodes to look at", list(_episodes(run, digest, place)))
    blocks += _section("What to try next", [_bullets(advice.of(digest))])
    return redact.text("\n\n".join(block for block in blocks if block) + "\n")


def _failure(digest: Digest) -> list[str]:
    """What ended the run comes before all that it learned."""
    return [f"**The run failed {when_failed(digest)}**: {_code(digest.failure, 600)}."] if digest.failure else []


def _section(title: str, blocks: list[str]) -> list[str]:
    return [f"## {title}", *blocks] if any(blocks) else []


def _bullets(lines: list[str]) -> str:
    return "\n".join(f"* {line}" for line in lines)


_MARKUP = re.compile(r"[\\`*\[\]<>#|~$&]|(?<!\w)_|_(?!\w)")
"""What Markdown may take for markup; an underscore within a word is none."""


def _words(text: str) -> str:
    """Somebody's text as plain words of Markdown: nothing in it is markup."""
    flat = " ".join(inert(text).split())
    return _MARKUP.sub(lambda found: f"\\{found.group()}", flat)


def _code(text: str, most: int = 240) -> str:
    """Somebody's text as it is, in one line that cannot end the span it is in."""
    flat = " ".join(inert(text).replace("`", "'").replace("|", "¦").split())
    return f"`{flat[:most]}{'…' if len(flat) > most else ''}`" if flat else ""


def _date(t: float | None) -> str:
    return "at an unknown time" if t is None else datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _when(digest: Digest) -> str:
    state = "finished" if digest.finished else f"{digest.done} of {count(digest.steps_asked, 'step')} done"
    state = f"failed {when_failed(digest)}" if digest.failure else state
    return (
        f"Begun {_date(digest.started_at)}, last record {_date(digest.ended_at)}; {state}. Written by `nested-rl retro` "
        "from the run's records. Intervals are 95 % and take episodes as unrelated; this is one run with one seed."
    )


# ---------------------------------------------------------------- asked


def _asked(digest: Digest) -> Iterator[str]:
    spec = digest.spec
    lines = [f"Families: {', '.join(map(_words, spec.get('tasks', []))) or 'not recorded'}."]
    size = [f"{count(int(spec[key]), noun)}{of}" for key, noun, of in _SIZES if key in spec]
    lines += [f"{'; '.join(size)}."] if size else []
    if "max_steps_off_policy" in spec:
        lines.append(
            f"At most {count(int(spec['max_steps_off_policy']), 'update')} between sampling and training, order "
            f"{_words(str(spec.get('order', '')))}, seed {spec.get('seed', 0)}."
        )
    own = digests.flat(spec.get("parts", {}))
    lines.append(
        f"Parts that are not the default: {', '.join(_code(f'{k} = {v}') for k, v in own)}."
        if own
        else "Every part is the default one."
    )
    lines += [
        f"{name.capitalize()}: {', '.join(_code(f'{k} = {v}') for k, v in digests.flat(spec[name]))}."
        for name in ("budget", "alarms")
        if spec.get(name)
    ]
    if digest.sandbox:
        lines.append(f"Agent-written code was held by the sandbox level {_code(digest.sandbox)}.")
    yield _bullets(lines)


_SIZES = (("steps", "step", ""), ("groups_per_step", "group", " a step"), ("group_size", "episode", " a group"))


# ---------------------------------------------------------------- happened


def _stages(digest: Digest) -> Iterator[str]:
    """A table of the stages, and what clearly changed between them."""
    found = stages.of(digest)
    head = ["", *(f"{stage.name} ({stage})" for stage in found)]
    rows = []
    for measure in stages.MEASURES:
        cells = [intervals.of(stages.values(digest, stage, measure)) for stage in found]
        if any(cell.n for cell in cells):
            rows.append([measure.name, *(_shown(cell, share=measure.share) for cell in cells)])
    yield _table(head, rows)
    for before, after in itertools.pairwise(found):
        changes = [(m, stages.change(digest, before, after, m)) for m in stages.MEASURES]
        known = [(m, c) for m, c in changes if not math.isnan(c.low)]
        clear = [f"{m.name} {c.signed()}" for m, c in known if stages.clear(c)]
        rest = [m.name for m, c in known if not stages.clear(c)]
        told = (
            f"From the {before.name} to the {after.name}: "
            + ("; ".join(clear) if clear else "nothing changed clearly")
            + "."
        )
        yield told + (f" No clear change: {'; '.join(rest)}." if clear and rest else "")


def _shown(cell: intervals.Interval, *, share: bool) -> str:
    if not cell.n:
        return "–"
    if not share:
        return str(cell)
    return percent(cell.value)


def _table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def _story(digest: Digest) -> Iterator[str]:
    lines = [*_milestones(digest), *_by_family(digest), *_processes(digest)]
    for alarm in digest.alarms:
        span = f"step {alarm.since}" if alarm.until == alarm.since else f"steps {alarm.since} to {alarm.until}"
        span = f"from step {alarm.since} on, and it stands" if alarm.until is None else f"in {span}"
        lines.append(
            f"Alarm `{alarm.name}` {span} ({KINDS.get(alarm.name, 'of another version')}): {_code(alarm.message)}."
        )
    yield _bullets(lines)


def _milestones(digest: Digest) -> Iterator[str]:
    """Where the rungs were, by means over three steps: a single step is noisy."""
    rewards = _smooth(digest.column("reward/mean"))
    if len(rewards) >= stages.FEWEST_STEPS:
        half = (rewards[0] + rewards[-1]) / 2
        way = next((i for i, v in enumerate(rewards) if v >= half), None)
        if rewards[-1] > rewards[0] and way is not None:
            yield f"Half of the way from the first to the last reward was done by step {way + 1} (means over three steps)."
        best = max(range(len(rewards)), key=lambda i: rewards[i])
        yield f"The best three steps in a row end with step {best + 1}: reward {rewards[best]:.2f}."
    for key, what in (
        ("validation/first_try", "valid at the first try"),
        ("tools/baselines", "asking for the baselines"),
    ):
        if any(map(math.isfinite, digest.column(key))):
            yield f"{what.capitalize()}: {_crossed(_smooth(digest.column(key)))} (means over three steps)."
    if digest.validation:
        told = ", ".join(f"{number(i.value)} at version {version}" for version, i in digest.validation)
        yield f"Reward on the fixed validation tasks: {told}."


def _crossed(shares: list[float]) -> str:
    """When half was reached, and whether it was kept."""
    above = [i + 1 for i, share in enumerate(shares) if share >= 0.5]
    if not above:
        return "never half of the episodes"
    stayed = above == list(range(above[0], len(shares) + 1))
    return f"half or more of the episodes first at step {above[0]}" + (
        " and ever since" if stayed else ", but not ever since"
    )


def _smooth(values: list[float]) -> list[float]:
    """The mean of each value and the two before it."""
    return [math.fsum(values[max(0, i - 2) : i + 1]) / min(i + 1, 3) for i in range(len(values))]


def _by_family(digest: Digest) -> Iterator[str]:
    ends = [(family, intervals.of(digest.rewards(digest.last_steps, family))) for family in digest.families]
    known = [(family, end) for family, end in ends if end.n]
    if len(known) > 1:
        told = ", ".join(f"{_words(family)} {end}" for family, end in sorted(known, key=lambda pair: -pair[1].value))
        yield f"Reward by family at the end: {told}."


def _processes(digest: Digest) -> Iterator[str]:
    starts = sum(name == "run.started" for _, name, _ in digest.endings)
    if starts > 1:
        yield f"It was worked on by {starts} processes, one after the other."
    for t, name, error in digest.endings:
        if name == "run.failed":
            yield f"An error ended a process at {_date(t)}: {_code(error)}."
        elif name == "run.stopped":
            yield f"Somebody stopped it at {_date(t)}."


# ---------------------------------------------------------------- cost


def _cost(digest: Digest) -> Iterator[str]:
    line = digest.timeline
    spent = (
        f" ({', '.join(f'{_words(kind)} {money(usd)}' for kind, usd in sorted(digest.usd_by_kind.items()))})"
        if digest.usd
        else ""
    )
    whole = duration(line.seconds) if line.seconds else "an unknown time"
    run, reused = count(round(digest.total("jobs/run")), "job"), round(digest.total("jobs/reused"))
    again = f"; {reused:,} more {'was' if reused == 1 else 'were'} answered by an identical one" if reused else ""
    lines = [
        f"{duration(digest.seconds)} of steps; {whole} from the first record to the last, pauses between processes left out.",
        f"{money(digest.usd)}{spent}.",
        f"{run} trained for training episodes{again}.",
    ]
    if line.machines:
        busy = ", ".join(f"{_words(name)} {percent(line.busy_share(name))}" for name in line.machines[:8])
        lines.append(f"{count(len(line.machines), 'machine')}, busy with training and scoring: {busy}.")
    yield _bullets(lines)
    if line.phases:
        rows = [
            [PHASES[p.name], f"{p.count:,}", f"{p.median_s:.2f} s", f"{p.most_s:.2f} s", duration(p.total_s)]
            for p in line.phases
        ]
        yield _table(["a job, evaluations too", "jobs", "median", "most", "all together"], rows)


# ---------------------------------------------------------------- failures and episodes


def _failures(digest: Digest, place: Callable[[str], str]) -> Iterator[str]:
    found = sorted(digest.failures.values(), key=lambda f: (f.fault != "infra", -f.count))
    if not found:
        yield (
            f"Nothing was refused and nothing failed in {count(digest.episodes, 'episode')}." if digest.episodes else ""
        )
        return
    newest = max(0, digest.done - 1)
    rows = [
        [
            _code(f.kind),
            "ours" if f.fault == "infra" else "the agent's",
            f"{f.count:,} ({percent(f.count / digest.episodes)})",
            "the end" if f.version >= newest - 1 else f"version {f.version}",
            f"{place(f.place)} {_code(f.message)}",
        ]
        for f in found[:MOST_FAILURES]
    ]
    yield f"Of {count(digest.episodes, 'episode')}, by kind; one may have several. The example is the newest."
    yield _table(["kind", "fault", "episodes", "seen until", "example"], rows)
    if len(found) > MOST_FAILURES:
        yield f"And {count(len(found) - MOST_FAILURES, 'rarer kind')}."


def _episodes(run: RunDir, digest: Digest, place: Callable[[str], str]) -> Iterator[str]:
    lines = []
    for episode, told in digest.notable.told():
        where = f"{place(f'{episode.group:05d}-{episode.member}')} ({_words(episode.task.family)}, version {episode.version})"
        lines.append(f"{where}: {_words('. Also '.join(told))}.")
    yield _bullets(lines)
    best = digest.notable["best"]
    if best is not None and best.outcome.valid:
        yield f"The best job, as it was written ({best.group:05d}-{best.member}):"
        yield from _job(run, best)


def _job(run: RunDir, episode: Episode) -> Iterator[str]:
    root = run.episode_dir(episode.group, episode.member) / "attempts" / str(len(episode.validations)) / "files"
    for name in ("job.toml", "environment.py"):
        path = root / name
        if path.is_file() and not path.is_symlink():
            lines = inert(path.read_bytes().decode("utf-8", "replace")).rstrip().splitlines()
            more = [f"[{len(lines) - MOST_LINES} more lines]"] if len(lines) > MOST_LINES else []
            text = "\n".join(["# " + name, *lines[:MOST_LINES], *more])
            fence = "`" * max(3, 1 + max((len(run) for run in _ticks(text)), default=0))
            yield f"{fence}text\n{text}\n{fence}"


def _ticks(text: str) -> Iterator[str]:
    """Runs of backticks: the fence around a text must be longer than any in it."""
    return (found.group() for found in re.finditer("`+", text))
