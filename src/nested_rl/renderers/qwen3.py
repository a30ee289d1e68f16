"""Qwen3: tool calls are JSON in `<tool_call>` tags; a model that thinks opens `<think>` itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from nested_rl.renderers.calls import checked, malformed
from nested_rl.renderers.chatml import THINK, THOUGHT, ChatMLRenderer, schemas
from nested_rl.types import ToolCall

_BEFORE: Final = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>"""
_AFTER: Final = """
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""


class Qwen3Renderer(ChatMLRenderer):
    """For Qwen3 models of one modality, such as Qwen/Qwen3-0.6B."""

    def _system(self, said: str | None, tools: Sequence[Mapping[str, object]]) -> str:
        if not tools:
            return said or ""
        return (f"{said}\n\n" if said is not None else "") + _BEFORE + schemas(tools) + _AFTER

    def _words(self, thought: str, said: str, *, recent: bool, last: bool) -> str:
        thought = thought.strip("\n")
        if recent and (last or thought):
            return f"{THINK}\n{thought}\n{THOUGHT}\n\n" + said.lstrip("\n")
        return said

    def _write(self, call: ToolCall) -> str:
        arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
        return f'{{"name": "{call.name}", "arguments": {arguments}}}'

    def _read(self, body: str) -> ToolCall:
        try:
            call = json.loads(body)
        except json.JSONDecodeError as error:
            return malformed(f"the call is not JSON: {error.msg} at line {error.lineno}, column {error.colno}")
        except (ValueError, RecursionError):
            return malformed("the call is too large to read")
        if not isinstance(call, dict):
            return malformed('the call must be an object with "name" and "arguments"')
        return checked(call.get("name"), call.get("arguments"))
