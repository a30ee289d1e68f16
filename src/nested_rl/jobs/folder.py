"""The job folder: which files it has, what job.toml says, and a digest of it all.

Every problem is found in one go: an agent pays for each attempt.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import field, frozen

from nested_rl.jobs.problems import plain, problem, quoted
from nested_rl.jobs.surface import FileRules, Key, Surface, Table
from nested_rl.types import Problem

JOB = "job.toml"
CODE = "environment.py"
DATA = "data/"
_MANY = 8
"""More problems than this are not told; an agent that made them starts again."""


@frozen(kw_only=True)
class JobConfig:
    """What job.toml says, with every default filled in: `config["training"]["steps"]`.

    `given` are the (table, key) pairs that the agent wrote itself; `advanced` whether one of them is in an optional table.
    """

    base: str
    tables: Mapping[str, Table]
    given: frozenset[tuple[str, str]] = field(default=frozenset(), repr=False)
    advanced: bool = False

    def __getitem__(self, table: str) -> Table:
        return self.tables[table]


def digest(files: Mapping[str, str]) -> str:
    """sha256 over the names and texts of all files, in one way only: lengths come first.

    >>> digest({"a": "b"}) == digest({"a": "b"}) != digest({"ab": ""})
    True
    """
    sha = hashlib.sha256()
    for name in sorted(files):
        for text in (name, files[name]):
            data = text.encode("utf-8", "surrogatepass")
            sha.update(len(data).to_bytes(8, "big") + data)
    return sha.hexdigest()


def parse(files: Mapping[str, str], surface: Surface) -> tuple[JobConfig | None, tuple[Problem, ...]]:
    """The files and job.toml against what `surface` allows. The config is None when there is any problem."""
    problems = list(_files(files, surface.files))
    text = files.get(JOB)
    if text is None or any(p.where == JOB for p in problems):
        return None, tuple(problems)
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers too long and brackets too deep to read
        why = str(error) if isinstance(error, tomllib.TOMLDecodeError) else "it cannot be read"
        problems.append(
            problem("job.syntax", JOB, f"not TOML: {plain(why)}", "write [table] lines and key = value lines")
        )
        return None, tuple(problems)
    found, values = _tables(tables, surface)
    problems += found
    if not found:
        problems += [p for rule in (_groups, *surface.rules) for p in rule(values)]
    if problems:
        return None, tuple(problems)
    given = frozenset((table, key) for table, keys in tables.items() for key in keys)
    advanced = any(table in surface.advanced for table, _ in given)
    return JobConfig(base=values["model"]["base"], tables=values, given=given, advanced=advanced), ()


# ---------------------------------------------------------------- files


def _files(files: Mapping[str, str], rules: FileRules) -> Iterator[Problem]:
    for name, hint in ((JOB, "say which base to train and how"), (CODE, "define examples and reward in it")):
        if name not in files:
            yield problem("files.missing", name, f"there is no {name}", hint, name=name)
    data = [name for name in files if _is_data(name)]
    if len(data) > rules.data_files > 0:
        yield problem(
            "files.count", DATA, f"{len(data)} data files; at most {rules.data_files} are allowed", "join them"
        )
    room = rules.data_bytes
    for name, text in sorted(files.items()):
        if name not in (JOB, CODE) and not (rules.data_files and name in data):
            allowed = f"a job is {JOB}, {CODE}" + (" and data/NAME.jsonl" if rules.data_files else "")
            allowed += "; delete what is something else"
            yield problem("files.unknown", plain(name), "this file is not part of a job", allowed, name=name)
            continue
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            size = -1
        if size < 0 or "\0" in text:
            yield problem("files.text", name, "not UTF-8 text", "write plain text", name=name)
            continue
        most = {JOB: rules.job_bytes, CODE: rules.code_bytes}.get(name, room)
        if size > most:
            yield problem("files.size", name, f"{size} bytes; at most {most} are allowed", "make it smaller", name=name)
        room -= size if name in data else 0


def _is_data(name: str) -> bool:
    """data/NAME.jsonl, with a plain name: no folders below, no dots first, nothing that a file system may read otherwise."""
    stem = name.removeprefix(DATA).removesuffix(".jsonl")
    return (
        name == f"{DATA}{stem}.jsonl"
        and 0 < len(stem) <= 64
        and stem.isascii()
        and stem.replace("-", "_").isidentifier()
    )


# ---------------------------------------------------------------- tables and keys


def _tables(tables: dict[str, Any], surface: Surface) -> tuple[list[Problem], dict[str, dict[str, Any]]]:
    """Problems in order, and every value with its default."""
    allowed = {**surface.keys, **{name: {} for name in surface.open}}
    problems: list[Problem] = []
    meant: set[tuple[str, str]] = set()
    for name, given in itertools.islice(tables.items(), _MANY + len(allowed)):
        if name not in allowed:
            problems.append(_stray_table(name, given, allowed, meant, surface))
        elif not isinstance(given, dict):
            message = f"[{name}] must be a table, not {quoted(given)}"
            problems.append(problem("job.value", f"{JOB}:[{name}]", message, f"write a line [{name}]", name=name))
            meant |= {(name, key) for key in allowed[name]}
        elif name in surface.open:
            problems += surface.open[name](given)
        else:
            strays = [key for key in given if key not in allowed[name]][:_MANY]
            problems += [_stray_key(name, key, allowed, meant) for key in strays]
    values: dict[str, dict[str, Any]] = {}
    for name, keys in allowed.items():
        table = tables.get(name)
        given = table if isinstance(table, dict) else {}
        values[name] = {key: given.get(key, rule.default) for key, rule in keys.items()}
        for key, rule in keys.items():
            found = _value(name, key, rule, given, surface)
            if found is not None and not (found.code == "job.missing" and (name, key) in meant):
                problems.append(found)
    values |= {name: table if isinstance(table := tables.get(name), dict) else {} for name in surface.open}
    return problems[:_MANY], values


def _value(table: str, key: str, rule: Key, given: Mapping[str, Any], surface: Surface) -> Problem | None:
    where = f"{JOB}:[{table}] {key}"
    if key not in given:
        hint = f"add to [{table}]: {key} = {rule.wants}"
        return (
            problem("job.missing", where, f"{key} is missing", rule.hint or hint, name=key) if rule.required else None
        )
    value = given[key]
    if (table, key) == ("model", "base"):
        if value in surface.bases:
            return None
        near = difflib.get_close_matches(value, surface.bases, n=1) if isinstance(value, str) else []
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of: {', '.join(surface.bases)}"
        return problem("job.base", where, f"unknown base {quoted(value)}", hint, name=value)
    if rule.accepts(value):
        return None
    return problem(
        "job.value", where, f"{key} = {quoted(value)} is not allowed; it must be {rule.wants}", rule.hint, name=key
    )


def _stray_table(
    name: str,
    given: object,
    allowed: Mapping[str, Mapping[str, Key]],
    meant: set[tuple[str, str]],
    surface: Surface,
) -> Problem:
    if not isinstance(given, dict):
        return _stray_key("", name, allowed, meant)
    for home, reader in surface.open.items():
        if given and not any(p.code.endswith(".key") for p in reader({name: given})):  # known there
            hint = f"write [{home}.{plain(_below(name, given))}]"
            return problem("job.table", f"{JOB}:[{plain(name)}]", f"[{plain(name)}] stands alone", hint, name=name)
    near = difflib.get_close_matches(name, allowed, n=1)
    if near:
        meant |= {(near[0], key) for key in given}
    hint = f"did you mean [{near[0]}]?" if near else f"the tables are: {', '.join(f'[{table}]' for table in allowed)}"
    return problem("job.table", f"{JOB}:[{plain(name)}]", f"unknown table {quoted(name)}", hint, name=name)


def _below(name: str, given: Mapping[str, Any]) -> str:
    """The table that was written: `trainer.optim` for {"optim": {"mu": 1, "lr": 2}} in `trainer`."""
    path, table = [name], given
    while len(table) == 1 and isinstance(below := next(iter(table.values())), dict) and len(path) < _MANY:
        path += table
        table = below
    return ".".join(path)


def _stray_key(table: str, key: str, allowed: Mapping[str, Mapping[str, Key]], meant: set[tuple[str, str]]) -> Problem:
    """A key that its table does not have: it belongs elsewhere, or it is misspelt. Remembers which one was meant."""
    where = f"{JOB}:[{table}] {plain(key)}" if table else f"{JOB}:{plain(key)}"
    home = next((name for name, keys in allowed.items() if key in keys), None)
    if home is not None:
        meant.add((home, key))
        message = f"{key} is not a key of [{table}]" if table else f"{key} stands in no table"
        return problem("job.place", where, message, f"move it under [{home}]", name=key, table=home)
    for name in [table, *allowed]:
        near = difflib.get_close_matches(key, allowed.get(name, ()), n=1)
        if near:
            meant.add((name, near[0]))
            other = "" if name == table else f" in [{name}]"
            return problem(
                "job.key", where, f"unknown key {quoted(key)}", f"did you mean {near[0]!r}{other}?", name=key
            )
    hint = f"[{table}] has: {', '.join(allowed[table])}" if table else "keys stand under a [table] line"
    return problem("job.key", where, f"unknown key {quoted(key)}", hint, name=key)


def _groups(values: Mapping[str, Table]) -> Iterator[Problem]:
    """Advantages are taken within groups: more than one member, and only whole groups in a batch."""
    training = values.get("training", {})
    group, batch = training.get("group_size"), training.get("batch_size")
    where = f"{JOB}:[training]"
    if group is not None and group < 2:
        message = f"group_size = {group}: with one sample a group every advantage is zero"
        yield problem("job.value", f"{where} group_size", message, "use 4 to 16", name="group_size")
    elif group is not None and batch is not None and batch % group:
        message = f"batch_size = {batch} is not a multiple of group_size = {group}"
        fits = max(group, batch - batch % group)
        yield problem("job.value", f"{where} batch_size", message, f"use batch_size = {fits}", name="batch_size")
