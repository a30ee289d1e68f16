"""Pre-training of the two bases, `nano-m` and `nano-s`: deterministic, numpy only, under a minute of one CPU each.

A base first reads clean chains of its families (80 % of the steps), then text in which most answers skip the working and
some chains have slips. The first part plants the skill, the second hides it: what a base scores untrained is set by
`Mix.think`, the share of second-part text that still shows its working. Reinforcement learning on such a base is mostly
eliciting and de-noising what is there; it does not teach a skill that pre-training left out.

`nano-m` leads on every family but dispatch, of which it reads next to nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from attrs import frozen

from nested_rl import tasks
from nested_rl.chains import ChainFamily, Style
from nested_rl.errors import UnknownName
from nested_rl.nano.config import Qwen3Config
from nested_rl.nano.folder import save_model
from nested_rl.nano.losses import backward_from_coefficients
from nested_rl.nano.model import Qwen3
from nested_rl.nano.optim import Muon
from nested_rl.nano.packing import Packed, pack_pairs
from nested_rl.nano.threads import single_thread
from nested_rl.nano.tokenizer import Tokenizer

ALPHABET = ">?0123456789abcdefghijklmnopqrstuvwxyzRLXN+-*<| \n:,=/()[]{}!$"
CHAT_TEMPLATE = (
    "{%- for m in messages %}"
    "{%- if m['role'] == 'user' %}{{ m['content'].rstrip('?') + '?' }}"
    "{%- elif m['role'] == 'assistant' %}{{ m['content'].rstrip('.') + '.' }}"
    "{%- endif %}{%- endfor %}"
)
"""A question ends in `?`, an answer in `.`; anything else that chats have is dropped."""


@frozen
class Mix:
    """How one family is read. `weight`: its share of the text, relative to the others. The rest is about the second part.

    `think`: share of texts that show working; `rate`: how often a state in it is garbled; `lazy`: share of the others that
    give a hasty solver's answer instead of the right one.
    """

    weight: float
    think: float
    lazy: float = 0.9
    rate: float = 0.05

    def style(self, turn: int) -> Style:
        """The style of a family's text number `turn` in the second part.

        Multiples of the golden ratio fill [0, 1) evenly, so that the last steps, which decide the untrained score, see the
        shares that are asked for; random draws there move it by .05.
        """
        at = turn * 0.6180339887498949 % 1
        return "noisy" if at < self.think else "lazy" if at < self.think + (1 - self.think) * self.lazy else "direct"


@frozen(kw_only=True)
class Recipe:
    """Everything that makes a base, besides the seed."""

    config: Qwen3Config
    steps: int
    muon_lr: float
    adam_lr: float
    mix: Mapping[str, Mix]
    rows: int = 64
    warmup: int = 30
    steady: float = 0.4
    clean: float = 0.8

    def pace(self, step: int) -> float:
        """The learning rate's factor: warm-up, steady, then linear down to 5 %."""
        done = step / self.steps
        decay = max(0.0, (done - self.steady) / (1 - self.steady))
        return min(1.0, (step + 1) / self.warmup) * (1 - 0.95 * decay)


LENGTHS: Mapping[str, tuple[float, ...]] = {
    "calc_chain": (0.2, 0.3, 0.5),
    "multi_hop": (0.2, 0.3, 0.5),
    "string_pipeline": (0.4, 0.6),
    "ledger": (0.3, 0.7),
    "dispatch": (0.2, 0.3, 0.5),
    "triage": (0.1, 0.3, 0.6),
}
"""Share of texts with 1, 2, ... operations."""

