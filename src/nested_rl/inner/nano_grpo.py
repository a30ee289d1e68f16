"""GRPO on a nano model: groups of samples, rewards from the job's environment, a clipped policy gradient, AdamW."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from attrs import define, field, frozen

from nested_rl.errors import AgentFault, SettingsError
from nested_rl.nano.arrays import Floats, Ints
from nested_rl.nano.lora import LoRA
from nested_rl.nano.losses import backward_from_coefficients, token_logprobs
from nested_rl.nano.model import Qwen3
from nested_rl.nano.optim import AdamW
from nested_rl.nano.packing import Packed, pack_groups
from nested_rl.nano.sampling import Samples, generate, pad_left
from nested_rl.nano.serve import encode
from nested_rl.nano.tokenizer import Tokenizer

_SAME = 1e-6
"""Rewards of a group that differ by less than this (standard deviation) teach nothing."""
_FLOOR = 1e-2
"""Added to the deviation that advantages are divided by, so that hair-splitting rewards stay small."""


@frozen(kw_only=True)
class Recipe:
    """What a job.toml asks for, every key with its value. See the surface in `nested_rl.inner.nano`."""

    steps: int
    learning_rate: float
    batch_size: int
    group_size: int
    temperature: float
    max_tokens: int
    epochs: int
    clip: float
    kl: float
    std_normalize: bool
    weight_decay: float
    beta2: float
    grad_clip: float
    lora_rank: int

    @property
    def prompts(self) -> int:
        """Prompts a step."""
        return max(1, self.batch_size // self.group_size)


class Environment(Protocol):
    """The job's environment.py, somewhere safe."""

    def examples(self, seed: int, n: int) -> Sequence[Mapping[str, str]]:
        """About `n` rows with `prompt` and `answer`."""

    def rewards(self, rows: Sequence[Mapping[str, str]]) -> Sequence[float]:
        """One finite number for each row of `prompt`, `completion`, `answer`."""


@define
class Account:
    """What a job has used, and what it has seen."""

    parameters: int
    limit: float
    sampled: int = 0
    trained: int = 0
    rows: int = 0
    held_out: int = 0
    silent_groups: int = 0
    curve: list[float] = field(factory=list)
    log: list[str] = field(factory=list)

    @property
    def work(self) -> float:
        """(sampled + trained tokens) × parameters."""
        return float((self.sampled + self.trained) * self.parameters)

    def check(self) -> None:
        """Raise AgentFault when the job has used more than it is allowed."""
        if self.work > self.limit:
            raise AgentFault(
                f"work limit: {self.work:.3g} (sampled + trained tokens, times parameters) is over {self.limit:.3g} "
                f"after step {len(self.curve) + 1}; use fewer steps, a smaller batch_size or shorter replies"
            )


