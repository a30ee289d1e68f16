"""Tool calls as models write them: JSON in, a `ToolCall` out. Whatever is wrong becomes its `error`."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping

from nested_rl.errors import UnknownName
from nested_rl.types import JSON, ToolCall

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_HALF = re.compile("[\ud800-\udfff]")
"""A lone surrogate: JSON can spell it, but it can be neither stored nor sent."""


class _WrongError(Exception):
    """Why a call is malformed."""


def malformed(why: str, *, id: str = "") -> ToolCall:  # noqa: A002 - the field's name
    """A call that cannot be carried out; the agent is told why."""
    return ToolCall(name="", id=id, error=why)


def checked(name: JSON, arguments: JSON, *, id: str = "", known: Collection[str] = ()) -> ToolCall:  # noqa: A002
    """A call from its name and its arguments, which may be an object or the JSON text of one.

    With `known` the name must be one of these.

    >>> checked("read_file", '{"path": "job.toml"}').arguments
    {'path': 'job.toml'}
    >>> checked("read_file", '{"path": ').error
    'the arguments of read_file are not JSON: Expecting value at character 9'
    """
    try:
        tool = _name(name, known)
        return ToolCall(name=tool, arguments=_strings(_loaded(arguments, tool), tool), id=id)
    except _WrongError as wrong:
        return malformed(str(wrong), id=id)


def _name(name: JSON, known: Collection[str]) -> str:
    if not isinstance(name, str) or not name:
        raise _WrongError("the call has no name")
    if known and name not in known:
        raise _WrongError(str(UnknownName("tool", name[:80], known)))
    if not _NAME.fullmatch(name):
        raise _WrongError(f"{name[:80]!r} is not the name of a tool")
    return name


def _loaded(arguments: JSON, tool: str) -> JSON:
    if not isinstance(arguments, str):
        return arguments or {}
    try:
        return json.loads(arguments) if arguments.strip() else {}
    except json.JSONDecodeError as error:
        raise _WrongError(f"the arguments of {tool} are not JSON: {error.msg} at character {error.pos}") from None
    except (ValueError, RecursionError):  # a number of thousands of digits, or thousands of brackets
        raise _WrongError(f"the arguments of {tool} are too large to read") from None


def _strings(arguments: JSON, tool: str) -> Mapping[str, str]:
    if not isinstance(arguments, dict):
        raise _WrongError(f"the arguments of {tool} must be an object with a string for each name")
    for key, value in arguments.items():
        if not isinstance(value, str):
            raise _WrongError(f"argument {key[:80]!r} of {tool} must be a string")
        if _HALF.search(key + value):
            raise _WrongError(f"argument {key[:80]!r} of {tool} holds half a character")
    return arguments
