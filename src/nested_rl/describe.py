"""What a part is, in plain data, so that run.toml can say it and a changed experiment is noticed."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from nested_rl.types import JSON


def describe(part: object) -> dict[str, JSON]:
    """A part's class and settings.

    A part with a `settings()` method says it itself; attrs classes say their fields, other objects their attributes; a
    function says its name and a hash of its source, so that an edited reward is another experiment; a `partial` says its
    function and arguments.

    >>> from nested_rl.types import Budget
    >>> describe(Budget(usd=5.0))
    {'name': 'nested_rl.types.Budget', 'usd': 5.0}
    """
    if isinstance(part, functools.partial):
        return {"partial": describe(part.func), "args": _plain(part.args), "keywords": _plain(part.keywords)}
    if inspect.isfunction(part) or inspect.ismethod(part):
        return {"name": f"{part.__module__}.{part.__qualname__}", "source": _source_hash(part)}
    name = f"{type(part).__module__}.{type(part).__qualname__}"
    said = getattr(part, "settings", None)
    if callable(said):
        return {"name": name, **{k: _plain(v) for k, v in dict(said()).items()}}
    kind: Any = type(part)
    if attrs.has(kind):
        fields = {a.alias or a.name: getattr(part, a.name) for a in attrs.fields(kind) if a.init}
    else:
        fields = dict(getattr(part, "__dict__", {}))
    return {"name": name, **{k: _plain(v) for k, v in fields.items() if v is not None and not k.startswith("_")}}


def code(*parts: object) -> str:
    """A digest of the files in which the classes of these parts are written, as they are on the disk now.

    Seams (nested_rl.interfaces) and the standard library do not count.
    """
    kinds = [kind for part in parts for kind in type(part).__mro__]
    modules = {kind.__module__ for kind in kinds} - sys.stdlib_module_names - {"nested_rl.interfaces"}
    places = {getattr(sys.modules.get(name), "__file__", None) for name in modules}
    texts = sorted(hashlib.sha256(Path(place).read_bytes()).hexdigest() for place in places if place)
    return hashlib.sha256("".join(texts).encode()).hexdigest()


def _plain(value: object) -> JSON:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v) for v in value]
    return str(value) if hasattr(value, "__fspath__") else type(value).__qualname__


def _source_hash(function: Any) -> str:
    """Of its source, or of its compiled code where there is no source to be had (a notebook, standard input)."""
    try:
        source = inspect.getsource(function).encode()
    except (OSError, TypeError):
        code = function.__code__
        source = code.co_code + repr((code.co_consts, code.co_names)).encode()
    return hashlib.sha256(source).hexdigest()[:12]