class Grpo:
    """One job's training. `model` is changed in place; all randomness comes from `seed`."""

    def __init__(
        self,
        model: Qwen3,
        tokenizer: Tokenizer,
        recipe: Recipe,
        environment: Environment,
        *,
        seed: int,
        work_limit: float,
        held_out: Callable[[str], bool] = lambda prompt: False,  # noqa: ARG005
    ) -> None:
        self.model, self.tokenizer, self.recipe, self.environment = model, tokenizer, recipe, environment
        self.account = Account(model.size, work_limit)
        self._held_out = held_out
        self._seed = seed
        self._rng = np.random.default_rng([seed, 1])
        self._reference = model.copy() if recipe.kl else None
        self._lora = (
            LoRA(model, rank=recipe.lora_rank, alpha=2 * recipe.lora_rank, seed=seed) if recipe.lora_rank else None
        )
        self._optimiser = AdamW(
            self._lora or model,
            lr=recipe.learning_rate,
            betas=(0.9, recipe.beta2),
            weight_decay=recipe.weight_decay,
            clip=recipe.grad_clip,
        )

    def run(self) -> Account:
        """All steps. Raises AgentFault for what the job's own settings or data lead to."""
        with np.errstate(all="ignore"):  # what overflows is found by `_update` and told as a fault
            for step in range(self.recipe.steps):
                self._step(step)
        return self.account

    def _step(self, step: int) -> None:
        rows = self._rows(step)
        taught, norm, length = 0, 0.0, 0.0
        rewards = np.zeros(0)
        if rows:
            group, prompts = self.recipe.group_size, self._prompts(rows)
            samples = generate(
                self.model,
                prompts,
                group=group,
                max_new=self.recipe.max_tokens,
                temperature=self.recipe.temperature,
                rng=self._rng,
            )
            self.account.sampled += int(samples.lengths.sum())
            self.account.check()
            rewards = self._rewards(rows, samples)
            advantages, kept = centred(rewards, normalize=self.recipe.std_normalize)
            taught, length = int(kept.sum()), float(samples.lengths.mean())
            self.account.silent_groups += len(rows) - taught
            if taught:
                norm = self._update(step, prompts[kept], samples, advantages[kept], kept)
        mean = float(rewards.mean()) if rewards.size else 0.0
        self.account.curve.append(mean)
        self.account.log.append(
            f"step {step + 1}: reward {mean:.3f}, {taught} of {len(rows)} groups differ, "
            f"{length:.1f} tokens a reply, gradient {norm:.2g}"
        )

    def _rows(self, step: int) -> list[Mapping[str, str]]:
        """The step's rows, without those that belong to an evaluation."""
        n = self.recipe.prompts
        rows = list(self.environment.examples(_derived(self._seed, step), n))[:n]
        kept = [row for row in rows if not self._held_out(row["prompt"])]
        self.account.rows += len(rows)
        self.account.held_out += len(rows) - len(kept)
        return kept

    def _prompts(self, rows: Sequence[Mapping[str, str]]) -> Ints:
        try:
            ids = [encode(self.tokenizer, self.model, row["prompt"]) for row in rows]
        except SettingsError as error:
            raise AgentFault(f"examples: {error}") from error
        longest, context = max(map(len, ids)), self.model.config.max_position_embeddings
        if longest + self.recipe.max_tokens > context:
            raise AgentFault(
                f"examples: a prompt has {longest} tokens; with max_tokens {self.recipe.max_tokens} that is more than "
                f"the {context} that the model reads"
            )
        return pad_left(ids, self.tokenizer.pad_id)

    def _rewards(self, rows: Sequence[Mapping[str, str]], samples: Samples) -> Floats:
        """One reward a sample [prompts, group]."""
        group = self.recipe.group_size
        texts = [self.tokenizer.decode(ids[:n]) for ids, n in zip(samples.ids, samples.lengths, strict=True)]
        asked = [
            {"prompt": rows[i // group]["prompt"], "completion": text, "answer": rows[i // group]["answer"]}
            for i, text in enumerate(texts)
        ]
        rewards = np.asarray(self.environment.rewards(asked), np.float64).reshape(len(rows), group)
        if not np.isfinite(rewards.sum()):
            raise AgentFault(
                f"reward: values as large as {np.abs(rewards).max():g} cannot be averaged; scale it to 0 to 1"
            )
        return rewards

    def _update(self, step: int, prompts: Ints, samples: Samples, advantages: Floats, kept: Floats) -> float:
        """`epochs` optimiser steps on the groups that differ; the last gradient's norm."""
        group = advantages.shape[1]
        completions = samples.ids.reshape(-1, group, samples.ids.shape[1])[kept]
        lengths = samples.lengths.reshape(-1, group)[kept]
        packed = pack_groups(prompts, completions, lengths, self.tokenizer.pad_id)
        i, g, t = packed.index.T
        before = samples.logprobs.reshape(-1, group, samples.ids.shape[1])[kept][i, g, t]
        fed = int((prompts != self.tokenizer.pad_id).sum() + np.maximum(lengths - 1, 0).sum())
        reference = None
        if self._reference is not None:
            self.account.trained += fed
            reference = token_logprobs(self._reference, packed, temperature=self.recipe.temperature)
        norm = 0.0
        for _ in range(self.recipe.epochs):
            self.account.trained += fed
            self.account.check()
            norm = self._optimise(step, packed, advantages[i, g], before, reference)
        return norm

    def _optimise(
        self, step: int, packed: Packed, advantages: Floats, before: Floats, reference: Floats | None
    ) -> float:
        recipe, model = self.recipe, self.model

        def coefficients(logprobs: Floats) -> Floats:
            return gradient(logprobs, before, advantages, clip=recipe.clip, reference=reference, kl=recipe.kl)

        backward_from_coefficients(model, packed, coefficients, temperature=recipe.temperature)
        if self._lora is not None:
            self._lora.pull()
        norm = self._optimiser.step()
        if self._lora is not None:
            self._lora.merge()
        if not np.isfinite(norm) or not np.isfinite(model.theta).all():
            raise AgentFault(
                f"training diverged at step {step + 1}: the weights are no longer finite; lower learning_rate"
            )
        return norm


def centred(rewards: Floats, *, normalize: bool) -> tuple[Floats, Floats]:
    """rewards [n, group] -> advantages [n, group], and which groups differ at all [n].

    >>> advantages, kept = centred(np.array([[1.0, 0.0], [0.5, 0.5]]), normalize=False)
    >>> advantages.tolist(), kept.tolist()
    ([[0.5, -0.5], [0.0, 0.0]], [True, False])
    """
    deviation = rewards.std(1, ddof=1, keepdims=True)
    advantages = rewards - rewards.mean(1, keepdims=True)
    if normalize:
        advantages = advantages / (deviation + _FLOOR)
    return advantages, deviation[:, 0] > _SAME


def gradient(
    logprobs: Floats,
    before: Floats,
    advantages: Floats,
    *,
    clip: float,
    reference: Floats | None = None,
    kl: float = 0.0,
) -> Floats:
    """dLoss/dlogprob [k] of the clipped policy gradient, averaged over tokens, plus `kl` times the k3 estimate to `reference`.

    A token whose probability has already moved by more than `clip` in the direction of its advantage adds nothing.
    """
    ratio = np.exp(logprobs - before)
    moved = np.where(advantages > 0, ratio > 1 + clip, ratio < 1 - clip)
    coefficients = -advantages * np.where(moved, 0, ratio)
    if reference is not None:
        coefficients = coefficients + kl * (1 - np.exp(reference - logprobs))
    out: Floats = coefficients / len(logprobs)
    return out


def _derived(seed: int, step: int) -> int:
    return int.from_bytes(hashlib.sha256(f"examples/{seed}/{step}".encode()).digest()[:6], "big")
