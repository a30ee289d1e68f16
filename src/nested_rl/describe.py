"""What a part is, in plain data, so that run.toml can say it and a changed experiment is noticed."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from typing import Any

import attrs

from nested_rl.types import JSON


def describe(part: object) -> dict[str, JSON]:
    """A part's class and settings.

    A part with a `settings()` method says it itself; attrs classes say their fields; a function says its name and a hash of
    its source, so that an edited reward is another experiment.

    >>> from nested_rl.types import Budget
    >>> describe(Budget(usd=5.0))
    {'name': 'nested_rl.types.Budget', 'usd': 5.0}
    """
    if inspect.isfunction(part) or inspect.ismethod(part):
        return {"name": f"{part.__module__}.{part.__qualname__}", "source": _source_hash(part)}
    name = f"{type(part).__module__}.{type(part).__qualname__}"
    said = getattr(part, "settings", None)
    if callable(said):
        return {"name": name, **{k: _plain(v) for k, v in dict(said()).items()}}
    kind: Any = type(part)
    if attrs.has(kind):
        fields = {a.alias or a.name: getattr(part, a.name) for a in attrs.fields(kind) if a.init}
        return {"name": name, **{k: _plain(v) for k, v in fields.items() if v is not None and not k.startswith("_")}}
    return {"name": name}


def _plain(value: object) -> JSON:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v) for v in value]
    return str(value) if hasattr(value, "__fspath__") else type(value).__qualname__


def _source_hash(function: object) -> str:
    try:
        source = inspect.getsource(function)  # type: ignore[arg-type]
    except (OSError, TypeError):
        return "unknown"
    return hashlib.sha256(source.encode()).hexdigest()[:12]
