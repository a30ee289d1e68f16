"""Conversations of the nano agent as ids and back.

A transcript reads `<obs>task calc_chain k 3<end><call>write_file job.toml⏎…<end><obs>ok<end>…`. The first line of a call is the
tool and its path, the rest is the body; `edit_file` has the old text, a line `----`, and the new text. `<stop>` gives up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from nested_rl.interfaces import Renderer
from nested_rl.types import Conversation, Message, ToolCall, Turn

PAD, CALL, OBS, END, STOP, UNK = SPECIALS = ("<pad>", "<call>", "<obs>", "<end>", "<stop>", "<unk>")
RULE: Final = "----\n"
"""Stands between the old and the new text of an edit."""

CHAT_TEMPLATE: Final = r"""
{%- for message in messages -%}
  {%- if message.role != "assistant" -%}
    {{- "<obs>" + message.content + "<end>" -}}
  {%- elif message.tool_calls -%}
    {%- for item in message.tool_calls -%}
      {%- set call = item.function if item.function is defined else item -%}
      {%- set given = call.arguments -%}
      {{- "<call>" + call.name -}}
      {%- if given.path is defined -%} {{- " " + given.path -}} {%- endif -%}
      {%- if given.content is defined -%} {{- "\n" + given.content -}} {%- endif -%}
      {%- if given.old is defined -%} {{- "\n" + given.old + "----\n" + given.new -}} {%- endif -%}
      {{- "<end>" -}}
    {%- endfor -%}
  {%- elif message.content -%}
    {{- message.content + "<end>" -}}
  {%- else -%}
    {{- "<stop>" -}}
  {%- endif -%}
{%- endfor -%}
""".lstrip()
"""The same format for `apply_chat_template`; nothing is added for generation, the agent starts with `<call>` or `<stop>`."""


class Tokens(Protocol):
    """What is needed of a tokenizer. With `specials=False` nothing that is said can fake a special token."""

    def encode(self, text: str, *, specials: bool = True) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def id(self, token: str) -> int: ...


class NanoRenderer(Renderer):
    """Renders for a tokenizer that has the six specials. Turns keep their ids; every other message is encoded."""

    def __init__(self, tokenizer: Tokens) -> None:
        self._tokens = tokenizer
        self._call, self._obs, self._end, self._stop = (tokenizer.id(t) for t in (CALL, OBS, END, STOP))
        self._specials = frozenset(tokenizer.id(t) for t in SPECIALS)
        self.stop_ids = (self._end, self._stop)

    def render(self, conversation: Conversation, tools: Sequence[Mapping[str, object]] = ()) -> list[int]:  # noqa: ARG002 - the agent was taught its tools
        ids: list[int] = []
        for said in conversation:
            if isinstance(said, Turn) and said.ids is not None:
                ids.extend(said.ids)
            else:
                ids.extend(self._message(said.message if isinstance(said, Turn) else said))
        return ids

    def parse(self, ids: Sequence[int]) -> Message:
        if not ids or tuple(ids) == (self._stop,):
            return Message(role="assistant")
        start, *body = ids
        if start != self._call:
            return self._malformed(ids, f"a turn starts with {CALL} or {STOP}")
        if not body or body[-1] != self._end:
            return self._malformed(ids, f"the call does not finish with {END}")
        if not self._specials.isdisjoint(body[:-1]):
            return self._malformed(ids, "a special token stands inside the call")
        return Message(role="assistant", tool_calls=(read_call(self._tokens.decode(body[:-1])),))

    def _message(self, message: Message) -> list[int]:
        encode = self._tokens.encode
        if message.role != "assistant":
            return [self._obs, *encode(message.content, specials=False), self._end]
        if message.tool_calls:
            calls = [encode(write_call(call), specials=False) for call in message.tool_calls]
            return [i for call in calls for i in (self._call, *call, self._end)]
        return [*encode(message.content, specials=False), self._end] if message.content else [self._stop]

    def _malformed(self, ids: Sequence[int], why: str) -> Message:
        return Message(role="assistant", content=self._tokens.decode(ids), tool_calls=(ToolCall(name="", error=why),))


def read_call(text: str) -> ToolCall:
    r"""A call from its text. What does not fit stays in the arguments, so that the tool can refuse it.

    >>> read_call("edit_file job.toml\nsteps = 1\n----\nsteps = 25\n").arguments
    {'path': 'job.toml', 'old': 'steps = 1\n', 'new': 'steps = 25\n'}
    """
    head, newline, body = text.partition("\n")
    name, space, path = head.partition(" ")
    given = {"path": path} if space else {}
    if newline and name == "edit_file":
        old, rule, new = body.partition(RULE)
        given |= {"old": old, "new": new} if rule else {"old": old}
    elif newline:
        given["content"] = body
    return ToolCall(name=name, arguments=given)


def write_call(call: ToolCall) -> str:
    r"""The text of a call: what `read_call` reads.

    >>> write_call(ToolCall(name="read_file", arguments={"path": "job.toml"}))
    'read_file job.toml'
    """
    given = call.arguments
    text = call.name
    if "path" in given:
        text += f" {given['path']}"
    if "content" in given:
        text += f"\n{given['content']}"
    if "old" in given:
        text += f"\n{given['old']}{RULE}{given.get('new', '')}"
    return text
