"""Starts SkyRL's Tinker-API server (JAX, CPU) for the tests, with what it gets wrong put right. Runs in an environment of its own.

skyrl 0.4.0 is the server, tinker 0.38 the client. What stands between them, and is repaired here and not in the product:

* it wants Python 3.12 (pydantic needs typing_extensions.TypedDict below) and starts its engine with `uv run`;
* a sampler snapshot is loaded into the slot of the weights in training: sampling from an old one rolls the training back,
  and an old sampler answers with new weights. Here each snapshot has a slot of its own;
* answers to /asample lack `sample_sequence_ids`; /load_weights wants a model that the client expects it to make;
* a session cannot be finished, and its models keep their slots for minutes. Here finishing unloads them;
* it compiles anew for every length, cap on new tokens and rest of a batch, and samples from empty rows that never end. Here
  there are two lengths and one batch size, and a batch ends with its last row.

    python serve.py --base-model FOLDER --backend jax --port 8123 …
"""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import sys
import typing
import uuid
from pathlib import Path

import typing_extensions

if sys.version_info < (3, 12):
    typing.TypedDict = typing_extensions.TypedDict
os.environ.update(JAX_PLATFORMS="cpu", HF_HUB_OFFLINE="1")

LENGTHS = (128, 256)
"""Prompts and training sequences are padded to one of these, and so is the number of new tokens."""


def bucket(length: int) -> int:
    """The smallest of LENGTHS that holds `length`; their multiples beyond."""
    return next((b for b in LENGTHS if length <= b), -(-length // LENGTHS[-1]) * LENGTHS[-1])


def repair_engine() -> None:
    """Own slots for snapshots, and few shapes to compile."""
    from skyrl.backends import jax as backend
    from skyrl.tx.utils import generator, models

    backend.round_up_seq_len = models.round_up_seq_len = bucket
    backend.JaxBackendImpl.load_sampler_weights = load_sampler_weights
    rows = 8  # what --backend-config says as train_micro_batch_size
    backend.pad_to_fsdp = lambda array, _: pad_rows(array, rows)
    # a copy of the last row ends with it; an empty row would be sampled from to the very end
    backend.pad = lambda xs, size, *, fill: xs + [xs[-1]] * (size - len(xs))
    decode = generator.GeneratorMixin._prefill_and_decode

    def decode_in_buckets(model, ids, mask, length, new_tokens, *rest, **flags):
        return decode(model, ids, mask, ids.shape[1] + bucket(new_tokens), bucket(new_tokens), *rest, **flags)

    generator.GeneratorMixin._prefill_and_decode = staticmethod(decode_in_buckets)


def pad_rows(array, rows: int):
    import numpy as np

    missing = -len(array) % rows
    return np.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1)) if missing else array


def load_sampler_weights(self, batch) -> list[int]:
    """The slot of each row's snapshot: the upper half of the adapters, the longest unused one is given away first."""
    import jax
    from cloudpathlib import AnyPath
    from skyrl.tx.layers.lora import init_lora_adapter
    from skyrl.tx.utils.models import load_lora_checkpoint

    first = self.config.max_lora_adapters // 2
    slots = self.__dict__.setdefault("_snapshot_slots", {})
    found = []
    for model, checkpoint, path in zip(
        batch.all_model_ids, batch.all_checkpoint_ids, batch.all_checkpoint_paths, strict=True
    ):
        if not model:
            found.append(0)  # the base model
            continue
        key = (model, checkpoint)
        if key in slots:
            slots[key] = slots.pop(key)
        else:
            free = set(range(first, self.config.max_lora_adapters)) - set(slots.values())
            slot = min(free) if free else slots.pop(next(iter(slots)))
            config = self.models[model].lora_config
            with jax.set_mesh(self.mesh):
                init_lora_adapter(self.model, slot, config)
            load_lora_checkpoint(self.model, config, slot, AnyPath(path))
            slots[key] = slot
        found.append(slots[key])
    return found


