"""One way to make a `Problem`, so that every code has its brief text."""

from __future__ import annotations

import re

from nested_rl import replies
from nested_rl.types import Problem

QUOTE_LIMIT = 120


def problem(code: str, where: str, message: str, hint: str = "", **values: object) -> Problem:
    """A problem whose brief comes from `replies.BRIEF[code]`, filled with `values`.

    >>> problem("job.key", "job.toml:[training] step", "unknown key 'step'", "did you mean 'steps'?", name="step").brief
    'unknown key step'
    """
    text = replies.BRIEF[code].format_map({name: plain(str(value)) for name, value in values.items()})
    return Problem(code=code, where=where, message=message, hint=hint, brief=replies.brief(text))


def plain(text: str, limit: int = QUOTE_LIMIT) -> str:
    r"""Printable ASCII only, on one line: an agent chose the text, and small agents know no other letters.

    >>> plain("caf\u00e9\n")
    'caf??'
    """
    return re.sub(r"[^ -~]", "?", text[:limit])


def quoted(value: object) -> str:
    """A value as an agent may read it back: its repr, cut."""
    try:
        text = ascii(value)
    except ValueError:  # an integer with thousands of digits
        text = "a very long number"
    except RecursionError:  # tables in tables, thousands deep
        text = "a very deep value"
    return text if len(text) <= QUOTE_LIMIT else f"{text[:QUOTE_LIMIT]}…"
