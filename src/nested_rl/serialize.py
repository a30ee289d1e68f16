"""Values to JSON and back: one converter, strict at the edge, with errors that name the place.

>>> from nested_rl.types import Task
>>> text = dumps(Task(id="t1", family="ledger", difficulty=2))
>>> loads(text, Task).family
'ledger'
>>> loads('{"id": "t1", "familly": "ledger", "difficulty": 2}', Task)
Traceback (most recent call last):
nested_rl.errors.UnknownName: unknown key (in Task) 'familly'; did you mean 'family'?
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar, get_args, get_origin, overload

import attrs
from cattrs import Converter

from nested_rl.errors import SettingsError, UnknownName
from nested_rl.types import JSON, Message, Turn

T = TypeVar("T")
Hook = Callable[[Any, Any], Any]

KIND = "kind"
KINDS: Mapping[str, type[Message | Turn]] = {"message": Message, "turn": Turn}
"""A Message or a Turn is written with its kind, because a conversation holds both."""


def to_json(value: Any) -> JSON:
    """Plain data (dict, list, str, int, float, bool, None) of a value, or of a list or mapping of values.

    Raises SettingsError, with the path, for a number that JSON cannot hold (NaN, infinity).

    >>> to_json(Message(role="user", content="hi"))["kind"]
    'message'
    """
    data = _plain(value)
    _check_finite(data, ())
    return data


def dumps(value: Any, *, clean: Callable[[JSON], JSON] = lambda data: data) -> str:
    """One line of JSON, keys in the order of the fields; `clean` gets the plain data first. Raises as `to_json` does."""
    data = clean(_plain(value))
    try:
        return json.dumps(data, allow_nan=False)
    except ValueError:
        _check_finite(data, ())  # says where
        raise


@overload
def from_json(data: JSON, kind: type[T]) -> T: ...
@overload
def from_json(data: JSON, kind: Any) -> Any: ...
def from_json(data: JSON, kind: Any) -> Any:
    """The value of type `kind` (a class, `Message | Turn`, `tuple[Task, ...]` …) in plain data.

    Raises UnknownName for a key that does not exist, SettingsError for all else that does not fit; both name the place.
    """
    try:
        return _tagged(data, kind) if kind in KINDS.values() else _CONVERTER.structure(data, kind)
    except _Unknown as bad:
        place = _dotted(bad.path) or getattr(kind, "__name__", str(kind))
        raise UnknownName(f"key (in {place})", bad.name, bad.known) from None
    except _Unfit as bad:
        place = _dotted(bad.path) or getattr(kind, "__name__", str(kind))
        raise SettingsError(f"{place}: {bad}") from None


@overload
def loads(text: str | bytes, kind: type[T]) -> T: ...
@overload
def loads(text: str | bytes, kind: Any) -> Any: ...
def loads(text: str | bytes, kind: Any) -> Any:
    """`from_json` of a JSON text. Raises SettingsError when it is not JSON."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"not valid JSON: {error}") from None
    return from_json(data, kind)


# ---------------------------------------------------------------- where something is wrong


class _Unfit(ValueError):
    """What is wrong with one value. The path to it grows on the way out."""

    path: tuple[str | int, ...] = ()


class _Unknown(_Unfit):
    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(name)
        self.name, self.known = name, known


@contextmanager
def _at(step: str | int) -> Iterator[None]:
    try:
        yield
    except _Unfit as bad:
        bad.path = (step, *bad.path)
        raise


