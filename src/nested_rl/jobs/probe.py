"""Run a job's environment.py for a moment, in the sandbox: does it give usable questions, and does its reward tell right from wrong?

The probe decides from raw values in the controller; what the agent's code says about itself counts for nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from attrs import field, frozen

from nested_rl import redact, tasks
from nested_rl.alarms import UNREADABLE
from nested_rl.errors import UnknownName
from nested_rl.interfaces import TaskFamily
from nested_rl.jobs import replies_to
from nested_rl.jobs.folder import CODE
from nested_rl.jobs.problems import plain, problem, quoted
from nested_rl.jobs.sandbox import (
    Environment,
    EnvironmentCrashed,
    EnvironmentFault,
    EnvironmentMisbehaved,
    EnvironmentTimeout,
    Limits,
    Zygote,
)
from nested_rl.jobs.surface import ProbeRules
from nested_rl.types import Problem

log = redact.logger(__name__)

LIMITS = Limits(cpu_s=2, memory_mib=256, life_s=20.0)
"""What a probe may use: hundreds of times what a sound job needs."""

SEED = 20_260_101
_SAME = 1e-9
_SUMMED = 1e300
"""Rewards beyond this cannot be averaged; they are too large in any case."""
_UNKNOWN_FAMILY = "unknown family '"


@frozen(kw_only=True)
class Findings:
    """What the probe saw. `families` are those whose questions most rows are; `notes` are counts."""

    problems: tuple[Problem, ...] = ()
    families: tuple[str, ...] = ()
    notes: Mapping[str, float] = field(factory=dict)


def probe(
    files: Mapping[str, str],
    rules: ProbeRules,
    *,
    zygote: Zygote,
    families: Sequence[TaskFamily] = (),
    limits: Limits | None = None,
) -> Findings:
    """Load, ask for rows twice, reward right, wrong and odd replies. Raises SandboxUnavailable when that is not the job's fault."""
    try:
        with zygote.spawn(files, limits or LIMITS) as environment:
            return look(environment, rules, families)
    except EnvironmentFault as fault:
        return Findings(problems=(explained(fault, families),))


def look(environment: Environment, rules: ProbeRules, families: Sequence[TaskFamily]) -> Findings:
    """The rows and the reward of a living environment. Raises EnvironmentFault when it gives no rows."""
    rows = environment.examples(SEED, rules.rows)
    again = environment.examples(SEED, rules.rows)
    problems = list(_rows(rows, again, rules))
    keys, unreadable = _keys(rows, families) if not problems else ({}, {})
    recognised = tuple(name for name, found in keys.items() if 2 * len(found) > len(rows))
    held_out = len({row for name, found in keys.items() for row, key in found.items() if tasks.bucket(name, key) < 2})
    if 2 * held_out > len(rows):
        message = (
            f"{held_out} of {len(rows)} prompts belong to the evaluations; rows like these are dropped in training"
        )
        problems.append(problem("examples.held_out", f"{CODE} examples", message, "draw other questions"))
    if not problems:
        try:
            problems += _reward(environment, rows, rules)
        except EnvironmentFault as fault:
            problems.append(explained(fault, families))
    notes = {
        "rows/probed": len(rows),
        "rows/distinct": len({row["prompt"] for row in rows}),
        "rows/held_out": held_out,
        "log/chars": len(environment.log),
        **{f"{UNREADABLE}{name}": count for name, count in unreadable.items()},
    }
    return Findings(problems=tuple(problems), families=recognised, notes=notes)


