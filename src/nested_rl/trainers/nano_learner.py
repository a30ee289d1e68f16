"""One gradient step of the nano agent: truncated importance sampling, KL to the start, and a trust region.

A learner is never changed while others may look at it: `fork` it, step the fork, and put it in the place of the old one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import Attribute, field, frozen, validators

from nested_rl import grpo
from nested_rl.errors import TrainerError
from nested_rl.nano.arrays import Floats
from nested_rl.nano.lora import LoRA
from nested_rl.nano.losses import Scored, backward, score
from nested_rl.nano.model import Qwen3
from nested_rl.nano.optim import AdamW
from nested_rl.nano.packing import Packed, pack_rows
from nested_rl.types import Group, UpdateReport

_MAX_HALVINGS = 20


def _number(_: object, attribute: Attribute[float], value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{attribute.name} must be a number, not {value!r}")


def _count(_: object, attribute: Attribute[int], value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{attribute.name} must be a whole number, not {value!r}")


@frozen(kw_only=True)
class Recipe:
    """How the agent is trained.

    `lr` holds for `hold_share` of `horizon` updates, then falls linearly to `lr · lr_floor`. `kl` weighs the full KL to the
    starting weights, per token. `trust` bounds the mean token KL(old‖new) of one step: the step is halved until it fits.
    `ratio_cap` truncates importance ratios, `std_floor` is added to a group's deviation, `clip` bounds the gradient norm.
    With `lora_rank` only an adapter is trained.
    """

    lr: float = field(default=1e-2, validator=[_number, validators.gt(0)])
    lr_floor: float = field(default=0.1, validator=[_number, validators.ge(0), validators.le(1)])
    hold_share: float = field(default=0.3, validator=[_number, validators.ge(0), validators.lt(1)])
    horizon: int = field(default=25, validator=[_count, validators.ge(1)])
    betas: tuple[float, float] = (0.9, 0.99)
    eps: float = field(default=1e-3, validator=[_number, validators.gt(0)])
    weight_decay: float = field(default=0.0, validator=[_number, validators.ge(0)])
    clip: float = field(default=1.0, validator=[_number, validators.gt(0)])
    kl: float = field(default=0.05, validator=[_number, validators.ge(0)])
    trust: float = field(default=0.01, validator=[_number, validators.gt(0)])
    ratio_cap: float = field(default=2.0, validator=[_number, validators.gt(0)])
    std_floor: float = field(default=0.05, validator=[_number, validators.ge(0)])
    lora_rank: int | None = field(default=None, validator=validators.optional([_count, validators.ge(1)]))

    def lr_at(self, step: int) -> float:
        """The learning rate of update number `step`, from 0.

        >>> [round(Recipe(horizon=11).lr_at(s), 4) for s in (0, 3, 10, 99)]
        [0.01, 0.01, 0.001, 0.001]
        """
        done = min(1.0, step / max(1, self.horizon - 1))
        fallen = max(0.0, (done - self.hold_share) / (1 - self.hold_share))
        return self.lr * (1 - (1 - self.lr_floor) * fallen)


class Learner:
    """Weights, optimiser and version. `start` are the weights the KL is taken to; it is shared and never written."""

    def __init__(self, start: Qwen3, recipe: Recipe) -> None:
        self.start, self.recipe, self.version = start, recipe, 0
        self.model = start.copy()
        rank = recipe.lora_rank
        self.lora = None if rank is None else LoRA(self.model, rank=rank, alpha=2 * rank)
        self.optimiser = AdamW(
            self.lora or self.model,
            lr=recipe.lr,
            betas=recipe.betas,
            eps=recipe.eps,
            weight_decay=recipe.weight_decay,
            clip=recipe.clip,
        )

    @property
    def theta(self) -> Floats:
        """The trained vector: the adapter's or the model's."""
        return self.optimiser.target.theta

    def set_theta(self, theta: Floats) -> None:
        """Overwrite the trained vector; the model follows."""
        self.theta[:] = theta
        if self.lora is not None:
            self.lora.merge()

    def fork(self) -> Learner:
        """The same state in memory of its own."""
        twin = Learner(self.start, self.recipe)
        twin.version = self.version
        twin.set_theta(self.theta)
        twin.optimiser.restore(self.optimiser.state())
        return twin

    def step(self, groups: Sequence[Group]) -> UpdateReport:
        """One update; raises TrainerError when the numbers stop being finite. The version advances in any case."""
        found = [d for g in groups for d in grpo.group_datums(g, std_floor=self.recipe.std_floor)]
        self.version += 1
        if not found:
            return UpdateReport(version=self.version, stepped=False)
        packed = self._pack(found)
        sampled = np.concatenate([d.sampled for d in found])
        old = np.concatenate([d.logprobs for d in found])[sampled]
        advantage = np.concatenate([d.advantages for d in found])[sampled]
        signal = bool(advantage.any())
        before = score(self.model, packed, tape=signal)
        start = score(self.start, packed).distribution
        ratio = grpo.ratios(before.logprobs, old)
        metrics = {
            "tokens": float(len(packed)),
            "entropy": float(before.entropy.mean()),
            "kl": float(_kl(before, start).mean()),
        }
        if signal:
            weights = grpo.coefficients(ratio, advantage, cap=self.recipe.ratio_cap, tokens=len(packed))
            metrics |= self._descend(packed, before, weights, start)
        stats = grpo.RatioStats.of(ratio)
        return UpdateReport(
            version=self.version,
            stepped=signal,
            ratio_mean=stats.mean,
            ratio_max=stats.max,
            ess=stats.ess,
            metrics=metrics,
        )

    def gradient(self, before: Scored, weights: Floats, start: Floats) -> Floats:
        """Gradient of the trained vector: coefficients [k] of the log-probabilities, plus the KL to `start` [k, vocab]."""
        log_ratio = before.distribution - start
        dkl = before.probabilities * (log_ratio - _kl(before, start)[:, None])
        self.model.zero_grad()
        backward(self.model, before, weights, dkl * (self.recipe.kl / len(weights)))
        if self.lora is not None:
            self.lora.pull()
        return self.optimiser.target.grad

    def _descend(self, packed: Packed, before: Scored, weights: Floats, start: Floats) -> dict[str, float]:
        gradient = self.gradient(before, weights, start)
        if not np.isfinite(gradient).all():
            raise TrainerError(f"update {self.version}: the gradient is not finite; the weights were left as they were")
        self.optimiser.lr = self.recipe.lr_at(self.version - 1)
        origin = self.theta.copy()
        norm = self.optimiser.step()
        target = self.theta.copy()
        for halvings in range(_MAX_HALVINGS):
            self.set_theta(origin + (target - origin) * 0.5**halvings)
            moved = float(_kl(before, score(self.model, packed).distribution).mean())
            if moved <= self.recipe.trust:
                break
        else:
            raise TrainerError(f"update {self.version}: no step is small enough, KL {moved:.3g} > {self.recipe.trust}")
        return {"grad_norm": norm, "halvings": float(halvings), "step_kl": moved, "lr": self.optimiser.lr}

    def _pack(self, found: Sequence[grpo.Datum]) -> Packed:
        c = self.model.config
        longest = max(len(d.tokens) for d in found)
        if longest > c.max_position_embeddings:
            raise TrainerError(f"a sequence has {longest} tokens, the model reads {c.max_position_embeddings}")
        if max(max(d.tokens) for d in found) >= c.vocab_size:
            raise TrainerError("a sequence has ids outside the vocabulary: it was sampled from another model")
        return pack_rows([d.tokens for d in found], [[False, *d.sampled] for d in found], c.pad_token_id)


def _kl(p: Scored, log_q: Floats) -> Floats:
    """KL(p‖q) [k] of whole distributions, in nats."""
    nats: Floats = np.einsum("kv,kv->k", p.probabilities, p.distribution - log_q)
    return nats
