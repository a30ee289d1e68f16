"""One update on Tinker: reference and ratios where they are needed, then gradient, step, snapshot and canary in one go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from attrs import define, frozen

from nested_rl import grpo
from nested_rl.errors import TrainerError
from nested_rl.trainers.tinker_canary import judge
from nested_rl.trainers.tinker_datums import Batch, logprobs
from nested_rl.trainers.tinker_errors import plainly
from nested_rl.trainers.tinker_prices import Tokens
from nested_rl.trainers.tinker_recipe import Recipe
from nested_rl.types import UpdateReport

if TYPE_CHECKING:
    from nested_rl.trainers.tinker_datums import Floats

_CANARIES: Final = 2
"""Sequences that are scored again to see whether the new weights arrived."""


@define(kw_only=True)
class Training:
    """What is open: the training client, the newest sampler, and how much the model reads."""

    client: Any
    sampler: Any
    context_tokens: int


@frozen(kw_only=True)
class Update:
    """Update `number`. `count` is told what was used; with `canary` it is proven that the sampler has the new weights."""

    training: Training
    recipe: Recipe
    sdk: Any
    number: int
    canary: bool
    count: Callable[[Tokens], float]

    async def run(self, batch: Batch, start: Any) -> UpdateReport:
        """Train on `batch`; `start` samples from the starting weights, and is needed for the KL to them."""
        recipe = self.recipe
        metrics = {"tokens": float(batch.trained), "sequences": float(len(batch.datums)), **batch.staleness()}
        if recipe.kl > 0:
            reference = await self._scored_by(start, batch)
            metrics["kl"] = batch.start_kl(reference)
            batch = batch.pulled(reference, recipe.kl)
        sent = batch
        if recipe.loss == "importance_sampling" and recipe.ratio_cap is not None:
            sent = batch.truncated(await self._forward(batch), recipe.ratio_cap)
        watched = batch.loudest(_CANARIES) if self.canary else []
        gradient, sampler, scored = await self._submit(sent, watched)
        stats = grpo.RatioStats.of(batch.ratios(gradient))
        metrics["logprob_gap"] = batch.gap(gradient)
        if watched:
            metrics |= await self._prove(sampler, batch.take(watched), [gradient[i] for i in watched], scored)
        self.training.sampler = sampler
        return UpdateReport(
            version=self.number,
            stepped=True,
            ratio_mean=stats.mean,
            ratio_max=stats.max,
            ess=stats.ess,
            metrics=metrics,
        )

    async def _submit(self, batch: Batch, watched: Sequence[int]) -> tuple[list[Floats], Any, list[Floats]]:
        """Log-probabilities before the step, the new sampler, and those of the watched sequences after the step.

        All is submitted at once: the server runs it in this order, with no waiting in between.
        """
        recipe, client = self.recipe, self.training.client

        def submit() -> tuple[Any, ...]:
            data = batch.wire(self.sdk)
            return (
                client.forward_backward(data, recipe.loss, recipe.loss_config()),
                client.optim_step(self._adam()),
                client.save_weights_and_get_sampling_client(kind="snapshot"),
                client.forward([data[i] for i in watched], recipe.loss, recipe.loss_config()) if watched else None,
            )

        with plainly(f"update {self.number}"):
            gradient, step, sampler, scored = await asyncio.to_thread(submit)
            before = logprobs(await gradient)
            await step
            found = before, await sampler, logprobs(await scored) if watched else []
        self.count(Tokens(train=batch.tokens + batch.take(watched).tokens))
        return found

    def _adam(self) -> Any:
        recipe = self.recipe
        return self.sdk.AdamParams(
            learning_rate=recipe.lr,
            beta1=recipe.betas[0],
            beta2=recipe.betas[1],
            eps=recipe.eps,
            weight_decay=recipe.weight_decay,
            grad_clip_norm=recipe.clip,
        )

    async def _forward(self, batch: Batch) -> list[Floats]:
        """Log-probabilities of all targets under the weights in training."""
        recipe = self.recipe
        with plainly(f"scoring the batch of update {self.number}"):
            data = await asyncio.to_thread(batch.wire, self.sdk)
            output = await self.training.client.forward(data, recipe.loss, recipe.loss_config())
        self.count(Tokens(train=batch.tokens))
        return logprobs(output)

    async def _scored_by(self, sampler: Any, batch: Batch) -> list[Floats]:
        """Log-probabilities of all targets under a sampler's weights."""
        with plainly("scoring with a sampler"):
            asked = [sampler.compute_logprobs(self.sdk.ModelInput.from_ints(list(d.tokens))) for d in batch.datums]
            # from the end: what stands for the first token, which nothing predicts, differs between servers
            found = [(await one)[-len(d.targets) :] for one, d in zip(asked, batch.datums, strict=True)]
        self.count(Tokens(prefill=batch.tokens + len(batch.datums)))
        return batch.complete(found)

    async def _prove(
        self, sampler: Any, batch: Batch, before: Sequence[Floats], after: Sequence[Floats]
    ) -> dict[str, float]:
        """Raises TrainerError when the new sampler answers with old weights: the run would learn nothing."""
        told = await self._scored_by(sampler, batch)
        canary = judge(batch.sampled(before), batch.sampled(after), batch.sampled(told))
        if canary.verdict == "stale":
            raise TrainerError(
                f"the sampler made after update {self.number} does not have the new weights: of the trainer's change of "
                f"{canary.moved:.3g} nats a token it shows {canary.share:.0%}"
            )
        return {
            "canary_moved": canary.moved,
            "canary_share": canary.share,
            "canary_proven": float(canary.verdict == "new"),
        }
