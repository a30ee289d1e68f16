"""The policy in training at one version: a snapshot sampler of Tinker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from nested_rl.errors import SettingsError
from nested_rl.interfaces import Policy, Renderer
from nested_rl.trainers.tinker_errors import plainly
from nested_rl.trainers.tinker_prices import Tokens
from nested_rl.types import Conversation, Turn, Usage

_SEEDS: Final = 2**31
"""Servers take no larger ones."""


class TinkerPolicy(Policy):
    """Samples at temperature 1. `count` is told the tokens of each turn and answers with their price in dollars."""

    def __init__(
        self,
        sampler: Any,
        renderer: Renderer,
        *,
        sdk: Any,
        version: int,
        context_tokens: int,
        count: Callable[[Tokens], float],
    ) -> None:
        self.version, self.context_tokens = version, context_tokens
        self._sampler, self._renderer, self._sdk, self._count = sampler, renderer, sdk, count

    async def sample(
        self,
        conversation: Conversation,
        *,
        tools: Sequence[Mapping[str, object]],
        max_tokens: int,
        seed: int | None = None,
    ) -> Turn:
        prompt = tuple(self._renderer.render(conversation, tools))
        if not prompt:
            raise SettingsError("an empty conversation cannot be sampled from")
        room = min(max(1, max_tokens), self.context_tokens - len(prompt))
        if room <= 0:  # the prompt fills the context
            return self._turn(prompt, (), (), "length")
        asked = self._sdk.SamplingParams(
            max_tokens=room,
            temperature=1.0,
            stop=list(self._renderer.stop_ids),
            seed=None if seed is None else seed % _SEEDS,
        )
        with plainly("sampling a turn"):
            answer = await self._sampler.sample(self._sdk.ModelInput.from_ints(list(prompt)), 1, asked)
        (said,) = answer.sequences
        if said.logprobs is None:
            raise SettingsError(
                "the server gives no log-probabilities of what it samples: nothing can be trained on it"
            )
        stop = "length" if str(said.stop_reason) == "length" else "stop"
        # a rounded logarithm of 1 can be a hair above 0
        return self._turn(prompt, tuple(said.tokens), tuple(min(0.0, x) for x in said.logprobs), stop)

    def _turn(self, prompt: tuple[int, ...], ids: tuple[int, ...], logprobs: tuple[float, ...], stop: str) -> Turn:
        message = self._renderer.parse(ids)
        if stop == "stop" and any(call.error is not None for call in message.tool_calls):
            stop = "malformed"
        usd = self._count(Tokens(prefill=len(prompt), sample=len(ids))) if ids else 0.0
        return Turn(
            message=message,
            prompt_ids=prompt,
            ids=ids,
            logprobs=logprobs,
            stop=stop,
            version=self.version,
            usage=Usage(prompt_tokens=len(prompt), completion_tokens=len(ids), usd=usd),
        )


def renderer_for(model: str, tokenizer: Callable[[], Any]) -> Renderer:
    """The renderer of a model, by its folder or name. `tokenizer` is only called where one of transformers is needed.

    Raises SettingsError for a family without a renderer: give the trainer `renderer=`.
    """
    from nested_rl.renderers import NanoRenderer, Qwen3Renderer, Qwen35Renderer

    folder = Path(model)
    if folder.is_dir():
        from nested_rl.nano.folder import read_json
        from nested_rl.nano.tokenizer import Tokenizer
        from nested_rl.renderers.nano import CALL

        words = read_json(folder / "tokenizer.json")
        if any(token.get("content") == CALL for token in words.get("added_tokens", ())):
            return NanoRenderer(Tokenizer.from_hf(words, read_json(folder / "tokenizer_config.json")))
    name = model.lower()
    if "qwen3.5" in name or "qwen3.6" in name:
        return Qwen35Renderer(tokenizer())
    if "qwen3" in name:
        return Qwen3Renderer(tokenizer())
    raise SettingsError(
        f"no renderer is known for {model!r}; give TinkerTrainer(renderer=…) one that knows its template"
    )
