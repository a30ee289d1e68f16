"""The sampling server of a machine: prompts in, completions out, nothing else.

Started as a resident, `python -m nested_rl.nano.serve`; see `nested_rl.nano.lines` for the protocol. It never sees an answer. Of
a checkpoint it reads the tensors alone, from bytes whose digest the controller gave; config and tokenizer are the base's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from nested_rl.errors import SettingsError
from nested_rl.nano.folder import fill, load_model, weights_path
from nested_rl.nano.lines import Lines
from nested_rl.nano.model import Qwen3
from nested_rl.nano.sampling import Samples, generate, pad_left
from nested_rl.nano.threads import single_thread
from nested_rl.nano.tokenizer import Tokenizer

WEIGHTS = "model.safetensors"
_ROWS = 1024
"""Rows sampled at once."""


class Sampler:
    """Bases stay loaded; a checkpoint is read for each question."""

    def __init__(self) -> None:
        self._bases: dict[str, tuple[Qwen3, Tokenizer]] = {}

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """`base`, `prompts`, `samples`, `temperature`, `max_tokens`, `seed`, and of a checkpoint `path` and `digest`.

        Gives `completions` and `finished`, the samples of one prompt next to each other, and `tokens`, their sum; or
        `refused`, when the question itself cannot be asked of this model.
        """
        try:
            model, tokenizer = self._base(question["base"])
            prompts = [encode(tokenizer, model, prompt) for prompt in question["prompts"]]
        except SettingsError as error:
            return {"refused": str(error)}
        if question.get("path"):
            model = trained(model, Path(question["path"]), question["digest"])
        completions: list[str] = []
        finished: list[bool] = []
        tokens = 0
        for samples in _batches(model, prompts, tokenizer.pad_id, question):
            completions += [tokenizer.decode(row[:n]) for row, n in zip(samples.ids, samples.lengths, strict=True)]
            finished += samples.finished.tolist()
            tokens += int(samples.lengths.sum())
        return {"completions": completions, "finished": finished, "tokens": tokens}

    def _base(self, name: str) -> tuple[Qwen3, Tokenizer]:
        if name not in self._bases:
            self._bases[name] = load_model(weights_path(name))
        return self._bases[name]


def encode(tokenizer: Tokenizer, model: Qwen3, prompt: str) -> list[int]:
    """Ids of a prompt; raises SettingsError for one that is empty, too long, or has characters the model does not know.

    The text of a special token in it is taken as characters: a prompt cannot end itself.
    """
    ids = tokenizer.encode(prompt, specials=False)
    longest = model.config.max_position_embeddings
    if not ids:
        raise SettingsError("a prompt is empty")
    if len(ids) > longest:
        raise SettingsError(f"the prompt {prompt[:40]!r}... has {len(ids)} tokens, the model reads {longest}")
    if tokenizer.unk_id in ids:
        odd = prompt[ids.index(tokenizer.unk_id)] if len(ids) == len(prompt) else "?"
        raise SettingsError(f"the prompt {prompt[:40]!r} has a character that the model does not know: {odd!r}")
    return ids


def trained(base: Qwen3, folder: Path, digest: str) -> Qwen3:
    """A copy of the base with a checkpoint's tensors. Raises SettingsError when the file is not the one that was made."""
    where = folder / WEIGHTS
    data = where.read_bytes()
    if hashlib.sha256(data).hexdigest() != digest:
        raise SettingsError(f"{where} is not the file that training wrote: its sha256 differs from the recorded one")
    model = base.copy()
    fill(model, safetensors.numpy.load(data), where)
    return model


def _batches(model: Qwen3, prompts: list[list[int]], pad_id: int, question: Mapping[str, Any]) -> Iterator[Samples]:
    rng = np.random.default_rng(question["seed"])
    samples, longest = question["samples"], question["max_tokens"]
    at_once = max(1, _ROWS // samples)
    for start in range(0, len(prompts), at_once):
        some = pad_left(prompts[start : start + at_once], pad_id)
        yield generate(
            model,
            some,
            group=samples,
            max_new=longest,
            temperature=question["temperature"],
            # drawn row by row, so that what a prompt samples does not depend on how many are sampled at once
            uniforms=rng.random((len(some) * samples, longest)),
        )


def main() -> None:
    """Serve until the input ends."""
    sampler = Sampler()
    with single_thread():
        Lines.claim().serve(sampler.answer)


if __name__ == "__main__":
    main()
