"""Prompts to an OpenAI-compatible server, completions back, in the order in which they were asked. No answer key comes near."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from attrs import frozen

from nested_rl.endpoint import Endpoint
from nested_rl.errors import InfraFault
from nested_rl.types import JSON, Sampling
from nested_rl.waiting import together


@frozen(kw_only=True)
class Reply:
    """The completions of one prompt; `finished` says which of them were not cut off. `tokens` were sampled for all of them."""

    texts: tuple[str, ...]
    finished: tuple[bool, ...]
    tokens: int


async def ask(
    endpoint: Endpoint, model: str, prompts: Sequence[str], sampling: Sampling, *, seed: int, extra: Mapping[str, JSON]
) -> list[Reply]:
    """One request a prompt, as many at a time as the endpoint allows.

    Every prompt that is sampled has a seed of its own: under one seed for all of them the samples of a batch would not be
    independent. Raises EndpointError when the server does not answer, InfraFault for half an answer.
    """
    return await together(
        [_one(endpoint, model, prompt, sampling, _seed(seed, i), extra) for i, prompt in enumerate(prompts)]
    )


async def _one(
    endpoint: Endpoint, model: str, prompt: str, sampling: Sampling, seed: int, extra: Mapping[str, JSON]
) -> Reply:
    drawn = sampling.temperature > 0  # greedy samples are all the same: one is asked for
    n = sampling.samples if drawn else 1
    answer = await endpoint.ask(
        {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": 1.0,
            **({"n": n, "seed": seed} if drawn else {}),
            **extra,
        }
    )
    return read(answer, n)


def read(answer: Mapping[str, JSON], samples: int) -> Reply:
    """The completions in an answer. InfraFault unless there are as many as were asked for, each with an end.

    >>> said = {"index": 0, "message": {"content": "72>6"}, "finish_reason": "length"}
    >>> read({"choices": [said], "usage": {"completion_tokens": 5}}, 1).finished
    (False,)
    """
    choices, usage = answer.get("choices"), answer.get("usage")
    rows = [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []
    rows.sort(key=lambda row: row["index"] if isinstance(row.get("index"), int) else -1)
    if [row.get("index") for row in rows] != list(range(samples)):
        raise InfraFault(f"half an answer: {len(rows)} completions where {samples} were asked for")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
        raise InfraFault("half an answer: it does not say how many tokens were sampled")
    ends = [row.get("finish_reason") for row in rows]
    if odd := [end for end in ends if end not in ("stop", "length")]:
        raise InfraFault(f"half an answer: a completion ended with {odd[0]!r}")
    return Reply(texts=tuple(map(_text, rows)), finished=tuple(end == "stop" for end in ends), tokens=tokens)


def _text(row: Mapping[str, JSON]) -> str:
    said = row.get("message")
    content = said.get("content", "") if isinstance(said, dict) else None
    if content is None and isinstance(said, dict):
        return ""  # an empty completion
    if not isinstance(content, str):
        raise InfraFault("half an answer: a completion without text")
    return content


def _seed(seed: int, number: int) -> int:
    """31 bits, which every server takes."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:4], "big") >> 1