def _keys(
    rows: Sequence[Mapping[str, str]], families: Sequence[TaskFamily]
) -> tuple[dict[str, dict[int, str]], dict[str, int]]:
    """By family: the rows that are its questions, with their canonical keys; and how many rows its key() raised on.

    Such a row is no question of the family. Were it a fault of ours, an agent could have an episode masked by writing one.
    """
    found: dict[str, dict[int, str]] = {}
    raised: Counter[str] = Counter()
    for family in families:
        found[family.name] = {}
        for i, row in enumerate(rows):
            try:
                key = family.key(row["prompt"])
            except Exception as error:  # noqa: BLE001  a family of the user's may raise anything
                log.warning("key() of family %s raised on %r: %r", family.name, row["prompt"][:200], error)
                raised[family.name] += 1
            else:
                if key is not None:
                    found[family.name][i] = key
    return found, dict(raised)


# ---------------------------------------------------------------- the rows


def _rows(
    rows: Sequence[Mapping[str, str]], again: Sequence[Mapping[str, str]], rules: ProbeRules
) -> Iterator[Problem]:
    where = f"{CODE} examples"
    if len(rows) < rules.rows:
        message = f"examples(rng, {rules.rows}) gave {len(rows)} rows"
        yield problem("examples.count", where, message, "give as many rows as asked for")
    if rows != again:
        message = "two calls with the same rng gave different rows"
        yield problem("examples.random", where, message, "take all randomness from rng, and keep nothing between calls")
    for name, most in (("prompt", rules.prompt_chars), ("answer", rules.answer_chars)):
        wrong = next((why for row in rows if (why := _text(row[name], most, rules.letters))), None)
        if wrong:
            yield problem(f"examples.{name}", where, f"{name} {wrong}", f"at most {most} characters the models know")
    distinct = len({row["prompt"] for row in rows})
    if rows and distinct < rules.distinct * len(rows):
        (common, times) = Counter(row["prompt"] for row in rows).most_common(1)[0]
        message = f"only {distinct} different prompts in {len(rows)} rows; {quoted(common)} came {times} times"
        yield problem("examples.same", where, message, "draw every row anew from rng")
    if len(rows) >= rules.rows and len({row["answer"] for row in rows}) < rules.answers:
        message = (
            f"every row has the same answer, {quoted(rows[0]['answer'])}: a model that always says it earns the most"
        )
        yield problem("examples.same", where, message, "ask questions with different answers")


def _text(text: str, most: int, letters: frozenset[str] | None) -> str:
    if not text.strip():
        return "is empty"
    if len(text) > most:
        return f"has {len(text)} characters: {quoted(text)}"
    if letters is not None and (unknown := sorted(set(text) - letters)):
        return f"has characters that the models do not know ({quoted(''.join(unknown))}): {quoted(text)}"
    return ""


# ---------------------------------------------------------------- the reward


def _reward(environment: Environment, rows: Sequence[Mapping[str, str]], rules: ProbeRules) -> Iterator[Problem]:
    graded = rows[: rules.graded]
    asked = [(kind, row, text) for row in graded for kind, text in replies_to.row(row["prompt"], row["answer"], rules)]
    batch = [{"prompt": row["prompt"], "completion": text, "answer": row["answer"]} for _, row, text in asked]
    values = _rewards(environment, batch)
    by_kind: dict[str, list[float]] = {}
    for (kind, _, _), value in zip(asked, values, strict=True):
        by_kind.setdefault(kind, []).append(value)
    where = f"{CODE} reward"
    worst = max(values, key=abs)
    if environment.rewards(batch) != values:
        message = "the same completion earned different rewards"
        yield problem("reward.random", where, message, "let the reward depend on its arguments alone")
    elif abs(worst) <= _SUMMED:
        yield from _verdict({kind: fmean(found) for kind, found in by_kind.items()}, rules, where)
    if abs(worst) > rules.reward_cap:
        message = f"a reward of {worst:g}; at most {rules.reward_cap:g} either way is allowed"
        yield problem("reward.large", where, message, "scale it to 0 to 1")
    odd = [(row, text) for row in graded[:2] for text in replies_to.odd(row["answer"], rules)]
    _rewards(environment, [{"prompt": r["prompt"], "completion": text, "answer": r["answer"]} for r, text in odd])


