"""What a full-scale job may say, and which machine it needs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from nested_rl.inner.prime_rl import arguments, memory
from nested_rl.inner.prime_rl.keys import fits
from nested_rl.inner.prime_rl.keys.allowed import TABLES
from nested_rl.inner.prime_rl.keys.reading import NAME, read
from nested_rl.inner.prime_rl.memory import Kind, Shape
from nested_rl.inner.prime_rl.order import Dialect
from nested_rl.inner.prime_rl.problems import told
from nested_rl.jobs.folder import CODE, JOB, JobConfig
from nested_rl.jobs.surface import FileRules, ProbeRules, Surface
from nested_rl.types import Need, Problem

FORMS: Final = (
    "{answer}",
    "First I think.\n{answer}",
    "Answer: {answer}",
    "<answer>{answer}</answer>",
    "\\boxed{{{answer}}}",
)
"""Replies that give an answer: a reward must tell right from wrong in one of them at least."""


def surface(bases: Sequence[str]) -> Surface:
    """Everything that a full-scale job may say."""
    return Surface(
        tables=TABLES,
        bases=tuple(bases),
        advanced=frozenset({NAME}),
        files=FileRules(data_files=8),
        probe=ProbeRules(rows=64, answers=2, answer_forms=FORMS, talkative=True, reply_chars=4_096),
        rules=fits.RULES,
        open={NAME: read},
    )


def kind(config: JobConfig) -> Kind:
    """Whether an adapter or all weights are trained."""
    return "lora" if config["training"]["lora_rank"] else "full"


def dialect_problems(config: JobConfig, files: Mapping[str, str], dialect: Dialect) -> Iterator[Problem]:
    """What job.toml asks of the environment that it cannot do."""
    if dialect == "plain" and config["rollout"]["max_turns"] > 1:
        message = (
            f"max_turns = {config['rollout']['max_turns']}, but examples and reward make conversations of one turn"
        )
        hint = "leave it out, or write a verifiers taskset"
        yield told("job.fit", f"{JOB}:[rollout] max_turns", message, hint, name="max_turns")
    yield from arguments.check(config[NAME], files[CODE] if dialect == "native" else "")


def need(config: JobConfig, shape: Shape, offers: Sequence[Need]) -> Need:
    """The smallest machine for the job: one GPU, unless only machines with two that are smaller fit."""
    one, two = (memory.least(shape, kind(config), config["training"]["seq_len"], gpus) for gpus in (1, 2))
    return two if not any(one.fits(offer) for offer in offers) and any(two.fits(offer) for offer in offers) else one


def memory_problems(config: JobConfig, shape: Shape, offers: Sequence[Need]) -> Iterator[Problem]:
    """That none of the machines on offer can train it. Without offers nothing is known."""
    if not offers or any(need(config, shape, offers).fits(offer) for offer in offers):
        return
    one, two = (memory.least(shape, kind(config), config["training"]["seq_len"], gpus) for gpus in (1, 2))
    have = " or ".join(map(_told, offers))
    what = "an adapter of" if kind(config) == "lora" else "all weights of"
    takes = f"one GPU of {one.gpu_memory_gib:g} GiB or two of {two.gpu_memory_gib:g} GiB"
    message = f"training {what} {config.base} takes {takes}, and {one.disk_gib:g} GiB of disk; the machines have {have}"
    hint = "use a smaller seq_len or base" if kind(config) == "lora" else "train an adapter: lora_rank = 16"
    hint = hint if any(offer.gpus for offer in offers) else "full-scale jobs need machines with a GPU"
    yield told("job.memory", f"{JOB}:[training] lora_rank", message, hint)


def _told(offer: Need) -> str:
    gpus = f"{offer.gpus} x {offer.gpu_memory_gib:g} GiB" if offer.gpus else "no GPU"
    return gpus if math.isinf(offer.disk_gib) else f"{gpus} and {offer.disk_gib:g} GiB of disk"


def whole(bases: Mapping[str, Shape], offers: Sequence[Need]) -> tuple[str, ...]:
    """The bases of which the machines can train all weights, at the usual length."""
    seq_len = TABLES["training"]["seq_len"].default
    assert isinstance(seq_len, int)
    needs = {base: [memory.least(shape, "full", seq_len, gpus) for gpus in (1, 2)] for base, shape in bases.items()}
    return tuple(base for base, ways in needs.items() if any(way.fits(offer) for way in ways for offer in offers))
