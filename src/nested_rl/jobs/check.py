"""environment.py and the data files as they are written, before anything runs.

The sandbox is what keeps hostile code in; these checks are for honest authors: they name the line and what to write instead.
"""

from __future__ import annotations

import ast
import difflib
import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NoReturn, TypeAlias

from nested_rl.jobs.folder import CODE, DATA
from nested_rl.jobs.problems import plain, problem, quoted
from nested_rl.jobs.surface import Surface
from nested_rl.types import Problem

FUNCTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "examples": ("rng", "n"),
    "reward": ("prompt", "completion", "answer"),
}
KIT: Final = "nested_rl.jobkit"
HUGE: Final = 10_000_000
"""Ranges, repeats and buffers of a literal length above this are mistakes."""
_VAST: Final = 1e18
_FACTORS: Final = 16
"""A product of more numbers than this is not looked at: it is written to be deep, not to be read."""

_BAD_NAMES: Final = frozenset(
    {"__import__", "breakpoint", "compile", "eval", "exec", "exit", "globals", "help", "input", "locals", "quit"}
)
_BAD_ATTRIBUTES: Final = frozenset(
    {"__bases__", "__builtins__", "__closure__", "__code__", "__globals__", "__loader__", "__mro__", "__subclasses__"}
)
_MANY = 8

Form: TypeAlias = Callable[[ast.Module, Mapping[str, str]], Iterator[Problem]]
"""What a dialect wants of environment.py, given its syntax tree and all files."""
_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def check(files: Mapping[str, str], surface: Surface, form: Form | None = None) -> tuple[Problem, ...]:
    """All problems of environment.py and data/*.jsonl that can be seen without running anything.

    `form` says what environment.py must define; by default `examples` and `reward`, and `open` for its own data alone.
    """
    problems: list[Problem] = []
    if len(files.get(CODE, "")) <= surface.files.code_bytes:  # what is too big is told as such, and not read
        problems += _code(files[CODE], files, surface, form or _plain) if CODE in files else ()
    data = [name for name in sorted(files) if name.startswith(DATA)]
    if sum(len(files[name]) for name in data) <= surface.files.data_bytes:
        problems += [found for name in data for found in _rows(name, files[name])]
    return tuple(problems[:_MANY])


def _code(source: str, files: Mapping[str, str], surface: Surface, form: Form) -> Iterator[Problem]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\d" in an agent's text is no news for the user
            tree = ast.parse(source, CODE)
            compile(source, CODE, "exec", dont_inherit=True)  # also finds a return outside a function
    except SyntaxError as error:
        where = f"{CODE}:{error.lineno or 1}"
        yield problem("environment.syntax", where, f"not Python: {plain(error.msg)}", _shown(error.text))
        return
    except (ValueError, RecursionError, MemoryError, OverflowError):
        yield problem("environment.syntax", CODE, "Python cannot read it: too deeply nested", "write simpler code")
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _import(node, surface)
        elif isinstance(node, ast.Name | ast.Attribute):
            yield from _name(node)
        elif isinstance(node, ast.Call | ast.BinOp):
            yield from _huge(node)
    yield from form(tree, files)


def _plain(tree: ast.Module, files: Mapping[str, str]) -> Iterator[Problem]:
    yield from _opens(list(ast.walk(tree)), files)
    yield from _functions(tree)


def _shown(text: str | None) -> str:
    return f"the line is: {plain(text.strip())}" if text and text.strip() else ""


# ---------------------------------------------------------------- what it imports and names


def _import(node: ast.Import | ast.ImportFrom, surface: Surface) -> Iterator[Problem]:
    where = f"{CODE}:{node.lineno}"
    if isinstance(node, ast.Import):
        wanted = [(alias.name, "") for alias in node.names]
    else:
        module = "." * node.level + (node.module or "")
        wanted = [(module, alias.name) for alias in node.names]
    refused: set[str] = set()
    for module, name in wanted:
        full = f"{module}.{name}" if module == "nested_rl" and name else module
        if full in surface.imports or full.split(".")[0] in surface.imports or full in refused:
            continue
        if full != KIT or not surface.kit:
            refused.add(full)
            message = f"import of {quoted(full)} is not allowed"
            yield problem("environment.import", where, message, _allowed(full, surface), name=full)
        elif name and module == KIT and name not in surface.kit:
            near = difflib.get_close_matches(name, surface.kit, n=1) or sorted(surface.kit)
            message = f"the kit has no {quoted(name)}"
            yield problem("environment.import", where, message, f"the kit has: {', '.join(near)}", name=name)


def _allowed(module: str, surface: Surface) -> str:
    known = sorted(surface.imports) + ([KIT] if surface.kit else [])
    near = difflib.get_close_matches(module, known, n=1, cutoff=0.8)
    if near:
        return f"did you mean {near[0]}?"
    if module == KIT:
        return "write your own generator and grader; the kit is for nano-scale jobs"
    return f"allowed: {', '.join(known)}"