def _rewards(environment: Environment, batch: Sequence[Mapping[str, str]]) -> list[float]:
    """The rewards; a fault says for which completion."""
    try:
        return environment.rewards(batch)
    except EnvironmentFault as fault:
        if fault.row is not None and 0 <= fault.row < len(batch):
            fault.add_note(f"the completion was {quoted(batch[fault.row]['completion'])}")
        raise


def _verdict(means: Mapping[str, float], rules: ProbeRules, where: str) -> Iterator[Problem]:
    """From the mean reward of each kind of reply: right and wrong ones in each form, and junk."""
    forms = range(len(rules.answer_forms))
    gains = [means[f"right {form}"] - means[f"wrong {form}"] for form in forms]
    right = max(means[f"right {form}"] for form in forms)
    example = rules.answer_forms[0].format(answer="ANSWER")
    unearned = {kind.removeprefix("junk "): mean for kind, mean in means.items() if kind.startswith("junk")}
    for form in reversed(forms):  # told first when they earn the most
        reply = rules.answer_forms[form].format(answer="WRONG")
        unearned = {f"a wrong answer in the form {reply!r}": means[f"wrong {form}"], **unearned}
    if max(gains) <= _SAME and min(gains) < -_SAME:
        message = "a wrong answer earns more than the right one"
        yield problem("reward.inverted", where, message, f"reward completions like {example!r}")
    elif max(gains) <= _SAME:
        message = f"the right answer earns {right:g} and a wrong one as much"
        yield problem("reward.flat", where, message, f"compare the answer in completions like {example!r} with answer")
    elif max(unearned.values()) >= right - _SAME:
        kind = max(unearned, key=lambda kind: unearned[kind])
        message = f"{kind} earns {unearned[kind]:g}, the right answer {right:g}"
        yield problem("reward.junk", where, message, "give nothing for a reply without the answer")


# ---------------------------------------------------------------- faults as problems


def explained(fault: EnvironmentFault, families: Sequence[TaskFamily] = ()) -> Problem:
    """An agent fault of the sandbox as a problem that its author can act on."""
    part = fault.during
    line = getattr(fault, "line", None)
    where = CODE + (f":{line}" if line else "") + ("" if part == "environment" else f" {part}")
    message = "; ".join(plain(text, 300) for text in (str(fault), *getattr(fault, "__notes__", ())))
    match fault:
        case EnvironmentTimeout():
            return problem(f"{part}.slow", where, message, "look for endless loops; do less work at once")
        case EnvironmentCrashed(raised=""):
            return problem(f"{part}.ended", where, message, "return values; never end the process")
        case EnvironmentCrashed(raised="UnknownName") if _UNKNOWN_FAMILY in message:
            name = message.partition(_UNKNOWN_FAMILY)[2].partition("'")[0]
            told = str(UnknownName("family", name, [family.name for family in families if not family.held_out]))
            return problem("examples.family", where, told, "name the family of the task", name=name)
        case EnvironmentCrashed(raised=raised):
            return problem(f"{part}.raised", where, message, _HINTS.get(raised, ""), type=raised)
        case EnvironmentMisbehaved(kind="number"):
            return problem("reward.number", where, message, "return a finite number, such as 1.0 or 0.0")
        case EnvironmentMisbehaved(kind="row"):
            return problem("examples.row", where, message, 'give rows like {"prompt": "…", "answer": "…"}')
        case EnvironmentMisbehaved(kind="size"):
            return problem(f"{part}.ended", where, message, "give shorter prompts and answers")
        case _:
            return problem(f"{part}.ended", where, message, "return values; leave the process alone")


_HINTS = {
    "MemoryError": "it needs more memory than there is; build less at once",
    "RecursionError": "it calls itself without end",
    "PermissionError": "files, sockets, processes and threads are not available",
    "BlockingIOError": "processes and threads are not available",
    "SystemExit": "return values; never end the process",
    "ModuleNotFoundError": "only the allowed modules can be imported",
}
