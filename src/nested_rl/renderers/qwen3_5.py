"""Qwen3.5 and Qwen3.6: tool calls are XML-like, a parameter a tag; the prompt opens `<think>` for the model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from nested_rl.renderers.calls import checked, malformed
from nested_rl.renderers.chatml import THINK, THOUGHT, ChatMLRenderer, schemas
from nested_rl.types import ToolCall

_BEFORE: Final = "# Tools\n\nYou have access to the following functions:\n\n<tools>"
_AFTER: Final = """
</tools>

If you choose to call a function ONLY reply in the following format with NO suffix:

<tool_call>
<function=example_function_name>
<parameter=example_parameter_1>
value_1
</parameter>
<parameter=example_parameter_2>
This is the value for the second parameter
that can span
multiple lines
</parameter>
</function>
</tool_call>

<IMPORTANT>
Reminder:
- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within \
<tool_call></tool_call> XML tags
- Required parameters MUST be specified
- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT after
- If there is no function call available, answer the question like normal with your current knowledge and do not tell the \
user about function calls
</IMPORTANT>"""

_FUNCTION = re.compile(r"\s*<function=([^>\n]*)>(.*)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>(?=\s*(?:<parameter=|\Z))", re.DOTALL)


class Qwen35Renderer(ChatMLRenderer):
    """For Qwen3.5 and Qwen3.6 models, text only. The smallest Qwen3.5 models do not think by default: `thinking=False`."""

    thinks = f"{THINK}\n"

    def _system(self, said: str | None, tools: Sequence[Mapping[str, object]]) -> str:
        if not tools:
            return said or ""
        return _BEFORE + schemas(tools) + _AFTER + (f"\n\n{said}" if said else "")

    def _words(self, thought: str, said: str, *, recent: bool, last: bool) -> str:  # noqa: ARG002 - Qwen3 cares
        return f"{THINK}\n{thought.strip()}\n{THOUGHT}\n\n{said}" if recent else said

    def _trim(self, text: str) -> str:
        return text.strip()

    def _gap(self, said: str) -> str:
        return "\n\n" if said else ""

    def _write(self, call: ToolCall) -> str:
        given = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in call.arguments.items())
        return f"<function={call.name}>\n{given}</function>"

    def _read(self, body: str) -> ToolCall:
        function = _FUNCTION.fullmatch(body)
        if function is None:
            return malformed("the call must be <function=NAME> ... </function>")
        name, inner = function[1].strip(), function[2]
        found = [(parameter[1].strip(), parameter[2]) for parameter in _PARAMETER.finditer(inner)]
        if _PARAMETER.sub("", inner).strip():
            return malformed(f"{name[:80]!r} has text outside of <parameter=NAME> ... </parameter>")
        if len(dict(found)) < len(found):
            return malformed(f"{name[:80]!r} is given a parameter twice")
        return checked(name, dict(found))