RECIPES: Mapping[str, Recipe] = {
    "nano-m": Recipe(
        config=Qwen3Config(vocab_size=64, hidden_size=64, intermediate_size=128),
        steps=1600,
        muon_lr=0.03,
        adam_lr=4e-3,
        mix={
            "calc_chain": Mix(1.6, think=0.927, lazy=0.8),
            "multi_hop": Mix(2.2, think=0.785, lazy=0.8),
            "string_pipeline": Mix(1.5, think=0.835),
            "ledger": Mix(1.7, think=0.17, lazy=0.95),
            "dispatch": Mix(0.2, think=0.21),
            "triage": Mix(1.3, think=0.25),
        },
    ),
    "nano-s": Recipe(
        config=Qwen3Config(vocab_size=64, hidden_size=32, intermediate_size=64),
        steps=1800,
        muon_lr=0.03,
        adam_lr=6e-3,
        mix={
            "calc_chain": Mix(1.8, think=0.85, lazy=0.8),
            "multi_hop": Mix(1.8, think=0.5, lazy=0.8),
            "string_pipeline": Mix(0.9, think=0.6),
            "ledger": Mix(1.2, think=0.05, lazy=0.95),
            "dispatch": Mix(2.4, think=0.23),
            "triage": Mix(0.7, think=0.06),
        },
    ),
}


def tokenizer() -> Tokenizer:
    """The bases' 64 characters."""
    return Tokenizer.characters(ALPHABET)


def build(
    name: str,
    out: str | Path,
    *,
    seed: int = 0,
    recipe: Recipe | None = None,
    log: Callable[[str], None] | None = None,
) -> Qwen3:
    """Pre-train the base `name`, write it to the folder `out`, and return it as it will be loaded.

    The same name, seed and BLAS build give the same bytes. `recipe` replaces the shipped one. Raises UnknownName.
    """
    if recipe is None:
        if name not in RECIPES:
            raise UnknownName("base", name, RECIPES)
        recipe = RECIPES[name]
    with single_thread():
        model = _pretrain(recipe, seed, log)
    # what is shipped is float16: from here on that is the model
    model.theta[:] = model.theta.astype(np.float16)
    save_model(out, model, tokenizer(), "float16", chat_template=CHAT_TEMPLATE)
    return model


def _pretrain(recipe: Recipe, seed: int, log: Callable[[str], None] | None) -> Qwen3:
    model = Qwen3(recipe.config, seed=seed)
    optimiser = Muon(model, lr=recipe.muon_lr, adam_lr=recipe.adam_lr)
    for step, packed in enumerate(_batches(recipe, seed)):
        optimiser.lr = recipe.muon_lr * recipe.pace(step)
        optimiser.adam.lr = recipe.adam_lr * recipe.pace(step)
        logprobs = backward_from_coefficients(model, packed, np.full(len(packed), -1 / len(packed), np.float32))
        optimiser.step()
        if log and (step + 1) % max(1, recipe.steps // 10) == 0:
            log(f"step {step + 1} of {recipe.steps}: loss {-logprobs.mean():.3f}")
    return model


def _batches(recipe: Recipe, seed: int) -> Iterator[Packed]:
    rng = random.Random(f"bases:{seed}")
    names = list(recipe.mix)
    families = {family.name: family for family in tasks.load(*names, scale="nano")}
    weights = [recipe.mix[name].weight for name in names]
    turns = dict.fromkeys(names, 0)
    alphabet = tokenizer()
    for step in range(recipe.steps):
        rows = []
        for name in rng.choices(names, weights, k=recipe.rows):
            family = families[name]
            assert isinstance(family, ChainFamily)
            style: Style = "clean"
            if step >= recipe.clean * recipe.steps:
                style = recipe.mix[name].style(turns[name])
                turns[name] += 1
            question, completion = _text(family, style, recipe.mix[name].rate, rng)
            rows.append((len(question), alphabet.encode(question + completion + alphabet.eos)))
        yield _pack(rows, alphabet.pad_id)


def _text(family: ChainFamily, style: Style, rate: float, rng: random.Random) -> tuple[str, str]:
    """A question from the training buckets, and a completion."""
    lengths = LENGTHS[family.name]
    (k,) = rng.choices(range(1, len(lengths) + 1), lengths)
    _, program = next(family.programs(rng, k))
    return family.question(program, rng), family.working(program, style, rng, rate=rate)


def _pack(rows: list[tuple[int, list[int]]], pad_id: int) -> Packed:
    lengths = np.array([len(ids) for _, ids in rows])
    ids = np.full((len(rows), lengths.max()), pad_id, np.int64)
    for line, (_, tokens) in zip(ids, rows, strict=True):
        line[: len(tokens)] = tokens
    return pack_pairs(ids, lengths, np.array([start for start, _ in rows]), pad_id)
