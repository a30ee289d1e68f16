"""A large model behind an OpenAI-compatible server as the agent: for evaluation, baselines and debugging. Never trained."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from attrs import define, field, validators

from nested_rl.clock import Clock, SystemClock
from nested_rl.endpoint import ContextFull, Endpoint, Unavailable
from nested_rl.errors import SettingsError
from nested_rl.interfaces import Policy
from nested_rl.policies import openai_wire as wire
from nested_rl.types import JSON, Conversation, Message, Turn

KEYS: Final[Mapping[str, str]] = {"openrouter.ai": "OPENROUTER_API_KEY"}
"""Hosts whose key is by custom not in OPENAI_API_KEY; used by `FrozenPolicy.named`."""

_BYTES_A_TOKEN: Final = 3
"""A cautious guess for text whose tokens nobody has counted yet."""


@define(eq=False)
class FrozenPolicy(Policy):
    """`model` at `base_url` (.../v1), asked through /chat/completions. Its Turns have no ids, so it cannot be trained.

    The key is read from the environment variable `key_env` ("" for none). `context_tokens` is how long a conversation may
    get; `temperature=None` leaves it to the server. `prices` has `input_usd_per_mtok` and `output_usd_per_mtok`; a cost that
    the provider reports goes before. `timeout_s` bounds one turn with all retries, `attempt_s` one try, `concurrency` the
    requests at a time. `token_limit` is the name of the field that caps the answer; `extra` goes into every request (None
    takes a field out).
    """

    model: str
    base_url: str = field(kw_only=True)
    key_env: str = field(default="OPENAI_API_KEY", kw_only=True)
    context_tokens: int = field(default=32_768, kw_only=True, validator=validators.gt(0))
    temperature: float | None = field(default=None, kw_only=True, validator=validators.optional(validators.ge(0)))
    prices: wire.Prices | None = field(default=None, kw_only=True, converter=wire.prices)
    timeout_s: float = field(default=600.0, kw_only=True, validator=validators.gt(0.0))
    attempt_s: float = field(default=180.0, kw_only=True, validator=validators.gt(0.0))
    concurrency: int = field(default=16, kw_only=True, validator=validators.ge(1))
    token_limit: str = field(default="max_tokens", kw_only=True)
    extra: Mapping[str, JSON] = field(factory=dict, kw_only=True)
    clock: Clock = field(factory=SystemClock, kw_only=True, repr=False)
    _endpoint: Endpoint = field(init=False, repr=False)
    _numbers: Iterator[int] = field(factory=itertools.count, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if not self.model:
            raise SettingsError("FrozenPolicy needs the name of a model")
        self._endpoint = Endpoint(
            self.base_url,
            self.key_env,
            timeout_s=self.timeout_s,
            attempt_s=self.attempt_s,
            concurrency=self.concurrency,
            clock=self.clock,
        )

    @classmethod
    def named(cls, name: str) -> FrozenPolicy:
        """The policy called `openai:MODEL@URL`, with everything else by default.

        >>> FrozenPolicy.named("openai:Qwen/Qwen3-0.6B@http://localhost:8000/v1").model
        'Qwen/Qwen3-0.6B'
        """
        kind, _, rest = name.partition(":")
        model, _, base_url = rest.rpartition("@")
        if kind != "openai" or not model or not base_url:
            raise SettingsError(f"{name!r} does not name a policy; write openai:MODEL@URL")
        host = base_url.partition("://")[2].partition("/")[0]
        return cls(model, base_url=base_url, key_env=KEYS.get(host, "OPENAI_API_KEY"))

    @property
    def label(self) -> str:
        """How reports call it."""
        return f"openai:{self.model}@{self.base_url}"

    def settings(self) -> dict[str, JSON]:
        """What matters for the answers, in plain data. Holds no key."""
        names = ("model", "base_url", "context_tokens", "temperature", "token_limit", "extra")
        return {name: getattr(self, name) for name in names}

    async def check(self) -> None:
        """Ask for a few tokens, so that a wrong key, model or address is told before anything is started."""
        await self._ask([{"role": "user", "content": "Say ok."}], (), max_tokens=16, seed=None, patient=False)

    async def sample(
        self,
        conversation: Conversation,
        *,
        tools: Sequence[Mapping[str, object]],
        max_tokens: int,
        seed: int | None = None,
    ) -> Turn:
        room = self.context_tokens - _tokens(conversation)
        if room <= 0:
            return _nothing()
        try:
            return await self._ask(wire.messages(conversation), tools, max_tokens=min(max_tokens, room), seed=seed)
        except ContextFull:
            return _nothing()  # our count was a guess; the episode ends like any other that is too long

    async def aclose(self) -> None:
        """Let go of the connections."""
        await self._endpoint.close()

    async def _ask(
        self,
        messages: Sequence[Mapping[str, JSON]],
        tools: Sequence[Mapping[str, object]],
        *,
        max_tokens: int,
        seed: int | None,
        patient: bool = True,
    ) -> Turn:
        body: dict[str, JSON] = {
            "model": self.model,
            "messages": messages,
            "tools": list(tools) or None,
            "temperature": self.temperature,
            "seed": None if seed is None else seed % 2**31,  # some servers take no larger ones
            self.token_limit: max_tokens,
            **self.extra,
        }
        asked = {key: value for key, value in body.items() if value is not None}
        answer = await self._endpoint.ask(asked, tokens=max_tokens, patient=patient)
        turn = wire.turn(answer, known=wire.names(tools), prices=self.prices, number=next(self._numbers))
        if turn is None:
            raise Unavailable(f"{self.base_url}: the answer has no choices[0].message")
        return turn


def _nothing() -> Turn:
    return Turn(message=Message(role="assistant"), stop="length")


def _tokens(conversation: Conversation) -> int:
    """About how long a conversation is: what the server counted last, and a guess for what was said since."""
    counted, since = 0, 0
    for said in conversation:
        if isinstance(said, Turn) and said.usage.prompt_tokens:
            counted, since = said.usage.prompt_tokens + said.usage.completion_tokens, 0
        else:
            message = said.message if isinstance(said, Turn) else said
            since += len(message.content.encode())
            since += sum(len(text.encode()) for call in message.tool_calls for text in call.arguments.values())
    return counted + since // _BYTES_A_TOKEN