class Repaired:
    """ASGI in front of the server: what the client says to the server's liking, and the other way round."""

    def __init__(self, app) -> None:
        self.app = app
        self.alias: dict[str, str] = {}
        """The client's own name of a model made from a checkpoint → the server's."""
        self.models: dict[str, list[str]] = {}
        """Models by session."""

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        body = await read(receive)
        if scope["path"].endswith("/finish"):
            await self.finish(scope, send)
            return
        path, headers, samples = scope["path"], dict(scope["headers"]), 0
        if b"json" in headers.get(b"content-type", b""):
            said = json.loads(body or b"{}")
            if path == "/api/v1/load_weights" and not said.get("model_id"):
                said = await self.model_from(scope, said)
            said["model_id"] = self.alias.get(said.get("model_id"), said.get("model_id"))
            samples = int(said.get("num_samples", 1)) if path == "/api/v1/asample" else 0
            body = json.dumps({key: value for key, value in said.items() if value is not None}).encode()
        elif path == "/api/v1/forward_backward" and self.alias:
            from tinker.proto import tinker_public_pb2

            request = tinker_public_pb2.ForwardBackwardRequest.FromString(body)
            request.model_id = self.alias.get(request.model_id, request.model_id)
            body = request.SerializeToString()
        scope = {**scope, "headers": list((headers | {b"content-length": str(len(body)).encode()}).items())}
        status, answer_headers, answer = await call(self.app, scope, body, receive)
        if samples and status == 200:
            ids = [uuid.uuid4().hex for _ in range(samples)]
            answer = json.dumps({**json.loads(answer), "sample_sequence_ids": ids}).encode()
        if path == "/api/v1/create_model" and status == 200:
            self.models.setdefault(said["session_id"], []).append(json.loads(answer)["model_id"])
        await respond(send, status, [(k, v) for k, v in answer_headers if k.lower() != b"content-length"], answer)

    async def finish(self, scope, send) -> None:
        """The end of a session: its models give their slots back."""
        session = scope["path"].split("/")[-2]
        for model in self.models.pop(session, []):
            await self.ask(scope, "POST", "/api/v1/unload_model", {"model_id": model})
        await respond(send, 200, [(b"content-type", b"application/json")], b"{}")

    async def model_from(self, scope, said):
        """Make the model that a checkpoint is loaded into, with the rank that it was saved with."""
        source = said["path"].removeprefix("tinker://").split("/")[0]
        status, run = await self.ask(scope, "GET", f"/api/v1/training_runs/{self.alias.get(source, source)}")
        if status != 200:
            return {**said, "model_id": source}  # the server says what it does not know
        new = {
            "session_id": said["session_id"],
            "base_model": run["base_model"],
            "lora_config": {"rank": run["lora_rank"]},
        }
        status, made = await self.ask(scope, "POST", "/api/v1/create_model", new)
        assert status == 200, made
        self.alias[f"{said['session_id']}:train:{said['model_seq_id']}"] = made["model_id"]
        self.models.setdefault(said["session_id"], []).append(made["model_id"])
        while True:
            _, told = await self.ask(scope, "POST", "/api/v1/retrieve_future", {"request_id": made["request_id"]})
            if told.get("type") != "try_again":
                break
        return {
            "model_id": made["model_id"],
            "path": said["path"],
            "optimizer": said.get("optimizer", True),
            "seq_id": 1,
        }

    async def ask(self, scope, method: str, path: str, said=None):
        """One JSON request to the server behind this."""
        body = json.dumps(said or {}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        told = {"method": method, "path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers}
        status, _, answer = await call(self.app, {**scope, **told}, body)
        return status, json.loads(answer or b"{}")


async def read(receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def respond(send, status: int, headers, body: bytes) -> None:
    length = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *length]})
    await send({"type": "http.response.body", "body": body})


async def call(app, scope, body: bytes, receive=None):
    """The app's whole answer: status, headers, body."""
    said, start, chunks = [body], {}, []

    async def listen():
        if said:
            return {"type": "http.request", "body": said.pop(), "more_body": False}
        return await receive() if receive else await asyncio.Event().wait()

    async def answer(message) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        else:
            chunks.append(message.get("body", b""))

    await app(scope, listen, answer)
    return start["status"], start.get("headers", []), b"".join(chunks)


def engine() -> None:
    """The child process that holds the model."""
    sys.argv = ["skyrl.tinker.engine", *sys.argv[2:]]
    repair_engine()
    runpy.run_module("skyrl.tinker.engine", run_name="__main__", alter_sys=True)


def server() -> None:
    import argparse

    import uvicorn
    from skyrl.tinker import api
    from skyrl.tinker.config import EngineConfig, add_model, config_to_argv

    parser = argparse.ArgumentParser()
    add_model(parser, EngineConfig)
    parser.add_argument("--port", type=int, required=True)
    told = vars(parser.parse_args())
    fields = {name: value for name, value in told.items() if name in EngineConfig.model_fields}
    api.app.state.engine_config = EngineConfig.model_validate(fields)
    api._build_uv_run_cmd_engine = lambda _, config: [
        sys.executable,
        str(Path(__file__).resolve()),
        "--engine",
        *config_to_argv(config),
    ]
    uvicorn.run(Repaired(api.app), host="127.0.0.1", port=told["port"], log_level="warning")


if __name__ == "__main__":
    engine() if sys.argv[1:2] == ["--engine"] else server()
