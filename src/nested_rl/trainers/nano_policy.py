"""The nano agent at one version of its weights, alone or a whole group in lockstep."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import numpy as np
from attrs import field, frozen

from nested_rl.errors import SettingsError
from nested_rl.interfaces import Policy, Renderer, Seat
from nested_rl.nano.model import Qwen3
from nested_rl.nano.sampling import generate, pad_left
from nested_rl.nano.threads import in_engine, single_thread
from nested_rl.types import Conversation, Turn, Usage


@frozen(kw_only=True)
class Request:
    """One row of a batch: the rendered conversation, the cap on new tokens, and the seed of the row's own draws."""

    prompt: tuple[int, ...] = field(repr=False)
    max_tokens: int
    seed: int | None


class NanoPolicy(Policy):
    """Samples at temperature 1 from weights that never change. The draws of a turn come from its seed alone."""

    embedded = True

    def __init__(self, model: Qwen3, renderer: Renderer, *, version: int) -> None:
        self.version = version
        self.context_tokens = model.config.max_position_embeddings
        self._model, self._renderer = model, renderer

    async def sample(
        self,
        conversation: Conversation,
        *,
        tools: Sequence[Mapping[str, object]],
        max_tokens: int,
        seed: int | None = None,
    ) -> Turn:
        request = self.request(conversation, tools=tools, max_tokens=max_tokens, seed=seed)
        (turn,) = await in_engine(self.run, [request])
        return turn

    def seats(self, n: int) -> Sequence[Seat]:
        """Places of a group that samples together; see `Table`."""
        return Table(self, n).seats

    def request(
        self,
        conversation: Conversation,
        *,
        tools: Sequence[Mapping[str, object]],
        max_tokens: int,
        seed: int | None,
    ) -> Request:
        """What one call of `sample` asks for."""
        prompt = tuple(self._renderer.render(conversation, tools))
        if not prompt:
            raise SettingsError("an empty conversation cannot be sampled from")
        return Request(prompt=prompt, max_tokens=max(1, max_tokens), seed=seed)

    def run(self, requests: Sequence[Request]) -> list[Turn]:
        """Sample one batch, row by row in the order given. A prompt that fills the context gets an empty turn."""
        fits = [r for r in requests if len(r.prompt) < self.context_tokens]
        sampled = iter(self._generate(fits) if fits else [])
        return [
            next(sampled) if len(r.prompt) < self.context_tokens else self._turn(r, (), (), "length") for r in requests
        ]

    def _generate(self, requests: Sequence[Request]) -> list[Turn]:
        room = [min(r.max_tokens, self.context_tokens - len(r.prompt)) for r in requests]
        uniforms = np.stack([np.random.default_rng(r.seed).random(max(room)) for r in requests])
        with single_thread():
            samples = generate(
                self._model,
                pad_left([r.prompt for r in requests], self._model.config.pad_token_id),
                max_new=np.array(room),
                uniforms=uniforms,
                stop_ids=self._renderer.stop_ids,
            )
        turns = []
        for request, ids, logprobs, n, finished in zip(
            requests, samples.ids, samples.logprobs, samples.lengths, samples.finished, strict=True
        ):
            stop = "stop" if finished else "length"
            turns.append(self._turn(request, tuple(ids[:n].tolist()), tuple(logprobs[:n].tolist()), stop))
        return turns

    def _turn(self, request: Request, ids: tuple[int, ...], logprobs: tuple[float, ...], stop: str) -> Turn:
        message = self._renderer.parse(ids)
        if stop == "stop" and any(call.error is not None for call in message.tool_calls):
            stop = "malformed"
        return Turn(
            message=message,
            prompt_ids=request.prompt,
            ids=ids,
            logprobs=logprobs,
            stop=stop,
            version=self.version,
            usage=Usage(prompt_tokens=len(request.prompt), completion_tokens=len(ids)),
        )


class Table:
    """A group in lockstep: a batch runs when every open seat is waiting, its rows in order of seats.

    So what is in a batch, and where, never depends on who came first. A seat whose call is cancelled is closed, and the
    others go on without it.
    """

    def __init__(self, policy: NanoPolicy, n: int) -> None:
        if n < 1:
            raise SettingsError(f"a lockstep group needs at least one seat, not {n}")
        self.policy = policy
        self.seats: tuple[Seat, ...] = tuple(NanoSeat(self, i) for i in range(n))
        self._open = set(range(n))
        self._waiting: dict[int, tuple[Request, asyncio.Future[Turn]]] = {}
        self._batches: set[asyncio.Task[None]] = set()

    async def sample(self, seat: int, request: Request) -> Turn:
        """Wait for the others, then for the batch."""
        if seat not in self._open:
            raise SettingsError(f"seat {seat} is closed")
        if seat in self._waiting:
            raise SettingsError(f"seat {seat} is waiting already: a seat takes one turn at a time")
        answer: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        self._waiting[seat] = (request, answer)
        self._run_if_complete()
        try:
            return await answer
        except asyncio.CancelledError:
            self.close(seat)
            raise

    def close(self, seat: int) -> None:
        """Nobody waits for this seat any more."""
        self._open.discard(seat)
        _, answer = self._waiting.pop(seat, (None, None))
        if answer is not None:
            answer.cancel()
        self._run_if_complete()

    def _run_if_complete(self) -> None:
        if self._waiting and self._waiting.keys() == self._open:
            rows = [self._waiting[seat] for seat in sorted(self._waiting)]
            self._waiting.clear()
            # a task of its own: the batch is everybody's, cancelling one caller must not end it
            task = asyncio.create_task(self._batch(rows))
            self._batches.add(task)
            task.add_done_callback(self._batches.discard)

    async def _batch(self, rows: Sequence[tuple[Request, asyncio.Future[Turn]]]) -> None:
        waiting = [answer for _, answer in rows]
        try:
            turns = await in_engine(self.policy.run, [request for request, _ in rows])
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to those who wait for it
            for answer in waiting:
                if not answer.done():
                    answer.set_exception(error)
            return
        except BaseException:
            for answer in waiting:
                answer.cancel()
            raise
        for answer, turn in zip(waiting, turns, strict=True):
            if not answer.done():
                answer.set_result(turn)


class NanoSeat(Seat):
    """One member's place at a `Table`."""

    def __init__(self, table: Table, number: int) -> None:
        self._table, self._number = table, number
        self.version = table.policy.version
        self.context_tokens = table.policy.context_tokens

    async def sample(
        self,
        conversation: Conversation,
        *,
        tools: Sequence[Mapping[str, object]],
        max_tokens: int,
        seed: int | None = None,
    ) -> Turn:
        request = self._table.policy.request(conversation, tools=tools, max_tokens=max_tokens, seed=seed)
        return await self._table.sample(self._number, request)

    def close(self) -> None:
        self._table.close(self._number)
