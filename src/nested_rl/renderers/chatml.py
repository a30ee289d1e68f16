"""What the Qwen3 families share: `<|im_start|>role … <|im_end|>`, thinking before the answer, tool results as a user's words.

The text is what the models' own chat templates make of the same messages; tests compare it. Two things differ on purpose:
a sampled Turn keeps its ids, thinking included, so that what was trained on is what was sampled; and the three tokens that
build messages cannot be spelt by what is said inside one.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

from nested_rl.errors import SettingsError
from nested_rl.interfaces import Renderer
from nested_rl.renderers.calls import malformed
from nested_rl.types import Conversation, Message, ToolCall, Turn

START: Final = "<|im_start|>"
END: Final = "<|im_end|>"
ENDOFTEXT: Final = "<|endoftext|>"
THINK, THOUGHT = "<think>", "</think>"
CALL, CALLED = "<tool_call>", "</tool_call>"

_BUILDING = re.compile(r"<\|(im_start|im_end|endoftext)\|>")


class Tokens(Protocol):
    """What is needed of a tokenizer; one of transformers will do. Special tokens in the text become their ids, and back."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class ChatMLRenderer(Renderer):
    """Everything but the wording of tools and calls. `thinking=False` opens each turn with an empty thought."""

    opening: str
    """What comes before each sampled turn."""

    def __init__(self, tokenizer: Tokens, *, thinking: bool = True) -> None:
        self.thinking = thinking
        self._tokens = tokenizer
        self.stop_ids = (self._single(END), self._single(ENDOFTEXT))
        self.opening = f"{START}assistant\n" + (self.thinks if thinking else f"{THINK}\n\n{THOUGHT}\n\n")

    thinks: str = ""
    """How a turn is opened that may think."""

    def render(self, conversation: Conversation, tools: Sequence[Mapping[str, object]] = ()) -> list[int]:
        ids: list[int] = []
        text = ""
        for piece in self._pieces(conversation, tools):
            if isinstance(piece, str):
                text += piece
            else:
                ids += [*self._tokens.encode(text), *piece]
                text = ""
        return ids + self._tokens.encode(text + self.opening)

    def parse(self, ids: Sequence[int]) -> Message:
        ended = bool(ids) and ids[-1] in self.stop_ids
        text = self._tokens.decode(list(ids[:-1] if ended else ids))
        thought, rest = _read_thought(self.thinks * self.thinking + text)
        said, *chunks = rest.split(CALL)
        calls = []
        for chunk in chunks:
            body, closed, after = chunk.partition(CALLED)
            calls.append(self._read(body) if closed else malformed(f"the call does not finish with {CALLED}"))
            said += after
        if CALLED in said or "<function=" in said:
            calls.append(malformed(f"a call must stand between {CALL} and {CALLED}"))
        content = f"{THINK}\n{thought}\n{THOUGHT}\n\n{said.strip()}" if thought else said
        return Message(role="assistant", content=content.strip(), tool_calls=tuple(calls))

    # -- one kind of model

    @abstractmethod
    def _system(self, said: str | None, tools: Sequence[Mapping[str, object]]) -> str:
        """The text of the system message; empty for none."""

    @abstractmethod
    def _words(self, thought: str, said: str, *, recent: bool, last: bool) -> str:
        """An assistant's words. `recent`: after the last question of the user; `last`: nothing follows."""

    @abstractmethod
    def _write(self, call: ToolCall) -> str:
        """What stands between the tags of a call."""

    @abstractmethod
    def _read(self, body: str) -> ToolCall:
        """The call in what stands between its tags."""

    def _trim(self, text: str) -> str:
        """What is said, as the template takes it."""
        return text

    def _gap(self, said: str) -> str:
        """What stands between the words and the first call."""
        return "\n" if said else ""

    # -- pieces

    def _pieces(
        self, conversation: Conversation, tools: Sequence[Mapping[str, object]]
    ) -> Iterator[str | tuple[int, ...]]:
        """Text, and ids that are taken as they are."""
        first = conversation[0] if conversation else None
        system = first.content if isinstance(first, Message) and first.role == "system" else None
        rest = conversation[system is not None :]
        head = self._system(None if system is None else self._trim(_inert(system)), tools)
        if head:
            yield f"{START}system\n{head}{END}\n"
        question = max((i for i, said in enumerate(rest) if _is_question(said)), default=len(rest))
        for i, said in enumerate(rest):
            if isinstance(said, Turn) and said.ids is not None:
                yield self.opening
                yield said.ids
                yield "\n" if said.ids and said.ids[-1] == self.stop_ids[0] else f"{END}\n"
                continue
            message = said.message if isinstance(said, Turn) else said
            match message.role:
                case "assistant":
                    yield self._assistant(message, recent=i > question, last=i == len(rest) - 1)
                case "tool":
                    opens = i == 0 or not _is_result(rest[i - 1])
                    closes = i == len(rest) - 1 or not _is_result(rest[i + 1])
                    result = f"\n<tool_response>\n{self._trim(_inert(message.content))}\n</tool_response>"
                    yield f"{START}user" * opens + result + f"{END}\n" * closes
                case role:
                    yield f"{START}{role}\n{self._trim(_inert(message.content))}{END}\n"

    def _assistant(self, message: Message, *, recent: bool, last: bool) -> str:
        thought, said = _told_thought(self._trim(_inert(message.content)))
        text = f"{START}assistant\n{self._words(thought, said, recent=recent, last=last)}"
        sound = [call for call in message.tool_calls if call.error is None]
        for i, call in enumerate(sound):
            text += self._gap(said) if i == 0 else "\n"
            text += f"{CALL}\n{_inert(self._write(call))}\n{CALLED}"
        return f"{text}{END}\n"

    def _single(self, token: str) -> int:
        ids = self._tokens.encode(token)
        if len(ids) != 1:
            raise SettingsError(
                f"{type(self).__name__} needs a tokenizer that has {token!r} as one token; is it Qwen's?"
            )
        return ids[0]


def schemas(tools: Sequence[Mapping[str, object]]) -> str:
    """One JSON schema a line, each after a line break."""
    return "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools)


def _read_thought(text: str) -> tuple[str, str]:
    """What a model thought, and the rest. A call ends a thought that was not closed; one that was cut off has no rest."""
    if THOUGHT in text:
        thought, _, rest = text.partition(THOUGHT)
        return thought.rpartition(THINK)[2].strip(), rest
    before, opened, thought = text.partition(THINK)
    if not opened or before.strip():
        return "", text
    thought, call, rest = thought.partition(CALL)
    return thought.strip(), call + rest


def _told_thought(content: str) -> tuple[str, str]:
    """The thought inside a message's content and the rest, as the templates take them."""
    if THOUGHT not in content:
        return "", content
    thought, *_, rest = content.split(THOUGHT)
    return thought.rpartition(THINK)[2].strip("\n"), rest.lstrip("\n")


def _inert(text: str) -> str:
    """The same text, in which nothing can end a message or start one."""
    return _BUILDING.sub(r"<| \1 |>", text)


def _is_result(said: Message | Turn) -> bool:
    return isinstance(said, Message) and said.role == "tool"


def _is_question(said: Message | Turn) -> bool:
    """Whether it is the user who speaks, and not a tool in a user's words."""
    if not isinstance(said, Message) or said.role != "user":
        return False
    text = said.content.strip()
    return not (text.startswith("<tool_response>") and text.endswith("</tool_response>"))
