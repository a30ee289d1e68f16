"""What was said in an episode, ready for a page: turns of the agent with their tool calls, and what the tools answered."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from attrs import field, frozen
from markupsafe import Markup

from nested_rl import redact
from nested_rl.report.showcase import highlighted, inert
from nested_rl.types import Episode, Message, ToolCall, Transcript, Turn

MOST_CHARACTERS = 40_000
"""Of one text. transcript.jsonl has the rest, and the page says so."""
LONG = 1_200
"""Characters above which a text of the user or of a tool is folded up."""
BRIEF = 80
"""Characters up to which an answer stands on one line with who gave it."""

ENDS: Mapping[str, str] = {
    "submitted": "a job was accepted",
    "attempts": "all attempts were used",
    "stop": "the agent stopped",
    "turns": "all turns were used",
    "tokens": "all tokens were used",
    "malformed": "the agent wrote something that is not a call",
    "deadline": "its time was over",
    "infra": "a fault of a machine or of a provider",
}
"""Why a transcript ended, in words."""


@frozen(kw_only=True)
class Text:
    """A text as it is shown. `code` is highlighted and safe; `cut` is how many characters were left out."""

    code: Markup
    cut: int = 0
    long: bool = False
    brief: bool = False


@frozen(kw_only=True)
class Call:
    """A tool call: its short arguments, its file (if it writes one), its change (signed lines, if it edits one)."""

    name: str
    error: str = ""
    arguments: tuple[tuple[str, Text], ...] = ()
    path: str = ""
    content: Text | None = None
    changes: tuple[tuple[str, str], ...] = ()


@frozen(kw_only=True)
class Entry:
    """One thing said. `turn` counts the agent's turns from 1 and is 0 for everything else; `facts` is what is known of a turn."""

    role: str
    turn: int = 0
    tool: str = ""
    text: Text | None = None
    calls: tuple[Call, ...] = ()
    stop: str = ""
    facts: tuple[str, ...] = field(default=())

    @property
    def brief(self) -> bool:
        """Whether it is an answer of a few words, which needs no block of its own."""
        return self.role == "tool" and self.text is not None and self.text.brief


def entries(transcript: Transcript) -> list[Entry]:
    """Everything said, in order."""
    turns = 0
    found: list[Entry] = []
    for said in transcript.conversation:
        turns += isinstance(said, Turn)
        found.append(_turn(said, turns) if isinstance(said, Turn) else _message(said))
    return found


def untold(episode: Episode) -> str:
    """The task's full text, where the agent was told it in short."""
    prompt = episode.task.prompt
    told = any(prompt in said.content for said in episode.transcript.conversation if isinstance(said, Message))
    return "" if told else inert(redact.text(prompt)[:MOST_CHARACTERS])


def _turn(turn: Turn, number: int) -> Entry:
    return Entry(
        role="agent",
        turn=number,
        text=_text(turn.message.content) if turn.message.content else None,
        calls=tuple(map(_call, turn.message.tool_calls)),
        stop="" if turn.stop == "stop" else turn.stop,
        facts=tuple(_facts(turn)),
    )


def _message(message: Message) -> Entry:
    return Entry(
        role=message.role,
        tool=inert(message.name),
        text=_text(message.content),
        calls=tuple(map(_call, message.tool_calls)),
    )


def _facts(turn: Turn) -> Iterator[str]:
    tokens = len(turn.ids) if turn.ids is not None else turn.usage.completion_tokens
    if tokens:
        yield f"{tokens:,} token{'s' if tokens != 1 else ''}"
    if turn.logprobs:
        mean = f"{sum(turn.logprobs) / len(turn.logprobs):.2f}"
        yield f"mean log-probability {mean.replace('-', '−')}"
    if turn.usage.usd:
        yield f"${turn.usage.usd:.4f}"


def _call(call: ToolCall) -> Call:
    if call.error is not None:
        return Call(name=inert(call.name) or "a call", error=inert(redact.text(call.error)))
    arguments = {key: str(value) for key, value in call.arguments.items()}
    path = arguments.get("path", "")
    if call.name == "write_file" and "content" in arguments:
        return Call(name=call.name, path=inert(path), content=_text(arguments["content"], path))
    if call.name == "edit_file" and {"old", "new"} <= arguments.keys():
        return Call(name=call.name, path=inert(path), changes=_changes(arguments["old"], arguments["new"]))
    return Call(name=inert(call.name), arguments=tuple((inert(key), _text(value)) for key, value in arguments.items()))


def _text(text: str, file: str = "") -> Text:
    """Redacted before it is cut: half a key is not found."""
    clean = redact.text(text)
    code = highlighted(inert(clean[:MOST_CHARACTERS]), file)
    brief = 0 < len(clean) <= BRIEF and "\n" not in clean
    return Text(code=code, cut=max(0, len(clean) - MOST_CHARACTERS), long=len(clean) > LONG, brief=brief)


def _changes(old: str, new: str) -> tuple[tuple[str, str], ...]:
    lines = difflib.ndiff(redact.text(old).splitlines(), redact.text(new).splitlines())
    return tuple((line[0], inert(line[2:502])) for line in lines if line[0] != "?")[:400]
