"""Arguments that do not exist are told with the nearest that does. Signatures stay as they are, for people and for editors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from nested_rl.errors import UnknownArgument

T = TypeVar("T", bound=Callable[..., Any])


def known(fn: T) -> T:
    """A function (or, on a class, its making) that raises UnknownArgument, a TypeError, for a name that it does not take.

    >>> @known
    ... def run(steps: int = 25) -> int:
    ...     return steps
    >>> run(step=3)
    Traceback (most recent call last):
    nested_rl.errors.UnknownArgument: unknown argument (of run) 'step'; did you mean 'steps'?
    """
    if isinstance(fn, type):
        made: Any = fn
        made.__init__ = _checked(made.__init__, fn.__name__)
        return fn
    return cast(T, _checked(fn, fn.__qualname__))


def _checked(fn: Any, name: str) -> Any:
    takes = [p.name for p in inspect.signature(fn).parameters.values() if p.name != "self"]

    @functools.wraps(fn)
    def call(*args: Any, **given: Any) -> Any:
        for word in given:
            if word not in takes:
                raise UnknownArgument(f"argument (of {name})", word, takes)
        return fn(*args, **given)

    return call
