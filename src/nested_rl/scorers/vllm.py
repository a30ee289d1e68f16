"""Scores by vLLM: a clean server on the machine, the prompts through a forwarded port, the grading here."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from attrs import define, field

from nested_rl import tasks, weights
from nested_rl.clock import Clock, SystemClock
from nested_rl.endpoint import Endpoint, EndpointError, Unavailable
from nested_rl.errors import InfraFault, SettingsError, UnknownName
from nested_rl.interfaces import Machine, Scorer, TaskFamily
from nested_rl.nano.folder import weights_path
from nested_rl.scorers import vllm_answers
from nested_rl.scorers.vllm_answers import Reply
from nested_rl.scorers.vllm_engine import VLLMEngine
from nested_rl.scorers.vllm_server import Model, Server
from nested_rl.types import JSON, Checkpoint, EvalSet, Sampling, Score
from nested_rl.waiting import Overdue, uninterrupted, within

OWN: Final[Mapping[str, JSON]] = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""Sent to our own servers: what a model's generation_config.json says otherwise does not count."""
_ENDPOINT_CONCURRENCY: Final = 16


@define(eq=False)
class _Place:
    """A machine and the server that runs there."""

    machine: Machine
    busy: asyncio.Lock = field(factory=asyncio.Lock)
    server: Server | None = None


