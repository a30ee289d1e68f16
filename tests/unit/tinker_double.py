"""A small double of the Tinker SDK: what a test does not look at, it does not do."""
# ruff: noqa: N802  the SDK's names

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np


class Status(Exception):
    """What the SDK raises for an HTTP status."""

    def __init__(self, status_code: int, message: str) -> None:
        super().__init__(message)
        self.status_code = status_code


class Future:
    """A result that is there, or an error."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def result(self) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value

    def __await__(self):
        yield from ()
        return self.result()


class Sampler:
    """Says token 7 once; every token has log-probability `level`."""

    def __init__(self, level: float) -> None:
        self.level = level

    def sample(self, prompt: list[int], n: int, asked: Any) -> Future:
        said = SimpleNamespace(tokens=[7], logprobs=[self.level], stop_reason="stop")
        return Future(SimpleNamespace(sequences=[said] * n))

    def compute_logprobs(self, tokens: list[int]) -> Future:
        return Future([None, *[self.level] * (len(tokens) - 1)])


class Training:
    """Every token has log-probability `level`, which rises by 0.1 a step."""

    def __init__(self, sdk: Sdk) -> None:
        self.sdk, self.level, self.model_id = sdk, -1.0, "session-1:train:0"

    def _scored(self, data: list[Any]) -> Future:
        rows = [np.full(len(d.model_input), self.level) for d in data]
        found = [{"logprobs": SimpleNamespace(to_numpy=lambda row=row: row)} for row in rows]
        return Future(SimpleNamespace(loss_fn_outputs=found))

    def forward(self, data: list[Any], loss: str, config: Any) -> Future:
        self.sdk.calls.append(("forward", loss, len(data)))
        return self._scored(data)

    def forward_backward(self, data: list[Any], loss: str, config: Any) -> Future:
        self.sdk.calls.append(("forward_backward", loss, len(data)))
        self.sdk.sent.append((data, config))
        return Future(self.sdk.fails) if self.sdk.fails else self._scored(data)

    def optim_step(self, adam: Any) -> Future:
        self.sdk.calls.append(("optim_step", adam.learning_rate))
        self.sdk.adams.append(vars(adam))
        self.level += 0.1
        return Future(None)

    def save_weights_and_get_sampling_client(self, *, kind: str) -> Future:
        self.sdk.calls.append(("snapshot", kind))
        return Future(Sampler(-1.0 if self.sdk.stale else self.level))

    def save_state(self, name: str, *, ttl_seconds: int | None) -> Future:
        self.sdk.calls.append(("save_state", ttl_seconds))
        return Future(SimpleNamespace(path=f"tinker://run/weights/{name}"))

    def save_weights_external(self, name: str, *, ttl_seconds: int) -> Future:
        return Future(SimpleNamespace(path=f"tinker://run/external_weights/{name}"))


class Sdk:
    """The module `tinker`. `refused` fails the first request, `fails` the gradient; with `stale` samplers never learn."""

    def __init__(self, *, refused: Exception | None = None) -> None:
        self.refused, self.stale, self.fails = refused, False, None
        self.calls: list[tuple[Any, ...]] = []
        self.sent: list[tuple[Any, Any]] = []
        self.adams: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.closing: Exception | None = None
        self.urls: dict[str, str] = {}
        self.first_in = ""
        self.events: list[Any] = []
        self.ModelInput = SimpleNamespace(from_ints=list)

    def Datum(self, *, model_input: list[int], loss_fn_inputs: Any) -> Any:
        return SimpleNamespace(model_input=model_input, loss_fn_inputs=loss_fn_inputs)

    def SamplingParams(self, **asked: Any) -> Any:
        self.calls.append(("sample", asked))
        return asked

    def AdamParams(self, **values: Any) -> Any:
        return SimpleNamespace(**values)

    def ServiceClient(self, *, api_key: str | None, **_: Any) -> Any:
        self.keys.append(api_key)
        return SimpleNamespace(
            _check_accessible=self._check,
            create_lora_training_client=lambda **asked: self.asked.append(asked) or Future(Training(self)),
            create_training_client_from_state_with_optimizer=self._resume,
            create_sampling_client=lambda **_: Future(Sampler(-1.0)),
            close=lambda status: self.calls.append(("close", status)) or Future(self.closing),
        )

    def RestClient(self, **_: Any) -> Any:
        there = [
            SimpleNamespace(model_name=name, max_context_length=64, trainable=None)
            for name in ("Qwen/Qwen3-8B", "Qwen/Qwen3-32B")
        ]
        return SimpleNamespace(
            get_server_capabilities=lambda: Future(SimpleNamespace(supported_models=there)),
            get_external_weights_urls=lambda path: Future(SimpleNamespace(urls=self.urls)),
        )

    def AdminClient(self, **_: Any) -> Any:
        return SimpleNamespace(get_billing_usage=lambda *_: Future(SimpleNamespace(data=self.events)))

    def _check(self) -> None:
        self.calls.append(("check",))
        self.first_in = threading.current_thread().name
        if self.refused:
            raise self.refused

    def _resume(self, path: str) -> Future:
        return Future(Status(404, "Model not found") if "gone" in path else Training(self))
