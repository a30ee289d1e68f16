"""A trainer on the double of the Tinker SDK, and groups to train on."""

from __future__ import annotations

from collections.abc import Sequence

from nested_rl.interfaces import Renderer
from nested_rl.testing.outer import _group
from nested_rl.trainers import TinkerTrainer
from nested_rl.types import Group, Message, Turn

MODEL = "Qwen/Qwen3-8B"


class Numbers(Renderer):
    """A text is its length, an answer its ids."""

    stop_ids = (7,)

    def render(self, conversation, tools=()):
        ids = []
        for said in conversation:
            ids.extend(said.ids if isinstance(said, Turn) else [len(said.content)])
        return ids

    def parse(self, ids):
        return Message(role="assistant", content=str(list(ids)))


def trainer(**settings) -> TinkerTrainer:
    return TinkerTrainer(MODEL, renderer=Numbers(), **settings)


def group(rewards: Sequence[float], *, version: int = 0, logprob: float = -1.0) -> Group:
    turn = Turn(
        message=Message(role="assistant"), prompt_ids=(3, 4), ids=(7, 8), logprobs=(logprob, logprob), version=version
    )
    return _group([turn] * len(rewards), rewards, "task")
