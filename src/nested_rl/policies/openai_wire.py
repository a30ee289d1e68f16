"""The chat-completions format: a conversation to a request body, an answer to a Turn. No network here."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from attrs import field, frozen, validators

from nested_rl.errors import SettingsError, UnknownName
from nested_rl.renderers.calls import checked, malformed
from nested_rl.types import JSON, Conversation, Message, ToolCall, Turn, Usage

UNREADABLE: Final = "unreadable_call"
"""What a malformed call is called when it is sent back as part of the conversation: servers insist on a name."""

MOST_CALLS: Final = 64
"""So many calls of one answer are read; of the others the agent is told."""

_NOT_NEGATIVE = validators.ge(0)
_MOST_TOKENS: Final = 10**12
_MOST_USD: Final = 1e6
"""More than these for one answer is a slip of the server's, and not counted."""


@frozen(kw_only=True)
class Prices:
    """Dollars per million tokens."""

    input_usd_per_mtok: float = field(validator=_NOT_NEGATIVE)
    output_usd_per_mtok: float = field(validator=_NOT_NEGATIVE)

    def usd(self, prompt_tokens: int, completion_tokens: int) -> float:
        """What so many tokens cost."""
        return (prompt_tokens * self.input_usd_per_mtok + completion_tokens * self.output_usd_per_mtok) / 1e6


def prices(table: Prices | Mapping[str, float] | None) -> Prices | None:
    """Prices from a table with exactly these two keys. Raises UnknownName for another one.

    >>> prices({"input_usd_per_mtok": 0.1, "output_usd_per_mtok": 0.4}).usd(1_000_000, 500_000)
    0.3
    """
    if table is None or isinstance(table, Prices):
        return table
    known = ("input_usd_per_mtok", "output_usd_per_mtok")
    for key in table:
        if key not in known:
            raise UnknownName("price", key, known)
    missing = [key for key in known if key not in table]
    if missing:
        raise SettingsError(f"prices also needs {' and '.join(missing)} (0 for what is free)")
    return Prices(**{key: float(value) for key, value in table.items()})


def messages(conversation: Conversation) -> list[dict[str, JSON]]:
    """The conversation as the server wants it. Every tool result names the call that it answers."""
    return [_message(said.message if isinstance(said, Turn) else said) for said in conversation]


def _message(message: Message) -> dict[str, JSON]:
    match message.role:
        case "tool":
            return {"role": "tool", "tool_call_id": message.tool_call_id, "content": message.content}
        case "assistant" if message.tool_calls:
            calls = [_call(call) for call in message.tool_calls]
            return {"role": "assistant", "content": message.content or None, "tool_calls": calls}
        case role:
            return {"role": role, "content": message.content}


def _call(call: ToolCall) -> dict[str, JSON]:
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
    return {"id": call.id, "type": "function", "function": {"name": call.name or UNREADABLE, "arguments": arguments}}


def names(tools: Sequence[Mapping[str, JSON]]) -> tuple[str, ...]:
    """The names in JSON schemas of tools."""
    return tuple(str(tool["function"]["name"]) for tool in tools)


def turn(answer: Mapping[str, JSON], *, known: Collection[str], prices: Prices | None, number: int) -> Turn | None:
    """The Turn in a server's answer, or None if there is none in it. `number` makes ids of our own unique.

    The cost is the one the provider reports (`usage.cost`), else from `prices`, else 0. Such a Turn has no ids.
    """
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    said = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(said, dict):
        return None
    calls = _read_calls(said.get("tool_calls") or [], known=known, number=number)
    stop = "length" if choice.get("finish_reason") == "length" else "stop"
    if stop == "stop" and any(call.error is not None for call in calls):
        stop = "malformed"
    message = Message(role="assistant", content=_text(said.get("content")), tool_calls=tuple(calls))
    return Turn(message=message, stop=stop, usage=_usage(answer.get("usage"), prices))


def _read_calls(found: JSON, *, known: Collection[str], number: int) -> list[ToolCall]:
    rows = found if isinstance(found, list) else [found]
    calls: list[ToolCall] = []
    taken: set[str] = set()
    for i, raw in enumerate(rows[:MOST_CALLS]):
        calls.append(_read_call(raw, known=known, taken=taken, own_id=f"call_{number}_{i}"))
        taken.add(calls[-1].id)
    if left := len(rows) - len(calls):
        why = f"{len(rows)} calls in one answer; at most {MOST_CALLS} are read, so {left} were not carried out"
        calls.append(malformed(why, id=f"call_{number}_{MOST_CALLS}"))
    return calls


def _read_call(raw: JSON, *, known: Collection[str], taken: Collection[str], own_id: str) -> ToolCall:
    if not isinstance(raw, dict):
        return malformed("the call is not an object", id=own_id)
    given = raw.get("id")
    if not isinstance(given, str) or not given or not (given.isascii() and given.isprintable()):
        return malformed("the call has no id", id=own_id)
    if given in taken:
        return malformed("two calls have the same id", id=own_id)
    function = raw.get("function")
    if not isinstance(function, dict):
        return malformed("the call names no function", id=given)
    return checked(function.get("name"), function.get("arguments"), id=given, known=known)


def _text(content: JSON) -> str:
    """Plain text, from a string or from a list of parts."""
    if isinstance(content, list):
        content = "".join(
            part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)
        )
    # half a surrogate pair is possible in JSON, but can be neither stored nor sent back
    return content.encode("utf-8", "replace").decode() if isinstance(content, str) else ""


def _usage(usage: JSON, prices: Prices | None) -> Usage:
    counted = usage if isinstance(usage, dict) else {}
    prompt, completion = _count(counted.get("prompt_tokens")), _count(counted.get("completion_tokens"))
    cost = counted.get("cost")
    if isinstance(cost, int | float) and not isinstance(cost, bool) and 0 <= cost <= _MOST_USD:
        usd = float(cost)
    else:
        usd = prices.usd(prompt, completion) if prices else 0.0
    return Usage(prompt_tokens=prompt, completion_tokens=completion, usd=usd)


def _count(value: JSON) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS else 0
