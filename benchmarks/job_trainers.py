"""The two trainers that `job.py` compares, on the same questions, reward and settings."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nested_rl import jobkit, tasks
from nested_rl.inner import nano_grpo
from nested_rl.inner.nano_grpo import Grpo, Recipe
from nested_rl.nano.folder import load_model, weights_path
from nested_rl.nano.model import Qwen3
from nested_rl.pretrain.baselines import measure

FAMILY, PROMPTS, GROUP, MAX_NEW, LR = "calc_chain", 16, 8, 16, 1e-3


def questions(steps: int) -> list[Mapping[str, str]]:
    return list(jobkit.make(FAMILY, random.Random(0), PROMPTS * steps))


def right(completion: str, answer: str) -> float:
    """The kit's parser wants the full stop, which TRL's decoding leaves out with the other special tokens."""
    return float(jobkit.parse(completion if completion.endswith(".") else f"{completion}.") == answer)


def accuracy(model: Qwen3, base: str) -> float:
    """On hidden items."""
    (family,) = tasks.load(FAMILY, scale="nano")
    hidden = family.eval_set(next(family.tasks()), "hidden", salt="job")
    return float(measure(model, load_model(weights_path(base))[1], hidden, hidden.sampling).value)


class Here:
    """The job's environment without its sandbox: TRL has none either."""

    def __init__(self, steps: int) -> None:
        self._rows = questions(steps)

    def examples(self, seed: int, n: int) -> Sequence[Mapping[str, str]]:  # noqa: ARG002 - rows come in order
        taken, self._rows = self._rows[:n], self._rows[n:]
        return taken

    def rewards(self, asked: Sequence[Mapping[str, str]]) -> Sequence[float]:
        return [right(row["completion"], row["answer"]) for row in asked]


def ours(base: str, steps: int) -> Qwen3:
    model, text = load_model(weights_path(base))
    recipe = Recipe(
        steps=steps, learning_rate=LR, batch_size=PROMPTS * GROUP, group_size=GROUP, temperature=1.0, max_tokens=MAX_NEW,
        epochs=1, clip=0.2, kl=0.0, std_normalize=True, weight_decay=0.0, beta2=0.95, grad_clip=1.0, lora_rank=0,
    )  # fmt: skip
    Grpo(model, text, recipe, Here(steps), seed=0, work_limit=1e12).run()
    return model


class Parts:
    """CPU-seconds of our training's parts: sampling, updates. Two readings of the clock a call, of which a step has two."""

    def __init__(self) -> None:
        self.sampling = self.updates = 0.0
        nano_grpo.generate = self._timed("sampling", nano_grpo.generate)
        Grpo._optimise = self._timed("updates", Grpo._optimise)  # noqa: SLF001

    def _timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.process_time()
            found = function(*args, **kwargs)
            setattr(self, part, getattr(self, part) + time.process_time() - started)
            return found

        return timed

    def taken(self) -> tuple[float, float]:
        """Since the last call."""
        found = self.sampling, self.updates
        self.sampling = self.updates = 0.0
        return found


class Theirs:
    """TRL's trainer, built for each job with a folder of its own; only `train` is timed."""

    def __init__(self, base: str, steps: int, folder: str) -> None:
        import torch
        import transformers
        from datasets import Dataset, disable_progress_bars
        from trl import GRPOConfig, GRPOTrainer

        torch.set_num_threads(1)
        transformers.logging.set_verbosity_error()
        disable_progress_bars()
        path, self._folder = str(weights_path(base)), folder
        settings = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            max_steps=steps,
            per_device_train_batch_size=PROMPTS * GROUP,
            num_generations=GROUP,
            max_completion_length=MAX_NEW,
            learning_rate=LR,
            lr_scheduler_type="constant",
            adam_beta2=0.95,
            beta=0.0,
            epsilon=0.2,
            loss_type="dapo",  # a mean over tokens, as here
            temperature=1.0,
            shuffle_dataset=False,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )

        def reward(completions: list[str], answer: list[str], **_: Any) -> list[float]:
            return [right(text, wanted) for text, wanted in zip(completions, answer, strict=True)]

        self._trainer = GRPOTrainer(
            model=transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32),
            reward_funcs=reward,
            args=settings,
            train_dataset=Dataset.from_list([dict(row) for row in questions(steps)]),
            processing_class=transformers.AutoTokenizer.from_pretrained(path, padding_side="left"),
        )

    def train(self) -> None:
        self._trainer.train()

    def save(self) -> None:
        self._trainer.save_model(self._folder)
