"""Parts by name: `[compute] name = "local"` in a run file, `--inner nano` on the command line.

Every part registers under an entry point group, built-in ones and those of third-party packages alike.

>>> names("queue")
('memory', 'sqlite')
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import MappingProxyType, SimpleNamespace, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import attrs

from nested_rl import blame, serialize
from nested_rl.errors import MissingExtra, NestedRLError, SettingsError, UnknownName

GROUPS: Mapping[str, str] = {
    "trainer": "nested_rl.trainers",
    "harness": "nested_rl.harness",
    "inner": "nested_rl.inner",
    "queue": "nested_rl.queues",
    "compute": "nested_rl.compute",
    "scorer": "nested_rl.scorers",
    "tracker": "nested_rl.trackers",
}
"""The entry point group of each kind of part."""


def names(kind: str) -> tuple[str, ...]:
    """The registered parts of a kind, of every installed package."""
    return tuple(sorted(_registered(kind)))


def find(kind: str, name: str) -> Callable[..., Any]:
    """The class (or factory) registered as `name`. Raises UnknownName, MissingExtra, or SettingsError if it is broken."""
    known = _registered(kind)
    if name not in known:
        raise UnknownName(kind, name, known)
    try:
        made: Callable[..., Any] = known[name].load()
    except MissingExtra:
        raise
    except (ImportError, AttributeError) as error:
        raise SettingsError(f"{kind} {name!r} ({known[name].value}) cannot be loaded: {error}") from error
    return made


def build(kind: str, settings: Mapping[str, Any]) -> Any:
    """A part from a table: `name` says which, the other keys are its keyword arguments.

    Lists become tuples, and tables the frozen values that the arguments are annotated with, such as `Host` or `Terms`.
    Raises UnknownName for a key it does not take, with the nearest right one, and SettingsError for a value it refuses.
    """
    values = dict(settings)
    name = values.pop("name", None)
    if not isinstance(name, str):
        raise SettingsError(f"[{kind}] needs a name, one of: {', '.join(names(kind))}")
    part = find(kind, name)
    parameters = inspect.signature(part).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for key in values:
            if key not in parameters:
                raise UnknownName(f"key (in [{kind}], {name})", key, parameters)
    missing = [p.name for p in parameters.values() if p.default is p.empty and _named(p) and p.name not in values]
    if missing:
        raise SettingsError(f"[{kind}] {name} also needs {', '.join(missing)}")
    where = f"[{kind}] {name}"
    try:
        made = {
            key: _frozen(value, _leaves(part, parameters[key]) if key in parameters else {Any}, f"{where}: {key}")
            for key, value in values.items()
        }
        return part(**made)
    except NestedRLError:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        raise SettingsError(f"[{kind}] {name}: {error}") from error


def require_object(kind: str, part: object) -> None:
    """Refuse a name or a class where a part itself is wanted, and say what there is."""
    if not isinstance(part, str | type):
        return
    points = _registered(kind)
    if isinstance(part, type):
        raise SettingsError(f"{kind} must be an object, not a class: {kind}={part.__name__}(…)")
    near = difflib.get_close_matches(part, points, n=1)
    meant = f", such as {points[near[0]].attr}(…) of {points[near[0]].module}" if near else ""
    raise SettingsError(
        f"{kind} must be an object{meant}; {part!r} is a name, and names are for run files (known there: {', '.join(sorted(points))})"
    )


def function(where: str, *, beside: Path) -> Callable[..., Any]:
    """A function of yours: `rewards.py:thrifty` (a file, relative to the folder `beside`) or `package.module:thrifty`."""
    place, _, name = where.rpartition(":")
    if not place or not name:
        raise SettingsError(f"{where!r} is not a place of a function; write FILE.py:NAME or MODULE:NAME")
    module = _from_file(beside / place) if place.endswith(".py") else _from_import(place)
    found = getattr(module, name, None)
    if not callable(found):
        callables = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise UnknownName(f"function (in {place})", name, callables)
    made: Callable[..., Any] = found
    return made


def _registered(kind: str) -> Mapping[str, EntryPoint]:
    if kind not in GROUPS:
        raise UnknownName("kind of part", kind, GROUPS)
    return {point.name: point for point in entry_points(group=GROUPS[kind])}


def _named(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)


def _leaves(part: Callable[..., Any], parameter: inspect.Parameter) -> set[Any]:
    """The kinds of values that a parameter takes, in whatever list, union or mapping. Any, where nobody can tell."""
    made = vars(part).get("__init__", part) if isinstance(part, type) else part
    known = {**vars(sys.modules[part.__module__]), **getattr(made, "__globals__", {})}
    told: Any = SimpleNamespace(__annotations__={"it": parameter.annotation})
    try:
        kind = get_type_hints(told, globalns=known)["it"]
    except (NameError, TypeError):  # imported for type checkers only
        return {Any}
    return {Any} if kind is parameter.empty else _spread(kind)


def _spread(kind: Any) -> set[Any]:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return set().union(*map(_spread, inner))
    if origin is Literal:
        return {kind}
    if isinstance(origin, type) and issubclass(origin, Iterable) and not issubclass(origin, Mapping):
        return {_LIST}.union(*(_spread(one) for one in inner if one is not ...))
    return {origin or kind}


def _frozen(value: Any, leaves: set[Any], where: str) -> Any:
    """The value, as one of these kinds."""
    if isinstance(value, list) and (_LIST in leaves or not leaves <= _PLAIN.keys()):
        return tuple(_frozen(one, leaves, f"{where}[{index}]") for index, one in enumerate(value))
    classes = [leaf for leaf in leaves if isinstance(leaf, type) and attrs.has(leaf)]
    if isinstance(value, dict) and len(classes) == 1:
        try:
            return serialize.from_json(value, classes[0])
        except UnknownName:
            raise
        except SettingsError as error:
            raise SettingsError(f"{where}: {error}") from None
    choices = [choice for leaf in leaves if get_origin(leaf) is Literal for choice in get_args(leaf)]
    told = {leaf for leaf in leaves if get_origin(leaf) is not Literal and leaf not in classes}
    fits = value in choices or type(value) in told or (type(value) is int and float in told)
    if fits or not told <= _PLAIN.keys():  # of other kinds the part itself knows
        return value
    words = [_PLAIN[leaf] for leaf in _PLAIN if leaf in told and _PLAIN[leaf]]
    words += [f"a table ({one.__name__})" for one in classes] + [repr(choice) for choice in choices]
    raise SettingsError(f"{where}: expected {' or '.join(words)}, got {value!r}")


_LIST: Final = object()
_PLAIN: Final[Mapping[Any, str]] = MappingProxyType(
    {str: "text", int: "a whole number", float: "a number", bool: "true or false", _LIST: "a list", type(None): ""}
)


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise SettingsError(f"{path}: no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Under a name of its own, or a file called `types.py` would hide a module of the standard library.
    sys.modules[f"nested_rl_run_file.{path.stem}"] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise SettingsError(f"{path} cannot be loaded: {blame.said(error)}") from error
    return module


def _from_import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SettingsError(f"module {name!r} cannot be imported: {error}") from error
