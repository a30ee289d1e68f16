"""The outer trainer on Tinker: LoRA of a large model on somebody else's GPUs, or on a lab's own behind the same API.

trainer = TinkerTrainer("Qwen/Qwen3.6-35B-A3B", rank=8, lr=4e-5)              # the hosted service, key in TINKER_API_KEY
trainer = TinkerTrainer("Qwen/Qwen3-8B", base_url="http://gpu-host:8000")     # a server of your own
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import asdict, evolve

from nested_rl import redact
from nested_rl.errors import SettingsError, TrainerError
from nested_rl.interfaces import OuterTrainer, Renderer
from nested_rl.trainers import tinker_adapter, tinker_prices
from nested_rl.trainers.tinker_datums import Batch
from nested_rl.trainers.tinker_errors import plainly
from nested_rl.trainers.tinker_policy import TinkerPolicy, renderer_for
from nested_rl.trainers.tinker_prices import Billed, Prices, Tokens
from nested_rl.trainers.tinker_recipe import Keeping, Loss, Recipe
from nested_rl.trainers.tinker_service import Service, checked_url, named
from nested_rl.trainers.tinker_update import Training, Update
from nested_rl.types import Group, UpdateReport

log = redact.logger(__name__)


class TinkerTrainer(OuterTrainer):
    """Trains `model` by token-level importance-sampling GRPO, one gradient step an update, with snapshot samplers.

    The settings from `rank` to `seed` are those of `Recipe`. `ttl_days` is how long a checkpoint lives on the server (None:
    for ever), `canary_every` after how many updates it is proven that the new weights reached the sampler (0: never).
    `prices` (`prefill_usd_per_mtok`, `sample_usd_per_mtok`, `train_usd_per_mtok`, and if you like `source` and `as_of`)
    turns tokens into dollars. The key is TINKER_API_KEY; with `base_url` it is the variable `key_env`, by default none.
    `context_tokens` and `renderer` are asked of the server and chosen by the model unless given.
    """

    def __init__(
        self,
        model: str,
        *,
        rank: int = 8,
        lr: float = 4e-5,
        loss: Loss = "importance_sampling",
        ratio_cap: float | None = 2.0,
        clip_range: tuple[float, float] = (0.8, 1.2),
        kl: float = 0.0,
        std_floor: float = 0.05,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        clip: float = 0.0,
        seed: int = 0,
        ttl_days: float | None = 30.0,
        canary_every: int = 1,
        prices: Prices | Mapping[str, Any] | None = None,
        base_url: str | None = None,
        key_env: str = "",
        project_id: str | None = None,
        context_tokens: int | None = None,
        renderer: Renderer | None = None,
    ) -> None:
        try:
            self.recipe = Recipe(
                rank=rank,
                lr=lr,
                loss=loss,
                ratio_cap=ratio_cap,
                clip_range=clip_range,
                kl=kl,
                std_floor=std_floor,
                betas=betas,
                eps=eps,
                weight_decay=weight_decay,
                clip=clip,
                seed=seed,
            )
            self.keeping = Keeping(ttl_days=ttl_days, canary_every=canary_every)
        except (ValueError, TypeError) as error:
            raise SettingsError(f"TinkerTrainer: {error.args[0] if error.args else error}") from error
        if not isinstance(model, str) or not model:
            raise SettingsError("TinkerTrainer needs the name of a model, as the server calls it")
        self.model, self.base_url = model, checked_url(base_url)
        self.prices, self.tokens, self.usd = tinker_prices.prices(prices), Tokens(), 0.0
        self.key_env, self._project = key_env, project_id
        self._context, self._renderer = context_tokens, renderer
        self._version = 0
        self._service: Service | None = None
        self._open: Training | None = None
        self._opening = asyncio.Lock()
        self._start: Any = None
        self._failed = ""

    @property
    def version(self) -> int:
        """How many updates were made."""
        return self._version

    def settings(self) -> dict[str, object]:
        """What run.toml records."""
        where = {"base_url": self.base_url, "key_env": self.key_env} if self.base_url else {}
        return {"model": self.model, **asdict(self.recipe), **where}

    # -- the seam

    async def policy(self) -> TinkerPolicy:
        """A sampler with a snapshot of the current weights."""
        now = await self._training()
        if self._renderer is None:  # a tokenizer may have to be downloaded
            self._renderer = await asyncio.to_thread(renderer_for, self.model, now.client.get_tokenizer)
        return TinkerPolicy(
            now.sampler,
            self._renderer,
            sdk=self._sdk,
            version=self._version,
            context_tokens=now.context_tokens,
            count=self._count,
        )

    async def update(self, groups: Sequence[Group]) -> UpdateReport:
        """One step. After a TrainerError the weights on the server are not known: load a checkpoint to go on."""
        now = await self._training()
        batch = Batch.of(groups, version=self._version, std_floor=self.recipe.std_floor, flat=self.recipe.kl > 0)
        if not batch.datums:
            self._version += 1
            return UpdateReport(version=self._version, stepped=False)
        number, every, usd = self._version + 1, self.keeping.canary_every, 0.0

        def count(tokens: Tokens) -> float:
            nonlocal usd  # of this update alone: turns are sampled meanwhile, and paid for by episode
            usd += (price := self._count(tokens))
            return price

        step = Update(
            training=now,
            recipe=self.recipe,
            sdk=self._sdk,
            number=number,
            canary=bool(every) and self._version % every == 0,
            count=count,
        )
        try:
            start = await self._starting_sampler() if self.recipe.kl > 0 else None
            report = await step.run(batch, start)
        except BaseException as error:
            self._failed = f"update {number} was not finished ({type(error).__name__}: {error})"
            raise
        report = evolve(report, usd=usd, metrics={**report.metrics, **self._counts()})
        self._version = report.version
        return report

    async def save(self, name: str) -> str:
        """Save weights and optimiser on the server; the reference tells where, and the version."""
        if not name or Path(name).name != name or name.startswith("."):
            raise SettingsError(f"a checkpoint's name is one plain file name, not {name!r}")
        now, version = await self._training(), self._version
        # a name of its own each time: not every server replaces a checkpoint, and an older one stays whole until it expires
        own = f"{name}-{secrets.token_hex(4)}"
        with plainly(f"saving {name}"):
            saved = await now.client.save_state(own, ttl_seconds=self.keeping.ttl_s)
        return named(saved.path, version)

    async def load(self, ref: str) -> None:
        """Become a checkpoint, by the reference that `save` gave."""
        service = await self._opened()
        context = await asyncio.to_thread(self._reads, service)
        client, version = await asyncio.to_thread(service.resume, ref)
        self._open = await asyncio.to_thread(self._trained, service, client, context)
        self._version, self._failed = version, ""

    async def forget(self, ref: str) -> None:
        """Delete a checkpoint on the server, which charges for storage."""
        service = await self._opened()
        await asyncio.to_thread(service.delete, ref)

    async def close(self) -> None:
        """End the session. What was saved stays on the server."""
        service, self._service, self._open, self._start = self._service, None, None, None
        if service is not None:
            await asyncio.to_thread(service.close, well=not self._failed)
        self._version, self._failed = 0, ""
        self._opening = asyncio.Lock()  # the next run may have another event loop

    # -- more than the seam asks for

    async def export_adapter(self, path: str | Path, *, ref: str | None = None) -> None:
        """Download an adapter as a PEFT folder: the current one, or that of a checkpoint."""
        if ref is not None:
            await self.load(ref)
        now, service = await self._training(), await self._opened()
        name = f"export-{secrets.token_hex(4)}"
        urls = await asyncio.to_thread(service.external_urls, now.client, name, ttl_s=3600)
        await tinker_adapter.download(urls, Path(path))

    async def billed(self, starting_on: str, ending_before: str) -> Billed:
        """What the provider has counted for this trainer's sessions in a window of whole UTC hours (RFC 3339).

        Figures lag by hours, and the key needs the billing role. `.against(trainer.tokens, trainer.usd)` compares.
        """
        service = await self._opened()
        return tinker_prices.billed(*await asyncio.to_thread(service.usage, starting_on, ending_before))

    # -- opening

    @property
    def _sdk(self) -> Any:
        assert self._service is not None
        return self._service.sdk

    async def _opened(self) -> Service:
        if self._service is None:
            self._service = await asyncio.to_thread(
                Service, self.model, base_url=self.base_url, key_env=self.key_env, project_id=self._project
            )
        return self._service

    async def _training(self) -> Training:
        if self._failed:
            raise TrainerError(f"{self._failed}; load a checkpoint to go on")
        async with self._opening:
            if self._open is None:
                service = await self._opened()
                self._open = await asyncio.to_thread(self._fresh, service)
            return self._open

    def _fresh(self, service: Service) -> Training:
        context = self._reads(service)
        return self._trained(service, service.start(rank=self.recipe.rank, seed=self.recipe.seed), context)

    def _trained(self, service: Service, client: Any, context: int) -> Training:
        return Training(client=client, sampler=service.snapshot(client), context_tokens=context)

    def _reads(self, service: Service) -> int:
        """How many tokens the model reads. The server is asked in any case: it tells whether key, account and model are good."""
        told = service.context_tokens()
        found = self._context or told
        if not found:
            raise SettingsError(
                f"the server does not say how much {self.model} reads; give TinkerTrainer(context_tokens=…)"
            )
        return found

    async def _starting_sampler(self) -> Any:
        if self._start is None:
            service = await self._opened()
            self._start = await asyncio.to_thread(service.base_sampler)
        return self._start

    # -- counting

    def _count(self, tokens: Tokens) -> float:
        """Add to what was used; the price of these tokens, 0 where prices are not known."""
        if self.prices is None and self.tokens == Tokens():
            log.warning(
                "no prices are known for %s: its cost is counted in tokens and shown as $0; give prices=… to hold a budget",
                self.model,
            )
        usd = 0.0 if self.prices is None else self.prices.usd(tokens)
        self.tokens, self.usd = self.tokens + tokens, self.usd + usd
        return usd

    def _counts(self) -> dict[str, float]:
        """What was used up to now, by what is billed."""
        used = {f"used_{kind}_tokens": float(n) for kind, n in asdict(self.tokens).items()}
        return used | {"prices_known": float(self.prices is not None)}
