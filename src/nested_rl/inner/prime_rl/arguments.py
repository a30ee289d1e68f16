"""Settings for a taskset of the author's own: those that its config class has, read from the source without running it."""

from __future__ import annotations

import ast
import difflib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from nested_rl.inner.prime_rl.keys.allowed import ARGUMENTS
from nested_rl.inner.prime_rl.keys.reading import NAME, flat
from nested_rl.inner.prime_rl.problems import told
from nested_rl.jobs.folder import JOB
from nested_rl.jobs.problems import quoted
from nested_rl.types import Problem

_BASE: Final = "TasksetConfig"
_KINDS: Final[Mapping[str, tuple[type, ...]]] = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}


def given(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What of [prime_rl] is meant for the taskset, by name."""
    found = flat(settings)
    return {path.rpartition(".")[2]: value for path, value in found.items() if path.startswith(f"{ARGUMENTS}.")}


def check(settings: Mapping[str, Any], source: str) -> Iterator[Problem]:
    """Settings that the taskset in `source` does not have, or of another type than it says.

    >>> code = "class C(vf.TasksetConfig): rows: int = 8"
    >>> [p.message for p in check({"orchestrator.train.source.env.taskset": {"row": 4}}, code)]
    ["the taskset has no setting 'row'"]
    """
    wanted = given(settings)
    known = fields(source) if wanted else {}
    for name, value in wanted.items():
        where = f"{JOB}:[{NAME}] {ARGUMENTS}.{name}"
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else _hint(known)
            yield told("prime_rl.argument", where, f"the taskset has no setting {name!r}", hint, name=name)
        elif (kinds := _KINDS.get(known[name])) and type(value) not in kinds:
            message = f"{name} = {quoted(value)}, but the taskset says {name}: {known[name]}"
            yield told("prime_rl.value", where, message, "give a value of that type", name=name)


def _hint(known: Sequence[str] | Mapping[str, str]) -> str:
    return f"it has: {', '.join(known)}" if known else "give its config class the field, or leave this out"


def fields(source: str) -> dict[str, str]:
    """Fields of every class that derives from vf.TasksetConfig, with their annotations as they are written."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    found: dict[str, str] = {}
    for node in classes.values():
        if _derives(node, classes):
            found |= {
                field.target.id: ast.unparse(field.annotation)
                for field in node.body
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            }
    return found


def _derives(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> bool:
    todo, seen = [node], set[str]()
    while todo:
        here = todo.pop()
        for base in here.bases:
            name = base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""
            if name == _BASE:
                return True
            if name in classes and name not in seen:
                seen.add(name)
                todo.append(classes[name])
    return False
