"""What a native environment.py names that leads out of its own code: other modules, processes, connections, frames.

A machine imports it without a sandbox, and text can hide what it names. These checks say early what honest authors should not use;
what keeps the job from the rest of its machine is its user there.
"""

from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Final

from nested_rl.inner.prime_rl.probe_child import IMPORTS
from nested_rl.jobs import runner
from nested_rl.jobs.folder import CODE
from nested_rl.jobs.problems import plain, problem
from nested_rl.types import Problem

_STANDARD: Final = frozenset({*runner.MODULES, "asyncio", "pathlib"})
MODULES: Final = _STANDARD | {*IMPORTS, "verifiers.v1"}
"""What may be imported, each by this name."""
OUTSIDE: Final = frozenset(
    {"create_subprocess_exec", "create_subprocess_shell", "subprocess_exec", "subprocess_shell", "subprocess"}
    | {"open_connection", "open_unix_connection", "create_connection", "create_unix_connection", "run_in_executor"}
    | {
        "start_server",
        "start_unix_server",
        "create_server",
        "create_unix_server",
        "create_datagram_endpoint",
        "to_thread",
    }
    | {"connect_read_pipe", "connect_write_pipe", "sock_connect", "getaddrinfo", "add_reader", "add_writer"}
)
"""Names through which asyncio reaches processes, threads and the network."""
_INSIDES: Final = frozenset(
    {
        "__self__",
        "__dict__",
        "__base__",
        "__getattribute__",
        "__reduce__",
        "__reduce_ex__",
        "__wrapped__",
        "__objclass__",
        "__func__",
    }
    | {
        "__spec__",
        "__traceback__",
        "tb_frame",
        "f_back",
        "f_globals",
        "f_locals",
        "f_builtins",
        "gi_frame",
        "cr_frame",
        "ag_frame",
    }
)
_BY_NAME: Final = frozenset(
    {
        "attrgetter",
        "methodcaller",
        "get_type_hints",
        "ForwardRef",
        "make_dataclass",
        "create_model",
        "ImportString",
        "PyObject",
    }
)
"""What looks up or evaluates a text."""
_SMALL: Final = {
    "pydantic": {"conint", "confloat", "constr", "conlist", "field_validator", "model_validator", "computed_field"}
    | {"field_serializer", "model_serializer", "validate_call"},
    "verifiers": {"v1"},
    "verifiers.v1": {
        "reward",
        "metric",
        "stop",
        "extract_boxed_answer",
        "compare_stdout_results",
        "verify_boxed_math_answer",
    },
}
"""Of these modules: what is written small and no module. What is written in capitals are classes."""
_TELLING: Final = ("__import__", "__builtins__", "__globals__", "__subclasses__", "ImportString")


def reaches(tree: ast.Module) -> Iterator[Problem]:
    """One problem for each place."""
    nodes = list(ast.walk(tree))
    bound = dict(pair for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for pair in _bound(node))
    based = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module in MODULES:
                yield from (_refused(f"{module}.{alias.name}", node) for alias in names if leads(module, alias.name))
            case ast.Attribute(attr=name) if name in OUTSIDE | _INSIDES or _of_module(node, bound):
                yield _refused(name, node)
            case ast.Name(id="vars") | ast.Name(id="getattr") if id(node) not in called or node.id == "vars":
                yield _refused(node.id, node)
            case ast.Name(id=name, ctx=ast.Load()) if name in bound and id(node) not in based:
                yield _refused(name, node, f"name what you take from it: {plain(name)}.…")
            case ast.Call() | ast.Constant() | ast.MatchClass():
                yield from _by_text(node)


def _by_text(node: ast.Call | ast.Constant | ast.MatchClass) -> Iterator[Problem]:
    match node:
        case ast.MatchClass(kwd_attrs=names, cls=what):
            yield from (_refused(name, what) for name in names if name.startswith("_") or name in OUTSIDE | _INSIDES)
        case ast.Call(func=ast.Name(id="getattr"), args=[_, wanted, *_]) if not _plainly(wanted):
            yield _refused("getattr", node, "write the attribute's name, with a dot")
        case ast.Constant(value=str(text)):
            yield from (_refused(word, node) for word in _TELLING if word in text)


def leads(module: str, name: str) -> bool:
    """Whether a name in an allowed module is a module itself, private, or a way out."""
    if f"{module}.{name}" in MODULES:
        return False
    if name == "*":
        return module.split(".", maxsplit=1)[0] in IMPORTS
    if name.startswith("_") or name in OUTSIDE | _BY_NAME:
        return module != "__future__"
    if module in _STANDARD:
        return _is_module(module, name)
    return not name[0].isupper() and name not in _SMALL.get(module, ())


@functools.cache
def _is_module(module: str, name: str) -> bool:
    return isinstance(getattr(importlib.import_module(module), name, None), ModuleType)


def _bound(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """The names that are modules from here on."""
    for alias in node.names:
        if isinstance(node, ast.Import):
            yield (alias.asname, alias.name) if alias.asname else (alias.name.split(".")[0], alias.name.split(".")[0])
        elif f"{node.module}.{alias.name}" in MODULES:
            yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _of_module(node: ast.Attribute, bound: dict[str, str]) -> bool:
    """Whether this is `module.name`, and the name leads on."""
    below: list[str] = []
    base = node.value
    while isinstance(base, ast.Attribute):
        below.append(base.attr)
        base = base.value
    if not isinstance(base, ast.Name) or base.id not in bound:
        return False
    module = ".".join([bound[base.id], *reversed(below)])
    return module in MODULES and leads(module, node.attr)


def _plainly(wanted: ast.expr) -> bool:
    if not isinstance(wanted, ast.Constant) or not isinstance(wanted.value, str):
        return False
    return not wanted.value.startswith("_") and wanted.value not in OUTSIDE | _INSIDES | _BY_NAME


def _refused(
    name: str, node: ast.stmt | ast.expr, hint: str = "there are no processes, threads, connections or other modules"
) -> Problem:
    where = f"{CODE}:{node.lineno}"
    return problem("environment.name", where, f"{plain(name)} is not allowed", hint, name=name)