class VLLMScorer(Scorer):
    """Asks a vLLM server on the machine and grades on the controller.

    The server is started for the model that is scored, with `engine` (a VLLMEngine, or its settings as a table), and answers further
    questions about that model until another one is asked for or the lease ends. It must be ready within `start_s`; one score may take
    `wall_s`; a request that fails is tried again for `retry_s`. With `endpoint` (.../v1) nothing is started: the OpenAI-compatible
    server there is asked, with the key from the environment variable `key_env`, for bases by their name, or as `model`, and for
    checkpoints by their path. A completion that was cut off at `max_tokens` is wrong, and counted. `families` are those to grade
    by; built-in ones at full scale need not be given.
    """

    def __init__(
        self,
        families: Sequence[TaskFamily] = (),
        *,
        engine: VLLMEngine | Mapping[str, Any] | None = None,
        endpoint: str | None = None,
        model: str | None = None,
        key_env: str = "OPENAI_API_KEY",
        start_s: float = 600.0,
        wall_s: float = 1800.0,
        retry_s: float = 60.0,
        extra: Mapping[str, JSON] | None = None,
        clock: Clock | None = None,
    ) -> None:
        for name, value in (("start_s", start_s), ("wall_s", wall_s), ("retry_s", retry_s)):
            if not value > 0:
                raise SettingsError(f"VLLMScorer({name}={value!r}): it must be above 0")
        if endpoint is None and model is not None:
            raise SettingsError("VLLMScorer(model=…) says what an endpoint calls its model; give endpoint=… too")
        if endpoint is not None and engine is not None:
            raise SettingsError("VLLMScorer takes an engine, or the endpoint of a server that runs already; not both")
        self._engine, self._url, self._model, self._key_env = VLLMEngine.of(engine), endpoint, model, key_env
        self._start_s, self._wall_s, self._retry_s = start_s, wall_s, retry_s
        thinking = {"chat_template_kwargs": {"enable_thinking": self._engine.thinking}}
        self._extra: Mapping[str, JSON] = {**({} if endpoint else {**OWN, **thinking}), **(extra or {})}
        self._clock = clock or SystemClock()
        self._families: dict[str, TaskFamily] = {}
        self._places: dict[int, _Place] = {}
        self.bind(families)
        if endpoint is not None:
            self._outside()  # a wrong address or a missing key is told now

    def bind(self, families: Sequence[TaskFamily]) -> None:
        """Grade by these families too."""
        self._families |= {family.name: family for family in families}

    def settings(self) -> dict[str, JSON]:
        """What scores depend on: baselines and checkpoints are only compared under the same."""
        where = {"endpoint": self._url, "model": self._model} if self._url else {"engine": self._engine.settings()}
        return {**where, "extra": dict(self._extra)}

    async def score(self, model: Checkpoint | str, eval_set: EvalSet, machine: Machine, *, seed: int = 0) -> Score:
        """The score of a checkpoint or of a base.

        Raises SettingsError for an unknown base or family, or a model that the endpoint does not have; InfraFault when the machine
        or the server fails, gives half an answer or takes too long, or when the checkpoint is not the one that training wrote.
        """
        family, started = self._family(eval_set.family), self._clock.monotonic()
        sampling = eval_set.sampling if isinstance(model, Checkpoint) else eval_set.baseline_sampling
        prompts = [item.prompt for item in eval_set.items]
        asked = self._outside_replies if self._url is not None else self._machine_replies
        replies = await asked(model, machine, prompts, sampling, seed)
        right = [
            [done and family.grade(item, text).correct for text, done in zip(reply.texts, reply.finished, strict=True)]
            for item, reply in zip(eval_set.items, replies, strict=True)
        ]
        return Score.of(
            [sum(row) / len(row) for row in right],
            tokens=sum(reply.tokens for reply in replies),
            truncated=sum(reply.finished.count(False) for reply in replies),
            seconds=self._clock.monotonic() - started,
        )

    async def close(self) -> None:
        """End every server. A later score starts another."""
        places, self._places = [*self._places.values()], {}
        await asyncio.gather(*(place.server.end() for place in places if place.server is not None))

    # ---- a server of ours, on a machine

    async def _machine_replies(
        self, model: Checkpoint | str, machine: Machine, prompts: Sequence[str], sampling: Sampling, seed: int
    ) -> list[Reply]:
        async with self._serving(await _located(model, machine), machine) as server:
            try:
                async with server.reached(timeout_s=self._retry_s, attempt_s=self._wall_s) as endpoint:
                    work = self._replies(endpoint, server.name, prompts, sampling, seed)
                    return await server.unless_gone(work)
            except EndpointError as error:
                raise InfraFault(f"vLLM on {machine.id}: {error}") from error

    @contextlib.asynccontextmanager
    async def _serving(self, model: Model, machine: Machine) -> AsyncIterator[Server]:
        """A server of that model. One that failed, or was left in the middle of a score, is ended."""
        self._forget()
        place = self._places.setdefault(id(machine), _Place(machine))
        async with place.busy:
            server = place.server
            if server is None or not server.alive or server.model != model:
                await self._end(place)
                server = await Server.start(machine, model, self._engine, start_s=self._start_s, clock=self._clock)
                place.server = server
            try:
                yield server
            except BaseException:
                await uninterrupted(self._end(place))
                raise

    async def _end(self, place: _Place) -> None:
        server, place.server = place.server, None
        if server is not None:
            await server.end()

    def _forget(self) -> None:
        """Machines whose lease has ended: nothing runs there any more."""
        for key, place in [*self._places.items()]:
            if not place.busy.locked() and (place.server is None or not place.server.process.alive):
                del self._places[key]

    # ---- a server of somebody else's

    async def _outside_replies(
        self, model: Checkpoint | str, machine: Machine, prompts: Sequence[str], sampling: Sampling, seed: int
    ) -> list[Reply]:
        del machine
        name = model.path if isinstance(model, Checkpoint) else self._model or model
        endpoint = self._outside()
        try:
            return await self._replies(endpoint, name, prompts, sampling, seed)
        except Unavailable as error:
            raise InfraFault(str(error)) from error
        except EndpointError as error:
            raise SettingsError(str(error)) from error
        finally:
            await uninterrupted(endpoint.close())

    def _outside(self) -> Endpoint:
        assert self._url is not None
        return Endpoint(
            self._url,
            self._key_env,
            timeout_s=self._retry_s,
            attempt_s=self._wall_s,
            concurrency=_ENDPOINT_CONCURRENCY,
            clock=self._clock,
        )

    # ---- both

    async def _replies(
        self, endpoint: Endpoint, name: str, prompts: Sequence[str], sampling: Sampling, seed: int
    ) -> list[Reply]:
        work = vllm_answers.ask(endpoint, name, prompts, sampling, seed=seed, extra=self._extra)
        try:
            return await within(self._clock, self._wall_s, work)
        except Overdue:
            raise InfraFault(f"{name}: {len(prompts)} prompts were not answered within {self._wall_s:g} s") from None

    def _family(self, name: str) -> TaskFamily:
        """Raises UnknownName."""
        return self._families.get(name) or tasks.load(name)[0]


async def _located(model: Checkpoint | str, machine: Machine) -> Model:
    if isinstance(model, str):
        return Model(base=await _folder(machine, model))
    base = await _folder(machine, model.base)
    return Model(base=base, kind=model.kind, path=model.path, digest=model.digest)


async def _folder(machine: Machine, base: str) -> str:
    """Where a base lies on the machine. Those of nano scale travel with this package."""
    try:
        return str(weights_path(base))
    except UnknownName:
        return await weights.locate(machine, base)
