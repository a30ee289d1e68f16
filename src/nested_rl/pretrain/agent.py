"""Pre-training of the nano agent on the novice's transcripts: about a minute and a half of one CPU, the same for the same seed.

What comes out writes job files token by token, mostly faulty ones. Everything better is left to the outer loop.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import platform
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from attrs import frozen

from nested_rl import replies
from nested_rl.nano.config import Qwen3Config
from nested_rl.nano.folder import save_model, write_json
from nested_rl.nano.losses import backward_from_coefficients
from nested_rl.nano.model import Qwen3
from nested_rl.nano.optim import Muon
from nested_rl.nano.packing import pack_rows
from nested_rl.nano.threads import single_thread
from nested_rl.nano.tokenizer import Tokenizer
from nested_rl.pretrain import corpus, pieces
from nested_rl.pretrain.corpus import Corpus, Sample, Verdicts
from nested_rl.renderers.nano import CHAT_TEMPLATE, NanoRenderer

NAME: Final = "nano-agent"
PROVENANCE: Final = "provenance.json"


@frozen(kw_only=True)
class Recipe:
    """Everything that makes the agent, besides the seed. `rows` of the `transcripts` are read a step."""

    transcripts: int = 9600
    steps: int = 800
    rows: int = 24
    muon_lr: float = 0.02
    adam_lr: float = 4e-3
    warmup: int = 30
    steady: float = 0.4

    def pace(self, step: int) -> float:
        """The learning rate's factor: warm-up, steady, then linear down to 5 %."""
        done = step / self.steps
        decay = max(0.0, (done - self.steady) / (1 - self.steady))
        return min(1.0, (step + 1) / self.warmup) * (1 - 0.95 * decay)


def config(tokenizer: Tokenizer) -> Qwen3Config:
    """The agent's shape: 115 thousand parameters."""
    return Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        max_position_embeddings=corpus.CONTEXT,
        pad_token_id=tokenizer.pad_id,
        eos_token_id=tokenizer.eos_id,
    )


def replies_digest() -> str:
    """What the agent was taught to read: sha256 of the texts in `nested_rl.replies`."""
    return hashlib.sha256(Path(replies.__file__).read_bytes()).hexdigest()


def build(
    out: str | Path,
    verdicts: Verdicts,
    *,
    seed: int = 0,
    recipe: Recipe = Recipe(),
    log: Callable[[str], None] = lambda line: None,  # noqa: ARG005
) -> Qwen3:
    """Make the corpus, train on it, write the folder `out`; return the model as it will be loaded."""
    tokenizer = pieces.tokenizer()
    renderer = NanoRenderer(tokenizer)
    samples = asyncio.run(collect(Corpus(verdicts, renderer, seed=seed), recipe.transcripts))
    log(summary(samples))
    with single_thread():
        model, loss = train(samples, tokenizer, seed=seed, recipe=recipe, log=log)
    # what is shipped is float16: from here on that is the model
    model.theta[:] = model.theta.astype(np.float16)
    save_model(out, model, tokenizer, "float16", chat_template=CHAT_TEMPLATE, stop_ids=renderer.stop_ids)
    provenance = {
        "made_by": "nested-rl models build",
        "sha256": hashlib.sha256((Path(out) / "model.safetensors").read_bytes()).hexdigest(),
        "replies_sha256": replies_digest(),
        "corpus_version": corpus.VERSION,
        "seed": seed,
        "steps": recipe.steps,
        "transcripts": summary(samples),
        "loss": round(loss, 4),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": f"{platform.machine()} {platform.system()}, numpy {np.__version__}",
    }
    write_json(Path(out) / PROVENANCE, provenance)
    return model


async def collect(source: Corpus, n: int) -> list[Sample]:
    """The first `n` transcripts."""
    found: list[Sample] = []
    async for sample in source.samples():
        found.append(sample)
        if len(found) == n:
            break
    return found


def train(
    samples: Sequence[Sample], tokenizer: Tokenizer, *, seed: int, recipe: Recipe, log: Callable[[str], None]
) -> tuple[Qwen3, float]:
    """A model trained on what the agent said in the samples, and its loss over the last tenth of the steps."""
    model = Qwen3(config(tokenizer), seed=seed)
    optimiser = Muon(model, lr=recipe.muon_lr, adam_lr=recipe.adam_lr)
    losses: list[float] = []
    for step, batch in enumerate(_batches(samples, seed=seed, recipe=recipe)):
        packed = pack_rows([s.ids for s in batch], [s.said for s in batch], tokenizer.pad_id)
        optimiser.lr = recipe.muon_lr * recipe.pace(step)
        optimiser.adam.lr = recipe.adam_lr * recipe.pace(step)
        logprobs = backward_from_coefficients(model, packed, np.full(len(packed), -1 / len(packed), np.float32))
        optimiser.step()
        losses.append(-float(logprobs.mean()))
        if (step + 1) % max(1, recipe.steps // 10) == 0:
            log(f"step {step + 1} of {recipe.steps}: loss {np.mean(losses[-recipe.steps // 10 :]):.3f}")
    return model, float(np.mean(losses[-max(1, recipe.steps // 10) :]))


def _batches(samples: Sequence[Sample], *, seed: int, recipe: Recipe) -> Iterator[list[Sample]]:
    """All samples once, then all of them again in another order, until the steps are done."""
    rng = random.Random(f"agent:{seed}")
    left: list[Sample] = []
    for _ in range(recipe.steps):
        while len(left) < recipe.rows:
            left += rng.sample(samples, len(samples))
        yield left[: recipe.rows]
        del left[: recipe.rows]


def summary(samples: Sequence[Sample]) -> str:
    """One line about a corpus."""
    n = len(samples)
    lengths = [len(s.ids) for s in samples]
    first, some = (sum(getattr(s, name) for s in samples) / n for name in ("valid_first", "valid"))
    return (
        f"{n} transcripts: {sum(lengths) / n:.0f} tokens (longest {max(lengths)}), "
        f"valid at first {first:.2f}, at all {some:.2f}"
    )
