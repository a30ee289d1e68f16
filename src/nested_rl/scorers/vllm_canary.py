"""Prove that an adapter is applied: the next token after a few fixed prompts must be less or more likely than under the base.

A trained adapter may be too weak to be seen in one token. Its control, the same tensors with a scale that makes the effect large,
then shows that tensors of these names and shapes are applied, so a weak adapter is no fault.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from nested_rl.endpoint import Endpoint, Unavailable
from nested_rl.errors import InfraFault
from nested_rl.types import JSON

PROMPTS: Final = ("1+2?", "say a", "name three colors")
SEEN: Final = 1e-3
"""A larger difference of log-probabilities is no rounding."""
CLEAR: Final = 0.05
"""What a control must reach."""

_TOP: Final = 5
_ABSENT: Final = 1.0
"""The difference that counts when a token is among the likeliest of one only."""


async def sing(endpoint: Endpoint, names: Sequence[str]) -> None:
    """Ask for a first token. With an adapter: InfraFault when neither it nor its control differs from the base."""
    if "adapter" not in names:
        await endpoint.ask(_question("base", PROMPTS[0]))
        return
    base = [await _likely(endpoint, "base", prompt) for prompt in PROMPTS]
    for name, least in (("adapter", SEEN), ("control", CLEAR)):
        try:
            other = [await _likely(endpoint, name, prompt) for prompt in PROMPTS]
        except (Unavailable, _NotFinite):
            return  # the base can say what this one cannot: its numbers overflow, which is an effect
        if difference(base, other) > least:
            return
    raise InfraFault("the adapter is loaded but has no effect: with it the model answers as its base does")


def difference(one: Sequence[Mapping[str, float]], other: Sequence[Mapping[str, float]]) -> float:
    """The largest difference of the log-probability of a token.

    >>> difference([{"a": -0.5, "b": -1.0}], [{"a": -0.5, "b": -1.25}])
    0.25
    """
    found = 0.0
    for left, right in zip(one, other, strict=True):
        for token in left.keys() | right.keys():
            both = token in left and token in right
            found = max(found, abs(left[token] - right[token]) if both else _ABSENT)
    return found


class _NotFinite(ValueError):
    """A log-probability that is no number."""


def _question(name: str, prompt: str, **more: JSON) -> dict[str, JSON]:
    return {
        "model": name,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": 1,
        "temperature": 0.0,
        **more,
    }


async def _likely(endpoint: Endpoint, name: str, prompt: str) -> dict[str, float]:
    """The likeliest next tokens and their log-probabilities."""
    answer = await endpoint.ask(_question(name, prompt, logprobs=True, top_logprobs=_TOP))
    try:
        rows: JSON = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        found = {str(row["token"]): float(row["logprob"]) for row in rows}
    except (LookupError, TypeError, ValueError):
        found = {}
    if not found:
        raise InfraFault(f"{name!r} gives no log-probabilities, which are needed to see whether an adapter is applied")
    if not all(map(math.isfinite, found.values())):
        raise _NotFinite(name)
    return found