def _name(node: ast.Name | ast.Attribute) -> Iterator[Problem]:
    name = node.id if isinstance(node, ast.Name) else node.attr
    bad = _BAD_NAMES | _BAD_ATTRIBUTES if isinstance(node, ast.Name) else _BAD_ATTRIBUTES
    if name in bad and isinstance(node.ctx, ast.Load):
        hint = "examples and reward need no more than plain functions"
        yield problem("environment.name", f"{CODE}:{node.lineno}", f"{name} is not allowed", hint, name=name)


def _opens(nodes: list[ast.AST], files: Mapping[str, str]) -> Iterator[Problem]:
    """`open` may only read a data file of the job, named in place."""
    good = set()
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open" and node.args:
            path, mode = node.args[0], node.args[1] if len(node.args) > 1 else ast.Constant("r")
            named = isinstance(path, ast.Constant) and path.value in files and str(path.value).startswith(DATA)
            if named and isinstance(mode, ast.Constant) and mode.value in ("r", "rt"):
                good.add(id(node.func))
    data = sorted(name for name in files if name.startswith(DATA))
    hint = f'only the job\'s own data can be read: open("{data[0]}")' if data else "there are no files to read"
    for node in nodes:
        if isinstance(node, ast.Name) and node.id == "open" and id(node) not in good:
            yield problem("environment.name", f"{CODE}:{node.lineno}", "open is not allowed here", hint, name="open")


def _huge(node: ast.Call | ast.BinOp) -> Iterator[Problem]:
    lengths: list[ast.expr] = []
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id in ("range", "bytearray", "bytes"):
            lengths = node.args
    elif isinstance(node.op, ast.Mult):
        for what, times in ((node.left, node.right), (node.right, node.left)):
            if isinstance(what, ast.List | ast.Tuple) or (
                isinstance(what, ast.Constant) and isinstance(what.value, str | bytes)
            ):
                lengths = [times]
    if any(_literal(length, _FACTORS) > HUGE for length in lengths):
        message = f"a length above {HUGE:,} will not fit in the job's memory and time"
        yield problem("environment.number", f"{CODE}:{node.lineno}", message, "use a smaller one")


def _literal(node: ast.expr, depth: int) -> float:
    """The size of a number written as 10000, 10 * 1000 or 10**4; 0 when it is anything else, or deeper than `depth`."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return min(value, _VAST) if abs(value) < 10**300 else _VAST
        case ast.BinOp(left=left, op=ast.Mult() | ast.Pow() as op, right=right) if depth > 0:
            a, b = _literal(left, depth - 1), _literal(right, depth - 1)
            if isinstance(op, ast.Mult):
                return min(a * b, _VAST)
            return _VAST if a > 1 and b * math.log(a) > math.log(_VAST) else min(a**b, _VAST)
        case _:
            return 0.0


# ---------------------------------------------------------------- examples and reward


def _functions(tree: ast.Module) -> Iterator[Problem]:
    found: dict[str, _Function | None] = {}
    for node in _top(tree.body):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found[name] = node
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found[name] = value if isinstance(value, ast.Lambda) else None
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found |= {alias.asname or alias.name: None for alias in names}
            case _:
                pass
    for name, wanted in FUNCTIONS.items():
        usage = f"def {name}({', '.join(wanted)}):"
        if name not in found:
            near = difflib.get_close_matches(name, found, n=1)
            hint = f"rename {plain(near[0])} to {name}" if near else f"write {usage}"
            yield problem("environment.missing", CODE, f"it does not define {name}", hint, name=name)
        elif (function := found[name]) is not None:
            yield from _signature(name, function, wanted, usage)


def _top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run at import, also inside if, try and with. Without recursion: an elif chain may be long."""
    todo = body[::-1]
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            for part in ("finalbody", "orelse", "body"):
                todo += getattr(node, part, [])[::-1]


def _signature(name: str, function: _Function, wanted: tuple[str, ...], usage: str) -> Iterator[Problem]:
    where = f"{CODE}:{function.lineno}"
    if isinstance(function, ast.AsyncFunctionDef):
        yield problem(
            "environment.async", where, f"{name} is async, but it is called directly", f"write {usage}", name=name
        )
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    required = len(names) - len(arguments.defaults)
    keyword_only = any(default is None for default in arguments.kw_defaults)
    fits = required <= len(wanted) and (len(names) >= len(wanted) or arguments.vararg is not None) and not keyword_only
    swapped = set(names[: len(wanted)]) == set(wanted) and tuple(names[: len(wanted)]) != wanted
    if not fits or swapped:
        message = f"{name} is called with ({', '.join(wanted)}), by position; it takes ({plain(', '.join(names))})"
        yield problem("environment.arguments", where, message, f"write {usage}", name=name, arguments=" ".join(wanted))


# ---------------------------------------------------------------- data


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _rows(name: str, text: str) -> Iterator[Problem]:
    """The first line that is not a JSON object, if any; or that there are none."""
    count = 0
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        count += 1
        try:
            row = json.loads(line, parse_constant=_refuse)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            message = f"line {number} is not a JSON object: {quoted(line)}"
            yield problem("files.rows", f"{name}:{number}", message, "write one JSON object a line", name=name)
            return
    if not count:
        yield problem("files.rows", name, "there are no rows", "write one JSON object a line", name=name)
