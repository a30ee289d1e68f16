"""Policies that learn nothing, to compare with: one fixed sound job, and random plausible ones. For nano-scale jobs."""

from __future__ import annotations

import random
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final

from attrs import field, frozen

from nested_rl.errors import SettingsError
from nested_rl.interfaces import Policy
from nested_rl.types import Conversation, Message, ToolCall, Turn

JOB: Final = """\
[model]
base = "{base}"
[training]
steps = {steps}
learning_rate = {learning_rate}
batch_size = 128
group_size = 8
[rollout]
temperature = {temperature}
"""
ENVIRONMENT: Final = """\
from nested_rl.jobkit import make, parse
def examples(rng, n):
    return make("{family}", rng, n, k={k})
def reward(prompt, completion, answer):
    return {reward}
"""
EXACT: Final = "float(parse(completion) == answer)"
SOUND: Final[Mapping[str, str]] = {
    "base": "nano-m",
    "steps": "25",
    "learning_rate": "1e-3",
    "temperature": "1.0",
    "k": "(1, 3)",
    "reward": EXACT,
}
"""The fixed choices of `TemplatePolicy`."""

_OPTIONS: Final[Mapping[str, Sequence[str]]] = {
    "base": ("nano-s", "nano-m"),
    "steps": ("1", "4", "12", "25"),
    "learning_rate": ("1e-5", "1e-4", "5e-4", "1e-3", "1e-2"),
    "temperature": ("0.5", "1.0"),
    "k": ("1", "2", "(1, 3)"),
    "reward": (
        EXACT,
        "float(answer in completion)",
        '0.1 * (parse(completion) == answer) + 0.9 * (">" in completion)',
        "(parse(completion) == answer) - 0.1 * len(completion)",
    ),
}
_BRIEF = re.compile(r"task (\w+) k \d+")


class _Writer(Policy):
    """Writes both files, then submits; after an error it does the same again."""

    embedded = True
    context_tokens = 256

    async def sample(
        self,
        conversation: Conversation,
        *,
        tools: Sequence[Mapping[str, object]],  # noqa: ARG002 - it knows three of them
        max_tokens: int,  # noqa: ARG002 - short enough
        seed: int | None = None,
    ) -> Turn:
        said = sum(isinstance(item, Turn) for item in conversation)
        family = _family(conversation)
        match said % 3:
            case 0:
                call = _write("job.toml", JOB.format(**self.choices(seed)))
            case 1:
                call = _write("environment.py", ENVIRONMENT.format(family=family, **self.choices(seed)))
            case _:
                call = ToolCall(name="submit_job")
        return Turn(message=Message(role="assistant", tool_calls=(call,)))

    @abstractmethod
    def choices(self, seed: int | None) -> Mapping[str, str]:
        """A value for everything that the two files leave open."""


@frozen
class TemplatePolicy(_Writer):
    """Always the same sound job, whatever the task; `change` replaces some of its choices.

    >>> TemplatePolicy({"base": "nano-s"}).choices(0)["base"]
    'nano-s'
    """

    change: Mapping[str, str] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        unknown = sorted(set(self.change) - set(SOUND))
        if unknown:
            raise SettingsError(f"TemplatePolicy: {unknown} cannot be changed; known: {sorted(SOUND)}")

    def choices(self, seed: int | None) -> Mapping[str, str]:  # noqa: ARG002 - nothing is drawn
        return {**SOUND, **self.change}


@frozen
class RandomPolicy(_Writer):
    """Jobs that are valid but drawn at random: good and bad settings and rewards alike."""

    def choices(self, seed: int | None) -> Mapping[str, str]:
        rng = random.Random(seed)
        return {name: rng.choice(options) for name, options in _OPTIONS.items()}


def _write(path: str, text: str) -> ToolCall:
    return ToolCall(name="write_file", arguments={"path": path, "content": text})


def _family(conversation: Conversation) -> str:
    for said in conversation:
        found = _BRIEF.fullmatch(said.content) if isinstance(said, Message) else None
        if found:
            return found[1]
    raise SettingsError("this policy reads only brief tasks, such as 'task calc_chain k 3'")
