"""The outer trainer of the nano agent, in this process: no account, no GPU, about a third of a CPU-second an update."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from attrs import asdict

from nested_rl.errors import SettingsError, TrainerError
from nested_rl.interfaces import OuterTrainer, Renderer
from nested_rl.nano.folder import load_model, weights_path
from nested_rl.nano.threads import in_engine, single_thread
from nested_rl.trainers import nano_checkpoint
from nested_rl.trainers.nano_learner import Learner, Recipe
from nested_rl.trainers.nano_policy import NanoPolicy
from nested_rl.types import Group, UpdateReport


class NanoTrainer(OuterTrainer):
    """Trains a shipped model or a model folder by token-level importance-sampling GRPO, one gradient step an update.

    The settings are those of `Recipe`. `directory` is where `save` writes; a run gives its own `checkpoints/` otherwise.
    `renderer` turns conversations into ids, by default the nano agent's. Raises SettingsError for settings that cannot work.
    """

    embedded = True

    def __init__(
        self,
        model: str | Path = "nano-agent",
        *,
        lr: float = 1e-2,
        lr_floor: float = 0.1,
        hold_share: float = 0.3,
        horizon: int = 25,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-3,
        weight_decay: float = 0.0,
        clip: float = 1.0,
        kl: float = 0.05,
        trust: float = 0.01,
        ratio_cap: float = 2.0,
        std_floor: float = 0.05,
        renderer: Renderer | None = None,
        lora_rank: int | None = None,
        directory: str | Path | None = None,
    ) -> None:
        try:
            recipe = Recipe(
                lr=lr,
                lr_floor=lr_floor,
                hold_share=hold_share,
                horizon=horizon,
                betas=betas,
                eps=eps,
                weight_decay=weight_decay,
                clip=clip,
                kl=kl,
                trust=trust,
                ratio_cap=ratio_cap,
                std_floor=std_floor,
                lora_rank=lora_rank,
            )
        except (ValueError, TypeError) as error:
            raise SettingsError(f"NanoTrainer: {error.args[0] if error.args else error}") from error
        folder = Path(model) if Path(model).is_dir() else weights_path(str(model))
        start, self.tokenizer = load_model(folder)
        template = folder / "chat_template.jinja"
        self._chat_template = template.read_text("utf-8") if template.is_file() else ""
        self._model = str(model)
        if renderer is None:
            from nested_rl.renderers.nano import NanoRenderer

            renderer = NanoRenderer(self.tokenizer)
        self.renderer = renderer
        self._own_directory = directory is not None
        self._directory = None if directory is None else Path(directory)
        self._learner = Learner(start, recipe)
        self._policy: NanoPolicy | None = None

    @property
    def version(self) -> int:
        """How many updates were made."""
        return self._learner.version

    @property
    def recipe(self) -> Recipe:
        """How it trains."""
        return self._learner.recipe

    def settings(self) -> dict[str, object]:
        """What run.toml records."""
        return {"model": self._model, **asdict(self.recipe)}

    def bind(self, directory: Path) -> None:
        """Where to write checkpoints, for a trainer that was not told."""
        if not self._own_directory:
            self._directory = directory

    async def policy(self) -> NanoPolicy:
        """A sampler with a copy of the current weights; one a version."""
        learner = self._learner
        if self._policy is None:
            self._policy = NanoPolicy(learner.model.copy(), self.renderer, version=learner.version)
        return self._policy

    async def update(self, groups: Sequence[Group]) -> UpdateReport:
        """One step. Raises TrainerError, with the weights as they were, when it cannot be made."""
        before = self._learner
        after = before.fork()
        report = await in_engine(_step, after, groups)
        if self._learner is not before:
            raise TrainerError("two updates ran at once; one trainer takes one step at a time")
        self._become(after)
        return report

    async def save(self, name: str) -> str:
        """Write the checkpoint folder `directory/name`; the reference is the name, which `load` finds there."""
        if self._directory is None:
            raise SettingsError("NanoTrainer(directory=…) is needed to save outside a run")
        if not name or Path(name).name != name or name.startswith("."):
            raise SettingsError(f"a checkpoint's name is one plain file name, not {name!r}")
        await asyncio.to_thread(
            nano_checkpoint.write,
            self._directory,
            name,
            self._learner,  # never changed in place, so the thread sees one state
            self.tokenizer,
            base=self._model,
            chat_template=self._chat_template,
            stops=self.renderer.stop_ids,
        )
        return str(self._directory / name) if self._own_directory else name

    async def load(self, ref: str) -> None:
        """Become a checkpoint: by the reference that `save` gave, or by the path of its folder."""
        folder = Path(ref) if self._directory is None else nano_checkpoint.settled(self._directory / ref)
        if not folder.is_dir():
            raise TrainerError(f"{folder}: no such checkpoint")
        start, recipe = self._learner.start, self._learner.recipe
        self._become(await asyncio.to_thread(nano_checkpoint.read, folder, start, recipe))

    async def forget(self, ref: str) -> None:
        """Delete a checkpoint. Raises RunDirError when it cannot be deleted."""
        folder = Path(ref) if self._directory is None else self._directory / ref
        await asyncio.to_thread(nano_checkpoint.delete, folder)

    def export_adapter(self, path: str | Path) -> None:
        """Write the adapter as a PEFT folder; only with `lora_rank`."""
        if self._learner.lora is None:
            raise SettingsError("there is no adapter: all weights are trained; use NanoTrainer(lora_rank=8)")
        self._learner.lora.save(path, base=self._model)

    def _become(self, learner: Learner) -> None:
        self._learner = learner
        self._policy = None


def _step(learner: Learner, groups: Sequence[Group]) -> UpdateReport:
    # what overflows is found by the learner's own checks, which say more than a warning
    with single_thread(), np.errstate(over="ignore", invalid="ignore"):
        return learner.step(groups)