def _dotted(path: Sequence[str | int]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def _show(data: Any) -> str:
    text = json.dumps(data, default=repr)
    return text if len(text) <= 60 else f"{text[:57]}..."


# ---------------------------------------------------------------- to plain data


def _plain(value: Any) -> JSON:
    if isinstance(value, (list, tuple)):
        return list(value) if _SCALARS.issuperset(map(type, value)) else [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (Message, Turn)):
        return _CONVERTER.unstructure(value, Message | Turn)
    return _CONVERTER.unstructure(value)


def _with_kind(value: Message | Turn) -> JSON:
    kind = "turn" if isinstance(value, Turn) else "message"
    return {KIND: kind, **_CONVERTER.unstructure(value, type(value))}


def _check_finite(data: JSON, path: tuple[str | int, ...]) -> None:
    if isinstance(data, float) and not math.isfinite(data):
        raise SettingsError(f"{_dotted(path) or 'value'}: only finite numbers can be stored, got {data}")
    if isinstance(data, dict):
        for key, value in data.items():
            _check_finite(value, (*path, key))
    elif isinstance(data, list) and not _all_finite(data):
        for index, value in enumerate(data):
            _check_finite(value, (*path, index))


def _all_finite(data: list[Any]) -> bool:
    """Whether these are numbers and texts alone, and finite. Ids and log-probabilities are many: no call for each."""
    kinds = set(map(type, data))
    if not _SCALARS.issuperset(kinds):
        return False
    if kinds == {float}:
        return all(map(math.isfinite, data))
    return float not in kinds or all(math.isfinite(x) for x in data if type(x) is float)


_SCALARS = frozenset({int, float, bool, str, type(None)})


# ---------------------------------------------------------------- from plain data


def _exactly(kind: type, name: str) -> Hook:
    def structure(data: Any, _: Any) -> Any:
        if type(data) is not kind:
            raise _Unfit(f"expected {name}, got {_show(data)}")
        return data

    return structure


def _number(data: Any, _: Any) -> float:
    """A finite float; a whole number will do, true and false will not."""
    if type(data) not in (float, int):
        raise _Unfit(f"expected a number, got {_show(data)}")
    try:
        value = float(data)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise _Unfit(f"expected a finite number, got {_show(data)}")
    return value


def _choice(choices: Sequence[Any], data: Any) -> Any:
    for choice in choices:
        if type(data) is type(choice) and data == choice:
            return choice
    raise _Unfit(f"expected one of {', '.join(_show(c) for c in choices)}, got {_show(data)}")


def _literal(data: Any, kind: Any) -> Any:
    return _choice(get_args(kind), data)


def _enum(data: Any, kind: type[enum.Enum]) -> Any:
    return kind(_choice([member.value for member in kind], data))


def _object(data: Any) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise _Unfit(f"expected an object, got {_show(data)}")
    return data


def _by_kind(data: Any, _: Any) -> Message | Turn:
    fields = dict(_object(data))
    with _at(KIND):
        cls = KINDS[_choice(list(KINDS), fields.pop(KIND, None))]
    return _CONVERTER.structure(fields, cls)


def _tagged(data: Any, cls: type[Message | Turn]) -> Message | Turn:
    value = _by_kind(data, None)
    if type(value) is not cls:
        raise _Unfit(f"expected a {cls.__name__}, got a {type(value).__name__}")
    return value


def _class(cls: type) -> Hook:
    attrs.resolve_types(cls)
    fields = {field.name: field for field in attrs.fields(cls)}

    def structure(data: Any, _: Any) -> Any:
        for name in _object(data):
            if name not in fields:
                raise _Unknown(str(name), list(fields))
        values = {}
        for name, field in fields.items():
            try:  # `_at` says the same, but takes as long as the rest
                if name in data:
                    values[name] = _CONVERTER.structure(data[name], field.type)
                elif field.default is attrs.NOTHING:
                    raise _Unfit("missing")
            except _Unfit as bad:
                bad.path = (name, *bad.path)
                raise
        return cls(**values)

    return structure


def _tuple(kind: Any) -> Hook:
    item = get_args(kind)[0]

    def structure(data: Any, _: Any) -> tuple[Any, ...]:
        if not isinstance(data, (list, tuple)):
            raise _Unfit(f"expected a list, got {_show(data)}")
        kinds = set(map(type, data)) if item in _NUMBERS else ()
        if kinds == {item} and (item is int or all(map(math.isfinite, data))):
            return tuple(data)  # ids and log-probabilities are many: no call for each
        values: list[Any] = []
        try:
            values.extend(_CONVERTER.structure(value, item) for value in data)
        except _Unfit as bad:
            bad.path = (len(values), *bad.path)
            raise
        return tuple(values)

    return structure


_NUMBERS = (int, float)
_FLAT = (tuple[int, ...], tuple[int, ...] | None, tuple[float, ...], tuple[float, ...] | None)


def _mapping(kind: Any) -> Hook:
    _, item = get_args(kind)

    def structure(data: Any, _: Any) -> dict[str, Any]:
        values = {}
        for key, value in _object(data).items():
            with _at(key):
                values[key] = _CONVERTER.structure(value, item)
        return values

    return structure


def _listed(numbers: tuple[float, ...] | None) -> list[float] | None:
    return None if numbers is None else list(numbers)


def _generic(origin: Any) -> Callable[[Any], bool]:
    return lambda kind: bool(get_origin(kind) == origin)


def _converter() -> Converter:
    converter = Converter(unstruct_collection_overrides={tuple: list}, detailed_validation=False)
    converter.register_structure_hook(str, _exactly(str, "text"))
    converter.register_structure_hook(bool, _exactly(bool, "true or false"))
    converter.register_structure_hook(int, _exactly(int, "a whole number"))
    converter.register_structure_hook(float, _number)
    converter.register_structure_hook_func(_generic(Literal), _literal)
    converter.register_structure_hook_func(lambda kind: isinstance(kind, type) and issubclass(kind, enum.Enum), _enum)
    converter.register_structure_hook_factory(attrs.has, _class)
    converter.register_structure_hook_factory(_generic(tuple), _tuple)
    converter.register_structure_hook_factory(_generic(Mapping), _mapping)
    converter.register_structure_hook_func(lambda kind: kind == Message | Turn, _by_kind)
    converter.register_unstructure_hook_func(lambda kind: kind == Message | Turn, _with_kind)
    converter.register_unstructure_hook_func(lambda kind: kind in _FLAT, _listed)
    return converter


_CONVERTER = _converter()
