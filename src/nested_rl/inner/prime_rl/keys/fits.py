"""How the values of a job go together: what prime-rl would only find when it starts, and what it never finds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nested_rl.inner.prime_rl.keys.reading import NAME, flat
from nested_rl.inner.prime_rl.problems import told
from nested_rl.jobs.folder import JOB
from nested_rl.jobs.surface import Rule, Table
from nested_rl.types import Problem

PROMPT_TOKENS = 128
"""At least so much room for a prompt, and what the chat template adds to it."""
_SPAN = 1.0
"""Advantages are rewards less their group's mean: those of rewards from 0 to 1 lie between minus this and this."""
_POOLS = "orchestrator.train.source.curriculum.sampler.pools."
_GATES = "orchestrator.train.source.curriculum.gates."


def room(values: Mapping[str, Table]) -> Sequence[Problem]:
    """Prompt and completion fit into what is trained on."""
    seq_len, most = values["training"]["seq_len"], values["rollout"]["max_tokens"]
    if seq_len - most >= PROMPT_TOKENS:
        return ()
    message = f"seq_len = {seq_len} and max_tokens = {most} leave {max(0, seq_len - most)} tokens for the prompt"
    hint = f"use seq_len = {most + 4 * PROMPT_TOKENS}, or fewer max_tokens"
    return (told("job.fit", f"{JOB}:[training] seq_len", message, hint, name="seq_len"),)


def scheduler(values: Mapping[str, Table]) -> Sequence[Problem]:
    """Warm-up and decay are over when training is."""
    given, steps = flat(values[NAME]), values["training"]["steps"]
    kind = given.get("trainer.scheduler.type", "constant")
    warmup, decay = (given.get(f"trainer.scheduler.{name}_steps") for name in ("warmup", "decay"))
    where = "trainer.scheduler"
    if kind == "cosine" and warmup is not None and warmup >= steps:
        return (_told(f"{where}.warmup_steps", f"a warm-up of {warmup} steps never ends in {steps}", "use fewer"),)
    if kind != "linear":
        return ()
    if (warmup, decay) == (0, 0):
        hint = "use the constant one, or give it a warm-up or a decay"
        return (_told(f"{where}.type", "a linear schedule without warm-up and decay is a constant one", hint),)
    if (warmup or 0) + (decay or 0) > steps:
        message = f"warm-up and decay take {(warmup or 0) + (decay or 0)} steps; there are {steps}"
        return (_told(f"{where}.decay_steps", message, "together at most as many as [training] steps"),)
    return ()


def rates(values: Mapping[str, Table]) -> Sequence[Problem]:
    """A schedule ends no higher than it begins; settings of an adapter need one."""
    given, training = flat(values[NAME]), values["training"]
    problems = []
    least: float = given.get("trainer.scheduler.min_lr", 0.0)
    if least > training["learning_rate"]:
        message = f"min_lr = {least:g} is above learning_rate = {training['learning_rate']:g}"
        problems.append(_told("trainer.scheduler.min_lr", message, "use a smaller one"))
    adapter = next((path for path in given if path.startswith("trainer.model.lora.")), None)
    if adapter is not None and not training["lora_rank"]:
        hint = "set [training] lora_rank = 16, or leave it out"
        problems.append(_told(adapter, f"{adapter} is of an adapter, and lora_rank = 0 trains none", hint))
    return problems


def concurrency(values: Mapping[str, Table]) -> Sequence[Problem]:
    """A whole group is under way at once."""
    given, group = flat(values[NAME]), values["training"]["group_size"]
    first: int | None = given.get("orchestrator.concurrency.initial_inflight")
    most: int | None = given.get("orchestrator.concurrency.max_inflight")
    problems = []
    for name, value in (("initial", first), ("max", most)):
        if value is not None and value < group:
            message = f"{name}_inflight = {value} is less than one group of {group}"
            problems.append(_told(f"orchestrator.concurrency.{name}_inflight", message, f"use {group} or more"))
    if first is not None and first > (64 if most is None else most):
        hint = "initial_inflight is at most max_inflight, which is 64 unless it is set"
        problems.append(_told("orchestrator.concurrency.initial_inflight", f"{first} is too many", hint))
    return problems


def server(values: Mapping[str, Table]) -> Sequence[Problem]:
    """The server reads what is trained on."""
    given, seq_len = flat(values[NAME]), values["training"]["seq_len"]
    own: int | None = given.get("inference.vllm.max_model_len")
    length = seq_len if own is None else own
    if length < seq_len:
        message = f"max_model_len = {length} is less than seq_len = {seq_len}: longer conversations fail"
        return (_told("inference.vllm.max_model_len", message, "leave it out: it is seq_len then"),)
    batched: int | None = given.get("inference.vllm.max_num_batched_tokens")
    whole = given.get("inference.vllm.enable_chunked_prefill") is False
    if whole and batched is not None and batched < length:
        message = f"without chunked prefill a prompt of {length} tokens needs as many max_num_batched_tokens"
        return (_told("inference.vllm.max_num_batched_tokens", message, f"use {length} or more"),)
    return ()


def curriculum(values: Mapping[str, Table]) -> Sequence[Problem]:
    """Pools and gates are whole, and let something through."""
    given = flat(values[NAME])
    pools, gates = _named(given, _POOLS), _named(given, _GATES)
    return [*_pools(pools), *_gates(gates)]


def _pools(pools: Mapping[str, Mapping[str, Any]]) -> Iterator[Problem]:
    for name, pool in pools.items():
        for key in ("threshold", "weight"):
            if key not in pool:
                yield _told(f"{_POOLS}{name}.{key}", f"pool {name!r} has no {key}", "give every pool both")
    thresholds = [pool.get("threshold") for pool in pools.values()]
    if len(set(thresholds)) < len(thresholds):
        yield _told(f"{_POOLS}threshold", "two pools have the same threshold", "give each one of its own")
    if pools and not any(pool.get("weight", 1) > 0 for pool in pools.values()):
        yield _told(f"{_POOLS}weight", "no pool has a weight above 0", "give one of them 1.0")


def _gates(gates: Mapping[str, Mapping[str, Any]]) -> Iterator[Problem]:
    for name, gate in gates.items():
        least, most = gate.get("reject_min", 0.0), gate.get("reject_max", 0.0)
        if least > most:
            message, hint = f"gate {name!r} rejects an empty range", "reject_min <= reject_max"
            yield _told(f"{_GATES}{name}.reject_min", message, hint)
        elif least <= -_SPAN and most >= _SPAN:
            message = (
                f"gate {name!r} rejects every advantage that rewards from 0 to 1 can have: nothing would be trained on"
            )
            yield _told(f"{_GATES}{name}.reject_max", message, "reject a narrow range, such as -0.05 to 0.05")


def _named(given: Mapping[str, Any], prefix: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for path, value in given.items():
        if path.startswith(prefix):
            name, _, key = path.removeprefix(prefix).partition(".")
            found.setdefault(name, {})[key] = value
    return found


def _told(path: str, message: str, hint: str) -> Problem:
    return told("job.fit", f"{JOB}:[{NAME}] {path}", message, hint, name=path)


RULES: tuple[Rule, ...] = (room, scheduler, rates, concurrency, server, curriculum)
