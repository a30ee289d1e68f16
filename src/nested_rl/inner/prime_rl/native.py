"""A native environment.py as it is written: a verifiers v1 taskset, seen without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

from attrs import evolve

from nested_rl.inner.prime_rl.probe_child import IMPORTS
from nested_rl.inner.prime_rl.reach import MODULES, reaches
from nested_rl.jobs.folder import CODE
from nested_rl.jobs.problems import plain, problem
from nested_rl.jobs.surface import Surface
from nested_rl.types import Problem

NO_REWARD: Final = (
    "the tasks have no reward, so every rollout earns 0",
    "write `@vf.reward` above an `async def` of your vf.Task",
)
_GIVEN: Final = frozenset({"self", "task", "trace"})
"""What verifiers passes to a hook, by name. It could also pass the runtime, which runs programs."""
_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def widened(surface: Surface) -> Surface:
    """The surface with what a native environment may import besides."""
    return evolve(surface, imports=surface.imports | frozenset(IMPORTS))


def form(tree: ast.Module, _files: Mapping[str, str]) -> Iterator[Problem]:
    """What verifiers would refuse, or silently take wrongly."""
    if not _exports(tree):
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        message = "it has no __all__ that names its taskset"
        if "load_environment" in functions:
            message = "load_environment is of an earlier verifiers; the trainer takes v1 tasksets only"
        hint = 'subclass vf.Taskset and write __all__ = ["YourTaskset"]'
        yield problem("environment.missing", CODE, message, hint, name="Taskset in __all__")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _function(node)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            yield from _inside(node)
    yield from reaches(tree)


def _exports(tree: ast.Module) -> bool:
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)


def _hook(function: _Function) -> str:
    """Whether it is decorated as a reward, metric or stop; "" when it is none."""
    for decorator in function.decorator_list:
        named = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = named.attr if isinstance(named, ast.Attribute) else named.id if isinstance(named, ast.Name) else ""
        if name in ("reward", "metric", "stop"):
            return name
    return ""


def _function(function: _Function) -> Iterator[Problem]:
    hook, arguments = _hook(function), function.args
    takes = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    if function.name == "toolsets":
        yield _refused(
            "toolsets", function, "the harness gives a model no tools; let load() and the reward do the work"
        )
    elif "runtime" in takes:
        yield _refused("runtime", function, f"take only self, task and trace in {plain(function.name)}")
    elif hook:
        yield from _signature(hook, function)


def _refused(name: str, node: ast.stmt | ast.expr, hint: str) -> Problem:
    where = f"{CODE}:{node.lineno}"
    return problem("environment.name", where, f"{name} is not allowed", hint, name=name)


def _signature(hook: str, function: _Function) -> Iterator[Problem]:
    where, name = f"{CODE}:{function.lineno}", plain(function.name)
    if isinstance(function, ast.FunctionDef):
        message, hint = f"{name} is a @vf.{hook}, and verifiers awaits it", f"write async def {name}"
        yield problem("environment.arguments", where, message, hint, name=name, arguments="async def")
    if hook == "stop":
        return  # told apart by the types of its parameters
    arguments = function.args
    required = (*arguments.posonlyargs, *arguments.args)[: -len(arguments.defaults) or None]
    unknown = [plain(argument.arg) for argument in required if argument.arg not in _GIVEN]
    if unknown:
        message = f"{name} takes {', '.join(unknown)}; verifiers passes task and trace, by name"
        hint = f"write async def {name}(self, trace): the reply is trace.last_reply, the task's data self.data"
        yield problem("environment.arguments", where, message, hint, name=name, arguments="trace")


def _inside(node: ast.Import | ast.ImportFrom) -> Iterator[Problem]:
    """Only the public face of what may be imported: the rest of verifiers moves, and has programs and the network in it."""
    modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    for module in modules:
        top = module.split(".")[0]
        if top in MODULES and module not in MODULES:
            message = f"import of {plain(module)!r} is not allowed"
            hint = "use `import verifiers.v1 as vf`" if top == "verifiers" else f"use `import {plain(top)}`"
            yield problem("environment.import", f"{CODE}:{node.lineno}", message, hint, name=module)
