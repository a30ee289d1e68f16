"""A tiny agent, groups of its transcripts, and the folder it is loaded from."""

from __future__ import annotations

import numpy as np

from nested_rl import grpo
from nested_rl.nano.config import Qwen3Config
from nested_rl.nano.losses import token_logprobs
from nested_rl.nano.model import Qwen3
from nested_rl.nano.packing import pack_rows
from nested_rl.nano.tokenizer import Tokenizer
from nested_rl.renderers.nano import SPECIALS
from nested_rl.types import Episode, Group, Message, Outcome, Task, Transcript

TASK = Task(id="t", family="calc_chain", difficulty=1)
TOKENIZER = Tokenizer.pieces(SPECIALS, "abcdefgh \n", ["abc", "hg"], pad="<pad>", eos="<stop>", unk="<unk>")
CALL, END = TOKENIZER.id("<call>"), TOKENIZER.id("<end>")


def agent(seed=0, dtype=np.float32, context=48) -> Qwen3:
    config = Qwen3Config(
        vocab_size=len(TOKENIZER),
        hidden_size=12,
        intermediate_size=16,
        head_dim=4,
        max_position_embeddings=context,
        eos_token_id=TOKENIZER.eos_id,
        pad_token_id=TOKENIZER.pad_id,
    )
    return Qwen3(config, seed=seed, dtype=dtype)


def ask(text="go") -> Message:
    return Message(role="user", content=text)


async def play(policy, seed, *, turns=2, text="abc") -> Transcript:
    """An episode of two sampled turns with an observation between them."""
    talk = [ask(text)]
    for i in range(turns):
        talk.append(await policy.sample(tuple(talk), tools=(), max_tokens=8, seed=seed * 100 + i))
        talk.append(Message(role="tool", content="hg"))
    return Transcript(conversation=tuple(talk), end="turns")


def group_of(transcripts, rewards, index=0, version=0) -> Group:
    episodes = tuple(
        Episode(
            group=index,
            member=i,
            task=TASK,
            version=version,
            transcript=said,
            outcome=Outcome(task=TASK),
            reward=reward or 0.0,
            masked=reward is None,
        )
        for i, (said, reward) in enumerate(zip(transcripts, rewards, strict=True))
    )
    return Group(index=index, task=TASK, version=version, episodes=episodes)


async def sampled_group(trainer, seed=1, size=4, reward=lambda said: float(len(said.turns[0].ids))) -> Group:
    policy = await trainer.policy()
    said = [await play(policy, seed * 10 + i) for i in range(size)]
    return group_of(said, [reward(s) for s in said], version=policy.version)


def logprobs(policy, transcript):
    (datum,) = grpo.datums(transcript, 1.0)
    return token_logprobs(policy._model, pack_rows([datum.tokens], [[False, *datum.sampled]], 0))
