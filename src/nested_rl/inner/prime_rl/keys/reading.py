"""A job's [prime_rl] table against what is allowed: unknown, misspelt, moved and refused keys by name, values out of range."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from nested_rl.inner.prime_rl.keys.allowed import ARGUMENTS, KINDS, OPEN, SOURCE, Rule
from nested_rl.inner.prime_rl.keys.denied import DENIED, DENIED_VALUES, MOVED, RENAMED
from nested_rl.inner.prime_rl.problems import told
from nested_rl.jobs.folder import JOB
from nested_rl.jobs.problems import plain, quoted
from nested_rl.jobs.surface import Table
from nested_rl.types import Problem

NAME: Final = "prime_rl"
_DEPTH: Final = 10
_MANY: Final = 8
_WORD = re.compile(r"[A-Za-z0-9_-]{1,64}")


def flat(table: Table) -> dict[str, Any]:
    """Values by dotted path, in the order in which they stand. An empty table is a value; so is a list, unless it is the source.

    >>> flat({"trainer": {"optim": {"type": "sgd"}}, "orchestrator": {"train": {"source": [{"name": "a"}]}}})
    {'trainer.optim.type': 'sgd', 'orchestrator.train.source.name': 'a'}
    """
    return dict(_walk(table))


def _walk(table: Table) -> Iterator[tuple[str, Any]]:
    """Every path with its value. A path comes twice when it is written both with dots and as one name in quotes."""
    todo: list[tuple[str, Any]] = [("", table)]
    while todo:
        path, value = todo.pop()
        if path == SOURCE and isinstance(value, list) and len(value) == 1:
            value = value[0]
        if isinstance(value, Mapping) and value and path.count(".") < _DEPTH:
            todo += [(f"{path}.{key}" if path else str(key), below) for key, below in reversed(list(value.items()))]
        elif path:
            yield path, value


def read(table: Table) -> Sequence[Problem]:
    """What is wrong with the keys and values of the table, each for itself."""
    values = flat(table)
    problems = list(_twice(table))
    problems += [p for path, value in values.items() for p in _one(path, value)]
    return (problems or list(_kinds(values)))[:_MANY]


def _twice(table: Table) -> Iterator[Problem]:
    for path, times in Counter(path for path, _ in _walk(table)).items():
        if times > 1:
            where, message = f"{JOB}:[{NAME}] {plain(path)}", f"{plain(path)} is set {times} times"
            yield told("prime_rl.twice", where, message, "keep one of them", name=path)


def _one(path: str, value: object) -> Iterator[Problem]:
    """At most one problem."""
    where = f"{JOB}:[{NAME}] {plain(path)}"
    rule = rule_of(path)
    if isinstance(value, str) and (path, value) in DENIED_VALUES:
        message = f"{path} = {quoted(value)} is refused: {DENIED_VALUES[path, value]}"
        yield told("prime_rl.denied", where, message, "leave it out", name=path)
    elif rule is not None:
        if not rule.accepts(value):
            message = f"{path} = {quoted(value)} is not allowed; it must be {rule.wants}"
            yield told("prime_rl.value", where, message, rule.hint, name=path)
    elif path in MOVED or path in RENAMED:
        home = MOVED.get(path) or RENAMED[path]
        message = f"{path} is not set here" if path in MOVED else f"{path} is of an earlier version of prime-rl"
        yield told("prime_rl.moved", where, message, f"set {home}", name=path)
    elif _is_argument(path) and path not in DENIED:
        if not isinstance(value, str | int | float | bool):
            yield told("prime_rl.value", where, f"{path} must be one value, not {quoted(value)}", name=path)
    elif any(known.startswith(f"{path}.") for known in OPEN):
        if value != {}:  # an empty table says nothing
            yield told("prime_rl.value", where, f"{path} must be a table, not {quoted(value)}", name=path)
    elif (refused := _refused(path)) is not None:
        hint = _near(path) or "leave it out"
        yield told("prime_rl.denied", where, f"{plain(path)} is refused: {DENIED[refused]}", hint, name=refused)
    else:
        hint = _near(path) or "the guide lists what may be set"
        yield told("prime_rl.key", where, f"unknown key {plain(path)}", hint, name=path)


def rule_of(path: str) -> Rule | None:
    """The rule of an open key, `pools.*.weight` for `pools.hard.weight`."""
    if path in OPEN:
        return OPEN[path]
    parts = path.split(".")
    if not all(_WORD.fullmatch(part) for part in parts):
        return None
    for known, rule in OPEN.items():
        if "*" in known and _matches(known.split("."), parts):
            return rule
    return None


def _matches(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    return len(pattern) == len(parts) and all(a in ("*", b) for a, b in zip(pattern, parts, strict=True))


def _is_argument(path: str) -> bool:
    name = path.removeprefix(f"{ARGUMENTS}.")
    return name != path and name.isascii() and name.isidentifier()


def _refused(path: str) -> str | None:
    """The longest refused path that this one is or lies below."""
    parts = path.split(".")
    above = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((table for table in above if table in DENIED), None)


def _near(path: str) -> str:
    """The open key that was probably meant: spelt alike in the same table, or of the same last name elsewhere."""
    table, _, name = path.rpartition(".")
    known = [*OPEN, *MOVED]
    beside = [k.rpartition(".")[2] for k in known if k.rpartition(".")[0] == table]
    near = [f"{table}.{n}" if table else n for n in difflib.get_close_matches(name, beside, n=1)]
    same = [k for k in OPEN if k.rpartition(".")[2] == name]
    near += same if len(same) == 1 else []  # many tables have a type and a weight
    near += difflib.get_close_matches(path, known, n=1, cutoff=0.85)
    if not near:
        return ""
    return f"did you mean {near[0]}, which is {MOVED[near[0]]}?" if near[0] in MOVED else f"did you mean {near[0]}?"


def _kinds(values: Mapping[str, Any]) -> Iterator[Problem]:
    """Keys that the chosen type does not have."""
    for table, kinds in KINDS.items():
        kind = values.get(f"{table}.type", next(iter(kinds)))
        for path in values:
            name = path.removeprefix(f"{table}.")
            having = [k for k, keys in kinds.items() if any(_matches(n.split("."), name.split(".")) for n in keys)]
            if name != path and having and kind not in having:
                message = f"{path} belongs to type {' or '.join(map(repr, having))}; the type here is {kind!r}"
                hint = f"set {table}.type = {having[0]!r}, or leave {name} out"
                yield told("prime_rl.kind", f"{JOB}:[{NAME}] {path}", message, hint, name=path)
